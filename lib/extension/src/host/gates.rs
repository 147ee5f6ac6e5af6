//! Gates: each registration but the owner's is asked before an operation runs, in the order of names, within one deadline
//! over them all; whatever is not one of the three answers refuses (G02–G04).

use std::rc::Rc;
use std::time::Duration;

use conduit_api::toolbelt::WaitInput;
use conduit_api::{ApiError, Code, ScopeId};
use conduit_config::Snapshot;
use conduit_store::Write;
use conduit_store::digest::hex;
use conduit_toolbelt::hosted::Admitted;
use conduit_toolbelt::registry::{Registration, Registry};
use tokio::time::{Instant, timeout_at};

use super::{alone, authority, refusal_of};
use crate::desk::Fault;
use crate::{Extension, Failure, GateAnswer, GateCall, Pass, StartCall, WaitPlan};

/// How long all gates of one call may take together.
pub const GATES_TIME_MAX: Duration = Duration::from_secs(10);

/// What the gates came to. The name is that of the gate which decided.
#[derive(Debug)]
pub(super) enum Gated {
    Through(Passages),
    Parked { gate: String, plan: WaitPlan },
    Refused { gate: String, error: ApiError },
}

/// The gates that let a call through, and what each was asked.
#[derive(Default)]
pub(super) struct Passages(Vec<(Rc<dyn Extension>, GateCall)>);

impl Passages {
    /// Keeps those that the call uses up; `false` when one does not stand any more, which is the one that
    /// is kept then.
    pub fn pass(&mut self, tx: &Write<'_>) -> Result<bool, Fault> {
        let mut used = Vec::new();
        for (extension, call) in std::mem::take(&mut self.0) {
            match extension.pass(&call, tx)? {
                Pass::Free => {}
                Pass::Used => used.push((extension, call)),
                Pass::Over => {
                    self.0 = vec![(extension, call)];
                    return Ok(false);
                }
            }
        }
        self.0 = used;
        Ok(true)
    }

    /// The name of the first gate that is kept.
    pub fn gate(&self) -> Option<String> {
        self.0.first().map(|(extension, _)| extension.registration().name)
    }

    /// What the call used up is used up for good: it was carried out, and leaves no answer to be replayed.
    pub fn close(&self, tx: &Write<'_>) -> Result<(), Fault> {
        self.0.iter().try_for_each(|(extension, call)| extension.close(call, tx))
    }

    /// Undoes what the call used up, since it did nothing.
    pub fn give_back(&self, tx: &Write<'_>) -> Result<(), Fault> {
        self.0.iter().try_for_each(|(extension, call)| extension.give_back(call, tx))
    }
}

impl std::fmt::Debug for Passages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, call)| call)).finish()
    }
}

/// Whether a gate is to be asked about `admitted` at all.
pub(super) fn any(admitted: &Admitted) -> bool {
    admitted.registry().registrations().iter().any(|registration| admitted.is_judged_by(registration))
}

/// Asks one gate after another about `admitted`, until `end`; `extensions` gives the extension of a registration.
pub(super) async fn ask(
    admitted: &Admitted,
    end: Instant,
    extensions: impl Fn(&str) -> Option<Rc<dyn Extension>>,
) -> Gated {
    let mut passages = Passages::default();
    for registration in admitted.registry().registrations().iter().filter(|one| admitted.is_judged_by(one)) {
        let gate = registration.name.clone();
        let Some(extension) = extensions(&gate) else { return failed(gate, "it is not running") };
        let call = call_of(admitted, &gate);
        match one(Rc::clone(&extension), call.clone(), end).await {
            Ok(GateAnswer::LetThrough) => passages.0.push((extension, call)),
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
    Gated::Through(passages)
}

/// What the start gates came to about a Work (G06).
#[derive(Debug, Clone, PartialEq)]
pub enum StartGated {
    Through,
    /// None was asked, by an administrator's word; whoever starts the Work records it.
    Bypassed,
    /// The Work waits, and its start gates are asked again when it goes on.
    Parked {
        gate: String,
        wait: WaitInput,
    },
    /// An operator has to let it go on. The message is for operators.
    Refused {
        gate: String,
        message: String,
    },
}

/// Whether a start gate is active in `scope`.
pub(super) fn any_start(registry: &Registry, snapshot: &Snapshot, scope: &ScopeId) -> bool {
    registry.registrations().iter().any(|one| one.start_gate && snapshot.registers_in(&one.name, scope))
}

/// Asks one start gate after another about `call`, as [`ask`] does: in the order of names, within one deadline, fail closed.
pub(super) async fn ask_start(
    registry: &Registry,
    snapshot: &Snapshot,
    call: &StartCall,
    extensions: impl Fn(&str) -> Option<Rc<dyn Extension>>,
) -> StartGated {
    let end = Instant::now() + GATES_TIME_MAX;
    let active = |one: &&Registration| one.start_gate && snapshot.registers_in(&one.name, &call.scope_id);
    for registration in registry.registrations().iter().filter(active) {
        let gate = registration.name.clone();
        let answer = match extensions(&gate) {
            Some(extension) => {
                let call = StartCall { settings: snapshot.settings(&gate), ..call.clone() };
                let asked = alone(async move { extension.start_gate(&call).await });
                timeout_at(end, asked).await.unwrap_or_else(|_| Err(too_long()))
            }
            None => Err(Failure::Failed("it is not running".into())),
        };
        match answer {
            Ok(GateAnswer::LetThrough) => {}
            Ok(GateAnswer::Park(plan)) => match may_wait_for(registration, &plan.wait) {
                Ok(()) => return StartGated::Parked { gate, wait: plan.wait },
                Err(why) => return start_failed(&gate, &why),
            },
            Ok(GateAnswer::Refuse(refusal)) | Err(Failure::Refused(refusal)) => match refusal_of(refusal) {
                Ok(error) => {
                    let message = format!("the gate `{gate}` refuses: {}: {}", error.code_text(), error.message);
                    return StartGated::Refused { gate, message };
                }
                Err(why) => return start_failed(&gate, &why),
            },
            Err(failure) => return start_failed(&gate, &failure.to_string()),
        }
    }
    StartGated::Through
}

/// Fail closed (G04, G06).
pub(super) fn start_failed(gate: &str, why: &str) -> StartGated {
    tracing::error!(gate, why, "a start gate failed, so the Work is held");
    let message = format!("gate_failed: the gate `{gate}` did not decide; see the daemon's log, then retry the Work");
    StartGated::Refused { gate: gate.to_owned(), message }
}

fn too_long() -> Failure {
    Failure::Failed("the gates took too long".into())
}

async fn one(extension: Rc<dyn Extension>, call: GateCall, end: Instant) -> Result<GateAnswer, Failure> {
    let asked = alone(async move { extension.gate(&call).await });
    timeout_at(end, asked).await.unwrap_or_else(|_| Err(too_long()))
}

fn call_of(admitted: &Admitted, gate: &str) -> GateCall {
    GateCall {
        operation: admitted.key().operation.clone(),
        request_id: admitted.key().request_id.clone(),
        input: admitted.input().clone(),
        authority: authority(admitted),
        call_digest: hex(&admitted.call_digest()),
        settings: admitted.settings(gate),
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
        None => conduit_coordination::waits::decide::check(wait).map_err(|error| error.to_string()),
        Some(predicate) => Err(format!("its Wait names `{}`, which is not of its wait families", predicate.kind)),
    }
}
