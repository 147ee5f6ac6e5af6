//! What an extension registers, as data: nothing here runs, and nothing is checked yet (see `rules`).

use conduit_api::Version;
pub use conduit_config::{Member, Playbook, Toolset};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything that one extension adds to a toolbelt (T16). A package's manifest and an extension in this process say the
/// same by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Owns the namespace `<name>.*`.
    pub name: String,
    pub version: Version,
    /// One line for people.
    pub summary: String,
    /// Whether it is active in a generation that says nothing about it; otherwise an operator has to enable it.
    #[serde(default)]
    pub always: bool,
    #[serde(default)]
    pub operations: Vec<OperationSpec>,
    /// The event families that it may write.
    #[serde(default)]
    pub event_families: Vec<String>,
    #[serde(default)]
    pub toolsets: Vec<Toolset>,
    /// Whether it is asked before another registration's operation runs (G01).
    #[serde(default)]
    pub gate: bool,
    /// Whether it is asked before a Work's first attempt (G06).
    #[serde(default)]
    pub start_gate: bool,
    #[serde(default)]
    pub playbooks: Vec<Playbook>,
    /// What an operator can ask of it.
    #[serde(default)]
    pub actions: Vec<ActionSpec>,
    /// The event families that Waits which it declares may name: its dependency filter.
    #[serde(default)]
    pub wait_families: Vec<String>,
    /// JSON Schema of its settings, an object; without one it takes none.
    #[serde(default)]
    pub settings: Option<Value>,
    /// Whether it is asked about settings that keep the schema, for what no schema says.
    #[serde(default)]
    pub validate: bool,
    /// What bindings can name as their executor (X01).
    #[serde(default)]
    pub executors: Vec<ExecutorSpec>,
}

impl Registration {
    /// A registration that adds nothing yet.
    pub fn new(name: impl Into<String>, version: Version, summary: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version,
            summary: summary.into(),
            always: false,
            operations: Vec::new(),
            event_families: Vec::new(),
            toolsets: Vec::new(),
            gate: false,
            start_gate: false,
            playbooks: Vec::new(),
            actions: Vec::new(),
            wait_families: Vec::new(),
            settings: None,
            validate: false,
            executors: Vec::new(),
        }
    }
}

/// One executor: what a binding may name, and what the host has to know without asking it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutorSpec {
    /// `<registration>` or `<registration>.<suffix>`
    pub name: String,
    pub summary: String,
    /// JSON Schema of a binding's `config`, which is an object.
    pub config: Value,
    #[serde(default)]
    pub transport: ExecutorTransport,
    /// Whether an execution parks at a wait and goes on in a new segment.
    #[serde(default)]
    pub resume_capable: bool,
    /// The field of `config` that names the playbook on which a binding starts its turns (S05).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub playbook_field: Option<String>,
}

/// How a process of an executor reaches the toolbelt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorTransport {
    /// Through its own socket and token.
    #[default]
    Toolbelt,
    /// Not at all: no socket is made and no token is issued (T02).
    None,
}

/// One operation of a toolbelt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationSpec {
    /// `<registration>.<suffix>`, where the suffix is one name or several joined by dots.
    pub name: String,
    /// One line for people and for agents.
    pub summary: String,
    /// JSON Schema of the input, which is an object.
    pub input: Value,
    /// Whether the handler may run again for the same request after a crash (T14).
    #[serde(default = "yes")]
    pub idempotent: bool,
    #[serde(default)]
    pub kind: OperationKind,
    /// What else it serves, by the names that `serving` asks for.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The event families that its callers have to be allowed.
    #[serde(default)]
    pub families: Vec<String>,
}

impl OperationSpec {
    /// An idempotent operation that a handler carries out.
    pub fn new(name: impl Into<String>, summary: impl Into<String>, input: Value) -> Self {
        Self {
            name: name.into(),
            summary: summary.into(),
            input,
            idempotent: true,
            kind: OperationKind::Handler,
            capabilities: Vec::new(),
            families: Vec::new(),
        }
    }

    #[must_use]
    pub fn kind(mut self, kind: OperationKind) -> Self {
        self.kind = kind;
        self
    }
}

/// How an operation is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// By the host itself, in the call's own transaction; no registration has one.
    #[serde(skip)]
    Builtin,
    /// By the extension, outside any transaction (T13).
    #[default]
    Handler,
    /// By the extension, which changes nothing: asked again it looks again, so nothing of the call is kept to answer by.
    Read,
    /// The extension translates the input to a Wait, which is declared like `wait` (T17).
    Wait,
    /// The extension translates the input to an Event, which is accepted like `emit`'s (T17).
    Emission,
}

/// One action that operators can invoke.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionSpec {
    /// `<registration>.<suffix>`
    pub name: String,
    pub summary: String,
    /// JSON Schema of the input, which is an object.
    pub input: Value,
    pub role: ActionRole,
}

/// The least role of an operator who may invoke an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionRole {
    View,
    Operate,
    Admin,
}

impl ActionRole {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

const fn yes() -> bool {
    true
}
