//! The toolbelt's part of an extension's operation (T05, T13, T14, T17): what is decided and recorded around a handler,
//! which itself runs outside of any transaction.
//!
//! A call goes [`Hosted::admit`] → gates → [`Hosted::begin`] → the handler → [`Hosted::finish`] or one of its siblings.
//! Each step is one transaction; between two of them the caller may lose its authority, and the next step says so.

mod action;
mod intent;

use std::path::Path;
use std::rc::Rc;

use conduit_api::host::HostCall;
use conduit_api::toolbelt::{CallResponse, EmitInput, WaitInput};
use conduit_api::{ApiError, Code, ExecutionId, ScopeId};
use conduit_config::Snapshot;
use conduit_coordination::bypasses;
use conduit_store::digest::{Sha256Digest, canonical_json, hex, sha256_parts};
use conduit_store::{Clock, Fenced, Now, Read, TimeSource, Write, named_params};
use serde_json::{Map, Value};

use crate::access::{Access, Known, Noted};
use crate::budget::{self, Spent};
use crate::check::{self, Assertions, Authorized, Registered};
use crate::error::{Error, Result};
use crate::operations;
use crate::operators::{self, Operator};
use crate::registry::{OperationKind, Registration, Registry};
use crate::token::{self, TokenRecord};
use crate::{call, replay};

pub use action::{Action, Asked};
use intent::Found;
pub use intent::{LeftBehind, RequestKey};

/// The toolbelt as the extension host uses it.
#[derive(Debug)]
pub struct Hosted {
    access: Access,
    /// This instance of the host; no other ever has the same.
    host: String,
}

/// What a call came to before its handler.
#[derive(Debug)]
pub enum Admission {
    /// It was carried out before; this is its answer, and who asked.
    Done(CallResponse, Box<TokenRecord>),
    /// This host carries it out at this moment; its answer is this one's too.
    UnderWay(RequestKey, Box<TokenRecord>),
    Admitted(Box<Admitted>),
}

/// A call that passed every check of its own; gates come next.
#[derive(Debug)]
pub struct Admitted {
    authorized: Authorized<Registered>,
    snapshot: Rc<Snapshot>,
    registry: Rc<Registry>,
    bearer: Sha256Digest,
    assertions: Assertions,
    key: RequestKey,
    request_digest: Sha256Digest,
    input: Map<String, Value>,
    extension: String,
    kind: OperationKind,
    idempotent: bool,
    /// Bytes of the input that are charged: none for what only reads, or was charged before.
    bytes: u64,
}

impl Admitted {
    pub const fn key(&self) -> &RequestKey {
        &self.key
    }
    /// Tells a changed request under the same ID (T14).
    pub const fn request_digest(&self) -> &Sha256Digest {
        &self.request_digest
    }
    pub const fn input(&self) -> &Map<String, Value> {
        &self.input
    }
    /// What this release has.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
    /// The name of the registration that owns the operation.
    pub fn extension(&self) -> &str {
        &self.extension
    }
    pub const fn kind(&self) -> OperationKind {
        self.kind
    }
    pub const fn idempotent(&self) -> bool {
        self.idempotent
    }
    /// The caller, as the token pins it.
    pub const fn token(&self) -> &TokenRecord {
        self.authorized.token()
    }
    /// Whether the gate of `registration` is asked about the call (G01).
    pub fn is_judged_by(&self, registration: &Registration) -> bool {
        judges(registration, Some(&self.extension), &self.snapshot, &self.token().scope)
    }

    /// The settings of the extension in the generation that the call was decided by.
    pub fn settings(&self, extension: &str) -> Value {
        self.snapshot.settings(extension)
    }

    /// Names the exact call, whatever its request ID: what a gate's decision is bound to. It names the Work
    /// and not the execution, since a Work that waited goes on in another one where its executor cannot resume.
    pub fn call_digest(&self) -> Sha256Digest {
        let work = self.token().work.as_str().as_bytes();
        let parts = [work, self.key.operation.as_bytes(), &canonical_input(&self.input)];
        sha256_parts("gated-call-1", &parts)
    }
}

fn canonical_input(input: &Map<String, Value>) -> Vec<u8> {
    canonical_json(&Value::Object(input.clone()))
}

impl Hosted {
    /// Opens the store of `state` for the host instance `host`.
    pub fn open(state: &Path, registry: Rc<Registry>, host: String) -> Result<Self> {
        Ok(Self { access: Access::open(state, registry)?, host })
    }

    /// Settles the requests that earlier hosts left behind, before this one takes its first call: one that may not run twice
    /// is in doubt from now on, whether anybody asks for it again or not.
    pub fn settle_left_behind(&mut self) -> Result<LeftBehind> {
        let Self { access, host } = self;
        access.store.write(|tx| intent::settle(tx, host))
    }

    /// Checks 1 to 5, the schema, and what is known of the request: in one view, with nothing written but a doubt.
    /// `under_way` says whether this host has a task that carries a request out; one of its own without a task is left
    /// behind like that of a host that has ended.
    ///
    /// Errors: `forbidden`, `authority_released`, `wrong_credential_class`, `invalid_request`, `request_conflict`, `in_doubt`.
    pub fn admit(
        &mut self,
        call: &HostCall,
        under_way: impl Fn(&RequestKey) -> bool,
        time: impl TimeSource,
    ) -> Result<Admission> {
        let bearer = call.bearer().ok_or(Error::Refused { rule: check::rule::UNKNOWN_TOKEN })?;
        let request = &call.request;
        let assertions = Assertions::of(request, &call.execution_id);
        let Self { access: Access { store, look, .. }, host } = self;
        let looked = store.read(|r| {
            let Known { token, snapshot } = look.known(r, &bearer)?;
            let now = time.now();
            let authorized = authorize(token, &assertions, &request.operation, &snapshot, look.registry(), now)?;
            r.guard(authorized.fence(), authorized.demand(), now)?;
            call::check_request_id(request.request_id.as_deref())?;
            let key = RequestKey {
                execution: authorized.token().execution.clone(),
                operation: request.operation.clone(),
                request_id: request.request_id.clone().ok_or_else(no_request_id)?,
            };
            if let Some(output) = replay::find(r, &key.execution, &key.operation, &key.request_id, &request.input)? {
                return Ok(Looked::Done(output, Box::new(authorized.into_token())));
            }
            let digest = replay::request_digest(&key.operation, &request.input);
            let found = intent::find(r, &key, &digest, host)?;
            Ok::<_, Error>(Looked::Open(Box::new(Open { authorized, snapshot, key, digest, found })))
        })?;
        let Open { authorized, snapshot, key, digest: request_digest, found } = match looked {
            Looked::Done(output, token) => return Ok(Admission::Done(CallResponse::replayed(output), token)),
            Looked::Open(open) => *open,
        };
        if found == Found::UnderWay && under_way(&key) {
            return Ok(Admission::UnderWay(key, Box::new(authorized.into_token())));
        }
        let registry = Rc::clone(self.access.look.registry());
        let known = registry.operation(&key.operation).ok_or(Error::Refused { rule: check::rule::UNDECLARED })?;
        let idempotent = known.spec.idempotent;
        if found == Found::InDoubt || (found != Found::Nothing && !idempotent) {
            if found != Found::InDoubt {
                self.doubt(&key)?;
            }
            return Err(in_doubt());
        }
        refuse_input(&known, &request.input)?;
        Ok(Admission::Admitted(Box::new(Admitted {
            authorized,
            snapshot,
            bearer,
            assertions,
            request_digest,
            bytes: match known.spec.kind {
                OperationKind::Read => 0,
                _ if found != Found::Nothing => 0,
                _ => Spent::on_input(&request.input).bytes,
            },
            input: request.input.clone(),
            extension: known.registration.map(|owner| owner.name.clone()).unwrap_or_default(),
            kind: known.spec.kind,
            idempotent,
            key,
            registry: Rc::clone(&registry),
        })))
    }

    /// What `snapshot`, or a later generation, can name. Error: the store's.
    pub fn registry_of(&mut self, snapshot: &Snapshot) -> Result<Rc<Registry>> {
        let Access { store, look, .. } = &mut self.access;
        if !look.live.knows(snapshot) {
            store.read(|r| look.live.active(r).map(drop))?;
        }
        Ok(Rc::clone(look.registry()))
    }

    /// The operator whose credential has this digest.
    pub fn operator(&mut self, digest: &Sha256Digest) -> Result<Option<Operator>> {
        self.access.store.read(|r| operators::find(r, digest))
    }

    /// Whether gates are not asked about `scope` at this moment, by an administrator's word.
    pub fn bypassed(&mut self, scope: &ScopeId) -> Result<bool> {
        Ok(self.access.store.read(|r| bypasses::holds(r, scope, Clock.now()))?)
    }

    /// Decides once more, since gates take their time, and commits the intent under the lease: from here on the handler
    /// may run. What the gates' answers use up goes in the same commit: `pass` says whether they still stand. Returns `false`,
    /// with nothing written, when one does not, or when another gate is to be asked by now.
    ///
    /// Errors: `forbidden` or `authority_released` when the caller has lost its authority meanwhile; `pass`'s own.
    pub fn begin(
        &mut self,
        admitted: &Admitted,
        time: impl TimeSource,
        pass: impl FnOnce(&Write<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let active = self.decide_again(admitted, &time)?;
        let scope = &admitted.token().scope;
        let judges_now = |one: &&Registration| judges(one, Some(&admitted.extension), &active, scope);
        let registry = self.access.look.registry();
        if registry.registrations().iter().filter(judges_now).any(|one| !admitted.is_judged_by(one)) {
            return Ok(false); // a gate that nobody asked came in meanwhile
        }
        let host = self.host.clone();
        let begun = self.fenced(admitted, time, |tx| {
            if !pass(tx)? {
                return Err(NotBegun::PassOver);
            }
            budget::charge(tx, admitted.token(), &Spent { bytes: admitted.bytes, ..Spent::default() })?;
            let Admitted { key, request_digest, idempotent, .. } = admitted;
            Ok(intent::put(tx, key, request_digest, *idempotent, &host, tx.now())?)
        });
        match begun {
            Ok(()) => Ok(true),
            Err(NotBegun::PassOver) => Ok(false),
            Err(NotBegun::Failed(error)) => Err(error),
        }
    }

    /// Checks 1 to 4 by the generation that is active now, which it returns: a reload revokes at once (T07), also what a gate
    /// or a handler took its time over.
    fn decide_again(&mut self, admitted: &Admitted, time: &impl TimeSource) -> Result<Rc<Snapshot>> {
        let Known { token, snapshot } = self.access.known(&admitted.bearer)?;
        let registry = self.access.look.registry();
        authorize(token, &admitted.assertions, &admitted.key.operation, &snapshot, registry, time.now())?;
        Ok(snapshot)
    }

    /// Records the result of the handler and takes the intent away, in one transaction. The effect is there, so the lease
    /// is not asked: whoever asks again gets this answer.
    pub fn finish(&mut self, admitted: &Admitted, output: Value) -> Result<CallResponse> {
        let Self { access, host } = self;
        let key = &admitted.key;
        access.store.write(|tx| {
            if intent::remove(tx, key, host)? {
                let RequestKey { execution, operation, request_id } = key;
                // Of an execution that has ended nobody can ask again, and no sweep would find the record (T15).
                if !has_ended(tx, execution)? {
                    replay::store(tx, execution, operation, request_id, &admitted.input, &output, Clock.now())?;
                }
            }
            Ok::<_, Error>(())
        })?;
        Ok(CallResponse::new(output))
    }

    /// Takes the intent away, so that the same request may be made again. `give_back` undoes, in the same commit, what was used
    /// up for it; it is asked only where there was an intent.
    pub fn withdraw(&mut self, admitted: &Admitted, give_back: impl FnOnce(&Write<'_>) -> Result<()>) -> Result<()> {
        let Self { access, host } = self;
        access.store.write(|tx| {
            if !intent::remove(tx, &admitted.key, host)? {
                return Ok(());
            }
            if admitted.bytes > 0 && !admitted.token().grants.budget.is_unlimited() {
                budget::give_back(tx, &admitted.key.execution, admitted.bytes)?;
            }
            give_back(tx)
        })
    }

    /// Marks a request of which nobody can say whether it was carried out.
    pub fn doubt(&mut self, key: &RequestKey) -> Result<()> {
        self.access.store.write(|tx| intent::doubt(tx, key))
    }

    /// Declares `wait` for the caller, as its own `wait` would (T17, G03), and takes the intent away. Authority is released.
    /// `close` ends, in the same commit, what the call used up: the same request is another call when it is asked again.
    ///
    /// Errors: `forbidden`, `authority_released`; `invalid_request` when the plan is none.
    pub fn park(
        &mut self,
        admitted: &Admitted,
        wait: WaitInput,
        output: Value,
        time: impl TimeSource,
        close: impl FnOnce(&Write<'_>) -> Result<()>,
    ) -> Result<CallResponse> {
        self.decide_again(admitted, &time)?;
        let host = self.host.clone();
        self.fenced(admitted, time, |tx| {
            operations::wait(tx, &admitted.authorized, &wait)?;
            close(tx)?;
            intent::remove(tx, &admitted.key, &host).map(drop)
        })?;
        Ok(CallResponse { declared: Some(wait), ..CallResponse::new(output) })
    }

    /// Accepts `event` for the caller, as its own `emit` would (T17), records the answer and takes the intent away, in one
    /// transaction. The request is the delivery: the same one is accepted once. Returns the answer, and whether the scheduler
    /// has to hear of it.
    ///
    /// Errors: those of `emit`.
    pub fn emit(
        &mut self,
        admitted: &Admitted,
        event: &EmitInput,
        time: impl TimeSource,
    ) -> Result<(CallResponse, bool)> {
        let RequestKey { execution, operation, request_id } = &admitted.key;
        // A digest, since both names together may be longer than a delivery's.
        let delivery = sha256_parts("translated-emission-1", &[operation.as_bytes(), request_id.as_bytes()]);
        let event = EmitInput { delivery_id: Some(hex(&delivery)), ..event.clone() };
        let snapshot = self.decide_again(admitted, &time)?;
        let host = self.host.clone();
        self.fenced(admitted, time, |tx| {
            let done = operations::emit(tx, &admitted.authorized, &event, None, &snapshot)?;
            let output = call::to_value(&done.output)?;
            if !done.replayed {
                budget::charge(tx, admitted.token(), &Spent { emissions: 1, ..Spent::default() })?;
            }
            if intent::remove(tx, &admitted.key, &host)? {
                replay::store(tx, execution, operation, request_id, &admitted.input, &output, tx.now())?;
            }
            Ok((CallResponse { replayed: done.replayed, ..CallResponse::new(output) }, done.wanted))
        })
    }

    /// Keeps the record of a call and turns a fault into what the caller is told. `caller` is the token that admission found;
    /// for a call that was not admitted it is looked up, if there is one. `gate` is the one that parked or refused it (G05).
    pub fn answered<T>(
        &mut self,
        call: &HostCall,
        caller: Option<&TokenRecord>,
        gate: Option<&str>,
        done: Result<T>,
    ) -> Result<T, ApiError> {
        let looked_up = match caller {
            Some(_) => None,
            None => call.bearer().and_then(|bearer| self.access.known(&bearer).ok()?.token),
        };
        let noted = Noted {
            socket: &call.execution_id,
            token: caller.or(looked_up.as_ref()),
            operation: &call.request.operation,
            request_id: call.request.request_id.as_deref(),
            gate,
        };
        self.access.answered(&noted, done, Clock.now())
    }

    /// See [`crate::Toolbelt::take_ring`].
    pub const fn take_ring(&mut self) -> bool {
        self.access.take_ring()
    }

    /// See [`crate::Toolbelt::flush_history`].
    pub fn flush_history(&mut self) -> bool {
        self.access.flush_history()
    }

    /// See [`crate::Toolbelt::finish_history`].
    pub fn finish_history(&mut self) {
        self.access.finish_history();
    }

    /// Runs `change` under the caller's lease, after its token was looked at again.
    fn fenced<T, E: From<Error> + From<conduit_store::Error>>(
        &mut self,
        admitted: &Admitted,
        time: impl TimeSource,
        change: impl FnOnce(&Fenced<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let authorized = &admitted.authorized;
        self.access.store.fenced(authorized.fence(), authorized.demand(), time, |tx| {
            let token = token::lookup(tx, &admitted.bearer)?;
            check::live(token.as_ref(), tx.now()).map_err(|rule| Error::Refused { rule })?;
            change(tx)
        })
    }
}

/// Why nothing was begun.
enum NotBegun {
    /// What a gate had let through does not stand any more.
    PassOver,
    Failed(Error),
}

impl<E: Into<Error>> From<E> for NotBegun {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn has_ended(r: &Read<'_>, execution: &ExecutionId) -> Result<bool> {
    const ENDED: &str = "SELECT finished_at_us IS NOT NULL FROM execution WHERE id = :id";
    Ok(r.one("reading an execution", ENDED, named_params! { ":id": execution.as_str() }, |row| row.get(0))?)
}

/// What one view said of a call.
enum Looked {
    Done(Value, Box<TokenRecord>),
    Open(Box<Open>),
}

/// A request without a result: who asks, under which configuration, for what, and what is known of it.
struct Open {
    authorized: Authorized<Registered>,
    snapshot: Rc<Snapshot>,
    key: RequestKey,
    digest: Sha256Digest,
    found: Found,
}

/// Nobody knows whether the request was carried out.
pub fn in_doubt() -> Error {
    Error::operation(
        Code::InDoubt,
        "the daemon or the extension ended while this request was carried out, or its result could not be kept, and nobody knows whether it was; an operator has to resolve it",
    )
}

/// Error: `invalid_request` with a diagnostic for each violation of the schema: a place and a remedy, never a value.
pub(crate) fn refuse_input(known: &crate::registry::Known<'_>, input: &Map<String, Value>) -> Result<()> {
    match known.violations(&Value::Object(input.clone())) {
        Ok(violations) if violations.is_empty() => Ok(()),
        Ok(diagnostics) => Err(Error::Operation(ApiError {
            diagnostics,
            ..ApiError::new(Code::InvalidRequest, "the input breaks the operation's schema; guidance has the schema")
        })),
        Err(why) => {
            tracing::error!(operation = known.spec.name, why, "an operation's schema cannot be used");
            Err(Error::operation(Code::Internal, "the operation's schema cannot be used"))
        }
    }
}

/// Whether a gate is asked before an operation of `owner` runs in `scope` (G01, G02): every active one but the owner's.
pub fn is_judged(registry: &Registry, snapshot: &Snapshot, owner: Option<&Registration>, scope: &ScopeId) -> bool {
    let owner = owner.map(|owner| owner.name.as_str());
    registry.registrations().iter().any(|one| judges(one, owner, snapshot, scope))
}

/// Whether the gate of `registration` is asked before an operation of `owner` runs in `scope`.
pub fn judges(registration: &Registration, owner: Option<&str>, snapshot: &Snapshot, scope: &ScopeId) -> bool {
    registration.gate && Some(registration.name.as_str()) != owner && snapshot.registers_in(&registration.name, scope)
}

/// Checks 1 to 4 for an extension's operation: it is declared where its registration is active in the generation.
pub(crate) fn authorize(
    token: Option<TokenRecord>,
    assertions: &Assertions,
    operation: &str,
    snapshot: &Snapshot,
    registry: &Registry,
    now: Now,
) -> Result<Authorized<Registered>> {
    let owner = registry.operation(operation).and_then(|known| known.registration);
    let declared = owner.zip(token.as_ref()).is_some_and(|(owner, token)| {
        snapshot.registers_in(&owner.name, &token.scope) // without a token nothing asks for it
    });
    check::authorize_registered(token, assertions, operation, declared, snapshot, now)
}

fn no_request_id() -> Error {
    Error::operation(Code::InvalidRequest, "a call that is passed on has a request ID")
}
