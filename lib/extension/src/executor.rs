//! The executor interface: an executor decides *what* to run, and what an ending means; it starts nothing.
//!
//! The scheduler takes an executor's plan through the kernel, the one path by which this suite starts a process.

use std::path::PathBuf;

use conduit_api::{ApiError, Code, ExecutionId, ScopeId, WorkId};
use conduit_kernel::{OperationRequest, ProcessEnd, Terminal};
use serde::Serialize;
use serde_json::Value;

use crate::{Answer, Failure};

/// What an executor may know about the segment that it plans. No token: only where its file is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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

/// A process that has ended, put before the executor that planned it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The binding's `config`.
    pub config: Value,
    pub execution_id: ExecutionId,
    pub work_id: WorkId,
    pub scope_id: ScopeId,
    pub binding: String,
    pub attempt: i64,
    pub segment: i64,
    pub terminal: Terminal,
    pub outputs: Vec<Output>,
}

/// What a process wrote to one of its streams, as far as it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Output {
    /// `stdout` or `stderr`.
    pub name: String,
    /// SHA-256, lower-case hex.
    pub digest: String,
    pub bytes: u64,
    pub dropped_bytes: u64,
    /// The last of it, at most [`TAIL_BYTES_MAX`]; what is no UTF-8 is replaced.
    pub tail: String,
}

/// Bytes of a stream's end that an executor is shown.
pub const TAIL_BYTES_MAX: u64 = 4096;

/// Something that knows how to run a binding's Work.
pub trait Executor {
    /// The name that bindings use.
    fn name(&self) -> &str;
    fn transport(&self) -> Transport;
    /// Whether an execution with this configuration parks at a wait and resumes, rather than ending `waiting`.
    fn resume_capable(&self, config: &Value) -> bool;
    /// What to run; whether its executable can be run, the kernel says. It is asked before anything is on record, and not
    /// again for what was admitted.
    ///
    /// Errors: `working_directory_unavailable`, `invalid_config`, `executor_refused`; `executor_unavailable`, which passes.
    fn plan<'a>(
        &'a self,
        config: &'a Value,
        context: &'a SegmentContext,
        phase: Phase,
    ) -> Answer<'a, Result<OperationRequest, ApiError>>;
    /// Whether an ending has to be put before it; otherwise it means what [`by_exit_status`] says.
    fn interprets(&self) -> bool {
        false
    }
    /// What an ending means; asked of one that says so alone, once the ending is on record. `None` when nobody was asked: it
    /// means what [`by_exit_status`] says.
    fn interpret<'a>(&'a self, _ended: &'a Ended) -> Answer<'a, Result<Option<SegmentEnd>, Failure>> {
        Box::pin(async { Ok(None) })
    }
}

/// The plain rule: a process has succeeded when it exited with status 0.
pub fn by_exit_status(terminal: &Terminal) -> SegmentEnd {
    match terminal {
        Terminal::Succeeded => SegmentEnd::Succeeded,
        Terminal::Failed { end } => {
            let (code, message) = end.describe();
            // What never started for a reason of the binding's own will not start the next time either.
            let retryable = !matches!(end, ProcessEnd::NotStarted { .. });
            SegmentEnd::Failed { code, message, retryable }
        }
        Terminal::TimedOut => SegmentEnd::Failed {
            code: Code::DeadlineExceeded,
            message: "the process ran past its deadline and was stopped".into(),
            retryable: true,
        },
        Terminal::Cancelled => SegmentEnd::Cancelled,
        Terminal::Lost => SegmentEnd::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_a_failure_that_may_be_tried_again_unless_it_never_started() {
        let meaning = |end: ProcessEnd| match by_exit_status(&Terminal::Failed { end }) {
            SegmentEnd::Failed { code, retryable, .. } => (code, retryable),
            other => panic!("{other:?}"),
        };
        let never = ProcessEnd::NotStarted { code: "executable_unavailable".into(), message: "gone".into() };
        assert_eq!(meaning(never), (Code::ExecutableUnavailable, false));
        assert_eq!(meaning(ProcessEnd::Exited { code: 3 }), (Code::ProcessFailed, true));
        assert_eq!(by_exit_status(&Terminal::Lost), SegmentEnd::Lost);
    }
}
