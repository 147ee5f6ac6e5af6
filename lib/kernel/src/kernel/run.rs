//! From the boundary on: launching, adopting, stopping.

use std::time::Duration;

use conduit_api::AttemptId;
use conduit_store::{Clock, Now, Read, Write, failpoint};
use rustix::process::Signal;

use crate::attempt::{AttemptState, Event, Reason, Resolution, StopReason, resolve, store};
use crate::bundle;
use crate::error::{Error, Result, bundling};
use crate::evidence;
use crate::kernel::{Adoption, Kernel, Staged, Stopping, stop_grace};
use crate::launcher::{Launched, Unit};
use crate::proc;

impl Kernel {
    /// Starts the runner of a staged bundle, which does nothing before it has its token, and ends when it can get none
    /// any more. May be done before the boundary, so that the commit and the start of a process take the same time.
    ///
    /// Error: `internal`; nothing has started then.
    pub fn start(&self, staged: &mut Staged) -> Result<()> {
        if staged.waiting.is_none() {
            staged.waiting = Some(self.launcher.start(staged)?);
        }
        Ok(())
    }

    /// Launches: the runner gets its token. To be called once the dispatch is committed, and only then.
    ///
    /// Error: `internal`, which is no proof that nothing started: [`Kernel::adopt`] says what is.
    pub fn launch(&self, staged: Staged) -> Result<Launched> {
        failpoint!("kernel.dispatched");
        self.launcher.launch(staged)
    }

    /// Puts the runner's identity on record. Doing so twice is doing so once; a runner that has not said who it is
    /// is left out, as its bundle will tell.
    pub fn record_running(&self, tx: &Write<'_>, attempt: &AttemptId, launched: &Launched, now: Now) -> Result<()> {
        let Some(unit) = launched.unit() else { return Ok(()) };
        let record = store::load(tx, attempt)?;
        let known = match &record.state {
            AttemptState::Running { unit } => Some(unit),
            AttemptState::Stopping { unit, .. } => unit.as_ref(),
            _ => None,
        };
        if known == Some(unit) {
            return Ok(());
        }
        let reason = if launched.is_adopted() { Reason::Adopted } else { Reason::Launched };
        store::transition(tx, record, Event::Started { unit: unit.clone() }, reason, &[], now)?;
        Ok(())
    }

    /// Puts on record that this process will never launch an attempt that it staged, as far as there is anything on
    /// record. Doing so twice is doing so once.
    pub fn abandon(&self, tx: &Write<'_>, attempt: &AttemptId, now: Now) -> Result<()> {
        if !store::is_unresolved(tx, attempt)? {
            return Ok(());
        }
        if self.record_stop(tx, attempt, StopReason::Cancel, now)? == Stopping::Withdrawn {
            return Ok(());
        }
        // Behind the boundary, and nobody but this process could have launched it.
        let record = store::load(tx, attempt)?;
        let terminal = StopReason::Cancel.terminal();
        store::transition(tx, record, Event::Ended { terminal }, Reason::StoppedWithoutResult, &[], now)?;
        Ok(())
    }

    /// Says from evidence what became of an attempt that no one watched. Must run within a tokio runtime.
    pub fn adopt(&self, read: &Read<'_>, attempt: &AttemptId) -> Result<Adoption> {
        let record = store::load(read, attempt)?;
        let recorded = match &record.state {
            AttemptState::Admitted => return Ok(Adoption::NotDispatched),
            AttemptState::Running { unit } => Some(unit),
            AttemptState::Stopping { unit, .. } => unit.as_ref(),
            AttemptState::Dispatching { .. } | AttemptState::Orphaned { .. } | AttemptState::Ended { .. } => None,
        };
        let (bundle, boot_id) = (self.bundle(attempt), Clock.now().boot_id);
        let looking = bundling(attempt, "looking for its runner");
        let evidence = evidence::gather(&bundle, attempt, recorded, boot_id).map_err(looking)?;
        match resolve(&record.state, &evidence, boot_id) {
            Resolution::Dispatch => Ok(Adoption::NotDispatched),
            Resolution::Leave => Ok(Adoption::Concluded(self.conclusion(record))),
            Resolution::Finish { .. } | Resolution::Orphan => Ok(Adoption::Over),
            Resolution::Adopt(unit) => {
                let (_, plan) = store::documents(read, attempt)?;
                let launched = self.watch(attempt, unit, stop_grace(&plan), boot_id);
                Ok(launched.map_err(bundling(attempt, "watching its runner"))?.map_or(Adoption::Over, Adoption::Alive))
            }
        }
    }

    fn watch(
        &self,
        attempt: &AttemptId,
        unit: Option<Unit>,
        stop_grace: Duration,
        boot_id: &str,
    ) -> std::io::Result<Option<Launched>> {
        let bundle = self.bundle(attempt);
        let Some(unit) = unit else {
            return Launched::by_lock(attempt.clone(), bundle, stop_grace).map(Some);
        };
        let pidfd = proc::open_unit(&unit, boot_id)?;
        Ok(pidfd.map(|pidfd| Launched::adopted(attempt.clone(), bundle, stop_grace, (unit, pidfd))))
    }

    /// Puts the intent to stop on record. The first reason stays.
    pub fn record_stop(&self, tx: &Write<'_>, attempt: &AttemptId, reason: StopReason, now: Now) -> Result<Stopping> {
        let record = store::load(tx, attempt)?;
        match &record.state {
            AttemptState::Ended { terminal } => return Ok(Stopping::Ended(terminal.clone())),
            AttemptState::Stopping { .. } | AttemptState::Orphaned { intent: Some(_), .. } => {
                return Ok(Stopping::Asked);
            }
            AttemptState::Admitted
            | AttemptState::Dispatching { .. }
            | AttemptState::Running { .. }
            | AttemptState::Orphaned { intent: None, .. } => {}
        }
        let withdrawn = record.state == AttemptState::Admitted;
        let why = if withdrawn { Reason::Withdrawn } else { Reason::StopAsked };
        store::transition(tx, record, Event::StopAsked { reason }, why, &[], now)?;
        Ok(if withdrawn { Stopping::Withdrawn } else { Stopping::Asked })
    }

    /// Stops a runner, and with it its process tree: SIGTERM, then SIGKILL when its grace is over. Completes when it
    /// has ended; [`Kernel::settle`] then says how. To be called once the intent is committed. May be dropped and
    /// called again.
    ///
    /// An error leaves the runner alive, so the caller asks again; a runner that can be signalled needs no room on the
    /// disk for that.
    pub async fn stop(&self, launched: &Launched) -> Result<()> {
        failpoint!("kernel.stop_recorded");
        let attempt = &launched.attempt;
        // A runner that has not said who it is cannot be signalled; it looks for this file after it has said so.
        let noted = bundle::put(&launched.bundle.stop(), b"").map_err(bundling(attempt, "asking its runner to stop"));
        // A runner that its own process stopped (SIGSTOP) hears the first when it has the second.
        let heard = self.signal(launched, Signal::TERM)? && self.signal(launched, Signal::CONT)?;
        match noted {
            Err(error) if !heard => return Err(error),
            Err(error) => tracing::warn!(%attempt, %error, "its runner was told to stop by signal alone"),
            Ok(()) => {}
        }
        if let Ok(exited) = tokio::time::timeout(launched.patience(), launched.exited()).await {
            return exited;
        }
        tracing::warn!(%attempt, "the runner did not stop in time; killing it");
        self.signal(launched, Signal::KILL)?;
        launched.exited().await
    }

    /// Signals a runner; `false` when it has not said who it is, or has ended.
    fn signal(&self, launched: &Launched, signal: Signal) -> Result<bool> {
        let failed = |source| Error::Process { doing: "signalling a runner", source };
        let Some(pidfd) = launched.handle(Clock.now().boot_id).map_err(failed)? else { return Ok(false) };
        proc::signal(&pidfd, signal).map_err(failed)?;
        Ok(true)
    }
}
