//! Toolbelt calls on the wire: what a running process may ask for, and what it is told.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{EventId, ExecutionId, ScopeId, UnixMicros, WaitId, WorkId};

/// The builtin operations.
pub mod operation {
    pub const EMIT: &str = "emit";
    pub const CREATE_WORK: &str = "create_work";
    pub const WAIT: &str = "wait";
    pub const DECLARE_OUTCOME: &str = "declare_outcome";
    pub const READ_CONTEXT: &str = "read_context";

    pub const BUILTINS: [&str; 5] = [EMIT, CREATE_WORK, WAIT, DECLARE_OUTCOME, READ_CONTEXT];
}

/// The body of `POST /v1/toolbelt/call`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRequest {
    pub operation: String,
    /// Makes the call replayable (T14). Without it the `Idempotency-Key` header stands in; without both, the call is not replayable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(default)]
    pub input: Map<String, Value>,
    /// Narrowing assertions (T05): refused unless they name what the token names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<ScopeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_id: Option<WorkId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
}

impl CallRequest {
    /// A call without input, request ID or assertions.
    pub fn new(operation: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            request_id: None,
            input: Map::new(),
            scope_id: None,
            work_id: None,
            execution_id: None,
        }
    }
}

/// The answer to a call that was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallResponse {
    /// Whether this is the answer of an earlier call with the same request ID.
    pub replayed: bool,
    pub output: Value,
    /// The Wait that was declared for the caller, by the operation or by a gate: authority is released (T17, G03).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<WaitInput>,
}

impl CallResponse {
    /// The first answer to a request.
    pub const fn new(output: Value) -> Self {
        Self { replayed: false, output, declared: None }
    }

    /// The recorded answer to a request that was made before.
    pub fn replayed(output: Value) -> Self {
        Self { replayed: true, ..Self::new(output) }
    }
}

/// Input of `emit`. Source, Work, Execution and cause are assigned by the host (T08).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmitInput {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub data: Map<String, Value>,
    /// Namespaced name of the schema that `data` follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// One of the keys that the Work owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_key: Option<String>,
    /// Names this delivery: the same one is accepted once. Defaults to the request ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<String>,
    /// Refused when present, with a name for what was tried (T08).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Value>,
}

/// Output of `emit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmitOutput {
    pub event_id: EventId,
    /// The acceptance sequence.
    pub sequence: i64,
}

/// Input of `create_work`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateWorkInput {
    /// A binding of the caller's own scope that the caller's binding may delegate to.
    pub binding: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What the child is to know: the `data` of its `core.work.created` Event.
    #[serde(default)]
    pub data: Map<String, Value>,
    /// Correlation keys that the child owns.
    #[serde(default)]
    pub keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Value>,
}

/// Output of `create_work`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateWorkOutput {
    pub work_id: WorkId,
    pub event_id: EventId,
}

/// How many predicates of a wait have to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitMode {
    Any,
    All,
}

/// One thing to wait for. A predicate with only a type subscribes on the Work's own keys (T12).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicate {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_key: Option<String>,
    /// The Work that the Event is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_id: Option<WorkId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// JSON pointers into the Event's data, and the value that has to stand there.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
}

/// Input of `wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitInput {
    pub mode: WaitMode,
    pub predicates: Vec<Predicate>,
    /// Seconds until the wait ends unmatched, at most a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Events accepted after this sequence count; defaults to what the attempt had been told of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<i64>,
}

/// Input of `declare_outcome`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeInput {
    pub status: OutcomeStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    #[serde(default)]
    pub data: Map<String, Value>,
}

/// How a Work ended, in the words of the process that did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeStatus {
    Succeeded,
    Failed,
}

/// Output of `wait` and `declare_outcome`: the declaration is on record, and authority is released (T11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredOutput {
    pub declared: Declared,
}

/// What a segment declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Declared {
    Wait,
    Outcome,
}

/// Output of `read_context` (T10): never a secret, never a token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextView {
    pub scope_id: ScopeId,
    pub work: ContextWork,
    pub execution: ContextExecution,
    /// What this execution may call.
    pub grants: ContextGrants,
    /// Events that are this Work's input, oldest first, at most [`crate::limits::CONTEXT_INPUTS_MAX`].
    pub inputs: Vec<ContextInput>,
    /// How many inputs there are in all.
    pub inputs_total: u64,
    /// The Work's waits, newest first.
    pub waits: Vec<ContextWait>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextWork {
    pub id: WorkId,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
    pub binding: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent_work_id: Option<WorkId>,
    pub keys: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextExecution {
    pub id: ExecutionId,
    pub attempt: i64,
    pub epoch: i64,
    pub segment: i64,
    /// Sequence of the newest input that this segment was told of.
    pub acknowledged: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextGrants {
    pub operations: Vec<String>,
    /// Event families that `emit` may use.
    pub events: Vec<String>,
    /// Bindings that `create_work` may name.
    pub delegates: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextInput {
    pub event_id: EventId,
    pub sequence: i64,
    #[serde(rename = "type")]
    pub kind: String,
    pub source: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub correlation_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub work_id: Option<WorkId>,
    /// `null` when it is `truncated`.
    pub data: Value,
    /// Whether the data was left out, because that of newer ones took up [`crate::limits::CONTEXT_DATA_BYTES_MAX`].
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub truncated: bool,
    pub accepted_at: UnixMicros,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextWait {
    pub id: WaitId,
    pub mode: WaitMode,
    pub state: String,
    /// The Events that matched, in the order of the predicates; at most [`crate::limits::CONTEXT_MATCHES_MAX`] of all
    /// waits together, those of newer waits first.
    pub matches: Vec<ContextInput>,
    /// How many matched in all.
    pub matches_total: u64,
}
