//! What a daemon's process gives up, and what it refuses to leave behind.

use std::io;

use conduit_api::{ApiError, Code};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// No core dumps and no tracing by other processes of the user (T01), and files that nobody else can open.
///
/// The limit of core dumps stays as high as it may be raised, for processes that are started on behalf of somebody.
pub fn harden() -> Result<(), ApiError> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let maximum = rustix::process::getrlimit(Resource::Core).maximum;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum })
        .and_then(|()| rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable))
        .map_err(|error| failed("core dumps could not be turned off", &error.into()))
}

/// Gives up every capability, and every way to gain one. For a process that serves a single execution.
pub fn drop_authority() -> Result<(), ApiError> {
    let failed = |error: rustix::io::Errno| failed("capabilities could not be dropped", &error.into());
    // With it, no exec(2) gains anything: the bounding set needs no attention.
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    rustix::thread::clear_ambient_capability_set().map_err(failed)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(failed)
}

/// Asks for SIGTERM when the process `parent`, which started this one, ends. Refuses when it has ended already.
pub fn end_with_parent(parent: i32) -> Result<(), ApiError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| failed("the end of the parent could not be watched", &error.into()))?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if now == Some(parent) {
        return Ok(());
    }
    Err(ApiError::new(Code::Unavailable, format!("the process {parent}, which started this one, has ended")))
}

/// Raises the soft limit of open files to the hard one, for a process that holds a socket per execution. Returns the
/// limit before, for children that must not inherit the raised one.
pub fn raise_file_limit() -> Result<Rlimit, ApiError> {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised)
        .map_err(|error| failed("the limit of open files could not be raised", &error.into()))?;
    Ok(before)
}

fn failed(what: &str, error: &io::Error) -> ApiError {
    ApiError::new(Code::Internal, format!("{what}: {error}"))
}
