//! The only unsafe room of this crate: what a child does between `fork` and `exec`, and waiting for a descriptor.
#![allow(unsafe_code)]

use std::io::Error;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, getppid, setsid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::identity::Resources;

/// First descriptor behind the three standard ones.
const FIRST_OWN_DESCRIPTOR: libc::c_uint = 3;

/// Makes the child die with the runner that spawns it, lead a session of its own, and inherit nothing but its standard
/// streams: no blocked signal, no file mode mask of the service, no other descriptor (K08).
pub(crate) fn detach(command: &mut Command) {
    let runner = Pid::this();
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != runner {
            // The runner ended before the line above took hold.
            return Err(Error::from_raw_os_error(libc::ESRCH));
        }
        setsid()?;
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        close_others_on_exec()?;
        SigSet::empty().thread_set_mask()?;
        Ok(())
    };
    // SAFETY: the closure runs in the forked child of a single-threaded process. It makes plain system calls, takes no
    // lock, allocates nothing, and touches no memory but its own copy of `runner`.
    unsafe { command.pre_exec(prepare) };
}

/// Bounds what the child may use, and with it each process that it makes (setrlimit(2)). What the runner itself may is never
/// widened.
pub(crate) fn bound(command: &mut Command, resources: Resources) {
    let lower = |what: Resource, max: Option<u64>| {
        let Some(max) = max else { return Ok(()) };
        let hard = getrlimit(what).maximum.map_or(max, |hard| hard.min(max));
        setrlimit(what, Rlimit { current: Some(hard), maximum: Some(hard) }).map_err(Error::from)
    };
    let prepare = move || {
        // Data rather than the address space: runtimes reserve much more of that than they ever use.
        lower(Resource::Data, resources.memory_bytes_max)?;
        lower(Resource::Nofile, resources.files_max)?;
        lower(Resource::Fsize, resources.file_bytes_max)?;
        lower(Resource::Core, resources.no_core.then_some(0))?;
        if resources.no_new_privileges {
            rustix::thread::set_no_new_privs(true)?;
        }
        Ok(())
    };
    // SAFETY: as above: plain system calls on copies of numbers.
    unsafe { command.pre_exec(prepare) };
}

/// A descriptor whose readability can be awaited, in a tokio runtime.
pub(crate) fn readable(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns `fd`, which stays open and keeps its number until that is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Error::from)
}

fn close_others_on_exec() -> std::io::Result<()> {
    // SAFETY: with CLOEXEC the call closes nothing now; it only marks descriptors, and takes no pointer.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_OWN_DESCRIPTOR,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC as libc::c_uint,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
