//! The manager's end of `sd_notify(3)`: what one child says, and the descriptors it hands over.
//!
//! Only the child itself is heard (`NotifyAccess=main`): the kernel names the sender of each message.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use conduit_api::{ApiError, Code};
use conduit_daemon::activation::bind_datagram;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Longest message.
const MESSAGE_BYTES_MAX: usize = 4096;
/// Most descriptors in one message.
const DESCRIPTORS_MAX: usize = 64;

/// What a child said in one message.
#[derive(Debug, Default)]
pub struct Said {
    pub ready: bool,
    /// Descriptors that came along, to be kept under the name.
    pub store: Option<(String, Vec<OwnedFd>)>,
    /// Descriptors under this name are to be let go.
    pub remove: Option<String>,
}

/// The socket that one child reports to.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    /// Errors as [`bind_datagram`]'s.
    pub fn bind(path: &Path) -> Result<Self, ApiError> {
        let socket = bind_datagram(path)?;
        rustix::net::sockopt::set_socket_passcred(&socket, true)
            .map_err(io::Error::from)
            .and_then(|()| UnixDatagram::from_std(socket))
            .map(|socket| Self { socket })
            .map_err(|error| ApiError::new(Code::Internal, format!("a child cannot be listened to: {error}")))
    }

    /// The next message; `None` when somebody else than the process `pid` sent it. Cancelling it loses nothing.
    pub async fn next(&self, pid: i32) -> io::Result<Option<Said>> {
        self.socket.async_io(Interest::READABLE, || receive(&self.socket, pid)).await
    }

    /// What was said already, without waiting: for a child that has just ended.
    pub fn drain(&self, pid: i32) -> io::Result<Vec<Said>> {
        let mut all = Vec::new();
        loop {
            // Not through the readiness that tokio remembers: it may not know yet of the newest message.
            match receive(&self.socket, pid) {
                Ok(said) => all.extend(said),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                Err(error) => return Err(error),
            }
        }
    }
}

fn receive(socket: &UnixDatagram, pid: i32) -> io::Result<Option<Said>> {
    let mut bytes = [0_u8; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let (mut sender, mut descriptors) = (None, Vec::new());
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(fds) => descriptors.extend(fds),
            RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid),
            _ => {}
        }
    }
    let text = bytes.get(..received.bytes).and_then(|bytes| std::str::from_utf8(bytes).ok());
    if sender.map(|sender| sender.as_raw_nonzero().get()) != Some(pid) {
        tracing::debug!(?sender, pid, "a message from another process than the child was ignored");
        return Ok(None);
    }
    Ok(text.map(|text| said(text, descriptors)))
}

/// Reads the assignments of a message, one on a line; what is not known here is ignored, as the protocol asks.
fn said(text: &str, descriptors: Vec<OwnedFd>) -> Said {
    let has = |assignment: &str| text.lines().any(|line| line == assignment);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_owned();
    Said {
        ready: has("READY=1"),
        remove: has("FDSTOREREMOVE=1").then(|| name.clone()),
        store: has("FDSTORE=1").then_some((name, descriptors)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_daemon::notify;
    use std::os::fd::AsFd;

    #[test]
    fn assignments_are_read_line_by_line() {
        let stored = said("FDSTORE=1\nFDNAME=run-a", Vec::new());
        assert_eq!(stored.store.unwrap().0, "run-a");
        assert!(!stored.ready && stored.remove.is_none());
        let removed = said("FDSTOREREMOVE=1\nFDNAME=run-a\n", Vec::new());
        assert_eq!(removed.remove.as_deref(), Some("run-a"));
        assert!(removed.store.is_none());
        assert!(said("STATUS=x\nREADY=1\n", Vec::new()).ready);
        assert!(!said("STATUS=READY=1", Vec::new()).ready);
    }

    #[tokio::test]
    async fn a_descriptor_arrives_with_its_name_and_a_stranger_is_not_heard() {
        let dir = crate::tests::owner_only();
        let path = dir.path().join("n");
        let manager = Manager::bind(&path).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let (fd, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        notify::send_to(&path, "FDSTORE=1\nFDNAME=run-a", Some(fd.as_fd())).unwrap();
        let (name, descriptors) = manager.next(own).await.unwrap().unwrap().store.unwrap();
        assert_eq!((name.as_str(), descriptors.len()), ("run-a", 1));
        notify::send_to(&path, "READY=1", None).unwrap();
        assert!(manager.next(own + 1).await.unwrap().is_none());
        notify::send_to(&path, "READY=1", None).unwrap();
        assert!(manager.drain(own).unwrap()[0].ready);
    }
}
