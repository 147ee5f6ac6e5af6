//! A runner that was started and has no token: it has looked at its bundle and done nothing.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Child;

use crate::launcher::Unit;
use crate::launcher::watch::in_a_thread;

/// A runner that waits for its launch token. Dropped, it can get none any more: it ends and is reaped.
#[derive(Debug)]
pub struct Waiting {
    child: Option<Child>,
    /// Our end of its channel, through which it gets its token then.
    channel: Option<UnixStream>,
    /// Who it is, with a handle on it, unless none could be opened.
    identity: std::io::Result<(Unit, OwnedFd)>,
}

/// A runner that was given its token.
pub(crate) struct Told {
    pub child: Child,
    pub channel: Option<UnixStream>,
    pub identity: std::io::Result<(Unit, OwnedFd)>,
    /// Whether it took the token; if it did not it has ended, and its exit is noticed as any other.
    pub taken: std::io::Result<()>,
}

impl Waiting {
    pub(crate) const fn new(
        child: Child,
        channel: Option<UnixStream>,
        identity: std::io::Result<(Unit, OwnedFd)>,
    ) -> Self {
        Self { child: Some(child), channel, identity }
    }

    /// Gives the runner its token, after which it waits no longer; `None` for one that was told before.
    pub(crate) fn tell(mut self, token: &str) -> Option<Told> {
        let mut child = self.child.take()?;
        let mut channel = self.channel.take();
        let taken = match &mut channel {
            Some(channel) => channel.write_all(token.as_bytes()),
            None => child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(token.as_bytes())),
        };
        let identity = std::mem::replace(&mut self.identity, Err(std::io::ErrorKind::NotFound.into()));
        Some(Told { child, channel, identity, taken })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        drop((child.stdin.take(), self.channel.take()));
        let reaped = in_a_thread("runner-reaper", move || {
            if let Err(error) = child.wait() {
                tracing::warn!(%error, "a runner that was not launched could not be reaped");
            }
        });
        if let Err(error) = reaped {
            tracing::warn!(%error, "a runner that was not launched stays a zombie until this process ends");
        }
    }
}
