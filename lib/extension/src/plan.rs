//! From what an executor names to the operation that the kernel is asked for.
//!
//! An executor chooses a program, its arguments, its directory and variables of its own. Who asks, under which name, for how
//! long, and what the process is told about its segment is the host's, so that no executor can say otherwise.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use conduit_api::http::env;
use conduit_api::{ApiError, Code};
use conduit_kernel::{Limits, OperationRequest, Resources};
use serde::Deserialize;

use crate::{Phase, SegmentContext};

/// Names of the variables that say which segment a process is.
pub mod variable {
    pub const WORK_ID: &str = "OPEN_CONDUIT_WORK_ID";
    pub const EXECUTION_ID: &str = "OPEN_CONDUIT_EXECUTION_ID";
    pub const SEGMENT: &str = "OPEN_CONDUIT_SEGMENT";
    /// Ordinal of the execution in its Work, from 1.
    pub const ATTEMPT: &str = "OPEN_CONDUIT_ATTEMPT";
    /// The playbook that the binding names, which stands in `skills/` of the playbook directory; absent without one.
    pub const PLAYBOOK: &str = "OPEN_CONDUIT_PLAYBOOK";
    /// Absent in the first segment, `1` in one that follows a wait.
    pub const RESUMED: &str = "OPEN_CONDUIT_RESUMED";
}

/// What an executor chooses.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Absolute.
    pub executable: PathBuf,
    #[serde(default)]
    pub args: Vec<String>,
    /// The run directory without it.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// What the host says about the segment is laid over it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub output_bytes_max: Option<u64>,
    #[serde(default)]
    pub stop_grace_ms: Option<u64>,
}

impl Plan {
    /// The operation of one segment: each epoch and segment of an execution is one of its own (K01). `path` is the PATH of a
    /// plan that has none; the directory of `os` stands before it.
    ///
    /// Errors: `working_directory_unavailable`, before anything is put on record; `invalid_request` for what no process can
    /// be given; `state_unavailable`. Whether the program can be run, the kernel says.
    pub fn operation(
        self,
        path: &str,
        playbook: Option<&str>,
        context: &SegmentContext,
        phase: Phase,
    ) -> Result<OperationRequest, ApiError> {
        let cwd = self.cwd.unwrap_or_else(|| context.run_dir.clone());
        if cwd.is_absolute() && !cwd.is_dir() {
            let message = format!("the working directory {} is not there; make it, or change `cwd`", cwd.display());
            return Err(ApiError::new(Code::WorkingDirectoryUnavailable, message));
        }
        let request = OperationRequest {
            principal: format!("execution:{}", context.execution_id),
            client_request_id: format!("epoch:{}/segment:{}", context.epoch, context.segment),
            executable: self.executable,
            args: self.args,
            cwd,
            env: environment(self.env, path, playbook, context, phase)?,
            limits: Limits {
                timeout_ms: context.deadline_ms,
                output_bytes_max: self.output_bytes_max,
                stop_grace_ms: self.stop_grace_ms,
                resources: Resources::default(),
            },
            workspace_digest: None,
            channel: false,
        };
        request.check()?;
        Ok(request)
    }
}

/// `own`, and over it what the host says, so that `own` can never stand in for that (X02, E04, E05).
fn environment(
    own: BTreeMap<String, String>,
    path: &str,
    playbook: Option<&str>,
    context: &SegmentContext,
    phase: Phase,
) -> Result<BTreeMap<String, String>, ApiError> {
    let mut env = own;
    let path = env.get("PATH").map_or(path, String::as_str);
    let path = format!("{}:{path}", text(&context.toolbelt_dir)?);
    let mut say = |name: &str, value: Option<&str>| match value {
        Some(value) => drop(env.insert(name.to_owned(), value.to_owned())),
        None => drop(env.remove(name)),
    };
    say("PATH", Some(&path));
    say(env::TOOLBELT_DIR, Some(text(&context.toolbelt_dir)?));
    say(env::PLAYBOOK_DIR, Some(text(&context.playbook_dir)?));
    say(env::ENDPOINT, context.endpoint.as_deref().map(text).transpose()?);
    say(env::TOKEN_FILE, context.token_file.as_deref().map(text).transpose()?);
    say(variable::WORK_ID, Some(context.work_id.as_str()));
    say(variable::EXECUTION_ID, Some(context.execution_id.as_str()));
    say(variable::SEGMENT, Some(&context.segment.to_string()));
    say(variable::ATTEMPT, Some(&context.attempt.to_string()));
    say(variable::PLAYBOOK, playbook);
    say(variable::RESUMED, (phase == Phase::Resume).then_some("1"));
    Ok(env)
}

fn text(path: &Path) -> Result<&str, ApiError> {
    path.to_str()
        .ok_or_else(|| ApiError::new(Code::StateUnavailable, "the state directory's path is not UTF-8; move it"))
}
