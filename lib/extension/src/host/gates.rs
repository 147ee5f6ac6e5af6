//! Gates: each registration but the owner's is asked before an operation runs, in the order of names, within one deadline
//! over them all; whatever is not one of the three answers refuses (G02–G04, design §9.7).

use std::rc::Rc;
use std::time::Duration;

use conduit_api::toolbelt::WaitInput;
use conduit_api::{ApiError, Code};
use conduit_store::digest::hex;
use conduit_toolbelt::hosted::Admitted;
use conduit_toolbelt::registry::Registration;
use tokio::time::{Instant, timeout_at};

use super::{alone, authority, refusal_of};
use crate::{Extension, Failure, GateAnswer, GateCall, WaitPlan};

/// How long all gates of one call may take together.
pub const GATES_TIME_MAX: Duration = Duration::from_secs(10);

/// What the gates came to. The name is that of the gate which decided.
#[derive(Debug)]
pub(super) enum Gated {
    Through,
    Parked { gate: String, plan: WaitPlan },
    Refused { gate: String, error: ApiError },
}

/// Asks one gate after another about `admitted`; `extensions` gives the extension of a registration.
pub(super) async fn ask(admitted: &Admitted, extensions: impl Fn(&str) -> Option<Rc<dyn Extension>>) -> Gated {
    let end = Instant::now() + GATES_TIME_MAX;
    let asked = |registration: &&Registration| {
        registration.gate && registration.name != admitted.extension() && admitted.registers(&registration.name)
    };
    for registration in admitted.registry().registrations().iter().filter(asked) {
        let gate = registration.name.clone();
        let answer = match extensions(&gate) {
            Some(extension) => one(extension, call_of(admitted), end).await,
            None => Err(Failure::Failed("it is not running".into())),
        };
        match answer {
            Ok(GateAnswer::LetThrough) => {}
            Ok(GateAnswer::Park(plan)) => match may_wait_for(registration, &plan.wait) {
                Ok(()) => return Gated::Parked { gate, plan },
                Err(why) => return failed(gate, &why),
            },
            Ok(GateAnswer::Refuse(refusal)) | Err(Failure::Refused(refusal)) => match refusal_of(refusal) {
                Ok(error) => return Gated::Refused { gate, error },
                Err(why) => return failed(gate, &why),
            },
            Err(failure) => return failed(gate, &failure.to_string()),
        }
    }
    Gated::Through
}

async fn one(extension: Rc<dyn Extension>, call: GateCall, end: Instant) -> Result<GateAnswer, Failure> {
    let asked = alone(async move { extension.gate(&call).await });
    timeout_at(end, asked).await.unwrap_or_else(|_| Err(Failure::Failed("the gates took too long".into())))
}

fn call_of(admitted: &Admitted) -> GateCall {
    GateCall {
        operation: admitted.key().operation.clone(),
        request_id: admitted.key().request_id.clone(),
        input: admitted.input().clone(),
        authority: authority(admitted),
        call_digest: hex(&admitted.call_digest()),
    }
}

/// Fail closed (G04). The log says why; the caller learns that it was the gate.
fn failed(gate: String, why: &str) -> Gated {
    tracing::error!(gate, why, "a gate failed, so the call is refused");
    Gated::Refused { gate, error: ApiError::new(Code::GateFailed, "a gate did not decide, so the call is refused") }
}

/// The dependency filter: a Wait that a registration declares names Events of its own wait families alone (G03).
pub(super) fn may_wait_for(registration: &Registration, wait: &WaitInput) -> Result<(), String> {
    let allowed = |kind: &str| registration.wait_families.iter().any(|family| conduit_api::id::in_family(kind, family));
    match wait.predicates.iter().find(|predicate| !allowed(&predicate.kind)) {
        None => Ok(()),
        Some(predicate) => Err(format!("its Wait names `{}`, which is not of its wait families", predicate.kind)),
    }
}
