//! The shell executor: a binding names one program and its arguments, and a segment runs it (X02).
//!
//! No shell parses anything: whoever wants one names `/bin/sh`. The process finds `os` first on its PATH, its socket
//! and the *path* of its token file in its environment; never a token. What it wrote is kept by the kernel.
#![forbid(unsafe_code)]

mod config;

use std::path::PathBuf;

use conduit_api::{ApiError, Code};
use conduit_extension::{Answer, Executor, Phase, Plan, SegmentContext, Transport};
use conduit_kernel::{BaseEnvironment, OperationRequest};
use serde_json::Value;

use config::Config;
pub use config::{playbook, validate};

/// The name that bindings use.
pub const NAME: &str = "shell";

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

    /// Errors: `invalid_config`; those of [`Plan::operation`].
    fn planned(&self, config: &Value, context: &SegmentContext, phase: Phase) -> Result<OperationRequest, ApiError> {
        let config = Config::read(config)?;
        let (program, args) = config
            .command
            .split_first()
            .ok_or_else(|| ApiError::new(Code::InvalidConfig, "the binding's `command` is empty; name a program"))?;
        let plan = Plan {
            executable: PathBuf::from(program),
            args: args.to_vec(),
            cwd: config.cwd,
            env: config.env,
            output_bytes_max: config.output_bytes_max,
            stop_grace_ms: config.stop_grace_ms,
        };
        plan.operation(&self.base.path, config.playbook.as_deref(), context, phase)
    }
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

    fn plan<'a>(
        &'a self,
        config: &'a Value,
        context: &'a SegmentContext,
        phase: Phase,
    ) -> Answer<'a, Result<OperationRequest, ApiError>> {
        Box::pin(async move { self.planned(config, context, phase) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        let plan = shell().planned(&config, &context(base.path()), Phase::Run).unwrap();
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
        let first = shell().planned(&config, &context(base.path()), Phase::Run).unwrap();
        let next = SegmentContext { epoch: 8, ..context(base.path()) };
        let second = shell().planned(&config, &next, Phase::Resume).unwrap();
        assert_eq!(first.principal, second.principal);
        assert_ne!(first.client_request_id, second.client_request_id);
        assert_eq!(second.env["OPEN_CONDUIT_RESUMED"], "1");
    }

    /// X02
    #[test]
    fn a_working_directory_that_is_not_there_is_named_before_anything_is_on_record() {
        let base = tempfile::tempdir().unwrap();
        let config = json!({"command":["/bin/true"],"cwd":"/no/such/directory"});
        let refused = shell().planned(&config, &context(base.path()), Phase::Run).unwrap_err();
        assert_eq!(refused.code, Code::WorkingDirectoryUnavailable);
    }
}
