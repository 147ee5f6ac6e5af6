//! The kernel as its callers see it: one method for each step of an attempt.
//!
//! `admit` puts an operation on record and brings it up to the boundary, `run` launches, adopts and stops, `settle`
//! says how it ended.

mod admit;
#[cfg(test)]
mod fixture;
mod run;
mod settle;

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use conduit_api::{AttemptId, JobId};
use conduit_store::Read;
use conduit_store::digest::Sha256Digest;
use rustix::process::Rlimit;

use crate::attempt::store::{self, Record};
use crate::attempt::{AttemptState, Evidence, Reason, Terminal};
use crate::bundle::{Bundle, OutputFact};
use crate::error::{Error, Result};
use crate::executable::Executables;
use crate::identity::{BaseEnvironment, Plan};
use crate::launcher::process::ProcessLauncher;
use crate::launcher::{Launched, Launcher, Waiting};
use crate::limits::STOP_GRACE_MS_DEFAULT;
use crate::proc::Survivors;

/// Where the kernel keeps bundles, and what it starts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `<state>/attempts`.
    pub attempts: PathBuf,
    /// The runner's binary.
    pub runner: PathBuf,
    pub base: BaseEnvironment,
    /// Limit of open files that runners get, and what they start; `None` leaves them the caller's own.
    pub files: Option<Rlimit>,
}

/// The kernel. It holds no transaction and no attempt: everything it knows is in the store and in bundles.
#[derive(Debug)]
pub struct Kernel {
    settings: Settings,
    executables: Executables,
    launcher: Box<dyn Launcher>,
}

/// An operation that was looked at, and that is not on record yet: nothing of it has happened.
#[derive(Debug)]
pub struct Prepared {
    /// The attempt that it will have.
    pub attempt: AttemptId,
    /// When its process is stopped, in microseconds since boot: one instant for the process and for what it may do (T03).
    pub deadline_boot_us: i64,
    pub(crate) job: JobId,
    pub(crate) principal: String,
    pub(crate) client_request_id: String,
    pub(crate) request_digest: Sha256Digest,
    pub(crate) plan_digest: Sha256Digest,
    pub(crate) request: String,
    pub(crate) plan: String,
}

/// The operation is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    pub job: JobId,
    pub attempt: AttemptId,
    /// Whether it was on record before.
    pub replayed: bool,
}

/// A complete bundle, locked: no other than the one that waits here, if one does, can ever have it. Dropped, that
/// one ends without having done anything.
#[derive(Debug)]
pub struct Staged {
    pub attempt: AttemptId,
    pub(crate) bundle: Bundle,
    pub(crate) lock: File,
    pub(crate) token: String,
    pub(crate) stop_grace: Duration,
    pub(crate) channel: bool,
    pub(crate) waiting: Option<Waiting>,
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
    pub(crate) survivors: Survivors,
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

/// What a start cleared away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tidied {
    pub withdrawn: usize,
    pub bundles: usize,
    /// What could not be cleared away; the log says why, and the next start tries again.
    pub failed: usize,
}

impl Kernel {
    /// Error: `executable_unavailable` when the runner's binary cannot be run.
    pub fn new(settings: Settings) -> Result<Self> {
        let executables = Executables::default();
        let runner = executables.identify(&settings.runner)?;
        let launcher = Box::new(ProcessLauncher::new(runner.canonical, settings.files));
        Ok(Self { settings, executables, launcher })
    }

    /// What it was made with.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Attempts that have not ended, by ID, at most `max` after `after`: what a restarted daemon asks [`Kernel::adopt`] about.
    pub fn unresolved(&self, read: &Read<'_>, after: Option<&AttemptId>, max: usize) -> Result<Vec<AttemptId>> {
        store::unresolved(read, after, max)
    }

    /// Attempts that have not ended, of principals whose names begin with `prefix`.
    pub fn unresolved_of(&self, read: &Read<'_>, prefix: &str) -> Result<Vec<AttemptId>> {
        store::unresolved_of(read, prefix)
    }

    fn bundle(&self, attempt: &AttemptId) -> Bundle {
        Bundle::of(&self.settings.attempts, attempt)
    }

    fn conclusion(&self, record: Record) -> Conclusion {
        let bundle = self.bundle(&record.id);
        let terminal = match &record.state {
            AttemptState::Ended { terminal } => Some(terminal.clone()),
            _ => None,
        };
        let mut outputs = record.outputs;
        for output in &mut outputs {
            output.path = bundle.output(&output.name);
        }
        Conclusion { state: record.state, reason: record.reason, terminal, outputs }
    }
}

impl Ending {
    /// What the process wrote, as far as its result vouches for it.
    pub fn outputs(&self) -> &[OutputFact] {
        &self.outputs
    }

    /// Completes when the processes that kept the attempt orphaned have ended; settle and conclude it again then.
    pub async fn survivors_gone(&self) -> Result<()> {
        self.survivors.gone().await.map_err(|source| Error::Process { doing: "waiting for survivors", source })
    }
}

/// The grace that a plan gives; the usual one when the plan cannot be read, which the runner will refuse anyway.
fn stop_grace(plan: &str) -> Duration {
    let ms = serde_json::from_str::<Plan>(plan).map_or(STOP_GRACE_MS_DEFAULT, |plan| plan.stop_grace_ms);
    Duration::from_millis(ms)
}

/// Whether a plan gives its process a channel; not one that cannot be read.
fn has_channel(plan: &str) -> bool {
    serde_json::from_str::<Plan>(plan).is_ok_and(|plan| plan.channel)
}
