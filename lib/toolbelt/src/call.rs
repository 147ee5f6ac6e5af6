//! A toolbelt: one execution's calls, from the bearer to the committed answer.

use std::path::Path;
use std::rc::Rc;

use conduit_api::host::HostCall;
use conduit_api::limits::REQUEST_ID_BYTES_MAX;
use conduit_api::toolbelt::{CallRequest, CallResponse, operation};
use conduit_api::{ApiError, Code, EventId, ExecutionId, json};
use conduit_config::Snapshot;
use conduit_store::digest::{Sha256Digest, hex};
use conduit_store::{Clock, Now, Read, TimeSource, mint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::access::{Access, Known, Noted};
use crate::budget::{self, Rate, Spent};
use crate::check::{self, Assertions, Authorized, CreateWork, DeclareOutcome, Emit, Operation, ReadContext, Wait};
use crate::error::{Error, Result};
use crate::reader::{Look, Readers};
use crate::registry::{OperationKind, Registry};
use crate::token::{self, TokenRecord};
use crate::{context, guidance, hosted, operations, replay};

/// The toolbelt of one execution, as its endpoint serves it.
#[derive(Debug)]
pub struct Toolbelt {
    access: Access,
    execution: ExecutionId,
    readers: Readers,
    rate: Rate,
}

/// A call that was carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct Called {
    pub response: CallResponse,
    /// Whether the scheduler should hear of it: something was committed that it acts on.
    pub ring: bool,
}

impl Toolbelt {
    /// Opens the store of `state` for the socket of `execution`, whose calls are of operations of `registry`.
    pub fn open(state: &Path, execution: ExecutionId, registry: Rc<Registry>) -> Result<Self> {
        Ok(Self {
            access: Access::open(state, registry)?,
            execution,
            readers: Readers::default(),
            rate: Rate::default(),
        })
    }

    /// With what it can read by itself.
    #[must_use]
    pub fn with_readers(self, readers: Readers) -> Self {
        Self { readers, ..self }
    }

    /// Carries out one call, or refuses it; either way a record of it is kept (T05, T06).
    ///
    /// `header_key` is the `Idempotency-Key` header, which stands in for an absent `request_id` (T14).
    pub fn call(&mut self, bearer: &str, request: &CallRequest, header_key: Option<&str>) -> Result<Called, ApiError> {
        self.call_at(bearer, request, header_key, Clock)
    }

    /// [`Toolbelt::call`] by a clock of the caller's choice.
    pub fn call_at(
        &mut self,
        bearer: &str,
        request: &CallRequest,
        header_key: Option<&str>,
        time: impl TimeSource,
    ) -> Result<Called, ApiError> {
        let request_id = request.request_id.as_deref().or(header_key);
        let mut seen = None;
        let done = self.dispatch(bearer, request, request_id, &time, &mut seen);
        self.answered(seen.as_ref(), &request.operation, request_id, done, time.now())
    }

    /// Whether an extension carries the operation out, so that the call is for [`Toolbelt::forward`].
    pub fn is_hosted(&mut self, operation: &str) -> bool {
        let Access { store, look, .. } = &mut self.access;
        if look.registry().operation(operation).is_none()
            && let Err(error) = store.read(|r| look.live.active(r).map(drop))
        {
            tracing::warn!(%error, "an operation is not known, and the newest generation cannot be looked at");
        }
        look.registry().operation(operation).is_some_and(|known| known.registration.is_some())
    }

    /// Carries out a call of an extension's operation that only reads, in one view; `None` when it is for
    /// [`Toolbelt::forward`]: nobody here can read it, or a gate judges it.
    ///
    /// Errors: those of checks 1 to 5 (T05), and `invalid_request`.
    pub fn read(
        &mut self,
        bearer: &str,
        request: &CallRequest,
        header_key: Option<&str>,
    ) -> Result<Option<CallResponse>, ApiError> {
        let Some(reader) = self.readers.get(&request.operation) else { return Ok(None) };
        let request_id = request.request_id.as_deref().or(header_key);
        let (looked, token, now) = self.decide(bearer, request, request_id, |decided| {
            let Decided { read, token, snapshot, registry, rate, now } = decided;
            let known = registry.operation(&request.operation).filter(|known| known.spec.kind == OperationKind::Read);
            let Some(known) = known else { return Ok(None) };
            if hosted::is_judged(registry, snapshot, known.registration, &token.scope) {
                return Ok(None);
            }
            rate.take(&token.grants.budget, now)?;
            hosted::refuse_input(&known, &request.input)?;
            let calls = rate.used(&token.grants.budget, now);
            reader(&Look { read, token, input: &request.input, calls }).map(Some)
        })?;
        let Some(output) = looked else { return Ok(None) };
        let done = Ok(Some(CallResponse::new(output)));
        self.answered(Some(&token), &request.operation, request_id, done, now)
    }

    /// Checks a call of an extension's operation as far as this process can, so that the extension host hears only of callers
    /// that may call. What is refused here is recorded here; the rest is decided again, and recorded, by the host.
    ///
    /// Errors: those of checks 1 to 5 (T05), and `invalid_request` for a request ID that is none.
    pub fn forward(
        &mut self,
        bearer: &str,
        request: &CallRequest,
        header_key: Option<&str>,
    ) -> Result<HostCall, ApiError> {
        let request_id = request.request_id.as_deref().or(header_key);
        let taken = |decided: Decided<'_>| decided.rate.take(&decided.token.grants.budget, decided.now);
        let ((), _, now) = self.decide(bearer, request, request_id, taken)?;
        Ok(HostCall {
            bearer_digest: hex(&token::digest(bearer)),
            execution_id: self.execution.clone(),
            // One that nobody chose cannot be asked for again, and names the request all the same.
            request: CallRequest {
                request_id: Some(request_id.map_or_else(|| mint::<EventId>(now).to_string(), str::to_owned)),
                ..request.clone()
            },
        })
    }

    /// Takes a call of an extension's operation through checks 1 to 5 in one view, and through `then` in the same one. What is
    /// refused is recorded; for the rest the caller, and the time of the decision.
    fn decide<T>(
        &mut self,
        bearer: &str,
        request: &CallRequest,
        request_id: Option<&str>,
        then: impl FnOnce(Decided<'_>) -> Result<T>,
    ) -> Result<(T, TokenRecord, Now), ApiError> {
        let (now, digest, assertions) = (Clock.now(), token::digest(bearer), self.assertions(Some(request)));
        let mut seen = None;
        let (Access { store, look, .. }, rate) = (&mut self.access, &mut self.rate);
        let decided = store.read(|read| {
            let Known { token, snapshot } = look.known(read, &digest)?;
            seen.clone_from(&token);
            let registry = look.registry();
            let authorized = hosted::authorize(token, &assertions, &request.operation, &snapshot, registry, now)?;
            read.guard(authorized.fence(), authorized.demand(), now)?;
            check_request_id(request_id)?;
            let token = authorized.token();
            let done = then(Decided { read, token, snapshot: &snapshot, registry, rate, now })?;
            Ok((done, authorized.into_token(), now))
        });
        match decided {
            Ok(decided) => Ok(decided),
            Err(error) => self.answered(seen.as_ref(), &request.operation, request_id, Err(error), now),
        }
    }

    /// The guidance of what the bearer may call (E02).
    pub fn guidance(&mut self, bearer: &str) -> Result<Value, ApiError> {
        self.look("guidance", bearer, guidance::of)
    }

    /// Which of the bearer's operations serve `capability` (E02). Builtins serve none.
    pub fn serving(&mut self, bearer: &str, capability: &str) -> Result<Value, ApiError> {
        self.look("serving", bearer, |token, snapshot, registry| {
            guidance::serving(token, snapshot, registry, capability)
        })
    }

    /// What to tell a bearer about a request that cannot be read: `told`, or the refusal of who may not call at all and
    /// learns nothing about its request (T05, T06). A record is kept, as of every call.
    pub fn unreadable(&mut self, bearer: &str, told: ApiError) -> ApiError {
        let refused: Result<Value, _> =
            self.looked("unreadable", bearer, |_, _, _| Err(Error::Operation(told.clone())));
        refused.err().unwrap_or(told)
    }

    fn look(
        &mut self,
        what: &'static str,
        bearer: &str,
        show: impl FnOnce(&TokenRecord, &Snapshot, &Registry) -> Value,
    ) -> Result<Value, ApiError> {
        self.looked(what, bearer, |token, snapshot, registry| Ok(show(token, snapshot, registry)))
    }

    fn looked(
        &mut self,
        what: &'static str,
        bearer: &str,
        show: impl FnOnce(&TokenRecord, &Snapshot, &Registry) -> Result<Value>,
    ) -> Result<Value, ApiError> {
        let now = Clock.now();
        let mut seen = None;
        let looked = self.access.known(&token::digest(bearer)).and_then(|known| {
            seen.clone_from(&known.token);
            let authorized = check::authorize_look(known.token, &self.assertions(None), now)?;
            self.access.store.fenced_read(authorized.fence(), authorized.demand(), now, |_| Ok::<_, Error>(()))?;
            show(authorized.token(), &known.snapshot, self.access.look.registry())
        });
        self.answered(seen.as_ref(), what, None, looked, now)
    }

    /// Keeps a record of what was asked and how it ended, and turns a fault into what the caller is told.
    fn answered<T>(
        &mut self,
        token: Option<&TokenRecord>,
        operation: &str,
        request_id: Option<&str>,
        done: Result<T>,
        now: Now,
    ) -> Result<T, ApiError> {
        let noted = Noted { socket: &self.execution, token, operation, request_id, gate: None };
        self.access.answered(&noted, done, now)
    }

    /// Whether the scheduler should hear of a refusal since this was asked.
    pub const fn take_ring(&mut self) -> bool {
        self.access.take_ring()
    }

    /// Writes the records that have gathered, when nothing else is to be done; `false` when others write, so that it is
    /// to be done later.
    pub fn flush_history(&mut self) -> bool {
        self.access.flush_history()
    }

    /// Writes the records that have gathered, before the end.
    pub fn finish_history(&mut self) {
        self.access.finish_history();
    }

    /// The checks and the look in one view: what only looks needs no second one, and is the call that has to be quick.
    fn read_context(
        &mut self,
        bearer: &str,
        request: &CallRequest,
        request_id: Option<&str>,
        time: &dyn TimeSource,
        seen: &mut Option<TokenRecord>,
    ) -> Result<Called> {
        let digest = token::digest(bearer);
        let assertions = self.assertions(Some(request));
        let (Access { store, look, .. }, rate) = (&mut self.access, &mut self.rate);
        let view = store.read(|r| {
            let Known { token, snapshot } = look.known(r, &digest)?;
            seen.clone_from(&token);
            let authorized = check::authorize::<ReadContext>(token, &assertions, &snapshot, time.now())?;
            r.guard(authorized.fence(), authorized.demand(), time.now())?;
            check_request_id(request_id)?;
            rate.take(&authorized.token().grants.budget, time.now())?;
            read_input::<Nothing>(&request.input)?;
            context::read(r, &authorized, &snapshot)
        })?;
        Ok(Called { response: CallResponse::new(to_value(&view)?), ring: false })
    }

    fn assertions(&self, request: Option<&CallRequest>) -> Assertions {
        request.map_or_else(
            || Assertions { socket: Some(self.execution.clone()), ..Assertions::default() },
            |request| Assertions::of(request, &self.execution),
        )
    }

    fn dispatch(
        &mut self,
        bearer: &str,
        request: &CallRequest,
        request_id: Option<&str>,
        time: &dyn TimeSource,
        seen: &mut Option<TokenRecord>,
    ) -> Result<Called> {
        if request.operation == operation::READ_CONTEXT {
            return self.read_context(bearer, request, request_id, time, seen);
        }
        let Known { token, snapshot } = self.access.known(&token::digest(bearer))?;
        seen.clone_from(&token);
        let assertions = self.assertions(Some(request));
        let call = Call { bearer: token::digest(bearer), input: &request.input, request_id, time };
        let now = time.now();
        match request.operation.as_str() {
            operation::EMIT => {
                let authorized = check::authorize::<Emit>(token, &assertions, &snapshot, now)?;
                self.commit(&call, &authorized, Replay::Recorded, |tx, input| {
                    let done = operations::emit(tx, &authorized, input, request_id, &snapshot)?;
                    let output = to_value(&done.output)?;
                    let (replayed, ring, recorded) = (done.replayed, done.wanted, done.recorded);
                    let spent = Some(Spent { emissions: 1, ..Spent::default() });
                    Ok(Done { output, replayed, ring, recorded, spent })
                })
            }
            operation::CREATE_WORK => {
                let authorized = check::authorize::<CreateWork>(token, &assertions, &snapshot, now)?;
                self.commit(&call, &authorized, Replay::Recorded, |tx, input| {
                    let output = operations::create_work(tx, &authorized, input, request_id, &snapshot)?;
                    let spent = Some(Spent { children: 1, ..Spent::default() });
                    Ok(Done { ring: true, spent, ..Done::new(to_value(&output)?) })
                })
            }
            operation::WAIT => {
                let authorized = check::authorize::<Wait>(token, &assertions, &snapshot, now)?;
                self.commit(&call, &authorized, Replay::Refused, |tx, input| {
                    Ok(Done::new(to_value(&operations::wait(tx, &authorized, input)?)?))
                })
            }
            operation::DECLARE_OUTCOME => {
                let authorized = check::authorize::<DeclareOutcome>(token, &assertions, &snapshot, now)?;
                self.commit(&call, &authorized, Replay::Refused, |tx, input| {
                    Ok(Done::new(to_value(&operations::declare_outcome(tx, &authorized, input)?)?))
                })
            }
            _ => {
                // Not declared: refused by the same decision that admits the declared ones, in its order.
                let ceiling = |scope: &conduit_api::ScopeId, name: &str| snapshot.authorize_operation(scope, name);
                let refused = check::decide(token.as_ref(), &assertions, &request.operation, false, ceiling, now);
                Err(Error::Refused { rule: refused.err().unwrap_or(check::rule::UNDECLARED) })
            }
        }
    }

    /// Runs an operation in its fenced transaction: the token again, the lease, the replay look-up, then the operation.
    fn commit<O: Operation, I: DeserializeOwned>(
        &mut self,
        call: &Call<'_>,
        authorized: &Authorized<O>,
        replay: Replay,
        run: impl FnOnce(&conduit_store::Fenced<'_>, &I) -> Result<Done>,
    ) -> Result<Called> {
        let replayable = call.request_id.filter(|_| replay == Replay::Recorded);
        let rate = &mut self.rate;
        self.access.store.fenced(authorized.fence(), authorized.demand(), call.time, |tx| {
            // What was looked up before the lock may have been revoked, or have expired, since.
            let token = token::lookup(tx, &call.bearer)?;
            check::live(token.as_ref(), tx.now()).map_err(|rule| Error::Refused { rule })?;
            check_request_id(call.request_id)?;
            if replay == Replay::Recorded {
                rate.take(&authorized.token().grants.budget, tx.now())?;
            }
            if let Some(request_id) = replayable
                && let Some(output) = replay::find(tx, &tx.held().execution, O::NAME, request_id, call.input)?
            {
                return Ok(Called { response: CallResponse::replayed(output), ring: false });
            }
            let input = read_input(call.input)?;
            let Done { output, replayed, ring, recorded, spent } = run(tx, &input)?;
            if let Some(spent) = spent.filter(|_| !replayed) {
                budget::charge(tx, authorized.token(), &Spent { bytes: Spent::on_input(call.input).bytes, ..spent })?;
            }
            if let Some(request_id) = replayable.filter(|_| !recorded) {
                replay::store(tx, &tx.held().execution, O::NAME, request_id, call.input, &output, tx.now())?;
            }
            Ok(Called { response: CallResponse { replayed, ..CallResponse::new(output) }, ring })
        })
    }
}

/// A call of an extension's operation that passed checks 1 to 5.
struct Decided<'d> {
    read: &'d Read<'d>,
    token: &'d TokenRecord,
    snapshot: &'d Snapshot,
    registry: &'d Registry,
    rate: &'d mut Rate,
    now: Now,
}

/// What all operations of one call share.
struct Call<'c> {
    bearer: Sha256Digest,
    input: &'c Map<String, Value>,
    request_id: Option<&'c str>,
    time: &'c dyn TimeSource,
}

/// What the same request, asked again, gets (T14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replay {
    /// The recorded answer.
    Recorded,
    /// A refusal by the fence: the operation is a declaration, which releases authority.
    Refused,
}

/// What an operation came to.
struct Done {
    output: Value,
    /// Whether it found itself done before.
    replayed: bool,
    /// Whether the scheduler acts on what was committed; on a declaration it acts when the process has ended.
    ring: bool,
    /// Whether what it wrote is its own record of the request.
    recorded: bool,
    /// What it used up beside its input, which counts with it; `None` for what costs nothing.
    spent: Option<Spent>,
}

impl Done {
    const fn new(output: Value) -> Self {
        Self { output, replayed: false, ring: false, recorded: false, spent: None }
    }
}

/// The input of an operation that takes none.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

pub(crate) fn check_request_id(request_id: Option<&str>) -> Result<()> {
    match request_id {
        Some(id) if id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX || !id.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(Error::operation(
                Code::InvalidRequest,
                format!("a request ID has 1 to {REQUEST_ID_BYTES_MAX} printable ASCII characters"),
            ))
        }
        _ => Ok(()),
    }
}

fn read_input<T: DeserializeOwned>(input: &Map<String, Value>) -> Result<T> {
    json::from_value(Value::Object(input.clone()))
        .map_err(|refused| Error::operation(Code::InvalidRequest, format!("input: {refused}")))
}

pub(crate) fn to_value(output: &impl Serialize) -> Result<Value> {
    serde_json::to_value(output).map_err(|_| Error::operation(Code::Internal, "the answer cannot be written"))
}
