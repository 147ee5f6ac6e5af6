//! The executor interface: an executor decides *what* to run, and what an ending means; it starts nothing.
//!
//! The scheduler takes an executor's plan through the kernel, the one path by which this suite starts a process.

use std::path::PathBuf;

use conduit_api::error::Diagnostic;
use conduit_api::{ApiError, Code, ExecutionId, ScopeId, WorkId};
use conduit_kernel::{OperationRequest, Terminal};
use serde_json::Value;

/// What an executor may know about the segment that it plans. No token: only where its file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentContext {
    pub execution_id: ExecutionId,
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    /// Ordinal of the execution in its Work, from 1.
    pub attempt: i64,
    pub epoch: i64,
    /// Ordinal of the segment in its execution, from 1.
    pub segment: i64,
    /// The execution's toolbelt socket; `None` when its transport is [`Transport::None`].
    pub endpoint: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    /// Directory that holds `os`.
    pub toolbelt_dir: PathBuf,
    pub playbook_dir: PathBuf,
    pub run_dir: PathBuf,
    /// Milliseconds from the start of the process to its deadline.
    pub deadline_ms: u64,
}

/// How a process of this executor reaches the toolbelt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Through its own socket and token.
    Toolbelt,
    /// Not at all: no socket is made and no token is issued (T02).
    None,
}

/// Whether a segment is the first of its execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Run,
    /// After a wait, in an executor that is resume-capable.
    Resume,
}

/// What the end of a process means when the segment declared nothing; a declaration goes before it (T12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentEnd {
    Succeeded,
    /// `retryable`: whether the binding's failure policy may try again.
    Failed {
        code: Code,
        message: String,
        retryable: bool,
    },
    Cancelled,
    /// Nobody can say what happened.
    Lost,
}

/// Something that knows how to run a binding's Work.
pub trait Executor {
    /// The name that bindings use.
    fn name(&self) -> &str;
    fn transport(&self) -> Transport;
    /// Whether an execution with this configuration parks at a wait and resumes, rather than ending `waiting`.
    fn resume_capable(&self, config: &Value) -> bool;
    /// Every fault of `config`, which stands at `pointer`.
    fn validate(&self, config: &Value, pointer: &str) -> Vec<Diagnostic>;
    /// The playbook that a binding with `config` starts its turns on (S05).
    fn playbook<'c>(&self, config: &'c Value) -> Option<&'c str>;
    /// What to run; whether its executable can be run, the kernel says. Errors: `working_directory_unavailable`,
    /// `invalid_config`.
    fn plan(&self, config: &Value, context: &SegmentContext, phase: Phase) -> Result<OperationRequest, ApiError>;
    fn interpret(&self, terminal: &Terminal) -> SegmentEnd;
}
