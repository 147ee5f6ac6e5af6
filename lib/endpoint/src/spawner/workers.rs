//! Starting a worker for a socket with a connection, and watching it to its end.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use conduit_api::ExecutionId;
use conduit_api::places::Places;
use conduit_daemon::log::LogFormat;
use conduit_daemon::spawn::Spawn;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::sync::oneshot;

/// Name of the descriptor that a worker is passed.
pub const SOCKET: &str = "toolbelt";
/// How long a worker may take from SIGTERM to its end; longer than it gives its own requests.
const END_TIME_MAX: Duration = Duration::from_secs(8);

/// What every worker is started with.
#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    pub places: Places,
    pub log_format: LogFormat,
    /// Seconds without a connection after which a worker ends by itself.
    pub idle_s: Option<u64>,
}

impl Program {
    /// The worker's program beside this process's own.
    pub fn beside_this_one() -> io::Result<PathBuf> {
        Ok(std::env::current_exe()?.with_file_name("open-conduit-endpoint"))
    }

    /// Starts the worker of `execution` on `socket`. It ends when this process does.
    pub fn start(&self, execution: &ExecutionId, socket: std::os::fd::OwnedFd) -> io::Result<Child> {
        let mut spawn = Spawn::new(&self.path)
            .arg("--state")
            .arg(&self.places.state)
            .arg("--runtime")
            .arg(&self.places.runtime)
            .arg("--log-format")
            .arg(self.log_format.as_str())
            .arg("--parent")
            .arg(std::process::id().to_string())
            .arg("--execution")
            .arg(execution.as_str());
        if let Some(idle_s) = self.idle_s {
            spawn = spawn.arg("--idle-s").arg(idle_s.to_string());
        }
        spawn.descriptor(SOCKET, socket).start()
    }
}

/// Waits for the end of `child`. Once the other end of `told` is dropped it is asked to end, and after a bound made
/// to; then there is no status, because how it ends says nothing.
pub async fn ended(mut child: Child, told: &mut oneshot::Receiver<()>) -> io::Result<Option<ExitStatus>> {
    tokio::select! {
        status = child.wait() => return status.map(Some),
        _ = told => {}
    }
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // Not reaped yet, so the number is still its own.
        kill_process(pid, Signal::TERM)?;
    }
    match tokio::time::timeout(END_TIME_MAX, child.wait()).await {
        Ok(status) => status.map(|_| None),
        Err(_) => {
            tracing::warn!("a worker did not end when asked; killing it");
            child.start_kill()?;
            child.wait().await.map(|_| None)
        }
    }
}
