//! The extension interface (X01): what an extension is asked, and what it may answer.
//!
//! Nothing here holds a token. What an extension learns about its caller is [`Authority`], which the toolbelt validated
//! under the lease; what it may do is answer. Every write that follows from an answer is the toolbelt's.

use std::future::Future;
use std::pin::Pin;

pub use conduit_api::host::SettingFault;
use conduit_api::toolbelt::{EmitInput, WaitInput};
use conduit_api::{ExecutionId, ScopeId, WorkId};
use conduit_store::Write;
use conduit_toolbelt::registry::Registration;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::desk::Fault;
use crate::{Output, Phase, Plan, SegmentEnd};

/// An answer that may take a while. Whoever asks sets the deadline; an answer that is dropped is not wanted any more.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Who calls, as the toolbelt found it: validated, and never the token (T13).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    pub execution_id: ExecutionId,
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    /// Lease epoch of the calling segment.
    pub epoch: i64,
    /// Configuration generation that the execution is pinned to.
    pub generation: i64,
}

/// One call of one of the extension's own operations; its input kept the operation's schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    pub operation: String,
    /// Names the request: the same one is the same request, also after a crash.
    pub request_id: String,
    pub input: Map<String, Value>,
    pub authority: Authority,
    /// The extension's own settings, in the generation that the call was decided by.
    pub settings: Value,
}

/// What a handler came to.
#[derive(Debug, Clone)]
pub enum Invoked {
    /// It is done; this is its output.
    Output(Value),
    /// For an operation that translates to a Wait (T17).
    Wait(WaitPlan),
    /// For an operation that translates to an Event (T17): accepted like `emit`'s.
    Emission(EmitInput),
}

/// A Wait that is declared for the caller, like one of its own, and what the call returns besides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitPlan {
    pub wait: WaitInput,
    #[serde(default)]
    pub output: Value,
}

/// A refusal in the extension's own words: 422 with its code and message (T13).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
#[serde(deny_unknown_fields)]
pub struct OperationError {
    /// `snake_case`, of the extension's own choice.
    pub code: String,
    pub message: String,
}

impl OperationError {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// Why there is no answer of the extension's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] OperationError),
    /// It was not asked, or says that it did nothing: the same request may be made again.
    #[error("the extension is not available: {0}")]
    Unavailable(String),
    /// It crashed, hung, or answered what it may not: whether anything happened is unknown.
    #[error("the extension failed: {0}")]
    Failed(String),
}

/// A call of somebody else's operation, put before a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateCall {
    pub operation: String,
    pub request_id: String,
    pub input: Map<String, Value>,
    pub authority: Authority,
    /// Names the exact call: Work, operation and input, whatever the request ID and the execution. A decision is bound to it.
    /// SHA-256, 64 lower-case hex digits.
    pub call_digest: String,
    /// The settings of the gate's extension, in the generation that the call was decided by.
    pub settings: Value,
}

/// The three answers of a gate (G03).
#[derive(Debug, Clone, PartialEq)]
pub enum GateAnswer {
    LetThrough,
    /// The caller waits, and calls again when it goes on.
    Park(WaitPlan),
    Refuse(OperationError),
}

/// Whether what a gate let through still stands when the call is about to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// It stands, whatever becomes of the call.
    Free,
    /// It stands and is used up by this call, unless that does nothing.
    Used,
    /// It does not stand any more: the gates are asked anew.
    Over,
}

/// A Work about to start its first attempt, put before a start gate (G06).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCall {
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    /// The settings of the gate's extension, in the generation that the start is decided by.
    pub settings: Value,
}

impl StartCall {
    /// A call whose settings are those of nobody yet: the host puts each gate's own in.
    pub fn new(work_id: WorkId, scope_id: ScopeId, binding: impl Into<String>) -> Self {
        Self { work_id, scope_id, binding: binding.into(), settings: Value::Object(Map::new()) }
    }
}

/// A segment that an executor of the extension's is to plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanCall {
    pub executor: String,
    /// The binding's `config`, which keeps the executor's schema.
    pub config: Value,
    /// The extension's settings in the generation that the execution is pinned to.
    pub settings: Value,
    /// A [`SegmentContext`](crate::SegmentContext), as an object.
    pub context: Value,
    pub phase: Phase,
}

/// A process that an executor of the extension's planned, and that has ended: what does its end mean?
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndCall {
    pub executor: String,
    pub config: Value,
    pub settings: Value,
    pub execution_id: ExecutionId,
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    /// Ordinal of the execution in its Work, from 1.
    pub attempt: i64,
    pub segment: i64,
    /// `result` (`succeeded`, `failed`, `timed_out`), and `exit_code` or `signal`.
    pub terminal: Value,
    pub outputs: Vec<Output>,
}

/// An operator's action. The operator was authenticated, and has the role that the action asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub name: String,
    /// The scope that it is done in; the extension is active there.
    pub scope_id: ScopeId,
    /// Names the request: the same one is the same request, also after a crash.
    pub request_id: String,
    pub input: Map<String, Value>,
    /// `operator:<name>` (M06).
    pub actor: String,
    /// The extension's own settings, in the generation that is active.
    pub settings: Value,
}

/// An extension. What its registration does not declare is never asked.
pub trait Extension {
    /// What it adds; asked once.
    fn registration(&self) -> Registration;

    /// Carries out one of its operations, or translates it. The same `request_id` may come again.
    fn invoke<'a>(&'a self, call: &'a Invocation) -> Answer<'a, Result<Invoked, Failure>>;

    /// Judges a call of somebody else's operation (G02). Error: what makes the host refuse the call by itself (G04).
    fn gate<'a>(&'a self, _call: &'a GateCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        Box::pin(async { Err(Failure::Failed("it has no gate".into())) })
    }

    /// The call that its gate let through is about to run: what it uses up goes in `tx`, which commits the call's intent. For
    /// what comes with the suite; a package has no say here.
    fn pass(&self, _call: &GateCall, _tx: &Write<'_>) -> Result<Pass, Fault> {
        Ok(Pass::Free)
    }

    /// The call for which it answered [`Pass::Used`] did nothing: `tx`, which withdraws the call's intent, undoes that.
    fn give_back(&self, _call: &GateCall, _tx: &Write<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// The call for which it answered [`Pass::Used`] was carried out, in `tx`, and leaves no answer that the same request would
    /// get again: asked anew, it is another call, and its use is over.
    fn close(&self, _call: &GateCall, _tx: &Write<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// Judges a Work before its first attempt (G06).
    fn start_gate<'a>(&'a self, _call: &'a StartCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        Box::pin(async { Err(Failure::Failed("it has no start gate".into())) })
    }

    /// Looks at settings that keep the schema of its registration, for what no schema says; changes nothing.
    fn validate<'a>(&'a self, _settings: &'a Value) -> Answer<'a, Result<Vec<SettingFault>, Failure>> {
        Box::pin(async { Err(Failure::Failed("it does not look at settings".into())) })
    }

    /// Says what one of its executors runs. It is asked again after a crash, until the plan was admitted.
    fn plan<'a>(&'a self, _call: &'a PlanCall) -> Answer<'a, Result<Plan, Failure>> {
        Box::pin(async { Err(Failure::Failed("it has no executors".into())) })
    }

    /// Says what the end of such a process means. It is asked again after a crash, until the answer is on record.
    fn interpret<'a>(&'a self, _call: &'a EndCall) -> Answer<'a, Result<SegmentEnd, Failure>> {
        Box::pin(async { Err(Failure::Failed("it has no executors".into())) })
    }

    /// Carries out an operator's action.
    fn act<'a>(&'a self, _action: &'a Action) -> Answer<'a, Result<Value, Failure>> {
        Box::pin(async { Err(Failure::Failed("it has no actions".into())) })
    }
}
