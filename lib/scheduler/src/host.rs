//! What every part of the scheduler shares. One thread, so borrows are short and never held over an await.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::places::Places;
use conduit_api::{ExecutionId, ScopeId};
use conduit_config::Snapshot;
use conduit_coordination::executions::{Claim, StopReason};
use conduit_extension::host::ExtensionHost;
use conduit_kernel::Kernel;
use conduit_store::{Clock, Now, Read, StateDir, Store};
use conduit_toolbelt::Live as Followed;
use tokio::sync::{Notify, Semaphore};

use crate::executors::Executors;

/// How long a lease lasts without being renewed. The daemon's own lock decides who may take a segment over; the lease
/// bounds how long a token outlives a daemon that never comes back.
pub const LEASE_US: i64 = 900 * 1_000_000;
/// How often leases are renewed while something runs.
pub const RENEWAL_US: i64 = 300 * 1_000_000;

/// How many endpoints are closed at the same time.
pub const CLOSING_MAX: usize = 16;

/// An execution whose segment this daemon follows.
#[derive(Debug)]
pub struct Live {
    pub scope: ScopeId,
    /// Asked to stop; told once.
    pub stop: Rc<Notify>,
    pub stop_reason: Cell<Option<StopReason>>,
    /// Its runner let the deadline pass; told once.
    pub overdue: Notify,
    /// When it is to be told so, in microseconds since boot.
    pub overdue_boot_us: Cell<i64>,
    /// Past the launch boundary; before it, a shutdown waits for a moment.
    pub launched: Cell<bool>,
}

impl Live {
    /// A segment that nobody asked to stop, and that is not launched.
    pub fn new(scope: ScopeId) -> Self {
        Self {
            scope,
            stop: Rc::new(Notify::new()),
            stop_reason: Cell::new(None),
            overdue: Notify::new(),
            overdue_boot_us: Cell::new(i64::MAX),
            launched: Cell::new(false),
        }
    }
}

/// The scheduler's world.
pub struct Host {
    pub places: Places,
    pub state: StateDir,
    pub store: RefCell<Store>,
    /// The configuration, resolved by what is installed.
    pub known: RefCell<Followed>,
    pub kernel: Kernel,
    pub executors: Executors,
    /// This instance; no other ever has the same.
    pub owner: String,
    /// Directory of the suite's programs, `os` among them (E05).
    pub programs: PathBuf,
    pub live: RefCell<BTreeMap<ExecutionId, Rc<Live>>>,
    /// The scope whose turn came last.
    pub turn_of: RefCell<String>,
    /// Rung by the scheduler's own parts: something changed, take a turn.
    pub wake: Notify,
    /// Rung when a segment has come past its launch, which a shutdown waits for.
    pub launched: Notify,
    /// Endpoints that are closed at the same time.
    pub closing: Semaphore,
    /// Carries extensions' operations out and asks start gates; made right after this host, before anything is claimed.
    pub extensions: OnceCell<Rc<ExtensionHost>>,
}

impl Host {
    pub fn now(&self) -> Now {
        Clock.now()
    }

    pub fn claim<'a>(&'a self, snapshot: &Snapshot) -> Claim<'a> {
        Claim { owner: &self.owner, generation: snapshot.generation, lease_us: LEASE_US }
    }

    /// The active configuration, as `r` sees it.
    pub fn active(&self, r: &Read<'_>) -> Result<Rc<Snapshot>, conduit_config::Error> {
        self.known.borrow_mut().active(r)
    }

    /// The generation that an execution pinned.
    pub fn pinned(&self, generation: i64) -> Result<Rc<Snapshot>, conduit_config::Error> {
        self.store.borrow_mut().read(|r| self.known.borrow_mut().pinned(r, generation))
    }

    /// How many segments of `scope` this daemon follows.
    pub fn live_in(&self, scope: &ScopeId) -> usize {
        self.live.borrow().values().filter(|live| live.scope == *scope).count()
    }
}
