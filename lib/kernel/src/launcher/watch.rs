//! A runner that was launched or adopted, watched until it ends.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Duration;

use conduit_api::AttemptId;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::watch;

use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::launcher::Unit;
use crate::proc;

/// A runner that was launched or adopted. Dropping it stops nothing.
#[derive(Debug)]
pub struct Launched {
    pub attempt: AttemptId,
    pub(crate) bundle: Bundle,
    pub(crate) stop_grace: Duration,
    unit: Option<Unit>,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    /// By a handle on the process; a child has to be reaped as well.
    Process { pidfd: OwnedFd, child: RefCell<Option<Child>> },
    /// By its lock: it has not said who it is. The value turns when a waiting thread gets the lock.
    Lock { released: watch::Receiver<bool> },
}

impl Launched {
    pub(crate) fn child(
        attempt: AttemptId,
        bundle: Bundle,
        stop_grace: Duration,
        (unit, pidfd, child): (Unit, OwnedFd, Child),
    ) -> Self {
        let watch = Watch::Process { pidfd, child: RefCell::new(Some(child)) };
        Self { attempt, bundle, stop_grace, unit: Some(unit), watch }
    }

    pub(crate) fn adopted(
        attempt: AttemptId,
        bundle: Bundle,
        stop_grace: Duration,
        (unit, pidfd): (Unit, OwnedFd),
    ) -> Self {
        let watch = Watch::Process { pidfd, child: RefCell::new(None) };
        Self { attempt, bundle, stop_grace, unit: Some(unit), watch }
    }

    /// Watches a runner that holds the lock of `bundle` but has not said who it is.
    pub(crate) fn by_lock(attempt: AttemptId, bundle: Bundle, stop_grace: Duration) -> std::io::Result<Self> {
        let (release, released) = watch::channel(false);
        let lock = File::open(bundle.lock())?;
        // A thread, because a lock cannot be waited for by readiness. It ends with the runner, or with this process.
        std::thread::Builder::new().name("lock-watch".into()).stack_size(64 << 10).spawn(move || {
            let outcome = loop {
                match flock(&lock, FlockOperation::LockShared) {
                    Err(rustix::io::Errno::INTR) => {}
                    outcome => break outcome,
                }
            };
            if let Err(errno) = outcome {
                tracing::warn!(%errno, "waiting for the lock of a bundle failed");
            }
            // Nobody may be waiting any more, which is no fault.
            let _ = release.send(true);
        })?;
        Ok(Self { attempt, bundle, stop_grace, unit: None, watch: Watch::Lock { released } })
    }

    /// Who it is; `None` while an adopted runner has not said so.
    pub const fn unit(&self) -> Option<&Unit> {
        self.unit.as_ref()
    }

    /// Whether it was found alive rather than launched by this process.
    pub fn is_adopted(&self) -> bool {
        match &self.watch {
            Watch::Process { child, .. } => child.borrow().is_none(),
            Watch::Lock { .. } => true,
        }
    }

    /// Completes when the runner has ended, and reaps it. May be awaited again, and by several at once.
    pub async fn exited(&self) -> Result<()> {
        match &self.watch {
            Watch::Process { pidfd, child } => {
                proc::ended(pidfd).await.map_err(waiting)?;
                if let Some(child) = child.borrow_mut().as_mut()
                    && let Some(status) = child.try_wait().map_err(waiting)?
                {
                    tracing::debug!(attempt = %self.attempt, %status, "the runner ended");
                }
                Ok(())
            }
            Watch::Lock { released } => {
                // The sender goes only after it has sent, so a closed channel means the same.
                let _ = released.clone().wait_for(|done| *done).await;
                Ok(())
            }
        }
    }

    /// A handle for signals; `None` while the runner has not said who it is, or when it has ended.
    pub(crate) fn handle(&self, boot_id: &str) -> std::io::Result<Option<OwnedFd>> {
        match &self.watch {
            Watch::Process { pidfd, .. } => pidfd.try_clone().map(Some),
            Watch::Lock { .. } => match crate::evidence::started(&self.bundle)? {
                Some(unit) => proc::open_unit(&unit, boot_id),
                None => Ok(None),
            },
        }
    }
}

fn waiting(source: std::io::Error) -> Error {
    Error::Process { doing: "waiting for a runner", source }
}
