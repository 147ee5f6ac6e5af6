//! The shell executor: a binding names one program and its arguments, and a segment runs it (X02).
//!
//! No shell parses anything: whoever wants one names `/bin/sh`. The process finds `os` first on its PATH, its socket
//! and the *path* of its token file in its environment; never a token. What it wrote is kept by the kernel.
#![forbid(unsafe_code)]

mod config;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use conduit_api::error::Diagnostic;
use conduit_api::http::env;
use conduit_api::{ApiError, Code};
use conduit_extension::{Executor, Phase, SegmentContext, SegmentEnd, Transport};
use conduit_kernel::{BaseEnvironment, Limits, OperationRequest, ProcessEnd, Terminal};
use serde_json::Value;

use config::Config;
pub use config::{playbook, validate};

/// The name that bindings use.
pub const NAME: &str = "shell";

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

/// Runs a binding's command.
#[derive(Debug)]
pub struct Shell {
    base: BaseEnvironment,
}

impl Shell {
    /// `base` is what every process is given; the PATH of a segment is `toolbelt_dir` and then the base's.
    pub const fn new(base: BaseEnvironment) -> Self {
        Self { base }
    }

    fn environment(&self, config: &Config, context: &SegmentContext, phase: Phase) -> Result<Environment, ApiError> {
        let mut env = Environment::default();
        let path = config.env.get("PATH").unwrap_or(&self.base.path);
        // What the binding names is laid first, so that it can never stand in for what the host says.
        env.values.extend(config.env.clone());
        env.put("PATH", &format!("{}:{path}", text(&context.toolbelt_dir)?));
        env.put(env::TOOLBELT_DIR, text(&context.toolbelt_dir)?);
        env.put(env::PLAYBOOK_DIR, text(&context.playbook_dir)?);
        env.put_path(env::ENDPOINT, context.endpoint.as_deref())?;
        env.put_path(env::TOKEN_FILE, context.token_file.as_deref())?;
        env.put(variable::WORK_ID, context.work_id.as_str());
        env.put(variable::EXECUTION_ID, context.execution_id.as_str());
        env.put(variable::SEGMENT, &context.segment.to_string());
        env.put(variable::ATTEMPT, &context.attempt.to_string());
        match &config.playbook {
            Some(name) => env.put(variable::PLAYBOOK, name),
            None => drop(env.values.remove(variable::PLAYBOOK)),
        }
        match phase {
            Phase::Run => env.values.remove(variable::RESUMED),
            Phase::Resume => env.values.insert(variable::RESUMED.to_owned(), "1".to_owned()),
        };
        Ok(env)
    }
}

#[derive(Debug, Default)]
struct Environment {
    values: BTreeMap<String, String>,
}

impl Environment {
    fn put(&mut self, name: &str, value: &str) {
        self.values.insert(name.to_owned(), value.to_owned());
    }
    fn put_path(&mut self, name: &str, path: Option<&Path>) -> Result<(), ApiError> {
        match path {
            Some(path) => self.put(name, text(path)?),
            None => {
                self.values.remove(name);
            }
        }
        Ok(())
    }
}

fn text(path: &Path) -> Result<&str, ApiError> {
    path.to_str()
        .ok_or_else(|| ApiError::new(Code::StateUnavailable, "the state directory's path is not UTF-8; move it"))
}

impl Executor for Shell {
    fn name(&self) -> &str {
        NAME
    }

    fn transport(&self) -> Transport {
        Transport::Toolbelt
    }

    /// A shell process cannot be suspended, so by default a wait ends it `waiting` and a new execution follows;
    /// `"resume": true` says that running the command again *is* resuming.
    fn resume_capable(&self, config: &Value) -> bool {
        Config::read(config).is_ok_and(|config| config.resume)
    }

    fn validate(&self, config: &Value, pointer: &str) -> Vec<Diagnostic> {
        config::validate(config, pointer)
    }

    fn playbook<'c>(&self, config: &'c Value) -> Option<&'c str> {
        config::playbook(config)
    }

    /// Errors: `invalid_config`; `working_directory_unavailable`, before anything is put on record. Whether the program
    /// can be run, the kernel says.
    fn plan(&self, config: &Value, context: &SegmentContext, phase: Phase) -> Result<OperationRequest, ApiError> {
        let config = Config::read(config)?;
        let (program, args) = config
            .command
            .split_first()
            .ok_or_else(|| ApiError::new(Code::InvalidConfig, "the binding's `command` is empty; name a program"))?;
        let cwd = config.cwd.clone().unwrap_or_else(|| context.run_dir.clone());
        if !cwd.is_dir() {
            let message = format!("the working directory {} is not there; make it, or change `cwd`", cwd.display());
            return Err(ApiError::new(Code::WorkingDirectoryUnavailable, message));
        }
        let request = OperationRequest {
            principal: format!("execution:{}", context.execution_id),
            client_request_id: format!("epoch:{}/segment:{}", context.epoch, context.segment),
            executable: PathBuf::from(program),
            args: args.to_vec(),
            cwd,
            env: self.environment(&config, context, phase)?.values,
            limits: Limits {
                timeout_ms: context.deadline_ms,
                output_bytes_max: config.output_bytes_max,
                stop_grace_ms: config.stop_grace_ms,
            },
            workspace_digest: None,
            channel: false,
        };
        request.check()?;
        Ok(request)
    }

    fn interpret(&self, terminal: &Terminal) -> SegmentEnd {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::{ExecutionId, WorkId};
    use serde_json::json;

    fn context(run_dir: &Path) -> SegmentContext {
        SegmentContext {
            execution_id: ExecutionId::from_parts(1, 2),
            work_id: WorkId::from_parts(1, 3),
            scope_id: "demo".parse().unwrap(),
            binding: "survey".into(),
            attempt: 1,
            epoch: 7,
            segment: 2,
            endpoint: Some(run_dir.join("toolbelt.sock")),
            token_file: Some(run_dir.join("token/token")),
            toolbelt_dir: "/opt/oc/bin".into(),
            playbook_dir: "/opt/oc/playbooks".into(),
            run_dir: run_dir.to_owned(),
            deadline_ms: 1000,
        }
    }

    fn shell() -> Shell {
        Shell::new(BaseEnvironment::of_home(Path::new("/home/u")))
    }

    /// X02, E04, E05
    #[test]
    fn a_segment_finds_os_first_on_its_path_and_its_socket_and_token_file_in_its_environment() {
        let base = tempfile::tempdir().unwrap();
        let config = json!({"command":["/bin/sh","-c","true"],"env":{"PATH":"/x","A":"b"}});
        let plan = shell().plan(&config, &context(base.path()), Phase::Run).unwrap();
        assert_eq!(plan.env["PATH"], "/opt/oc/bin:/x");
        assert_eq!(plan.env["A"], "b");
        assert_eq!(plan.env["OS_ENDPOINT"], base.path().join("toolbelt.sock").to_str().unwrap());
        assert_eq!(plan.env["OS_TOKEN_FILE"], base.path().join("token/token").to_str().unwrap());
        assert_eq!(plan.env["OS_TOOLBELT_DIR"], "/opt/oc/bin");
        assert_eq!(plan.env["OS_PLAYBOOK_DIR"], "/opt/oc/playbooks");
        assert_eq!(plan.env["OPEN_CONDUIT_SEGMENT"], "2");
        assert_eq!(plan.args, ["-c", "true"]);
        assert!(!plan.env.contains_key("OPEN_CONDUIT_RESUMED"));
    }

    /// X02
    #[test]
    fn each_epoch_is_an_operation_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        let config = json!({"command":["/bin/true"]});
        let first = shell().plan(&config, &context(base.path()), Phase::Run).unwrap();
        let next = SegmentContext { epoch: 8, ..context(base.path()) };
        let second = shell().plan(&config, &next, Phase::Resume).unwrap();
        assert_eq!(first.principal, second.principal);
        assert_ne!(first.client_request_id, second.client_request_id);
        assert_eq!(second.env["OPEN_CONDUIT_RESUMED"], "1");
    }

    /// X02
    #[test]
    fn a_working_directory_that_is_not_there_is_named_before_anything_is_on_record() {
        let base = tempfile::tempdir().unwrap();
        let config = json!({"command":["/bin/true"],"cwd":"/no/such/directory"});
        let refused = shell().plan(&config, &context(base.path()), Phase::Run).unwrap_err();
        assert_eq!(refused.code, Code::WorkingDirectoryUnavailable);
    }

    #[test]
    fn the_end_of_a_process_is_a_failure_that_may_be_tried_again_unless_it_never_started() {
        let end = ProcessEnd::NotStarted { code: "executable_unavailable".into(), message: "gone".into() };
        let SegmentEnd::Failed { code, retryable, .. } = shell().interpret(&Terminal::Failed { end }) else { panic!() };
        assert_eq!((code, retryable), (Code::ExecutableUnavailable, false));
        let end = ProcessEnd::Exited { code: 3 };
        let SegmentEnd::Failed { code, retryable, .. } = shell().interpret(&Terminal::Failed { end }) else { panic!() };
        assert_eq!((code, retryable), (Code::ProcessFailed, true));
        assert_eq!(shell().interpret(&Terminal::Lost), SegmentEnd::Lost);
    }
}
