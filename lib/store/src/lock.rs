//! Locks on the state directory: every process shares it, maintenance takes it alone, those that have the store open share that,
//! and each role exists once.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::error::{Error, Result, doing_io};
use crate::state::StateDir;

/// How long a process waits for a lock that another one holds for a moment (a migration, a predecessor that is ending).
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// The state directory, locked against maintenance (shared) or for it (exclusive). Held as long as the value lives.
#[derive(Debug)]
pub struct StateLock {
    _held: Flock<File>,
}

impl StateLock {
    /// Takes the state lock as every ordinary process does. Error: `state_locked` while maintenance runs.
    pub fn shared(state: &StateDir) -> Result<Self> {
        let file = open(&state.path().join("locks/state"))?;
        Ok(Self { _held: wait(file, FlockArg::LockSharedNonblock, "the state directory")? })
    }

    /// Takes the state lock alone, for maintenance. Error: `state_locked` while any process uses the directory.
    pub fn exclusive(state: &StateDir) -> Result<Self> {
        let file = open(&state.path().join("locks/state"))?;
        Ok(Self { _held: wait(file, FlockArg::LockExclusiveNonblock, "the state directory")? })
    }
}

/// The store, locked for use (shared) or for a migration or a recovery (exclusive). Apart from the state lock, as the spawner
/// lives in the directory for long and never opens the store. Held as long as the value lives.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _held: Flock<File>,
}

impl StoreLock {
    /// Error: `state_locked` while another process migrates or recovers the store.
    pub fn shared(state: &StateDir) -> Result<Self> {
        let file = open(&state.path().join("locks/store"))?;
        Ok(Self { _held: wait(file, FlockArg::LockSharedNonblock, "the store")? })
    }

    /// Error: `state_locked` while any process has the store open.
    pub fn exclusive(state: &StateDir) -> Result<Self> {
        let file = open(&state.path().join("locks/store"))?;
        Ok(Self { _held: wait(file, FlockArg::LockExclusiveNonblock, "the store")? })
    }
}

/// The proof that this process is the only one of its role: `scheduler`, `management`, `endpointd`.
#[derive(Debug)]
pub struct RoleLock {
    role: &'static str,
    _held: Flock<File>,
}

impl RoleLock {
    /// Error: `state_locked` when a process of this role lives.
    pub fn take(state: &StateDir, role: &'static str) -> Result<Self> {
        let file = open(&state.path().join("locks").join(role))?;
        let what = format!("the role `{role}` of this state directory");
        Ok(Self { role, _held: wait(file, FlockArg::LockExclusiveNonblock, &what)? })
    }

    pub const fn role(&self) -> &'static str {
        self.role
    }
}

/// Whether a process holds `role` now. For display only: the answer can be old when it arrives.
pub fn role_is_held(state: &StateDir, role: &str) -> bool {
    open(&state.path().join("locks").join(role))
        .is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(doing_io("opening a lock file"))
}

fn wait(mut file: File, how: FlockArg, what: &str) -> Result<Flock<File>> {
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match Flock::lock(file, how) {
            Ok(held) => return Ok(held),
            Err((back, nix::errno::Errno::EWOULDBLOCK)) if Instant::now() < end => {
                file = back;
                std::thread::sleep(LOCK_RETRY);
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Err(Error::Locked { what: what.to_owned() }),
            Err((_, errno)) => return Err(Error::File { doing: "locking", source: errno.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M01
    #[test]
    fn a_role_exists_once_and_maintenance_excludes_everyone() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let held = RoleLock::take(&state, "scheduler").unwrap();
        assert!(role_is_held(&state, held.role()));
        let file = open(&state.path().join("locks/scheduler")).unwrap();
        assert!(Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err());
        drop(held);
        assert!(!role_is_held(&state, "scheduler"));

        let shared = StateLock::shared(&state).unwrap();
        let _also = StateLock::shared(&state).unwrap();
        let file = open(&state.path().join("locks/state")).unwrap();
        assert!(Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err());
        drop((shared, _also));
        StateLock::exclusive(&state).unwrap();
    }
}
