//! The active snapshot for the price of one query: parsed again only when another generation is active.

use std::rc::Rc;

use conduit_store::{Read, StateDir};

use crate::catalogue::Catalogue;
use crate::error::{Error, Result};
use crate::generation;
use crate::snapshot::Snapshot;

/// One process's copy of the active generation. It is asked inside each call's own transaction, so that a reload
/// revokes everywhere at once, with no messaging (T07).
#[derive(Debug)]
pub struct SnapshotCache {
    /// What this process's release has; the lists of a generation are resolved against it (S02).
    catalogue: Catalogue,
    active: Option<Rc<Snapshot>>,
    /// The one that was last asked for by number.
    pinned: Option<Rc<Snapshot>>,
}

impl SnapshotCache {
    /// A cache that has loaded nothing yet.
    pub const fn new(catalogue: Catalogue) -> Self {
        Self { catalogue, active: None, pinned: None }
    }

    /// The generation that is active in the view of `read`.
    ///
    /// Errors: `unavailable` before the first generation, `state_unavailable` when its bytes are missing or altered.
    pub fn active(&mut self, read: &Read<'_>, state: &StateDir) -> Result<Rc<Snapshot>> {
        let number = generation::active_number(read)?.ok_or(Error::NoGeneration)?;
        held(&mut self.active, number, || generation::load(read, state, number, &self.catalogue))
    }

    /// Generation `number`, active or not: the one that an execution is pinned to.
    ///
    /// Error: `state_unavailable` when there is no such generation, or its bytes are missing or altered.
    pub fn pinned(&mut self, read: &Read<'_>, state: &StateDir, number: i64) -> Result<Rc<Snapshot>> {
        if let Some(active) = self.active.as_ref().filter(|active| active.generation == number) {
            return Ok(Rc::clone(active));
        }
        held(&mut self.pinned, number, || generation::load(read, state, number, &self.catalogue))
    }
}

fn held(slot: &mut Option<Rc<Snapshot>>, number: i64, load: impl FnOnce() -> Result<Snapshot>) -> Result<Rc<Snapshot>> {
    if let Some(held) = slot.as_ref().filter(|held| held.generation == number) {
        return Ok(Rc::clone(held));
    }
    Ok(Rc::clone(slot.insert(Rc::new(load()?))))
}
