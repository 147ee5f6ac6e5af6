//! Views of what extensions add: packages, gates, approvals, requests in doubt, and decisions explained.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{ApprovalId, BypassId, EventId, ExecutionId, ScopeId, UnixMicros, Version, WorkId};

/// A package that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageFailure {
    pub name: String,
    pub since: UnixMicros,
    pub why: String,
}

/// `GET /v1/packages/{id}`, and what the orders about packages answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PackageView {
    pub name: String,
    pub version: Version,
    pub summary: String,
    pub operations: Vec<String>,
    pub toolsets: Vec<String>,
    pub actions: Vec<String>,
    /// What bindings can name as their executor.
    #[serde(default)]
    pub executors: Vec<String>,
    /// What it needs beyond its own operations.
    pub permissions: Vec<String>,
    /// What each of its processes may use.
    pub limits: PackageLimits,
    /// SHA-256 over its files, lower-case hex.
    pub digest: String,
    /// Whether the active generation enables it.
    pub enabled: bool,
    /// Absent while it is not installed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub installed_at: Option<UnixMicros>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub installed_by: Option<String>,
    /// The installed version that it would take the place of.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replaces: Option<Version>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failing: Option<PackageFailure>,
}

/// What each process of a package may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageLimits {
    /// Memory that is its own to write, in MiB.
    pub memory_mib: u64,
    pub files: u64,
    /// The largest file that it writes, in MiB.
    pub file_mib: u64,
}

/// Body of `POST /v1/check/package` and `POST /v1/packages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageRequest {
    /// The package's directory: an absolute path on the server's machine.
    pub path: String,
    /// What was looked at before: only these bytes are installed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
}

/// `GET /v1/gates`: what is asked before operations and first attempts, and the times in which nothing is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatesView {
    /// The active registrations that are asked before other registrations' operations, in the order in which they are.
    pub gates: Vec<String>,
    /// Those that are asked before a Work's first attempt.
    pub start_gates: Vec<String>,
    /// The newest first, those that have ended too.
    pub bypasses: Vec<BypassView>,
}

/// A time in which gates are not asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BypassView {
    pub id: BypassId,
    /// Every scope, when there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scope_id: Option<ScopeId>,
    pub actor: String,
    pub reason: String,
    /// Whether it holds at this moment.
    pub holds: bool,
    pub until: UnixMicros,
    pub created_at: UnixMicros,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub restored_at: Option<UnixMicros>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub restored_by: Option<String>,
}

/// Body of `POST /v1/gates/bypass`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BypassRequest {
    /// 1 to 3600.
    pub seconds: u64,
    pub reason: String,
    /// Every scope, when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<ScopeId>,
}

/// `GET /v1/approvals/{id}`: what an operator is asked for (G07).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalView {
    pub id: ApprovalId,
    /// `pending`, `approved`, `denied`, `expired`, `consumed`.
    pub state: String,
    pub scope_id: ScopeId,
    pub binding: String,
    pub work_id: WorkId,
    /// That asked; absent when a Work asks to start.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub execution_id: Option<ExecutionId>,
    /// Absent when a Work asks to start.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub operation: Option<String>,
    /// The input of the call, shortened, and without what looks like a secret.
    pub input: Value,
    /// Names the exact call: SHA-256, lower-case hex.
    pub call_digest: String,
    /// `once`, `execution`, `work`, `until`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reach: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until: Option<UnixMicros>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
    /// Who decided.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub actor: Option<String>,
    /// The execution and the request that it let through; of an approval of one call.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used_execution_id: Option<ExecutionId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used_request_id: Option<String>,
    pub created_at: UnixMicros,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_at: Option<UnixMicros>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decided_at: Option<UnixMicros>,
    pub revision: i64,
}

/// Body of `POST /v1/approvals/{id}/approve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApproveRequest {
    #[serde(rename = "for", default)]
    pub reach: Reach,
    /// With `until` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMicros>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Body of `POST /v1/approvals/{id}/deny`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenyRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// `GET /v1/doubts`: a request of which nobody knows whether it was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubtView {
    pub execution_id: ExecutionId,
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    pub operation: String,
    pub request_id: String,
    /// When its handler was started last.
    pub began_at: UnixMicros,
}

/// Body of `POST /v1/doubts/resolve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoubtResolveRequest {
    pub execution_id: ExecutionId,
    pub operation: String,
    pub request_id: String,
    pub outcome: DoubtOutcome,
    /// What it answered, when it was done; `null` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
}

/// What became of a request that was in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubtOutcome {
    /// It was carried out: the same request gets its answer from now on.
    Done,
    /// It was not: the same request may be made again.
    NotDone,
}

impl DoubtOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotDone => "not_done",
        }
    }
}

/// One rule of a decision, in its place in the order (T05).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckView {
    /// 1: the token. 2: what the call asserts. 3: the operation. 4: the configuration. 5: the lease. 6: a gate. 7: a budget.
    pub check: u8,
    /// What refuses the call.
    pub refuses_when: String,
    pub outcome: CheckOutcome,
}

/// What became of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    Passed,
    Refused,
    /// A gate had the caller wait.
    Parked,
    /// An administrator had gates bypassed.
    Bypassed,
    NotAsked,
}

impl CheckOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Refused => "refused",
            Self::Parked => "parked",
            Self::Bypassed => "bypassed",
            Self::NotAsked => "not asked",
        }
    }
}

/// `GET /v1/explain/{id}`: what is on record of the calls under one request ID, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainView {
    pub request_id: String,
    pub calls: Vec<DecisionView>,
}

/// One call as it was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionView {
    pub at: UnixMicros,
    pub operation: String,
    /// `ok`, or the code of the refusal.
    pub result: String,
    /// Which rule refused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rule: Option<String>,
    /// `config_drift` where the caller's pinned playbook relies on the operation (S07).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub execution_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub work_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scope_id: Option<String>,
    /// That the caller's token is pinned to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<i64>,
    /// Empty when the call ended before it was decided, by a fault or by the kind of its credential.
    pub checks: Vec<CheckView>,
}

/// `GET /v1/executions/{id}/can-i/{id}` and `GET /v1/scopes/{id}/bindings/{id}/can-i/{id}`: the decision, asked beforehand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanIView {
    /// Whether every rule passes; gates are asked only when the call is made.
    pub allowed: bool,
    pub operation: String,
    pub scope_id: ScopeId,
    pub binding: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub execution_id: Option<ExecutionId>,
    /// That is active now.
    pub generation: i64,
    pub checks: Vec<CheckView>,
}

/// How often, and for whom, an approval lets the very call through that it was given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// One call.
    #[default]
    Once,
    /// Every such call of the execution that goes on with it.
    Execution,
    /// Every such call of the Work.
    Work,
    /// Every such call of the Work until a time.
    Until,
}

impl Reach {
    pub const ALL: [Self; 4] = [Self::Once, Self::Execution, Self::Work, Self::Until];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Execution => "execution",
            Self::Work => "work",
            Self::Until => "until",
        }
    }
}

/// One item of `GET /v1/extensions`: what a release or a package has registered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExtensionView {
    pub name: String,
    pub version: Version,
    pub summary: String,
    /// Whether it is an installed package.
    pub package: bool,
    /// Whether the active generation has it.
    pub active: bool,
    /// The scopes that it is active in; absent for every one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scopes: Option<Vec<String>>,
    pub gate: bool,
    pub start_gate: bool,
    pub operations: Vec<String>,
    pub actions: Vec<ActionView>,
}

/// What an operator can ask of an extension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionView {
    pub name: String,
    pub summary: String,
    /// The least role: `view`, `operate` or `admin`.
    pub role: String,
    /// JSON Schema of the input.
    pub input: Value,
}

/// Body of `POST /v1/extensions/{id}/actions/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionRequest {
    /// The scope that it is done in.
    pub scope_id: ScopeId,
    #[serde(default)]
    pub input: Map<String, Value>,
}

/// What an action came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionReply {
    pub action: String,
    pub scope_id: ScopeId,
    /// The Event that has it on record.
    pub event_id: EventId,
    pub output: Value,
    /// Whether it had been done before, under the same key.
    pub replayed: bool,
}
