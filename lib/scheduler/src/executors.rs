//! The executors that bindings name: those of this release, and those that extensions provide.

use std::rc::Rc;

use conduit_api::{ApiError, Code};
use conduit_config::Snapshot;
use conduit_executor_shell::Shell;
use conduit_extension::{Answer, Executor, Phase, Provided, SegmentContext, Transport};
use conduit_kernel::{BaseEnvironment, OperationRequest};
use serde_json::Value;

use crate::host::Host;

/// The executors of this release.
#[derive(Clone)]
pub struct Executors {
    own: Vec<Rc<dyn Executor>>,
    base: BaseEnvironment,
}

impl Executors {
    /// `base` is what every process is given.
    pub fn of_this_release(base: &BaseEnvironment) -> Self {
        Self { own: vec![Rc::new(Shell::new(base.clone()))], base: base.clone() }
    }

    fn get(&self, name: &str) -> Option<Rc<dyn Executor>> {
        self.own.iter().find(|executor| executor.name() == name).cloned()
    }
}

/// The executor `name`, as the generation of `snapshot` has it. One that does not run, or that nobody registers any more, is no
/// fault here: it is found out when it is asked.
pub fn executor(host: &Host, name: &str, snapshot: &Snapshot) -> Rc<dyn Executor> {
    if let Some(own) = host.executors.get(name) {
        return own;
    }
    let registry = Rc::clone(host.known.borrow().registry());
    let Some((registration, spec)) = registry.executor(name) else {
        return Rc::new(Absent { name: name.to_owned() });
    };
    let extension = host.extensions.get().and_then(|extensions| extensions.extension(&registration.name));
    let settings = snapshot.settings(&registration.name);
    Rc::new(Provided::new(spec.clone(), extension, settings, host.executors.base.clone()))
}

/// An executor that was there when the generation was validated, and that no registration has now. It starts nothing, and
/// what it had started is judged by its exit status.
struct Absent {
    name: String,
}

impl Executor for Absent {
    fn name(&self) -> &str {
        &self.name
    }

    fn transport(&self) -> Transport {
        Transport::Toolbelt
    }

    fn resume_capable(&self, _config: &Value) -> bool {
        false
    }

    fn plan<'a>(
        &'a self,
        _config: &'a Value,
        _context: &'a SegmentContext,
        _phase: Phase,
    ) -> Answer<'a, Result<OperationRequest, ApiError>> {
        let message = format!("nothing that is installed has the executor `{}`", self.name);
        Box::pin(async { Err(ApiError::new(Code::ExecutorUnavailable, message)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_config::Registry;
    use serde_json::json;

    /// C01
    #[test]
    fn every_executor_of_this_release_is_one_that_a_configuration_may_name() {
        let references = conduit_release::references(&conduit_release::registry());
        let executors = Executors::of_this_release(&BaseEnvironment::of_home("/".as_ref()));
        for executor in &executors.own {
            assert!(references.validate_executor(executor.name(), &json!({}), "/c").is_some(), "{}", executor.name());
        }
    }

    /// K01, T12
    #[tokio::test]
    async fn a_start_by_an_executor_that_nobody_has_any_more_is_a_fault_of_the_host() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let world = crate::testing::World::new();
                let snapshot = world.host.store.borrow_mut().read(|r| world.host.active(r)).unwrap();
                let gone = executor(&world.host, "courier", &snapshot);
                assert!(!gone.interprets() && gone.name() == "courier");
                let context = SegmentContext {
                    execution_id: conduit_api::ExecutionId::from_parts(1, 2),
                    work_id: conduit_api::WorkId::from_parts(1, 3),
                    scope_id: "calm".parse().unwrap(),
                    binding: "b".into(),
                    attempt: 1,
                    epoch: 1,
                    segment: 1,
                    endpoint: None,
                    token_file: None,
                    toolbelt_dir: "/bin".into(),
                    playbook_dir: "/".into(),
                    run_dir: "/".into(),
                    deadline_ms: 1,
                };
                let refused = gone.plan(&json!({}), &context, Phase::Run).await.unwrap_err();
                assert!(crate::segment::passes(refused.code), "{refused:?}");
            })
            .await;
    }
}
