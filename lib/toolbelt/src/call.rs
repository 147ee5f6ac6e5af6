//! A toolbelt: one execution's calls, from the bearer to the committed answer.

use std::path::Path;
use std::rc::Rc;

use conduit_api::limits::REQUEST_ID_BYTES_MAX;
use conduit_api::toolbelt::{CallRequest, CallResponse, operation};
use conduit_api::{ApiError, Code, ExecutionId, json};
use conduit_config::{Snapshot, SnapshotCache};
use conduit_store::digest::Sha256Digest;
use conduit_store::history::{History, ToolbeltRecord};
use conduit_store::{Clock, Now, StateDir, Store, TimeSource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::check::{self, Assertions, Authorized, CreateWork, DeclareOutcome, Emit, Operation, ReadContext, Wait};
use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::token::{self, TokenRecord};
use crate::{context, guidance, operations, replay};

/// The toolbelt of one execution, as its endpoint serves it.
#[derive(Debug)]
pub struct Toolbelt {
    state: StateDir,
    store: Store,
    history: History,
    snapshots: SnapshotCache,
    /// What this release has; each generation's lists are resolved against it (S02).
    registry: Rc<Registry>,
    execution: ExecutionId,
}

/// A call that was carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct Called {
    pub response: CallResponse,
    /// Whether the scheduler should hear of it: something was committed that it acts on.
    pub ring: bool,
}

/// What the store and the configuration say about a bearer.
struct Known {
    token: Option<TokenRecord>,
    snapshot: Rc<Snapshot>,
}

impl Toolbelt {
    /// Opens the store of `state` for the socket of `execution`, whose calls are of operations of `registry`.
    pub fn open(state: &Path, execution: ExecutionId, registry: Rc<Registry>) -> Result<Self> {
        let state = StateDir::open(state)?;
        let store = Store::open(&state)?;
        let history = History::open(&state)?;
        let snapshots = SnapshotCache::new(registry.catalogue().clone());
        Ok(Self { state, store, history, snapshots, registry, execution })
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

    /// The guidance of what the bearer may call (E02).
    pub fn guidance(&mut self, bearer: &str) -> Result<Value, ApiError> {
        let registry = Rc::clone(&self.registry);
        self.look("guidance", bearer, |token, snapshot| guidance::of(token, snapshot, &registry))
    }

    /// Which of the bearer's operations serve `capability` (E02). Builtins serve none.
    pub fn serving(&mut self, bearer: &str, capability: &str) -> Result<Value, ApiError> {
        let registry = Rc::clone(&self.registry);
        self.look("serving", bearer, |token, snapshot| guidance::serving(token, snapshot, &registry, capability))
    }

    /// What to tell a bearer about a request that cannot be read: `told`, or the refusal of who may not call at all and
    /// learns nothing about its request (T05, T06). A record is kept, as of every call.
    pub fn unreadable(&mut self, bearer: &str, told: ApiError) -> ApiError {
        let refused: Result<Value, _> = self.looked("unreadable", bearer, |_, _| Err(Error::Operation(told.clone())));
        refused.err().unwrap_or(told)
    }

    fn look(
        &mut self,
        what: &'static str,
        bearer: &str,
        show: impl FnOnce(&TokenRecord, &Snapshot) -> Value,
    ) -> Result<Value, ApiError> {
        self.looked(what, bearer, |token, snapshot| Ok(show(token, snapshot)))
    }

    fn looked(
        &mut self,
        what: &'static str,
        bearer: &str,
        show: impl FnOnce(&TokenRecord, &Snapshot) -> Result<Value>,
    ) -> Result<Value, ApiError> {
        let now = Clock.now();
        let mut seen = None;
        let looked = self.known(bearer).and_then(|known| {
            seen.clone_from(&known.token);
            let authorized = check::authorize_look(known.token, &self.assertions(None), now)?;
            self.store.fenced_read(authorized.fence(), authorized.demand(), now, |_| Ok::<_, Error>(()))?;
            show(authorized.token(), &known.snapshot)
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
        let refusal = done.as_ref().err().and_then(|error| self.refusal(token?, operation, error));
        self.record(token, operation, request_id, done.as_ref().map(|_| ()), refusal, now);
        done.map_err(|error| {
            log(&error, &self.execution);
            error.to_api()
        })
    }

    /// What the record of a refusal says to the operator: the configuration lags the playbook that the caller's binding
    /// started on, in the generation that the caller is pinned to (S07).
    fn refusal(&mut self, token: &TokenRecord, operation: &str, error: &Error) -> Option<&'static str> {
        const CONFIG_DRIFT: &str = "config_drift";
        if !error.rule().is_some_and(|rule| check::rule::OF_GRANTS.contains(&rule)) {
            return None;
        }
        let (state, snapshots) = (&self.state, &mut self.snapshots);
        match self.store.read(|r| snapshots.pinned(r, state, token.generation)) {
            Ok(pinned) => pinned.drift(&token.scope, &token.binding, operation).then_some(CONFIG_DRIFT),
            Err(error) => {
                tracing::warn!(%error, "a refusal is recorded without looking for drift");
                None
            }
        }
    }

    /// Writes the records that have gathered, when nothing else is to be done; `false` when others write, so that it is
    /// to be done later.
    pub fn flush_history(&mut self) -> bool {
        let written = self.history.flush();
        let done = !self.history.has_pending();
        if done {
            warn_if_lost(written);
        }
        done
    }

    /// Writes the records that have gathered, before the end.
    pub fn finish_history(&mut self) {
        warn_if_lost(self.history.finish());
    }

    fn known(&mut self, bearer: &str) -> Result<Known> {
        let digest = token::digest(bearer);
        let (state, snapshots) = (&self.state, &mut self.snapshots);
        self.store.read(|r| known_in(r, &digest, state, snapshots))
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
        let (state, snapshots) = (&self.state, &mut self.snapshots);
        let view = self.store.read(|r| {
            let Known { token, snapshot } = known_in(r, &digest, state, snapshots)?;
            seen.clone_from(&token);
            let authorized = check::authorize::<ReadContext>(token, &assertions, &snapshot, time.now())?;
            r.guard(authorized.fence(), authorized.demand(), time.now())?;
            check_request_id(request_id)?;
            read_input::<Nothing>(&request.input)?;
            context::read(r, &authorized, &snapshot)
        })?;
        Ok(Called { response: CallResponse { replayed: false, output: to_value(&view)? }, ring: false })
    }

    fn assertions(&self, request: Option<&CallRequest>) -> Assertions {
        Assertions {
            scope: request.and_then(|r| r.scope_id.clone()),
            work: request.and_then(|r| r.work_id.clone()),
            execution: request.and_then(|r| r.execution_id.clone()),
            socket: Some(self.execution.clone()),
        }
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
        let Known { token, snapshot } = self.known(bearer)?;
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
                    Ok(Done { output, replayed: done.replayed, ring: done.wanted, recorded: done.recorded })
                })
            }
            operation::CREATE_WORK => {
                let authorized = check::authorize::<CreateWork>(token, &assertions, &snapshot, now)?;
                self.commit(&call, &authorized, Replay::Recorded, |tx, input| {
                    let output = operations::create_work(tx, &authorized, input, request_id, &snapshot)?;
                    Ok(Done { ring: true, ..Done::new(to_value(&output)?) })
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
                let refused = check::decide(token.as_ref(), &assertions, &request.operation, ceiling, now);
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
        self.store.fenced(authorized.fence(), authorized.demand(), call.time, |tx| {
            // What was looked up before the lock may have been revoked, or have expired, since.
            let token = token::lookup(tx, &call.bearer)?;
            check::live(token.as_ref(), tx.now()).map_err(|rule| Error::Refused { rule })?;
            check_request_id(call.request_id)?;
            if let Some(request_id) = replayable
                && let Some(output) = replay::find(tx, O::NAME, request_id, call.input)?
            {
                return Ok(Called { response: CallResponse { replayed: true, output }, ring: false });
            }
            let input = read_input(call.input)?;
            let Done { output, replayed, ring, recorded } = run(tx, &input)?;
            if let Some(request_id) = replayable.filter(|_| !recorded) {
                replay::store(tx, O::NAME, request_id, call.input, &output)?;
            }
            Ok(Called { response: CallResponse { replayed, output }, ring })
        })
    }

    fn record(
        &mut self,
        token: Option<&TokenRecord>,
        operation: &str,
        request_id: Option<&str>,
        done: Result<(), &Error>,
        refusal: Option<&'static str>,
        now: Now,
    ) {
        let (result, rule) = match done {
            Ok(()) => ("ok".to_owned(), None),
            Err(error) => (error.to_api().code.as_str().to_owned(), error.rule()),
        };
        let record = ToolbeltRecord {
            at: now.wall,
            called: done.is_ok(),
            // A stranger's call is recorded under the socket that it came through.
            execution_id: Some(token.map_or(&self.execution, |t| &t.execution).to_string()),
            work_id: token.map(|t| t.work.to_string()),
            scope_id: token.map(|t| t.scope.to_string()),
            operation: operation.chars().take(conduit_api::limits::NAME_BYTES_MAX).collect(),
            request_id: request_id.map(|id| id.chars().take(REQUEST_ID_BYTES_MAX).collect()),
            result,
            rule,
            refusal,
            generation: token.map(|t| t.generation),
        };
        warn_if_lost(self.history.note(record));
    }
}

/// What one view says about the bearer with this digest. Error: `wrong_credential_class` for an operator's.
fn known_in(
    r: &conduit_store::Read<'_>,
    digest: &Sha256Digest,
    state: &StateDir,
    snapshots: &mut SnapshotCache,
) -> Result<Known> {
    let token = token::lookup(r, digest)?;
    if token.is_none() && token::is_operator(r, digest)? {
        return Err(Error::WrongCredentialClass);
    }
    Ok(Known { token, snapshot: snapshots.active(r, state)? })
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
}

impl Done {
    const fn new(output: Value) -> Self {
        Self { output, replayed: false, ring: false, recorded: false }
    }
}

/// The input of an operation that takes none.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn check_request_id(request_id: Option<&str>) -> Result<()> {
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

fn to_value(output: &impl Serialize) -> Result<Value> {
    serde_json::to_value(output).map_err(|_| Error::operation(Code::Internal, "the answer cannot be written"))
}

fn warn_if_lost(written: conduit_store::error::Result<()>) {
    if let Err(error) = written {
        tracing::warn!(%error, "some records of calls were not written");
    }
}

/// Faults of the host are logged; refusals are in the history.
fn log(error: &Error, execution: &ExecutionId) {
    let api = error.to_api();
    if api.code.status() >= 500 {
        tracing::error!(%execution, error = %chain(error), "a call failed");
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
