//! The `process` launcher: a runner is a child that does not need its parent.
//!
//! It gets the launch token on standard input and the bundle's lock as standard output. The lock belongs to the open
//! file that both share, so it is held without a gap from before the boundary until the runner ends, also when this
//! process dies right after the fork. It is in a process group of its own, so that a terminal's interrupt does not
//! reach it, and inherits no variable and no other descriptor.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use conduit_store::{Clock, failpoint};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, prlimit};

use crate::error::{Error, Result};
use crate::kernel::Staged;
use crate::launcher::{Launched, Launcher, Unit};
use crate::proc;

/// Starts runners as child processes.
#[derive(Debug)]
pub struct ProcessLauncher {
    runner: PathBuf,
    files: Option<Rlimit>,
}

impl ProcessLauncher {
    pub const fn new(runner: PathBuf, files: Option<Rlimit>) -> Self {
        Self { runner, files }
    }
}

impl Launcher for ProcessLauncher {
    fn launch(&self, staged: Staged) -> Result<Launched> {
        let Staged { attempt, bundle, lock, token, stop_grace } = staged;
        let failed = |source: std::io::Error| Error::Launch { attempt: attempt.clone(), source };
        let mut child = Command::new(&self.runner)
            .arg(bundle.dir())
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::from(lock))
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        failpoint!("kernel.spawned");
        // Before it has its token: it starts nothing until then.
        if let Some(limit) = self.files
            && let Err(error) = pid_of(child.id()).and_then(|pid| Ok(prlimit(Some(pid), Resource::Nofile, limit)?))
        {
            tracing::warn!(%attempt, %error, "the runner keeps a raised limit of open files");
        }
        if let Some(mut stdin) = child.stdin.take()
            && let Err(error) = stdin.write_all(token.as_bytes())
        {
            // It has ended already; its exit is noticed as any other.
            tracing::warn!(%attempt, %error, "the runner did not take its token");
        }
        let identified = identify(child.id());
        failpoint!("kernel.launched");
        match identified {
            Ok((unit, pidfd)) => Ok(Launched::child(attempt, bundle, stop_grace, (unit, pidfd, child))),
            Err(error) => {
                // It runs: it is watched by what is left, and says itself who it is.
                tracing::warn!(%attempt, %error, "no handle on the runner could be opened");
                Launched::by_wait(attempt.clone(), bundle, stop_grace, child).map_err(failed)
            }
        }
    }
}

fn pid_of(pid: u32) -> std::io::Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| std::io::Error::other("pid"))
}

/// Who a child is, and a handle on it. It is not reaped yet, so its pid is its own.
fn identify(pid: u32) -> std::io::Result<(Unit, OwnedFd)> {
    let pidfd = pidfd_open(pid_of(pid)?, PidfdFlags::empty())?;
    let seen = proc::process(pid)?.ok_or_else(|| std::io::Error::other("no such process"))?;
    Ok((Unit { pid, start_ticks: seen.start_ticks, boot_id: Clock.now().boot_id.to_owned() }, pidfd))
}
