//! What the handlers work with: one connection, the active configuration, and the doorbell.

use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::places::Places;
use conduit_config::{ConfigService, Snapshot, SnapshotCache};
use conduit_daemon::doorbell::Ringer;
use conduit_store::{Read, StateDir, Store};

use crate::error::Result;
use crate::handlers::gates::Gates;

/// The server's hold on the suite. Handlers run one at a time and never wait inside.
pub(crate) struct Host {
    pub state: StateDir,
    pub store: Store,
    pub snapshots: SnapshotCache,
    pub config: ConfigService,
    /// The registrations of this release that are gates, in the order of names.
    pub gates: Vec<Gates>,
    ringer: Ringer,
}

impl Host {
    pub(crate) fn new(state: StateDir, store: Store, places: &Places, config_file: PathBuf) -> Self {
        let registry = conduit_release::registry();
        let snapshots = SnapshotCache::new(registry.catalogue().clone());
        let config = ConfigService::new(state.clone(), config_file, Rc::new(conduit_release::references(&registry)));
        let gates = registry.registrations().iter().filter(|one| one.gate || one.start_gate);
        let gates = gates.map(|one| Gates { name: one.name.clone(), gate: one.gate, start_gate: one.start_gate });
        let gates = gates.collect();
        Self { state, store, snapshots, config, gates, ringer: Ringer::new(places) }
    }

    /// Looks at the store and the configuration in one view.
    pub(crate) fn read<T>(&mut self, look: impl FnOnce(&Read<'_>, &mut Active<'_>) -> Result<T>) -> Result<T> {
        let mut active = Active { snapshots: &mut self.snapshots, state: &self.state };
        self.store.read(|r| look(r, &mut active))
    }

    /// Changes the store under the configuration that is active in the same transaction, then rings the scheduler.
    pub(crate) fn write<T>(
        &mut self,
        change: impl FnOnce(&conduit_store::Write<'_>, &mut Active<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut active = Active { snapshots: &mut self.snapshots, state: &self.state };
        let done = self.store.write(|tx| change(tx, &mut active))?;
        self.ring();
        Ok(done)
    }

    /// Tells the scheduler to look; losing it costs latency only.
    pub(crate) fn ring(&self) {
        self.ringer.ring();
    }
}

/// The way to the configuration that is active in a transaction's view.
pub(crate) struct Active<'h> {
    snapshots: &'h mut SnapshotCache,
    state: &'h StateDir,
}

impl Active<'_> {
    /// Errors: `unavailable` before the first generation, `state_unavailable` when its bytes are missing or altered.
    pub(crate) fn snapshot(&mut self, r: &Read<'_>) -> Result<Rc<Snapshot>> {
        Ok(self.snapshots.active(r, self.state)?)
    }
}
