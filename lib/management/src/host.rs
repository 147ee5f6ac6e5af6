//! What the handlers work with: one connection, the active configuration, and the doorbell.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use conduit_api::places::Places;
use conduit_config::{ConfigService, Snapshot};
use conduit_daemon::doorbell::Ringer;
use conduit_store::{Read, StateDir, Store};
use conduit_toolbelt::Live;
use conduit_toolbelt::registry::Registry;

use crate::daemon::Daemon;
use crate::error::Result;
use crate::handlers::gates::Gates;

/// The server's hold on the suite. Handlers run one at a time and never wait inside.
pub(crate) struct Host {
    pub state: StateDir,
    pub store: Store,
    pub known: Live,
    pub config: Rc<ConfigService>,
    config_file: PathBuf,
    /// What `config` resolves by.
    referred: Rc<Registry>,
    ringer: Ringer,
    pub daemon: Rc<Daemon>,
}

impl Host {
    pub(crate) fn new(state: StateDir, store: Store, places: &Places, config_file: PathBuf) -> Self {
        let registry = Rc::new(conduit_release::registry());
        let config = config_service(&state, &config_file, &registry);
        let known = Live::new(state.clone(), Rc::clone(&registry));
        Self {
            state,
            store,
            known,
            config,
            config_file,
            referred: registry,
            ringer: Ringer::new(places),
            daemon: Rc::new(Daemon::new(places)),
        }
    }

    /// The registrations that are gates, in the order of names.
    pub(crate) fn gates(&self) -> Vec<Gates> {
        let gates = self.known.registry().registrations().iter().filter(|one| one.gate || one.start_gate);
        gates.map(|one| Gates { name: one.name.clone(), gate: one.gate, start_gate: one.start_gate }).collect()
    }

    /// Looks at what is installed: what a configuration may name depends on it.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let Self { store, known, .. } = self;
        store.read(|r| known.refresh(r))?;
        if !Rc::ptr_eq(&self.referred, known.registry()) {
            self.referred = Rc::clone(known.registry());
            self.config = config_service(&self.state, &self.config_file, &self.referred);
        }
        Ok(())
    }

    /// Looks at the store and the configuration in one view.
    pub(crate) fn read<T>(&mut self, look: impl FnOnce(&Read<'_>, &mut Active<'_>) -> Result<T>) -> Result<T> {
        let mut active = Active { known: &mut self.known };
        self.store.read(|r| look(r, &mut active))
    }

    /// Changes the store under the configuration that is active in the same transaction, then rings the scheduler.
    pub(crate) fn write<T>(
        &mut self,
        change: impl FnOnce(&conduit_store::Write<'_>, &mut Active<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut active = Active { known: &mut self.known };
        let done = self.store.write(|tx| change(tx, &mut active))?;
        self.ring();
        Ok(done)
    }

    /// Tells the scheduler to look; losing it costs latency only.
    pub(crate) fn ring(&self) {
        self.ringer.ring();
    }
}

fn config_service(state: &StateDir, file: &Path, registry: &Registry) -> Rc<ConfigService> {
    Rc::new(ConfigService::new(state.clone(), file.to_owned(), Rc::new(conduit_release::references(registry))))
}

/// The way to the configuration that is active in a transaction's view.
pub(crate) struct Active<'h> {
    known: &'h mut Live,
}

impl Active<'_> {
    /// Errors: `unavailable` before the first generation, `state_unavailable` when its bytes are missing or altered.
    pub(crate) fn snapshot(&mut self, r: &Read<'_>) -> Result<Rc<Snapshot>> {
        Ok(self.known.active(r)?)
    }

    /// A generation that is in use, active or not. Errors as above.
    pub(crate) fn pinned(&mut self, r: &Read<'_>, generation: i64) -> Result<Rc<Snapshot>> {
        Ok(self.known.pinned(r, generation)?)
    }

    /// Whether the active generation enables the extension; before the first one nothing is enabled.
    pub(crate) fn enables(&mut self, r: &Read<'_>, extension: &str) -> Result<bool> {
        match self.known.active(r) {
            Ok(snapshot) => Ok(snapshot.registers(extension)),
            Err(conduit_config::Error::NoGeneration) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
