//! What extensions and executors look like to the suite, whoever wrote them.
//!
//! An [`Extension`] adds operations, gates and actions to a toolbelt; one interface serves those in this process and
//! installed packages (X01). An [`Executor`] decides *what* to run, and what an ending means; it starts nothing: the
//! scheduler takes its plan through the kernel, the one path by which this suite starts a process.
#![forbid(unsafe_code)]

pub mod desk;
mod executor;
pub mod host;
mod interface;
pub mod package;
mod plan;
mod provided;

pub use executor::{
    Ended, Executor, Output, Phase, SegmentContext, SegmentEnd, TAIL_BYTES_MAX, Transport, by_exit_status,
};
pub use interface::{
    Action, Answer, Authority, EndCall, Extension, Failure, GateAnswer, GateCall, Invocation, Invoked, OperationError,
    Pass, PlanCall, SettingFault, StartCall, WaitPlan,
};
pub use plan::{Plan, variable};
pub use provided::{EXECUTOR_TIME_MAX, Provided};
