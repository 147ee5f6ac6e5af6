//! An executor that an extension provides (X01): what its registration says is known without asking, plans and meanings are
//! asked for. It names programs; like every executor it starts none.

use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code};
use conduit_kernel::{BaseEnvironment, OperationRequest, ProcessEnd, Terminal};
use conduit_toolbelt::registry::{ExecutorSpec, ExecutorTransport};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::host::{alone, refusal_of};
use crate::{
    Answer, EndCall, Ended, Executor, Extension, Failure, Phase, Plan, PlanCall, SegmentContext, SegmentEnd, Transport,
};

/// How long one plan, or one word on an ending, may take.
pub const EXECUTOR_TIME_MAX: Duration = Duration::from_secs(10);

/// One executor of one extension, as a generation has it.
pub struct Provided {
    spec: ExecutorSpec,
    /// `None` when the extension is not there at this moment.
    extension: Option<Rc<dyn Extension>>,
    /// The settings of the extension in that generation.
    settings: Value,
    base: BaseEnvironment,
}

impl Provided {
    pub const fn new(
        spec: ExecutorSpec,
        extension: Option<Rc<dyn Extension>>,
        settings: Value,
        base: BaseEnvironment,
    ) -> Self {
        Self { spec, extension, settings, base }
    }

    /// Asks in a task of its own, and keeps to the deadline.
    async fn ask<T: 'static>(
        &self,
        question: impl AsyncFnOnce(Rc<dyn Extension>) -> Result<T, Failure> + 'static,
    ) -> Result<T, Failure> {
        let Some(extension) = self.extension.clone() else {
            return Err(Failure::Unavailable("its extension is not there".into()));
        };
        let asked = alone(async move { question(extension).await });
        timeout(EXECUTOR_TIME_MAX, asked).await.unwrap_or_else(|_| Err(Failure::Failed("it took too long".into())))
    }

    fn unanswered(&self, refused: Failure) -> ApiError {
        let name = &self.spec.name;
        let refusal = match refused {
            Failure::Refused(refusal) => refusal_of(refusal),
            Failure::Unavailable(why) | Failure::Failed(why) => Err(why),
        };
        match refusal {
            Ok(refusal) => {
                let message = format!("the executor `{name}` refuses: {}: {}", refusal.code_text(), refusal.message);
                ApiError::new(Code::ExecutorRefused, message)
            }
            Err(why) => {
                tracing::warn!(executor = name, why, "an executor did not plan");
                ApiError::new(
                    Code::ExecutorUnavailable,
                    format!("the executor `{name}` did not say what to run: {why}"),
                )
            }
        }
    }

    async fn planned(
        &self,
        config: &Value,
        context: &SegmentContext,
        phase: Phase,
    ) -> Result<OperationRequest, ApiError> {
        let told = serde_json::to_value(context)
            .map_err(|_| ApiError::new(Code::StateUnavailable, "the state directory's path is not UTF-8; move it"))?;
        let call = PlanCall {
            executor: self.spec.name.clone(),
            config: config.clone(),
            settings: self.settings.clone(),
            context: told,
            phase,
        };
        let plan = self.ask(async move |extension: Rc<dyn Extension>| extension.plan(&call).await).await;
        let plan: Plan = plan.map_err(|refused| self.unanswered(refused))?;
        if let Some(name) = plan.env.keys().find(|name| name.starts_with("OS_") || name.starts_with("OPEN_CONDUIT_")) {
            let message = format!("the executor `{}` sets {name}, which is the host's", self.spec.name);
            return Err(ApiError::new(Code::ExecutorRefused, message));
        }
        let playbook = self.spec.playbook_field.as_ref().and_then(|field| config.get(field)?.as_str());
        plan.operation(&self.base.path, playbook, context, phase).map_err(|error| match error.code {
            // Asking again would bring the same: it is the plan that has to change.
            Code::InvalidRequest => {
                let message = format!("the executor `{}` names what cannot be run: {}", self.spec.name, error.message);
                ApiError::new(Code::ExecutorRefused, message)
            }
            _ => error,
        })
    }
}

/// How an ending is told; `None` for one that leaves nothing to say: nobody knows how it ended, the host ended it, or it
/// never began.
fn told(terminal: &Terminal) -> Option<Value> {
    match terminal {
        Terminal::Succeeded => Some(json!({"result": "succeeded", "exit_code": 0})),
        Terminal::Failed { end: ProcessEnd::Exited { code } } => Some(json!({"result": "failed", "exit_code": code})),
        Terminal::Failed { end: ProcessEnd::Signalled { signal } } => {
            Some(json!({"result": "failed", "signal": signal}))
        }
        Terminal::TimedOut => Some(json!({"result": "timed_out"})),
        Terminal::Failed { end: ProcessEnd::NotStarted { .. } } | Terminal::Cancelled | Terminal::Lost => None,
    }
}

impl Executor for Provided {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn transport(&self) -> Transport {
        match self.spec.transport {
            ExecutorTransport::Toolbelt => Transport::Toolbelt,
            ExecutorTransport::None => Transport::None,
        }
    }

    fn resume_capable(&self, _config: &Value) -> bool {
        self.spec.resume_capable
    }

    fn plan<'a>(
        &'a self,
        config: &'a Value,
        context: &'a SegmentContext,
        phase: Phase,
    ) -> Answer<'a, Result<OperationRequest, ApiError>> {
        Box::pin(self.planned(config, context, phase))
    }

    fn interprets(&self) -> bool {
        true
    }

    fn interpret<'a>(&'a self, ended: &'a Ended) -> Answer<'a, Result<Option<SegmentEnd>, Failure>> {
        Box::pin(async move {
            let Some(terminal) = told(&ended.terminal) else { return Ok(None) };
            let call = EndCall {
                executor: self.spec.name.clone(),
                config: ended.config.clone(),
                settings: self.settings.clone(),
                execution_id: ended.execution_id.clone(),
                work_id: ended.work_id.clone(),
                scope_id: ended.scope_id.clone(),
                binding: ended.binding.clone(),
                attempt: ended.attempt,
                segment: ended.segment,
                terminal,
                outputs: ended.outputs.clone(),
            };
            self.ask(async move |extension: Rc<dyn Extension>| extension.interpret(&call).await).await.map(Some)
        })
    }
}

impl std::fmt::Debug for Provided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provided").field("name", &self.spec.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::{ExecutionId, WorkId};
    use conduit_toolbelt::registry::Registration;

    use crate::{Invocation, Invoked, OperationError};

    /// An extension with an executor that plans as the test says.
    struct Errands(fn(&PlanCall) -> Result<Plan, Failure>);

    impl Extension for Errands {
        fn registration(&self) -> Registration {
            Registration::new("errands", conduit_api::Version::new(1, 0, 0), "Errands")
        }
        fn invoke<'a>(&'a self, _: &'a Invocation) -> Answer<'a, Result<Invoked, Failure>> {
            Box::pin(async { Err(Failure::Failed("it has no operations".into())) })
        }
        fn plan<'a>(&'a self, call: &'a PlanCall) -> Answer<'a, Result<Plan, Failure>> {
            Box::pin(async { (self.0)(call) })
        }
    }

    fn provided(extension: Option<Rc<dyn Extension>>) -> Provided {
        let spec = ExecutorSpec {
            name: "errands".into(),
            summary: "Runs errands".into(),
            config: json!({"type": "object"}),
            transport: ExecutorTransport::None,
            resume_capable: false,
            playbook_field: Some("guide".into()),
        };
        Provided::new(spec, extension, json!({"pace": 2}), BaseEnvironment::of_home("/home/u".as_ref()))
    }

    fn context(run_dir: &std::path::Path) -> SegmentContext {
        SegmentContext {
            execution_id: ExecutionId::from_parts(1, 2),
            work_id: WorkId::from_parts(1, 3),
            scope_id: "demo".parse().unwrap(),
            binding: "b".into(),
            attempt: 1,
            epoch: 7,
            segment: 1,
            endpoint: None,
            token_file: None,
            toolbelt_dir: "/opt/oc/bin".into(),
            playbook_dir: "/opt/oc/playbooks".into(),
            run_dir: run_dir.to_owned(),
            deadline_ms: 1000,
        }
    }

    fn plan() -> Plan {
        serde_json::from_value(json!({"executable": "/bin/true", "env": {"PATH": "/own", "MINE": "1"}})).unwrap()
    }

    async fn planned(answer: fn(&PlanCall) -> Result<Plan, Failure>) -> Result<OperationRequest, ApiError> {
        let base = tempfile::tempdir().unwrap();
        let (executor, context) = (provided(Some(Rc::new(Errands(answer)))), context(base.path()));
        let config = json!({"guide": "os"});
        let local = tokio::task::LocalSet::new();
        local.run_until(executor.plan(&config, &context, Phase::Run)).await
    }

    /// X01, E04, E05
    #[tokio::test]
    async fn a_plan_becomes_an_operation_in_which_identity_deadline_and_the_hosts_variables_are_the_hosts() {
        let request = planned(|call| {
            assert_eq!((&call.settings["pace"], &call.config["guide"]), (&json!(2), &json!("os")));
            assert!(call.context.get("token_file").is_none());
            Ok(plan())
        });
        let request = request.await.unwrap();
        assert_eq!(request.principal, format!("execution:{}", ExecutionId::from_parts(1, 2)));
        assert_eq!((request.client_request_id.as_str(), request.limits.timeout_ms), ("epoch:7/segment:1", 1000));
        assert_eq!((request.env["PATH"].as_str(), request.env["MINE"].as_str()), ("/opt/oc/bin:/own", "1"));
        assert_eq!(request.env[crate::variable::PLAYBOOK], "os");
        assert!(!request.env.contains_key("OS_TOKEN_FILE") && !request.channel);
    }

    /// X01
    #[tokio::test]
    async fn what_cannot_be_run_is_refused_for_good_and_who_does_not_answer_is_asked_again() {
        type Answers = fn(&PlanCall) -> Result<Plan, Failure>;
        let answers: [(Answers, Code); 7] = [
            (|_| Err(Failure::Refused(OperationError::new("no", "Not today"))), Code::ExecutorRefused),
            (|_| Ok(Plan { executable: "true".into(), ..plan() }), Code::ExecutorRefused),
            (|_| Ok(Plan { args: vec!["\0".into()], ..plan() }), Code::ExecutorRefused),
            (|_| Ok(Plan { env: [("OS_ENDPOINT".into(), "/x".into())].into(), ..plan() }), Code::ExecutorRefused),
            (|_| Ok(Plan { cwd: Some("/no/such".into()), ..plan() }), Code::WorkingDirectoryUnavailable),
            (|_| Err(Failure::Failed("it crashed".into())), Code::ExecutorUnavailable),
            (|_| panic!("a fault of the extension's"), Code::ExecutorUnavailable),
        ];
        for (place, (answer, code)) in answers.into_iter().enumerate() {
            assert_eq!(planned(answer).await.unwrap_err().code, code, "{place}");
        }
        let refused = provided(None).plan(&json!({}), &context("/".as_ref()), Phase::Run).await.unwrap_err();
        assert_eq!(refused.code, Code::ExecutorUnavailable);
    }

    /// X01, K10
    #[tokio::test]
    async fn nobody_is_asked_what_it_means_that_nothing_ran_or_that_nobody_knows() {
        let ended = |terminal: Terminal| Ended {
            config: json!({}),
            execution_id: ExecutionId::from_parts(1, 2),
            work_id: WorkId::from_parts(1, 3),
            scope_id: "demo".parse().unwrap(),
            binding: "b".into(),
            attempt: 1,
            segment: 1,
            terminal,
            outputs: Vec::new(),
        };
        let executor = provided(None);
        let never = ProcessEnd::NotStarted { code: "executable_unavailable".into(), message: "gone".into() };
        for terminal in [Terminal::Lost, Terminal::Cancelled, Terminal::Failed { end: never }] {
            assert_eq!(executor.interpret(&ended(terminal)).await, Ok(None));
        }
        let killed = Terminal::Failed { end: ProcessEnd::Signalled { signal: 9 } };
        for terminal in [Terminal::Succeeded, Terminal::TimedOut, killed] {
            assert!(matches!(executor.interpret(&ended(terminal)).await, Err(Failure::Unavailable(_))));
        }
    }
}
