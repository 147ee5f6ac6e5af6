//! What every door to the toolbelt shares: the store, what is known of a bearer, and the record of each call.

use std::path::Path;
use std::rc::Rc;

use conduit_api::error::with_causes;
use conduit_api::limits::{NAME_BYTES_MAX, REQUEST_ID_BYTES_MAX};
use conduit_api::{ApiError, ExecutionId};
use conduit_config::Snapshot;
use conduit_coordination::executions;
use conduit_store::digest::Sha256Digest;
use conduit_store::history::{History, ToolbeltRecord};
use conduit_store::{Now, Read, StateDir, Store};

use crate::check;
use crate::error::{Error, Result};
use crate::live::Live;
use crate::registry::Registry;
use crate::token::{self, TokenRecord};

/// The store, the history and the configuration, as one process holds them.
#[derive(Debug)]
pub(crate) struct Access {
    pub store: Store,
    history: History,
    pub look: LookUp,
    /// Whether something was committed beside a refusal that the scheduler acts on.
    ring: bool,
}

/// What is asked in the view of a call.
#[derive(Debug)]
pub(crate) struct LookUp {
    pub live: Live,
}

/// What the store and the configuration say about a bearer.
pub(crate) struct Known {
    pub token: Option<TokenRecord>,
    pub snapshot: Rc<Snapshot>,
}

/// What the record of a call says besides its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noted<'n> {
    /// The execution whose socket the call came through: a stranger's call is recorded under it.
    pub socket: &'n ExecutionId,
    pub token: Option<&'n TokenRecord>,
    pub operation: &'n str,
    pub request_id: Option<&'n str>,
    /// The gate that parked or refused the call (G05).
    pub gate: Option<&'n str>,
}

impl LookUp {
    /// What there is; each generation's lists are resolved against it (S02).
    pub const fn registry(&self) -> &Rc<Registry> {
        self.live.registry()
    }

    /// What the view says about the bearer with this digest. Error: `wrong_credential_class` for an operator's.
    pub fn known(&mut self, r: &Read<'_>, digest: &Sha256Digest) -> Result<Known> {
        let token = token::lookup(r, digest)?;
        if token.is_none() && token::is_operator(r, digest)? {
            return Err(Error::WrongCredentialClass);
        }
        Ok(Known { token, snapshot: self.live.active(r)? })
    }
}

impl Access {
    /// Opens the store of `state`, for calls of operations of `registry`.
    pub fn open(state: &Path, registry: Rc<Registry>) -> Result<Self> {
        let state = StateDir::open(state)?;
        let store = Store::open(&state)?;
        let history = History::open(&state)?;
        Ok(Self { store, history, look: LookUp { live: Live::new(state, registry) }, ring: false })
    }

    /// What is known of the bearer with this digest, in a view of its own.
    pub fn known(&mut self, digest: &Sha256Digest) -> Result<Known> {
        let Self { store, look, .. } = self;
        store.read(|r| look.known(r, digest))
    }

    /// Keeps a record of what was asked and how it ended, and turns a fault into what the caller is told.
    pub fn answered<T>(&mut self, noted: &Noted<'_>, done: Result<T>, now: Now) -> Result<T, ApiError> {
        let done = done.map_err(|error| self.held(noted, error, now));
        let refusal = done.as_ref().err().and_then(|error| self.refusal(noted, error));
        self.record(noted, done.as_ref().map(|_| ()), refusal, now);
        done.map_err(|error| {
            log(&error, noted.socket);
            error.to_api()
        })
    }

    /// Carries out what an exceeded budget asks for: the caller's authority ends and its Work is held, in one transaction under
    /// its lease. When that fails, the failure is what the call comes to. Nothing of the call was done, so a crash before this
    /// leaves the next call to do it.
    fn held(&mut self, noted: &Noted<'_>, error: Error, now: Now) -> Error {
        let (Error::BudgetExceeded(exceeded), Some(token)) = (&error, noted.token) else { return error };
        if !exceeded.hold {
            return error;
        }
        let (fence, demand) = check::authority(token);
        let held = self.store.fenced(&fence, &demand, now, |tx| {
            executions::hold_for_budget(tx, &token.execution, exceeded.bounded.name(), now)
        });
        match held {
            Ok(()) => {
                self.ring = true;
                error
            }
            Err(lost) => Error::Coordination(lost),
        }
    }

    /// What the record of a refusal says to the operator: the configuration lags the playbook that the caller's binding
    /// started on, in the generation that the caller is pinned to (S07).
    fn refusal(&mut self, noted: &Noted<'_>, error: &Error) -> Option<&'static str> {
        const CONFIG_DRIFT: &str = "config_drift";
        let token = noted.token?;
        if !error.rule().is_some_and(|rule| check::rule::OF_GRANTS.contains(&rule)) {
            return None;
        }
        let Self { store, look, .. } = self;
        match store.read(|r| look.live.pinned(r, token.generation)) {
            Ok(pinned) => pinned.drift(&token.scope, &token.binding, noted.operation).then_some(CONFIG_DRIFT),
            Err(error) => {
                tracing::warn!(%error, "a refusal is recorded without looking for drift");
                None
            }
        }
    }

    fn record(&mut self, noted: &Noted<'_>, done: Result<(), &Error>, refusal: Option<&'static str>, now: Now) {
        let (result, rule) = match done {
            Ok(()) => ("ok".to_owned(), None),
            Err(error) => (error.result(), error.reason()),
        };
        let token = noted.token;
        let record = ToolbeltRecord {
            at: now.wall,
            called: done.is_ok(),
            execution_id: Some(token.map_or(noted.socket, |t| &t.execution).to_string()),
            work_id: token.map(|t| t.work.to_string()),
            scope_id: token.map(|t| t.scope.to_string()),
            operation: noted.operation.chars().take(NAME_BYTES_MAX).collect(),
            request_id: noted.request_id.map(|id| id.chars().take(REQUEST_ID_BYTES_MAX).collect()),
            result,
            rule,
            refusal,
            gate: noted.gate.map(str::to_owned),
            generation: token.map(|t| t.generation),
        };
        warn_if_lost(self.history.note(record));
    }

    /// Whether the scheduler should hear of a refusal since this was asked: a Work was held, and there is a process to stop.
    pub const fn take_ring(&mut self) -> bool {
        std::mem::replace(&mut self.ring, false)
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
        tracing::error!(%execution, error = with_causes(error), "a call failed");
    }
}
