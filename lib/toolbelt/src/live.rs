//! The registry and the configuration as one process holds them, followed through the process's life.
//!
//! A package can be used only where a generation enables it, and cannot go or change while a generation in use does. So what
//! is installed is looked at when another generation is met, and at no other time: a call pays nothing for it.

use std::rc::Rc;

use conduit_config::{Result, Snapshot, SnapshotCache};
use conduit_store::digest::Sha256Digest;
use conduit_store::{Read, StateDir};

use crate::packages;
use crate::registry::{Registration, Registry};

/// What a process knows of operations and generations.
#[derive(Debug)]
pub struct Live {
    state: StateDir,
    /// What comes with the release.
    release: Vec<Registration>,
    /// Names and digests of the packages that are in `registry`.
    installed: Vec<(String, Sha256Digest)>,
    registry: Rc<Registry>,
    snapshots: SnapshotCache,
    /// The newest generation that was active in a view of this process.
    generation: i64,
}

impl Live {
    /// What comes with the release is `registry`; packages are looked for in the first view.
    pub fn new(state: StateDir, registry: Rc<Registry>) -> Self {
        let snapshots = SnapshotCache::new(registry.catalogue().clone());
        let release = registry.registrations().to_vec();
        Self { state, release, installed: Vec::new(), registry, snapshots, generation: 0 }
    }

    /// The operations that the generations which were asked for can name.
    pub const fn registry(&self) -> &Rc<Registry> {
        &self.registry
    }

    /// Whether `registry` is as new as `snapshot`.
    pub fn knows(&self, snapshot: &Snapshot) -> bool {
        self.generation >= snapshot.generation
    }

    /// The generation that is active in the view of `read`. Errors: as for [`SnapshotCache::active`].
    pub fn active(&mut self, read: &Read<'_>) -> Result<Rc<Snapshot>> {
        if let Ok(active) = self.snapshots.active(read, &self.state)
            && active.generation == self.generation
        {
            return Ok(active);
        }
        self.refresh(read)?;
        let active = self.snapshots.active(read, &self.state)?;
        self.generation = active.generation;
        Ok(active)
    }

    /// Generation `number`, active or not. Errors: as for [`SnapshotCache::pinned`].
    pub fn pinned(&mut self, read: &Read<'_>, number: i64) -> Result<Rc<Snapshot>> {
        if number > self.generation {
            self.active(read)?;
        }
        self.snapshots.pinned(read, &self.state, number)
    }

    /// Looks at what is installed; `true` when it was something else before.
    pub fn refresh(&mut self, read: &Read<'_>) -> Result<bool> {
        let installed = packages::digests(read)?;
        if installed == self.installed {
            return Ok(false);
        }
        let packages = packages::all(read)?.into_iter().map(|package| package.registration);
        let (registry, refused) = Registry::new(self.release.iter().cloned().chain(packages).collect());
        for refused in refused {
            tracing::error!(code = refused.code().as_str(), %refused, "an installed package is not registered");
        }
        self.installed = installed;
        self.snapshots = SnapshotCache::new(registry.catalogue().clone());
        self.registry = Rc::new(registry);
        Ok(true)
    }
}
