//! The extension host: takes a call of an extension's operation through its gates and its handler (T13, G02–G05).
//!
//! The toolbelt decides and records ([`Hosted`]); extensions answer; this room brings them together. A handler runs in a
//! task of its own: neither its panic nor a caller that hangs up ends anything else.

mod actions;
mod gates;
mod settings;
mod under_way;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::host::HostCall;
use conduit_api::toolbelt::CallResponse;
use conduit_api::{ApiError, Code, ScopeId};
use conduit_config::Snapshot;
use conduit_store::{Clock, failpoint};
use conduit_toolbelt::hosted::{Admission, Admitted, Hosted, LeftBehind};
use conduit_toolbelt::registry::{BREAK_GLASS, OperationKind};
use conduit_toolbelt::token::TokenRecord;
use conduit_toolbelt::{Error, Result};
use serde_json::Value;
use tokio::time::{Instant, timeout};

pub use gates::GATES_TIME_MAX;
pub use gates::StartGated;
use gates::{Gated, Passages};
pub use settings::VALIDATE_TIME_MAX;
use under_way::{Ended, Entry, Place, UnderWay};

use crate::package::Packages;
use crate::{Authority, Extension, Failure, Invocation, Invoked, OperationError, StartCall};

/// How long one handler may take.
pub const HANDLER_TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of a handler's output, as JSON.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How often the gates of one call are asked, when their answers do not last.
const GATES_ASKED_MAX: u32 = 3;
/// Bytes of the message of an extension's refusal.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Everything that calls of extensions' operations need.
pub struct ExtensionHost {
    toolbelt: RefCell<Hosted>,
    /// By the name of the registration.
    extensions: BTreeMap<String, Rc<dyn Extension>>,
    /// Those that are programs of their own.
    packages: Option<Rc<Packages>>,
    under_way: UnderWay,
    actions_under_way: actions::UnderWay,
    /// Tells the scheduler that there is something to route.
    ring: Box<dyn Fn()>,
}

impl ExtensionHost {
    /// A host of `extensions`, each of which stands in the registry that `toolbelt` was opened with.
    pub fn new(toolbelt: Hosted, extensions: Vec<Rc<dyn Extension>>, ring: Box<dyn Fn()>) -> Self {
        let named = extensions.into_iter().map(|extension| (extension.registration().name, extension));
        Self {
            toolbelt: RefCell::new(toolbelt),
            extensions: named.collect(),
            packages: None,
            under_way: UnderWay::default(),
            actions_under_way: actions::UnderWay::default(),
            ring,
        }
    }

    /// With installed packages beside them.
    #[must_use]
    pub fn with_packages(self, packages: Rc<Packages>) -> Self {
        Self { packages: Some(packages), ..self }
    }

    /// The extension of the registration `name`: one of this process, or an installed package. Runs inside a `LocalSet`.
    pub fn extension(&self, name: &str) -> Option<Rc<dyn Extension>> {
        let own = self.extensions.get(name).cloned();
        own.or_else(|| self.packages.as_ref().and_then(|packages| packages.get(name)))
    }

    /// Settles what earlier hosts left behind, before this one takes its first call (T14). Error: the store's.
    pub fn settle_left_behind(&self) -> Result<LeftBehind> {
        self.toolbelt.borrow_mut().settle_left_behind()
    }

    /// Carries a call out, or refuses it; either way a record of it is kept. Runs inside a `LocalSet`.
    ///
    /// Errors: those of the checks (T05); `request_conflict`, `in_doubt`; a gate's or the handler's own; `gate_failed`;
    /// `extension_unavailable`.
    pub async fn call(self: &Rc<Self>, call: HostCall) -> Result<CallResponse, ApiError> {
        loop {
            let admission = self.toolbelt.borrow_mut().admit(&call, |key| self.under_way.has(key), Clock);
            let place = match admission {
                Ok(Admission::Done(response, caller)) => {
                    return self.answered(&call, Some(&caller), None, Ok(response));
                }
                Ok(Admission::UnderWay(key, caller)) => (self.under_way.of(&key), *caller),
                Ok(Admission::Admitted(admitted)) => {
                    match self.under_way.enter(&admitted.key().clone(), *admitted.request_digest()) {
                        Ok(entry) => return self.start(call, admitted, entry).ended().await.answer,
                        Err(place) => (place, admitted.token().clone()),
                    }
                }
                Err(error) => return self.answered(&call, None, None, Err(error)),
            };
            let (Some(place), caller) = place else {
                return self.answered(&call, Some(&place.1), None, Err(Error::RequestConflict));
            };
            if let Some(answer) = self.attached(&call, &caller, place.ended().await) {
                return answer;
            }
        }
    }

    /// Carries a request out in a task of its own, so that a caller that hangs up ends nothing.
    fn start(self: &Rc<Self>, call: HostCall, admitted: Box<Admitted>, entry: Entry) -> Place {
        let place = entry.place();
        let host = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let (gate, done) = host.carry_out(&admitted).await;
            let answer = host.answered(&call, Some(admitted.token()), gate.as_deref(), done);
            failpoint!("host.after_commit");
            entry.end(Ended { gate, answer });
        });
        place
    }

    fn answered(
        &self,
        call: &HostCall,
        caller: Option<&TokenRecord>,
        gate: Option<&str>,
        done: Result<CallResponse>,
    ) -> Result<CallResponse, ApiError> {
        let mut toolbelt = self.toolbelt.borrow_mut();
        let answer = toolbelt.answered(call, caller, gate, done);
        if toolbelt.take_ring() {
            (self.ring)();
        }
        answer
    }

    /// Whether a start gate is active in `scope`, as `snapshot` has it.
    ///
    /// It counts as active when that cannot be looked up: then [`ExtensionHost::ask_to_start`] says why it is refused.
    pub fn has_start_gates(&self, snapshot: &Snapshot, scope: &ScopeId) -> bool {
        let registry = self.toolbelt.borrow_mut().registry_of(snapshot);
        registry.map_or(true, |registry| gates::any_start(&registry, snapshot, scope))
    }

    /// Asks the start gates that are active in `snapshot` about a Work that no attempt was launched of (G06).
    pub async fn ask_to_start(self: &Rc<Self>, call: &StartCall, snapshot: &Snapshot) -> StartGated {
        let registry = self.toolbelt.borrow_mut().registry_of(snapshot);
        let registry = match registry {
            Ok(registry) => registry,
            Err(error) => return gates::start_failed("unknown", &error.to_string()),
        };
        if !gates::any_start(&registry, snapshot, &call.scope_id) {
            return StartGated::Through;
        }
        let bypassed = self.toolbelt.borrow_mut().bypassed(&call.scope_id);
        match bypassed {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(work = %call.work_id, scope = %call.scope_id, "start gates are bypassed");
                return StartGated::Bypassed;
            }
            Err(error) => return gates::start_failed(BREAK_GLASS, &error.to_string()),
        }
        gates::ask_start(&registry, snapshot, call, |name| self.extension(name)).await
    }

    /// See [`conduit_toolbelt::Toolbelt::flush_history`].
    pub fn flush_history(&self) -> bool {
        self.toolbelt.borrow_mut().flush_history()
    }

    /// See [`conduit_toolbelt::Toolbelt::finish_history`].
    pub fn finish_history(&self) {
        self.toolbelt.borrow_mut().finish_history();
    }

    /// Answers like the same request, which another caller made first. `None` when that caller lost its
    /// authority: that says nothing about this one's, so it is decided anew.
    fn attached(&self, call: &HostCall, caller: &TokenRecord, ended: Ended) -> Option<Result<CallResponse, ApiError>> {
        let Ended { gate, answer } = ended;
        let done = match answer {
            Ok(response) => Ok(CallResponse { replayed: true, ..response }),
            Err(error) if matches!(error.code, Code::Forbidden | Code::AuthorityReleased) => return None,
            Err(error) if gate.as_deref().is_some_and(|gate| gate != BREAK_GLASS) => Err(Error::GateRefused(error)),
            Err(error) => Err(Error::Operation(error)),
        };
        Some(self.answered(call, Some(caller), gate.as_deref(), done))
    }

    /// Gates, intent, handler, result. Returns the gate that decided, if one did.
    async fn carry_out(&self, admitted: &Admitted) -> (Option<String>, Result<CallResponse>) {
        let gated = gates::any(admitted);
        if gated {
            // The borrow ends here: other calls come while this one's handler runs.
            let bypassed = self.toolbelt.borrow_mut().bypassed(&admitted.token().scope);
            match bypassed {
                Ok(false) => {}
                Ok(true) => return (Some(BREAK_GLASS.to_owned()), self.run_ungated(admitted).await),
                Err(error) => return (None, Err(error)),
            }
        }
        if admitted.kind() == OperationKind::Read && !gated {
            return (None, self.look(admitted).await);
        }
        // A gate's yes may be gone when the call is about to run: another call used it up, or an operator took it back.
        let end = Instant::now() + GATES_TIME_MAX;
        let mut over = None;
        for _ in 0..GATES_ASKED_MAX {
            match gates::ask(admitted, end, |name| self.extension(name)).await {
                Gated::Through(mut passages) => match self.begin(admitted, &mut passages) {
                    Ok(true) => return (None, self.run(admitted, &passages).await),
                    Ok(false) => over = passages.gate(),
                    Err(error) => return (None, Err(error)),
                },
                Gated::Refused { gate, error } => return (Some(gate), Err(Error::GateRefused(error))),
                Gated::Parked { gate, plan } => {
                    let parked = self.toolbelt.borrow_mut().park(admitted, plan.wait, plan.output, Clock, |_| Ok(()));
                    return (Some(gate), parked);
                }
            }
        }
        (over, Err(did_not_last()))
    }

    /// Commits the intent, and what the gates' answers use up; `false` when one of them does not stand any more.
    fn begin(&self, admitted: &Admitted, passages: &mut Passages) -> Result<bool> {
        self.toolbelt.borrow_mut().begin(admitted, Clock, |tx| Ok(passages.pass(tx)?))
    }

    async fn run_ungated(&self, admitted: &Admitted) -> Result<CallResponse> {
        let mut none = Passages::default();
        match self.begin(admitted, &mut none)? {
            true => self.run(admitted, &none).await,
            false => Err(did_not_last()),
        }
    }

    /// A look that nobody judges: nothing is committed for it, before or after.
    async fn look(&self, admitted: &Admitted) -> Result<CallResponse> {
        match self.invoke(admitted).await {
            Ok(Invoked::Output(output)) => Ok(CallResponse::new(output)),
            Ok(Invoked::Wait(_) | Invoked::Emission(_)) => Err(unavailable("a read became something else")),
            Err(Failure::Refused(refusal)) => Err(refused(refusal)),
            Err(Failure::Unavailable(why) | Failure::Failed(why)) => Err(unavailable(&why)),
        }
    }

    /// Runs the handler of a call whose intent is on record. `passages` is what the call used up.
    async fn run(&self, admitted: &Admitted, passages: &Passages) -> Result<CallResponse> {
        failpoint!("host.before_handler");
        let invoked = self.invoke(admitted).await;
        failpoint!("host.after_handler");
        let mut toolbelt = self.toolbelt.borrow_mut();
        let mut did_nothing = true;
        let done = match invoked {
            Ok(Invoked::Output(output)) => {
                return toolbelt.finish(admitted, output).map_err(|error| unrecorded(&mut toolbelt, admitted, &error));
            }
            Ok(Invoked::Wait(plan)) => {
                toolbelt.park(admitted, plan.wait, plan.output, Clock, |tx| Ok(passages.close(tx)?))
            }
            Ok(Invoked::Emission(event)) => toolbelt.emit(admitted, &event, Clock).map(|(response, ring)| {
                if ring {
                    (self.ring)();
                }
                response
            }),
            Err(Failure::Refused(refusal)) => Err(refused(refusal)),
            Err(Failure::Unavailable(why)) => Err(unavailable(&why)),
            Err(Failure::Failed(why)) if admitted.idempotent() => {
                did_nothing = false;
                Err(unavailable(&why))
            }
            Err(Failure::Failed(why)) => {
                tracing::error!(
                    operation = admitted.key().operation,
                    why,
                    "nobody knows whether a request was carried out"
                );
                toolbelt.doubt(admitted.key())?;
                return Err(conduit_toolbelt::hosted::in_doubt());
            }
        };
        if done.is_err() {
            // The request is open. What may have been done keeps what it used up, for the same request alone.
            toolbelt.withdraw(admitted, |tx| {
                if did_nothing {
                    passages.give_back(tx)?;
                }
                Ok(())
            })?;
        }
        done
    }

    /// The handler's answer, held against what its registration says.
    async fn invoke(&self, admitted: &Admitted) -> Result<Invoked, Failure> {
        let extension = self.extension(admitted.extension());
        let extension = extension.ok_or_else(|| Failure::Unavailable("it is not running".into()))?;
        let call = Invocation {
            operation: admitted.key().operation.clone(),
            request_id: admitted.key().request_id.clone(),
            input: admitted.input().clone(),
            authority: authority(admitted),
            settings: admitted.settings(admitted.extension()),
        };
        let running = alone(async move { extension.invoke(&call).await });
        let invoked = timeout(HANDLER_TIME_MAX, running)
            .await
            .unwrap_or_else(|_| Err(Failure::Failed("it took too long".into())));
        // One that may not be passed on is no answer: whether anything was done is unknown.
        if let Err(Failure::Refused(refusal)) = &invoked {
            refusal_of(refusal.clone()).map_err(Failure::Failed)?;
        }
        let invoked = invoked?;
        match (&invoked, admitted.kind()) {
            (Invoked::Output(output), OperationKind::Handler | OperationKind::Read) => refuse_large(output)?,
            (Invoked::Wait(plan), OperationKind::Wait) => {
                refuse_large(&plan.output)?;
                let registration = admitted.registry().registration(admitted.extension());
                let registration = registration.ok_or_else(|| Failure::Failed("it is not registered".into()))?;
                gates::may_wait_for(registration, &plan.wait).map_err(Failure::Failed)?;
            }
            (Invoked::Emission(_), OperationKind::Emission) => {}
            _ => return Err(Failure::Failed("its answer is of another kind than its registration says".into())),
        }
        Ok(invoked)
    }
}

/// What an extension is told about the caller.
fn authority(admitted: &Admitted) -> Authority {
    let token = admitted.token();
    Authority {
        execution_id: token.execution.clone(),
        work_id: token.work.clone(),
        scope_id: token.scope.clone(),
        binding: token.binding.clone(),
        epoch: token.epoch,
        generation: token.generation,
    }
}

/// Runs `work` in a task of its own, which ends with it or with whoever waits for it: a panic is a failure of the extension.
pub(crate) async fn alone<T: 'static>(work: impl Future<Output = Result<T, Failure>> + 'static) -> Result<T, Failure> {
    struct Ends<T>(tokio::task::JoinHandle<T>);
    impl<T> Drop for Ends<T> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let mut task = Ends(tokio::task::spawn_local(work));
    (&mut task.0).await.unwrap_or_else(|_| Err(Failure::Failed("it panicked".into())))
}

/// An extension's refusal, as callers see it; `Err` when it is none that may be passed on.
pub(crate) fn refusal_of(refusal: OperationError) -> Result<ApiError, String> {
    let OperationError { code, message } = refusal;
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if code.is_empty() || code.len() > 64 || !code.bytes().all(word) || message.len() > MESSAGE_BYTES_MAX {
        return Err("its refusal has no snake_case code, or too long a message".into());
    }
    Ok(ApiError::of_extension(code, message))
}

fn refuse_large(output: &Value) -> Result<(), Failure> {
    match serde_json::to_vec(output) {
        Ok(bytes) if bytes.len() <= OUTPUT_BYTES_MAX => Ok(()),
        _ => Err(Failure::Failed(format!("its output is larger than {OUTPUT_BYTES_MAX} bytes"))),
    }
}

/// What a caller is told whose request was carried out, and whose result could not be kept: never that nothing was done.
fn unrecorded(toolbelt: &mut Hosted, admitted: &Admitted, error: &Error) -> Error {
    tracing::error!(operation = admitted.key().operation, %error, "the result of a request could not be kept");
    if admitted.idempotent() {
        return unavailable("its result could not be kept");
    }
    if let Err(error) = toolbelt.doubt(admitted.key()) {
        // Its intent stays, and says the same to whoever asks again and to the next start.
        tracing::error!(%error, "a doubt is not listed yet");
    }
    conduit_toolbelt::hosted::in_doubt()
}

fn did_not_last() -> Error {
    let message = "the gates' answers did not last until the call could run; ask again";
    Error::GateRefused(ApiError::new(Code::GateFailed, message))
}

fn refused(OperationError { code, message }: OperationError) -> Error {
    Error::Operation(ApiError::of_extension(code, message))
}

fn unavailable(why: &str) -> Error {
    tracing::warn!(why, "an extension did not carry a request out");
    Error::operation(
        Code::ExtensionUnavailable,
        "the extension did not answer as it should; ask again under the same request ID",
    )
}
