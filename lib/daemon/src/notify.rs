//! What a daemon tells the service manager, by the protocol of `sd_notify(3)`.
//!
//! Everything is a no-op when `NOTIFY_SOCKET` is not set: nobody asked.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Path of the manager's socket; a leading `@` stands for an abstract name.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The daemon can answer.
pub fn ready() -> io::Result<()> {
    send("READY=1", None)
}

/// The daemon is going.
pub fn stopping() -> io::Result<()> {
    send("STOPPING=1", None)
}

/// Gives a copy of `fd` into the manager's keeping under `name`; it comes back at the next start
/// ([`crate::activation::Inherited`]), with the same inode and backlog.
pub fn store_fd(name: &str, fd: impl AsFd) -> io::Result<()> {
    send(&format!("FDSTORE=1\nFDNAME={}", checked(name)?), Some(fd.as_fd()))
}

/// Takes everything called `name` out of the manager's keeping.
pub fn remove_fd(name: &str) -> io::Result<()> {
    send(&format!("FDSTOREREMOVE=1\nFDNAME={}", checked(name)?), None)
}

/// A name that `sd_pid_notify_with_fds(3)` allows: no colon, no control character, at most 255 bytes.
fn checked(name: &str) -> io::Result<&str> {
    let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    if name.is_empty() || name.len() > 255 || !name.bytes().all(allowed) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} cannot name a descriptor")));
    }
    Ok(name)
}

fn send(state: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    match std::env::var_os(NOTIFY_SOCKET) {
        Some(path) if !path.is_empty() => send_to(Path::new(&path), state, fd),
        _ => Ok(()),
    }
}

/// Sends `state` to the manager at `path`. It waits while the manager's queue is full, so that nothing is lost.
pub fn send_to(path: &Path, state: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let address = match path.as_os_str().as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path)?,
    };
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let slices = [IoSlice::new(state.as_bytes())];
    rustix::net::sendmsg_addr(&socket, &address, &slices, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_name_has_no_colon_and_no_line_break() {
        assert!(checked("run-0123456789abcdef").is_ok());
        for bad in ["", "a:b", "a\nREADY=1", "ä"] {
            assert!(checked(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_state_reaches_the_socket_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        send_to(&path, "READY=1", None).unwrap();
        let mut text = [0; 64];
        let bytes = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..bytes], b"READY=1");
    }
}
