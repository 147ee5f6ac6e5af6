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

    fn interpret<'a>(&'a self, ended: &'a Ended) -> Answer<'a, Result<SegmentEnd, Failure>> {
        Box::pin(async move {
            let Some(terminal) = told(&ended.terminal) else {
                return Ok(crate::by_exit_status(&ended.terminal));
            };
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
            self.ask(async move |extension: Rc<dyn Extension>| extension.interpret(&call).await).await
        })
    }
}

impl std::fmt::Debug for Provided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provided").field("name", &self.spec.name).finish_non_exhaustive()
    }
}
