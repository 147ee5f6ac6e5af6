//! The one room of this crate with unsafe code: handing an owned descriptor to the event loop.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// `fd`, to be waited for until it is readable. Called inside the event loop.
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and its number does not change, and the `AsyncFd` that is returned owns it: it is
    // closed only with it, after the event loop let go of it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}
