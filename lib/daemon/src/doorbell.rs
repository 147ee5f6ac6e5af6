//! The doorbell: an empty datagram that says "the store changed; look".
//!
//! Losing a ring costs latency, never correctness, so ringing never blocks and never fails.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Once;

use conduit_api::places::Places;

/// Rings the daemon's doorbell.
#[derive(Debug)]
pub struct Ringer {
    /// `None` when the process could not even make a socket; the daemon's own timers then find the work.
    socket: Option<UnixDatagram>,
    path: PathBuf,
}

impl Ringer {
    pub fn new(places: &Places) -> Self {
        let make = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>(socket)
        };
        let socket = make().inspect_err(|error| tracing::warn!(%error, "no socket for the doorbell")).ok();
        Self { socket, path: places.doorbell_socket() }
    }

    /// Rings. A daemon that is away, or has rings waiting, needs no ring: no error is the caller's. That nobody listens is
    /// logged once in the life of the process, so that work which starts late has its reason on record.
    pub fn ring(&self) {
        static NOBODY: Once = Once::new();
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send_to(&[], &self.path)
            && is_unheard(&error)
        {
            NOBODY.call_once(|| {
                tracing::warn!(%error, path = %self.path.display(), "nobody hears the doorbell; the scheduler is away, or its socket was removed and a restart of it helps");
            });
        }
    }
}

/// Whether the socket is gone or has no reader; a full one has its rings waiting.
fn is_unheard(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// The daemon's end: waits for a ring and swallows those that came with it.
#[derive(Debug)]
pub struct Doorbell {
    socket: tokio::net::UnixDatagram,
}

impl Doorbell {
    /// Takes the socket over; it has to be non-blocking, as [`crate::activation`] makes it.
    pub fn new(socket: UnixDatagram) -> io::Result<Self> {
        Ok(Self { socket: tokio::net::UnixDatagram::from_std(socket)? })
    }

    /// Returns after at least one ring; rings that wait are answered together. Cancelling it loses none.
    pub async fn rung(&self) -> io::Result<()> {
        let mut byte = [0_u8; 1];
        self.socket.recv(&mut byte).await?;
        loop {
            match self.socket.try_recv(&mut byte) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_without_a_reader_is_told_apart_from_one_with_rings_waiting() {
        assert!(is_unheard(&io::ErrorKind::NotFound.into()) && is_unheard(&io::ErrorKind::ConnectionRefused.into()));
        assert!(!is_unheard(&io::ErrorKind::WouldBlock.into()));
    }
    use crate::activation::bind_datagram;

    /// A directory that a socket may be bound in.
    fn owner_only() -> tempfile::TempDir {
        use std::os::unix::fs::PermissionsExt;
        tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap()
    }

    #[tokio::test]
    async fn many_rings_are_answered_once_and_a_ring_to_nobody_is_no_error() {
        let dir = owner_only();
        let places = Places { state: dir.path().into(), runtime: dir.path().into() };
        let ringer = Ringer::new(&places);
        ringer.ring();
        let bell = Doorbell::new(bind_datagram(&places.doorbell_socket()).unwrap()).unwrap();
        (0..100_000).for_each(|_| ringer.ring());
        bell.rung().await.unwrap();
        tokio::select! {
            biased;
            _ = bell.rung() => panic!("a ring was left over"),
            () = std::future::ready(()) => {}
        }
    }
}
