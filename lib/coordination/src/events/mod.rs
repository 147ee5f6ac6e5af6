//! Events: accepted once, in one order, each with its cause.
//!
//! [`accept`] is the only way in. It gives an Event its acceptance sequence and its place in a causal chain, whose
//! bounds are pinned by the first Event that follows from the chain's root (T08). Routing comes later.

mod accept;
pub mod bounds;

pub(crate) use accept::accept_derived;
pub use accept::{Accepted, Delivery, NewEvent, Unknown, accept, accept_core, is_delivered, look_up};

/// Sources that the host itself accepts Events from.
pub mod source {
    /// The host: lifecycle of Works and Waits.
    pub const CORE: &str = "core";
    /// An operator.
    pub const MANUAL: &str = "core.manual";
    /// An operator's action, other than an Event or a Work of its own.
    pub const ACTION: &str = "core.action";

    const EXECUTION: &str = "execution:";

    /// The source of what an execution emits.
    pub fn execution(id: &conduit_api::ExecutionId) -> String {
        format!("{EXECUTION}{id}")
    }

    /// The execution whose source this is.
    pub(crate) fn is_execution(source: &str) -> Option<&str> {
        source.strip_prefix(EXECUTION)
    }
}

/// Types of the Events that the host accepts from itself.
pub mod kind {
    pub const WORK_CREATED: &str = "core.work.created";
    pub const WORK_FINISHED: &str = "core.work.finished";
    pub const WAIT_TIMED_OUT: &str = "core.wait.timed_out";
    pub const WORK_RETRIED: &str = "core.work.retried";
    pub const EXECUTION_CANCELLED: &str = "core.execution.cancelled";
    pub const EXECUTION_HELD: &str = "core.execution.held";
    pub const GATES_BYPASSED: &str = "core.gates.bypassed";
    pub const GATES_RESTORED: &str = "core.gates.restored";
    /// An operator said whether a request that was in doubt was carried out.
    pub const REQUEST_RESOLVED: &str = "core.request.resolved";
    /// An operator had an extension carry an action out.
    pub const ACTION_DONE: &str = "core.action.done";
    /// The family that only the host emits.
    pub const CORE_FAMILY: &str = "core";
}
