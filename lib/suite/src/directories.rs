//! The directories of a suite, made owner-only, and the lock that lets one `up` have them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use conduit_api::places::Places;
use conduit_api::{ApiError, Code};
use conduit_daemon::activation::{check_owner_only, unavailable};
use rustix::fs::FlockOperation;

const LOCK: &str = "up.lock";

/// Held as long as `up` runs; the kernel lets go when the process ends, however it does.
#[derive(Debug)]
pub struct Held {
    _locks: [File; 2],
}

/// Makes both directories where they are missing, and locks them.
///
/// Refusals: `state_unsafe` for a directory that others own or can enter, `state_unavailable` for one that cannot be
/// made, `state_locked` when another `up` has either of them.
pub fn take(places: &Places) -> Result<Held, ApiError> {
    make(&places.state)?;
    make(&places.runtime)?;
    Ok(Held { _locks: [lock(&places.state, places)?, lock(&places.runtime, places)?] })
}

fn make(directory: &Path) -> Result<(), ApiError> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| unavailable(directory, &error))?;
    check_owner_only(directory)
}

fn lock(directory: &Path, places: &Places) -> Result<File, ApiError> {
    // Apart, so that a state directory that holds its own sockets is locked twice without meeting itself.
    let name = if directory == places.state { LOCK.to_owned() } else { format!("runtime-{LOCK}") };
    let path = directory.join(name);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| unavailable(&path, &error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ApiError::new(
            Code::StateLocked,
            format!(
                "another `open-conduit up` runs on {}; use it, stop it first, or choose another directory with --state",
                directory.display()
            ),
        )),
        Err(error) => Err(unavailable(&path, &error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn places(base: &Path) -> Places {
        Places { state: base.join("state/deep"), runtime: base.join("run") }
    }

    /// M01
    #[test]
    fn directories_are_made_owner_only_and_one_up_has_them() {
        let base = tempfile::tempdir().unwrap();
        let places = places(base.path());
        let held = take(&places).unwrap();
        assert_eq!(std::fs::metadata(&places.state).unwrap().mode() & 0o777, 0o700);
        assert_eq!(take(&places).unwrap_err().code, Code::StateLocked);
        let same_state = Places { runtime: base.path().join("other"), ..places.clone() };
        assert_eq!(take(&same_state).unwrap_err().code, Code::StateLocked);
        let same_runtime = Places { state: base.path().join("other"), ..places.clone() };
        assert_eq!(take(&same_runtime).unwrap_err().code, Code::StateLocked);
        drop(held);
        take(&places).unwrap();
    }

    /// M01
    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let places = places(base.path());
        std::fs::create_dir(&places.runtime).unwrap();
        std::fs::set_permissions(&places.runtime, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(take(&places).unwrap_err().code, Code::StateUnsafe);
    }
}
