//! The store as the extensions of this release reach it: one connection for them all, opened when the first one asks, so that
//! a daemon whose extensions nobody uses has none.
//!
//! It is for what comes with the suite. An installed package is asked and answers, and reaches no row.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use conduit_api::ApiError;
use conduit_config::Snapshot;
use conduit_store::{Read, StateDir, Store, Write};
use conduit_toolbelt::Live;
use conduit_toolbelt::registry::Registry;

use crate::{Failure, OperationError};

/// The way to the store, for extensions in the daemon's process.
pub struct Desk {
    state: StateDir,
    store: OnceCell<RefCell<Store>>,
    known: RefCell<Live>,
    ring: Box<dyn Fn()>,
}

/// What an extension's work at the store can come to.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
    #[error(transparent)]
    Config(#[from] conduit_config::Error),
    #[error(transparent)]
    Coordination(#[from] conduit_coordination::Error),
    /// It refuses, in its own words.
    #[error(transparent)]
    Refused(#[from] OperationError),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(refusal) => Self::Refused(refusal),
            fault => Self::Unavailable(fault.to_string()),
        }
    }
}

impl From<Fault> for conduit_toolbelt::Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Store(error) => Self::Store(error),
            Fault::Config(error) => Self::Config(error),
            Fault::Coordination(error) => Self::Coordination(error),
            Fault::Refused(OperationError { code, message }) => Self::Operation(ApiError::of_extension(code, message)),
        }
    }
}

impl Desk {
    /// A desk that has opened nothing. `ring` tells the scheduler that there is something to route.
    pub fn new(state: StateDir, registry: Rc<Registry>, ring: Box<dyn Fn()>) -> Self {
        let known = RefCell::new(Live::new(state.clone(), registry));
        Self { state, store: OnceCell::new(), known, ring }
    }

    /// Looks at the store and at the configuration that is active, in one view.
    pub fn read<T>(&self, look: impl FnOnce(&Read<'_>, &Rc<Snapshot>) -> Result<T, Fault>) -> Result<T, Fault> {
        self.store()?.borrow_mut().read(|r| look(r, &self.active(r)?))
    }

    /// Changes the store under the configuration that is active in the same transaction, then rings.
    pub fn write<T>(&self, change: impl FnOnce(&Write<'_>, &Rc<Snapshot>) -> Result<T, Fault>) -> Result<T, Fault> {
        let done = self.store()?.borrow_mut().write(|tx| change(tx, &self.active(tx)?))?;
        (self.ring)();
        Ok(done)
    }

    /// What the generation that was looked at last can name.
    pub fn registry(&self) -> Rc<Registry> {
        Rc::clone(self.known.borrow().registry())
    }

    fn active(&self, r: &Read<'_>) -> Result<Rc<Snapshot>, Fault> {
        Ok(self.known.borrow_mut().active(r)?)
    }

    fn store(&self) -> Result<&RefCell<Store>, Fault> {
        match self.store.get() {
            Some(store) => Ok(store),
            None => {
                let opened = RefCell::new(Store::open(&self.state)?);
                Ok(self.store.get_or_init(|| opened))
            }
        }
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("open", &self.store.get().is_some()).finish_non_exhaustive()
    }
}
