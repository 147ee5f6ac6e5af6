//! Unsafe room: adopting descriptors that the starter passed by number.
//!
//! Holds nothing else: names, types and refusals are in [`crate::activation`].
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Adopts the descriptors `first .. first + count`, sets them close-on-exec, and removes `variables` from the
/// environment. Works once per process and only while the process has one thread; a descriptor that is not open
/// fails the whole call.
pub fn adopt(first: RawFd, count: usize, variables: &[&str]) -> io::Result<Vec<OwnedFd>> {
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(io::Error::other("the inherited descriptors were taken before"));
    }
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the inherited descriptors must be taken before the process has threads"));
    }
    for name in variables {
        // SAFETY: the process has one thread, as was just read, so nobody reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
    let numbers: Vec<RawFd> = (first..).take(count).collect();
    for number in &numbers {
        // SAFETY: borrowed for two fcntl(2) calls only; on a number that is not open the first answers EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(*number) };
        let flags = rustix::io::fcntl_getfd(fd)?;
        rustix::io::fcntl_setfd(fd, flags | rustix::io::FdFlags::CLOEXEC)?;
    }
    // SAFETY: the protocol of sd_listen_fds(3) hands these numbers to this process; each is open, as was just
    // checked, and `TAKEN` lets them be adopted once. The program does this before it opens anything.
    Ok(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}
