//! The kernel as its callers see it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use conduit_api::{AttemptId, JobId};
use conduit_store::{Now, Read, Store, Write};

use crate::attempt::{AttemptState, Evidence, Reason, StopReason, Terminal};
use crate::bundle::{Bundle, OutputFact};
use crate::error::{Error, Result};
use crate::executable::{Executable, Executables};
use crate::identity::{BaseEnvironment, OperationRequest};
use crate::launcher::process::ProcessLauncher;
use crate::launcher::{Launched, Launcher, Unit};

/// Where the kernel keeps bundles, and what it starts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `<state>/attempts`.
    pub attempts: PathBuf,
    /// The runner's binary.
    pub runner: PathBuf,
    pub base: BaseEnvironment,
}

/// The kernel. It holds no transaction and no attempt: everything it knows is in the store and in bundles.
#[derive(Debug)]
pub struct Kernel {
    settings: Settings,
    executables: Executables,
    runner_digest: String,
    launcher: Box<dyn Launcher>,
}

/// The operation is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    pub job: JobId,
    pub attempt: AttemptId,
    /// Whether it was on record before.
    pub replayed: bool,
}

/// A complete bundle, locked: no runner has it, and no other can.
#[derive(Debug)]
pub struct Staged {
    pub attempt: AttemptId,
    pub(crate) bundle: Bundle,
    pub(crate) lock: File,
    pub(crate) token: String,
    pub(crate) stop_grace: Duration,
}

/// What became of an attempt while no daemon watched it.
#[derive(Debug)]
pub enum Adoption {
    /// It never crossed the boundary: stage, dispatch and launch it.
    NotDispatched,
    /// A runner lives: await [`Launched::exited`], then [`Kernel::settle`].
    Alive(Launched),
    /// No runner lives: [`Kernel::settle`] it, then [`Kernel::conclude`].
    Over,
    /// It was concluded before.
    Concluded(Conclusion),
}

/// What is left of an attempt whose runner has ended.
#[derive(Debug)]
pub struct Ending {
    pub(crate) evidence: Evidence,
    pub(crate) outputs: Vec<OutputFact>,
    pub(crate) survivors: crate::proc::Survivors,
}

/// What an attempt was concluded as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    pub state: AttemptState,
    pub reason: Reason,
    /// `None` while it is orphaned: await [`Ending::survivors_gone`], then settle and conclude again.
    pub terminal: Option<Terminal>,
    pub outputs: Vec<OutputFact>,
}

/// What became of a request to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopping {
    /// The intent is on record: after the commit, [`Kernel::stop`] the runner.
    Asked,
    /// It had not been dispatched, so it has ended.
    Withdrawn,
    /// It had ended before.
    Ended(Terminal),
}

impl Kernel {
    /// Error: `executable_unavailable` when the runner's binary cannot be run.
    pub fn new(settings: Settings) -> Result<Self> {
        unreachable!("written next")
    }
    /// Resolves and hashes an executable, and remembers it, so that a later [`Kernel::admit`] does not hash inside
    /// its transaction. Error: `executable_unavailable`.
    pub fn identify(&self, path: &Path) -> Result<Executable> {
        unreachable!("written next")
    }
    /// Puts an operation on record, or finds the one that is (K01, K02).
    pub fn admit(&self, tx: &Write<'_>, request: &OperationRequest, now: Now) -> Result<Admission> {
        unreachable!("written next")
    }
    pub fn stage(&self, store: &mut Store, attempt: &AttemptId) -> Result<Staged> {
        unreachable!("written next")
    }
    pub fn dispatch(&self, tx: &Write<'_>, staged: &Staged, now: Now) -> Result<()> {
        unreachable!("written next")
    }
    pub fn launch(&self, staged: Staged) -> Result<Launched> {
        unreachable!("written next")
    }
    pub fn record_running(&self, tx: &Write<'_>, attempt: &AttemptId, unit: &Unit, now: Now) -> Result<()> {
        unreachable!("written next")
    }
    pub fn adopt(&self, read: &Read<'_>, attempt: &AttemptId) -> Result<Adoption> {
        unreachable!("written next")
    }
    pub async fn settle(&self, attempt: &AttemptId) -> Result<Ending> {
        unreachable!("written next")
    }
    pub fn conclude(&self, tx: &Write<'_>, attempt: &AttemptId, ending: &Ending, now: Now) -> Result<Conclusion> {
        unreachable!("written next")
    }
    pub fn record_stop(&self, tx: &Write<'_>, attempt: &AttemptId, reason: StopReason, now: Now) -> Result<Stopping> {
        unreachable!("written next")
    }
    pub async fn stop(&self, launched: &Launched) -> Result<()> {
        unreachable!("written next")
    }
    pub fn forget_bundle(&self, attempt: &AttemptId) -> Result<()> {
        unreachable!("written next")
    }
    pub fn unresolved(&self, read: &Read<'_>, max: usize) -> Result<Vec<AttemptId>> {
        unreachable!("written next")
    }
}
