//! The `process` launcher: a runner is a child that does not need its parent.
//!
//! It gets the launch token on standard input and the bundle's lock as standard output. The lock belongs to the open
//! file that both share, so it is held without a gap from before the boundary until the runner ends, also when this
//! process dies right after the fork. It may be started before the boundary: the token is what it waits for, and when
//! this process dies or gives up before that, its standard input ends and so does the runner. It is in a process group of its own, so that a terminal's interrupt does not
//! reach it, and inherits no variable and no other descriptor.
//!
//! Where the plan gives the process a channel, the runner's standard input is one end of a socket pair: behind the token
//! it is what the process gets as its standard input and output, and the other end stays with [`Launched`].

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use conduit_store::{Clock, failpoint};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, prlimit};

use crate::error::{Error, Result};
use crate::kernel::Staged;
use crate::launcher::{Launched, Launcher, Unit, Waiting};
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
    fn start(&self, staged: &Staged) -> Result<Waiting> {
        let failed = |source: std::io::Error| Error::Process { doing: "starting a runner", source };
        // The same open file, and so the same lock, which the runner then holds as well.
        let lock = staged.lock.try_clone().map_err(failed)?;
        let (channel, stdin) = if staged.channel {
            let (ours, theirs) = UnixStream::pair().map_err(failed)?;
            (Some(ours), Stdio::from(OwnedFd::from(theirs)))
        } else {
            (None, Stdio::piped())
        };
        let child = Command::new(&self.runner)
            .arg(staged.bundle.dir())
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(stdin)
            .stdout(Stdio::from(lock))
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        failpoint!("kernel.spawned");
        let attempt = &staged.attempt;
        // Before it has its token: it starts nothing until then.
        if let Some(limit) = self.files
            && let Err(error) = pid_of(child.id()).and_then(|pid| Ok(prlimit(Some(pid), Resource::Nofile, limit)?))
        {
            tracing::warn!(%attempt, %error, "the runner keeps a raised limit of open files");
        }
        let identity = identify(child.id());
        Ok(Waiting::new(child, channel, identity))
    }

    fn launch(&self, mut staged: Staged) -> Result<Launched> {
        let waiting = match staged.waiting.take() {
            Some(waiting) => waiting,
            None => self.start(&staged)?,
        };
        let Staged { attempt, bundle, token, stop_grace, .. } = staged;
        let failed = |source: std::io::Error| Error::Launch { attempt: attempt.clone(), source };
        let told = waiting.tell(&token).ok_or_else(|| failed(std::io::Error::other("it was launched before")))?;
        if let Err(error) = told.taken {
            tracing::warn!(%attempt, %error, "the runner did not take its token");
        }
        failpoint!("kernel.launched");
        let launched = match told.identity {
            Ok((unit, pidfd)) => Launched::child(attempt, bundle, stop_grace, (unit, pidfd, told.child)),
            Err(error) => {
                // It runs: it is watched by what is left, and says itself who it is.
                tracing::warn!(%attempt, %error, "no handle on the runner could be opened");
                Launched::by_wait(attempt.clone(), bundle, stop_grace, told.child).map_err(failed)?
            }
        };
        Ok(launched.with_channel(told.channel))
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
