//! A runner that was launched or adopted, watched until it ends.
//!
//! By a handle on its process where there is one; else by a thread that waits, for the child or for the bundle's lock.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use conduit_api::AttemptId;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::watch;

use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::launcher::Unit;
use crate::limits::{RUNNER_STOP_MARGIN, STRAGGLER_GRACE};
use crate::proc;
use crate::runner::Exit;

/// A runner that was launched or adopted. Dropping it stops nothing.
#[derive(Debug)]
pub struct Launched {
    pub attempt: AttemptId,
    pub(crate) bundle: Bundle,
    pub(crate) stop_grace: Duration,
    unit: Option<Unit>,
    /// The channel to its process, until somebody takes it.
    channel: Option<UnixStream>,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    /// By a handle on the process; a child has to be reaped as well.
    Process { pidfd: OwnedFd, child: RefCell<Option<Child>> },
    /// By a thread: it has not said who it is. The value turns when the thread's wait is over.
    Thread { ended: watch::Receiver<bool>, adopted: bool },
}

impl Launched {
    pub(crate) fn child(
        attempt: AttemptId,
        bundle: Bundle,
        stop_grace: Duration,
        (unit, pidfd, child): (Unit, OwnedFd, Child),
    ) -> Self {
        let watch = Watch::Process { pidfd, child: RefCell::new(Some(child)) };
        Self { attempt, bundle, stop_grace, unit: Some(unit), channel: None, watch }
    }

    pub(crate) fn adopted(
        attempt: AttemptId,
        bundle: Bundle,
        stop_grace: Duration,
        (unit, pidfd): (Unit, OwnedFd),
    ) -> Self {
        let watch = Watch::Process { pidfd, child: RefCell::new(None) };
        Self { attempt, bundle, stop_grace, unit: Some(unit), channel: None, watch }
    }

    /// Watches a runner that holds the lock of `bundle` but has not said who it is.
    pub(crate) fn by_lock(attempt: AttemptId, bundle: Bundle, stop_grace: Duration) -> std::io::Result<Self> {
        let lock = File::open(bundle.lock())?;
        // A lock cannot be waited for by readiness.
        let ended = in_a_thread("lock-watch", move || {
            let outcome = loop {
                match flock(&lock, FlockOperation::LockShared) {
                    Err(rustix::io::Errno::INTR) => {}
                    outcome => break outcome,
                }
            };
            if let Err(errno) = outcome {
                tracing::warn!(%errno, "waiting for the lock of a bundle failed");
            }
        })?;
        Ok(Self {
            attempt,
            bundle,
            stop_grace,
            unit: None,
            channel: None,
            watch: Watch::Thread { ended, adopted: true },
        })
    }

    /// Watches a child that no handle could be opened on, with no descriptor at all, and reaps it.
    pub(crate) fn by_wait(
        attempt: AttemptId,
        bundle: Bundle,
        stop_grace: Duration,
        mut child: Child,
    ) -> std::io::Result<Self> {
        let waited = attempt.clone();
        let ended = in_a_thread("child-watch", move || match child.wait() {
            Ok(status) => report(&waited, status),
            Err(error) => tracing::warn!(attempt = %waited, %error, "waiting for a runner failed"),
        })?;
        Ok(Self {
            attempt,
            bundle,
            stop_grace,
            unit: None,
            channel: None,
            watch: Watch::Thread { ended, adopted: false },
        })
    }

    pub(crate) fn with_channel(self, channel: Option<UnixStream>) -> Self {
        Self { channel, ..self }
    }

    /// The channel to its process, once: what is written to it is the process's standard input, and what is read from it
    /// its standard output. `None` when its plan gives it none, or it was launched by another daemon.
    pub const fn take_channel(&mut self) -> Option<UnixStream> {
        self.channel.take()
    }

    /// Who it is; `None` while an adopted runner has not said so.
    pub const fn unit(&self) -> Option<&Unit> {
        self.unit.as_ref()
    }

    /// How long it may take to end, from its deadline or a SIGTERM on, before it counts as stuck.
    pub fn patience(&self) -> Duration {
        self.stop_grace + STRAGGLER_GRACE + RUNNER_STOP_MARGIN
    }

    /// Whether it was found alive rather than launched by this process.
    pub fn is_adopted(&self) -> bool {
        match &self.watch {
            Watch::Process { child, .. } => child.borrow().is_none(),
            Watch::Thread { adopted, .. } => *adopted,
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
                    report(&self.attempt, status);
                }
                Ok(())
            }
            Watch::Thread { ended, .. } => {
                // The sender goes only after it has sent, so a closed channel means the same.
                let _ = ended.clone().wait_for(|done| *done).await;
                Ok(())
            }
        }
    }

    /// A handle for signals; `None` while the runner has not said who it is, or when it has ended.
    pub(crate) fn handle(&self, boot_id: &str) -> std::io::Result<Option<OwnedFd>> {
        match &self.watch {
            Watch::Process { pidfd, .. } => pidfd.try_clone().map(Some),
            Watch::Thread { .. } => match crate::evidence::started(&self.bundle)? {
                Some(unit) => proc::open_unit(&unit, boot_id),
                None => Ok(None),
            },
        }
    }
}

/// Runs `wait` in a thread, which ends with the runner or with this process; the value turns when it is over.
pub(super) fn in_a_thread(name: &str, wait: impl FnOnce() + Send + 'static) -> std::io::Result<watch::Receiver<bool>> {
    let (over, ended) = watch::channel(false);
    std::thread::Builder::new().name(name.into()).stack_size(64 << 10).spawn(move || {
        wait();
        // Nobody may be waiting any more, which is no fault.
        let _ = over.send(true);
    })?;
    Ok(ended)
}

/// Tells how a runner ended. One that left no result says why in its status, and nowhere else.
fn report(attempt: &AttemptId, status: ExitStatus) {
    match status.code().and_then(Exit::of) {
        Some(Exit::Done) => tracing::debug!(%attempt, "the runner ended"),
        Some(why) => tracing::warn!(%attempt, ?why, %status, "the runner ended without a result"),
        None => tracing::warn!(%attempt, %status, "the runner ended without a result"),
    }
}

fn waiting(source: std::io::Error) -> Error {
    Error::Process { doing: "waiting for a runner", source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// K10
    #[tokio::test]
    async fn a_child_without_a_handle_is_watched_and_reaped_all_the_same() {
        let child = Command::new("/bin/sh").args(["-c", "exit 70"]).spawn().unwrap();
        let pid = child.id();
        let bundle = Bundle::at(std::path::Path::new("/no/such"));
        let launched = Launched::by_wait(AttemptId::from_parts(1, 2), bundle, Duration::ZERO, child).unwrap();
        assert!(!launched.is_adopted());
        for _ in 0..2 {
            launched.exited().await.unwrap();
        }
        assert_eq!(proc::process(pid).unwrap(), None, "it is no zombie");
    }
}
