//! Toolbelts with one fault each: the negative controls. A case that its control passes would prove nothing.

use std::collections::HashMap;

use conduit_api::toolbelt::CallResponse;
use conduit_api::{ApiError, Code};
use conduit_extension::Answer;
use serde_json::{Map, Value, json};

use crate::call::{Answered, Call, Implementation};

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    SkipsTheFence,
    ForgetsNarrowing,
    ForgetsTheSocket,
    IgnoresDenials,
    KeepsDisabledExtensions,
    IgnoresTheAllowlist,
    TellsWhy,
    ForgetsRequests,
    ForgetsWhatWasAsked,
    ReplaysAcrossExecutions,
    FinalizesFailures,
    RewritesErrors,
    LetsSquattersIn,
    GatesFailOpen,
    GatesBuiltins,
    EmitsWhatever,
    SkipsTheSchema,
    KeepsAuthorityAfterAWait,
}

pub struct Broken {
    fault: Fault,
    sound: Box<dyn Implementation>,
    /// What it remembers of earlier calls, under whatever name its fault gives them.
    before: HashMap<String, Answered>,
    calls: u32,
}

impl Broken {
    /// A sound toolbelt, and in front of it whatever is wrong.
    pub fn over(sound: Box<dyn Implementation>, fault: Fault) -> Self {
        Self { fault, sound, before: HashMap::new(), calls: 0 }
    }

    async fn answer(&mut self, mut call: Call) -> Answered {
        use Fault as F;
        self.calls += 1;
        let asked = call.clone();
        let operation = asked.request.operation.as_str();
        let id = asked.request.request_id.clone().unwrap_or_default();
        match self.fault {
            F::ForgetsNarrowing => {
                (call.request.scope_id, call.request.work_id, call.request.execution_id) = (None, None, None);
            }
            F::ForgetsRequests => call.request.request_id = Some(format!("r{}", self.calls)),
            F::GatesBuiltins if !operation.contains('.') => {
                return Err(ApiError::new(Code::GateFailed, "a gate was asked about a builtin"));
            }
            _ => {}
        }
        let remembered = match self.fault {
            F::SkipsTheFence => Some(format!("{} {operation}", call.token)),
            F::ForgetsTheSocket => Some(format!("{} {operation}", call.token)),
            F::IgnoresDenials | F::KeepsDisabledExtensions => Some(format!("{} {operation}", call.token)),
            F::KeepsAuthorityAfterAWait => Some(format!("{} read_context", call.token)),
            F::ForgetsWhatWasAsked | F::FinalizesFailures => Some(format!("{} {operation} {id}", call.socket)),
            F::ReplaysAcrossExecutions => Some(format!("{operation} {id}")),
            _ => None,
        };
        let before = remembered.as_ref().and_then(|key| self.before.get(key)).cloned();
        if let (Some(before), F::ForgetsWhatWasAsked | F::FinalizesFailures | F::ReplaysAcrossExecutions) =
            (&before, self.fault)
        {
            return before.clone();
        }
        let answer = self.sound.call(call).await;
        let refused = answer.as_ref().err().map(|error| error.code_text().to_owned());
        let answer = match (self.fault, refused.as_deref()) {
            // It answers whomever it has answered before.
            (
                F::SkipsTheFence | F::ForgetsTheSocket | F::IgnoresDenials | F::KeepsDisabledExtensions,
                Some("forbidden"),
            )
            | (F::SkipsTheFence | F::KeepsAuthorityAfterAWait, Some("authority_released")) => before.unwrap_or(answer),
            (F::IgnoresTheAllowlist, Some("forbidden"))
            | (F::EmitsWhatever, Some("event_not_allowed"))
            | (F::SkipsTheSchema, Some("invalid_request"))
            | (F::GatesFailOpen, Some("gate_failed")) => Ok(CallResponse::new(Value::Null)),
            (F::LetsSquattersIn, None) => Ok(CallResponse::new(json!("the squatter's"))),
            (F::RewritesErrors, Some(_)) => Err(ApiError::new(Code::Internal, "something went wrong")),
            (F::TellsWhy, Some("forbidden")) => {
                let why = if asked.token.len() < 20 { "the token is unknown" } else { "the epoch was superseded" };
                Err(ApiError::new(Code::Forbidden, why))
            }
            _ => answer,
        };
        if let Some(key) = remembered {
            self.before.entry(key).or_insert_with(|| answer.clone());
        }
        answer
    }
}

impl Implementation for Broken {
    fn call(&mut self, call: Call) -> Answer<'_, Answered> {
        Box::pin(self.answer(call))
    }
}

/// The input of most calls.
pub fn n(n: i64) -> Value {
    Value::Object(Map::from_iter([("n".to_owned(), json!(n))]))
}
