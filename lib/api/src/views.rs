//! Management views: what an operator is shown. The same value makes the table and the `--json` document.

mod extensions;

pub use extensions::*;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::toolbelt::{Predicate, WaitMode};
use crate::{ArtifactId, EventId, ExecutionId, ScopeId, UnixMicros, WaitId, WorkId};

/// One page of a list. `next` goes back as `cursor`; absent on the last page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

/// `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HealthView {
    /// `ok`, or `degraded` when a part does not answer.
    pub status: String,
    pub version: String,
    pub generation: i64,
    pub config_hash: String,
    /// Whether the scheduler holds its lock, and the spawner holds its own.
    pub scheduler: bool,
    pub endpointd: bool,
    pub work: Map<String, Value>,
    pub executions_live: i64,
    pub events: i64,
    /// Installed packages that cannot be used.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub packages_failing: Vec<PackageFailure>,
}

/// `GET /v1/scopes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScopeView {
    pub id: ScopeId,
    pub enabled: bool,
    pub bindings: Vec<String>,
    pub routes: usize,
    pub generation: i64,
    pub work: Map<String, Value>,
}

/// `GET /v1/events/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventView {
    pub id: EventId,
    pub sequence: i64,
    pub scope_id: ScopeId,
    #[serde(rename = "type")]
    pub kind: String,
    pub source: String,
    pub delivery_id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub correlation_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub work_id: Option<WorkId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub execution_id: Option<ExecutionId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause_id: Option<EventId>,
    pub root_id: EventId,
    pub depth: i64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub actor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub schema: Option<String>,
    pub data: Value,
    pub accepted_at: UnixMicros,
    /// What routing did with it: `start`, `queue`, `inject`, `interrupt`, `wake`, `drop`, `unmatched`; absent while it is pending.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub route: Option<String>,
}

/// `GET /v1/events/{id}/chain`: every Event of one causal root, in acceptance order, at most [`crate::limits::CHAIN_EVENTS_MAX`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainView {
    pub root_id: EventId,
    pub events: Vec<EventView>,
    pub truncated: bool,
}

/// `GET /v1/work/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkView {
    pub id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub blocked_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent_work_id: Option<WorkId>,
    pub created_event_id: EventId,
    pub keys: Vec<String>,
    pub epoch: i64,
    /// Failed attempts that count against the binding's limit.
    pub failures: i64,
    pub created_at: UnixMicros,
    pub updated_at: UnixMicros,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub finished_at: Option<UnixMicros>,
    /// What the Work came to: `{"status", "summary"?, "data", "code"?}`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Value>,
    pub revision: i64,
}

/// `GET /v1/executions/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionView {
    pub id: ExecutionId,
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    pub generation: i64,
    pub attempt: i64,
    pub epoch: i64,
    pub segment: i64,
    pub state: String,
    /// Kernel attempt of the current segment.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempt_id: Option<String>,
    pub created_at: UnixMicros,
    /// When it passed start gates that were not asked, since an administrator had them bypassed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gates_bypassed_at: Option<UnixMicros>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_at: Option<UnixMicros>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub finished_at: Option<UnixMicros>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline_at: Option<UnixMicros>,
    /// Code of what went wrong.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usage: Option<Value>,
    pub revision: i64,
}

/// `GET /v1/waits/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitView {
    pub id: WaitId,
    pub work_id: WorkId,
    pub execution_id: ExecutionId,
    pub scope_id: ScopeId,
    pub mode: WaitMode,
    pub state: String,
    pub watermark: i64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_at: Option<UnixMicros>,
    pub predicates: Vec<PredicateView>,
    pub created_at: UnixMicros,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub finished_at: Option<UnixMicros>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredicateView {
    #[serde(flatten)]
    pub predicate: Predicate,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub matched_event_id: Option<EventId>,
}

/// `GET /v1/artifacts/{id}`; the bytes are at `/v1/artifacts/{id}/content`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArtifactView {
    pub id: ArtifactId,
    pub execution_id: ExecutionId,
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub segment: i64,
    pub name: String,
    pub media_type: String,
    /// SHA-256, lower-case hex.
    pub digest: String,
    pub bytes: i64,
    /// Bytes that the stream had beyond the retained ones.
    pub dropped_bytes: i64,
    pub created_at: UnixMicros,
}

/// Body of `POST /v1/events`: an operator's Event, accepted from source `core.manual`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmitRequest {
    pub scope_id: ScopeId,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub data: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_key: Option<String>,
    /// The Work that the Event is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_id: Option<WorkId>,
    /// The Event that this one follows from; without it the Event is a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause_id: Option<EventId>,
}

/// Answer of `POST /v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmitReply {
    pub event: EventView,
    pub replayed: bool,
}

/// Body of `POST /v1/work`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkCreateRequest {
    pub scope_id: ScopeId,
    pub binding: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub data: Map<String, Value>,
    #[serde(default)]
    pub keys: Vec<String>,
}

/// Answer of a control on a Work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkReply {
    pub work: WorkView,
    pub replayed: bool,
}

/// Answer of a control on an Execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionReply {
    pub execution: ExecutionView,
}

/// Body of `POST /v1/config/validate` and, with `expected_generation`, of `POST /v1/config/apply`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigRequest {
    /// The configuration document, as it is spelt: its faults are told by where they stand (C01).
    pub config: Box<RawValue>,
    /// The generation that the caller read; refused with `generation_conflict` when another is active.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "not_null")]
    pub expected_generation: Option<i64>,
}

/// Body of `POST /v1/config/set`: one value in the place of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigSetRequest {
    /// RFC 6901. Objects on the way that are not there are made; `-` is the place behind the last element of a list.
    pub pointer: String,
    pub value: Value,
    /// As for `POST /v1/config/apply`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "not_null")]
    pub expected_generation: Option<i64>,
}

/// Reads a number that may be left out and may not be null.
fn not_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    i64::deserialize(deserializer).map(Some)
}

/// Answer of validate, apply and set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigReply {
    pub valid: bool,
    pub config_hash: Option<String>,
    /// The active generation after the request.
    pub generation: i64,
    pub diagnostics: Vec<crate::error::Diagnostic>,
    /// What is accepted and may still not be what was meant (S06).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<GrantWarning>,
}

/// A grant that lags what a playbook uses or what a toolset has gained; it never fails a configuration (S06).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantWarning {
    pub scope: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The playbook that uses the operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub playbook: Option<String>,
    /// The toolset whose older version the list spells out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolset: Option<String>,
    /// What is lacking.
    pub operations: Vec<String>,
    pub message: String,
    /// What grants them, to be run in this order.
    pub commands: Vec<String>,
}

/// `GET /v1/config`: the active generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigView {
    pub generation: i64,
    pub config_hash: String,
    pub published_at: UnixMicros,
    /// `start`, or the operator who applied it.
    pub published_by: String,
    /// Normalized, with every text of an executor's part redacted.
    pub config: Value,
}
