//! The two signals that ask a daemon to end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Which signal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// SIGTERM
    Terminate,
    /// SIGINT
    Interrupt,
}

/// Watches for SIGTERM and SIGINT from now on; the future ends at the first.
pub fn signals() -> io::Result<impl Future<Output = Reason>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => Reason::Terminate,
            _ = interrupt.recv() => Reason::Interrupt,
        }
    })
}
