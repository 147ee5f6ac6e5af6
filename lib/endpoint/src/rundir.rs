//! The run directory of an execution, `<state>/runs/<key>/` (E01): `execution` names it, `token/token` holds its current token,
//! and `toolbelt.sock` is its socket unless that path is too long.
//!
//! The scheduler makes and removes it, the spawner binds the socket in it. Nothing here knows the store: a run
//! directory says whose it is by itself, so that either can be restarted alone.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use conduit_api::limits::SOCKET_PATH_BYTES_MAX;
use conduit_api::{ApiError, Code, ExecutionId};
use conduit_store::digest::{hex, sha256};
use conduit_store::state::check_private;

/// Name of the socket in a run directory.
pub const SOCKET_NAME: &str = "toolbelt.sock";
/// Name of the file that says whose run directory it is.
const EXECUTION_NAME: &str = "execution";
/// Directory of the token file; a mount of it sees every rotation (E04).
const TOKEN_DIRECTORY: &str = "token";
const TOKEN_NAME: &str = "token";
/// Begins the name of a directory that is being removed.
const WITHDRAWN_PREFIX: &str = ".gone-";
/// Longest `execution` file that is read, in bytes.
const EXECUTION_BYTES_MAX: u64 = 256;

/// First 16 hex digits of the SHA-256 of the execution's ID (E01).
pub fn key(execution: &ExecutionId) -> String {
    hex(&sha256(execution.as_str().as_bytes())[..8])
}

/// A run directory that was checked: owner-only, and its `execution` file names this execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
    execution: ExecutionId,
}

/// What stands under `<state>/runs`.
#[derive(Debug, Default)]
pub struct Listing {
    /// Whole run directories, in the order of their keys.
    pub runs: Vec<RunDir>,
    /// Everything else: what a crash left half-made, and what never was a run directory.
    pub strays: Vec<PathBuf>,
}

impl RunDir {
    /// Makes the run directory of `execution`, or completes and opens the one that stands; done twice, it changes nothing.
    ///
    /// Errors: `endpoint_unavailable` when it names another execution (E01) or is not ours alone; `state_unavailable` or
    /// `storage_full` when it cannot be made now.
    pub fn prepare(state: &Path, execution: &ExecutionId) -> Result<Self, ApiError> {
        let dir = Self { path: path_of(state, execution), execution: execution.clone() };
        make_private(&dir.path)?;
        match read_name(&dir.path)? {
            Some(name) => dir.check_name(&name)?,
            None => replace(&dir.path, EXECUTION_NAME, dir.execution.as_str())?,
        }
        make_private(&dir.path.join(TOKEN_DIRECTORY))?;
        Ok(dir)
    }

    /// Opens the run directory of `execution`. Errors: `endpoint_unavailable` when it does not say whose it is, names
    /// another execution (E01), or is not ours alone; `state_unavailable` when it is not there or cannot be looked at.
    pub fn open(state: &Path, execution: &ExecutionId) -> Result<Self, ApiError> {
        let dir = Self { path: path_of(state, execution), execution: execution.clone() };
        check_private(&dir.path).map_err(|e| not_private(&dir.path, &e))?;
        match read_name(&dir.path)? {
            Some(name) => dir.check_name(&name).map(|()| dir),
            None => Err(unavailable(&dir.path, &"it does not say whose it is")),
        }
    }

    /// Puts `token` in place of the current one, in one step for whoever reads it (E04).
    ///
    /// Errors: `state_unavailable`, `storage_full`.
    pub fn write_token(&self, token: &str) -> Result<(), ApiError> {
        replace(&self.path.join(TOKEN_DIRECTORY), TOKEN_NAME, token)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
    pub fn execution(&self) -> &ExecutionId {
        &self.execution
    }
    /// What `OS_TOKEN_FILE` names.
    pub fn token_file(&self) -> PathBuf {
        self.path.join(TOKEN_DIRECTORY).join(TOKEN_NAME)
    }
    /// Where the socket stands if the path is short enough; the spawner's answer says where it does stand (E07).
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET_NAME)
    }
    /// The socket's path when it is short enough to stand in the run directory: then it stands nowhere else (E07), and
    /// need not be waited for to be known.
    pub fn socket_in_place(&self) -> Option<PathBuf> {
        Some(self.socket()).filter(|path| socket_fits(path))
    }

    fn check_name(&self, name: &str) -> Result<(), ApiError> {
        if name == self.execution.as_str() {
            return Ok(());
        }
        Err(unavailable(&self.path, &"it names another execution; move it away"))
    }
}

/// Whether a socket can be bound at `path`, and a caller told of it (E07).
pub(crate) fn socket_fits(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.len() <= SOCKET_PATH_BYTES_MAX)
}

/// All run directories of a state directory. Errors: `state_unavailable` when `<state>/runs` cannot be read.
pub fn list(state: &Path) -> Result<Listing, ApiError> {
    let runs = state.join("runs");
    let mut listing = Listing::default();
    for entry in fs::read_dir(&runs).map_err(|e| failed(&runs, &e))? {
        let path = entry.map_err(|e| failed(&runs, &e))?.path();
        match opened(state, &path) {
            Some(dir) => listing.runs.push(dir),
            None => listing.strays.push(path),
        }
    }
    listing.runs.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    listing.strays.sort_unstable();
    Ok(listing)
}

/// Takes the run directory of `execution` away in one step, and returns where it went, for [`remove_stray`], also when that
/// was earlier; `None` when there was none. From then on nobody opens or serves it: a spawner that starts meanwhile cannot bind in it.
/// The spawner is told next ([`crate::control::close`]), as a socket may stand elsewhere, and then the rest is removed.
///
/// Errors: `endpoint_unavailable` when it names another execution (E01); `state_unavailable` when it cannot be moved.
pub fn withdraw(state: &Path, execution: &ExecutionId) -> Result<Option<PathBuf>, ApiError> {
    let dir = RunDir { path: path_of(state, execution), execution: execution.clone() };
    let gone = state.join("runs").join(format!("{WITHDRAWN_PREFIX}{}", key(execution)));
    match fs::symlink_metadata(&dir.path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(fs::symlink_metadata(&gone).is_ok().then_some(gone)),
        _ => {}
    }
    if let Some(name) = read_name(&dir.path)? {
        dir.check_name(&name)?;
    }
    remove_tree(&gone)?; // what a crash left of an earlier time
    fs::rename(&dir.path, &gone).map_err(|e| failed(&dir.path, &e))?;
    Ok(Some(gone))
}

/// Whose run directory a stray was, if a crash came between its withdrawal and its removal.
pub fn withdrawn(stray: &Path) -> Option<ExecutionId> {
    let name = stray.file_name()?.to_str()?;
    name.strip_prefix(WITHDRAWN_PREFIX)?;
    read_name(stray).ok()??.parse().ok()
}

/// Removes what [`list`] called a stray. Errors: `state_unavailable`.
pub fn remove_stray(path: &Path) -> Result<(), ApiError> {
    remove_tree(path)
}

/// The run directory at `path`, if it is one: it names an execution, and stands where that execution's stands.
fn opened(state: &Path, path: &Path) -> Option<RunDir> {
    let execution: ExecutionId = read_name(path).ok()??.parse().ok()?;
    let dir = RunDir::open(state, &execution).ok()?;
    (dir.path == path).then_some(dir)
}

fn path_of(state: &Path, execution: &ExecutionId) -> PathBuf {
    state.join("runs").join(key(execution))
}

/// Makes `path` owner-only, or checks that it is.
pub(crate) fn make_private(path: &Path) -> Result<(), ApiError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => check_private(path).map_err(|e| not_private(path, &e)),
        Err(e) => Err(failed(path, &e)),
    }
}

/// What the `execution` file says; `None` when it is missing, or empty as a power cut can leave it.
fn read_name(dir: &Path) -> Result<Option<String>, ApiError> {
    let path = dir.join(EXECUTION_NAME);
    // A link or a pipe in its place is opened as nothing.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = match OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(unavailable(&path, &"it is a symbolic link"));
        }
        Err(e) => return Err(failed(&path, &e)),
    };
    let mut name = String::new();
    file.take(EXECUTION_BYTES_MAX).read_to_string(&mut name).map_err(|e| failed(&path, &e))?;
    let name = name.trim_end();
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

/// Writes `dir/name` beside and renames it into place. Not synced: after a power cut no reader is left, and the next
/// claim or recovery writes it again.
fn replace(dir: &Path, name: &str, text: &str) -> Result<(), ApiError> {
    let (next, path) = (dir.join(format!(".{name}.next")), dir.join(name));
    let written = (|| {
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next);
        let mut file = match create() {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                // What a crash left half-written.
                fs::remove_file(&next)?;
                create()?
            }
            created => created?,
        };
        // In two writes: a copy of a token to join them would stay in memory (T01).
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        fs::rename(&next, &path)
    })();
    written.map_err(|e| failed(&path, &e))
}

fn remove_tree(path: &Path) -> Result<(), ApiError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(path, &e)),
        _ => Ok(()),
    }
}

/// What the system refused now and may grant another time: told apart from an endpoint that cannot be.
pub(crate) fn failed(path: &Path, error: &std::io::Error) -> ApiError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            ApiError::new(Code::StorageFull, format!("the disk is full: {} could not be written", path.display()))
        }
        _ => ApiError::new(Code::StateUnavailable, format!("{} cannot be used: {error}", path.display())),
    }
}

/// A directory that is not ours alone cannot be an endpoint's; one that cannot be looked at may be another time.
fn not_private(path: &Path, error: &conduit_store::Error) -> ApiError {
    match error {
        conduit_store::Error::StateUnavailable { source, .. } => failed(path, source),
        _ => unavailable(path, error),
    }
}

pub(crate) fn unavailable(path: &Path, why: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(Code::EndpointUnavailable, format!("toolbelt endpoint unavailable at {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn state() -> tempfile::TempDir {
        let base = tempfile::tempdir().unwrap();
        conduit_store::StateDir::open(&base.path().join("s")).unwrap();
        base
    }

    fn id(n: u128) -> ExecutionId {
        ExecutionId::from_parts(1, n)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// E01
    #[test]
    fn a_run_directory_is_owner_only_and_says_whose_it_is() {
        let base = state();
        let state = base.path().join("s");
        let dir = RunDir::prepare(&state, &id(1)).unwrap();
        assert_eq!(RunDir::prepare(&state, &id(1)).unwrap(), dir);
        assert_eq!(dir.path().file_name().unwrap().len(), 16);
        assert_eq!(fs::read_to_string(dir.path().join("execution")).unwrap().trim(), id(1).as_str());
        dir.write_token("t0k").unwrap();
        assert_eq!((mode(dir.path()), mode(&dir.path().join("token")), mode(&dir.token_file())), (0o700, 0o700, 0o600));
    }

    /// E01
    #[test]
    fn a_run_directory_that_names_another_execution_is_refused_and_left_as_it_is() {
        let base = state();
        let state = base.path().join("s");
        let dir = RunDir::prepare(&state, &id(1)).unwrap();
        fs::write(dir.path().join("execution"), id(2).as_str()).unwrap();
        for refused in [RunDir::prepare(&state, &id(1)), RunDir::open(&state, &id(1))] {
            let error = refused.unwrap_err();
            assert_eq!(error.code, Code::EndpointUnavailable);
            assert!(error.message.contains("another execution"), "{error}");
        }
        assert_eq!(fs::read_to_string(dir.path().join("execution")).unwrap(), id(2).as_str());
    }

    /// E01
    #[test]
    fn a_run_directory_open_to_others_is_refused() {
        let base = state();
        let state = base.path().join("s");
        let dir = RunDir::prepare(&state, &id(1)).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(RunDir::prepare(&state, &id(1)).unwrap_err().code, Code::EndpointUnavailable);
    }

    /// E04
    #[test]
    fn a_rotated_token_is_seen_through_a_directory_that_was_opened_before() {
        let base = state();
        let dir = RunDir::prepare(&base.path().join("s"), &id(1)).unwrap();
        dir.write_token("old").unwrap();
        let held = fs::File::open(dir.token_file().parent().unwrap()).unwrap();
        let mut old = fs::File::open(dir.token_file()).unwrap();
        dir.write_token("new").unwrap();
        let now = rustix::fs::openat(&held, "token", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let (mut before, mut after) = (String::new(), String::new());
        old.read_to_string(&mut before).unwrap();
        fs::File::from(now).read_to_string(&mut after).unwrap();
        assert_eq!((before.as_str(), after.as_str()), ("old\n", "new\n"));
        assert_eq!(fs::read_dir(dir.token_file().parent().unwrap()).unwrap().count(), 1);
    }

    /// E06
    #[test]
    fn the_list_tells_run_directories_from_strays_and_both_can_be_removed_twice() {
        let base = state();
        let state = base.path().join("s");
        let dir = RunDir::prepare(&state, &id(1)).unwrap();
        let half = RunDir::prepare(&state, &id(2)).unwrap();
        fs::write(half.path().join("execution"), "").unwrap();
        fs::write(state.join("runs/note"), "x").unwrap();
        let listing = list(&state).unwrap();
        assert_eq!(listing.runs, std::slice::from_ref(&dir));
        assert_eq!(listing.strays.len(), 2);
        // What a power cut emptied is completed, not refused.
        assert_eq!(RunDir::prepare(&state, &id(2)).unwrap(), half);
        assert_eq!(list(&state).unwrap().runs.len(), 2);
        for _ in 0..2 {
            for n in [1, 2] {
                withdraw(&state, &id(n)).unwrap().map_or(Ok(()), |path| remove_stray(&path)).unwrap();
            }
            remove_stray(&state.join("runs/note")).unwrap();
        }
        assert_eq!(fs::read_dir(state.join("runs")).unwrap().count(), 0);
    }

    #[test]
    fn what_the_system_refuses_for_now_is_told_apart_from_an_endpoint_that_cannot_be() {
        let base = state();
        let state = base.path().join("s");
        std::fs::remove_dir(state.join("runs")).unwrap();
        assert_eq!(RunDir::prepare(&state, &id(1)).unwrap_err().code, Code::StateUnavailable);
        assert_eq!(RunDir::open(&state, &id(1)).unwrap_err().code, Code::StateUnavailable);
        assert_eq!(list(&state).unwrap_err().code, Code::StateUnavailable);
        let full = std::io::Error::from(rustix::io::Errno::NOSPC);
        assert_eq!(failed(&state, &full).code, Code::StorageFull);
    }

    /// E06
    #[test]
    fn a_withdrawn_directory_is_served_by_nobody_and_a_crash_before_its_removal_leaves_a_stray_that_says_whose_it_was()
    {
        let base = state();
        let state = base.path().join("s");
        let dir = RunDir::prepare(&state, &id(1)).unwrap();
        let gone = withdraw(&state, &id(1)).unwrap().unwrap();
        assert!(RunDir::open(&state, &id(1)).is_err());
        assert!(std::os::unix::net::UnixListener::bind(dir.socket()).is_err(), "nothing can be bound in it");
        assert_eq!(withdraw(&state, &id(1)).unwrap().as_ref(), Some(&gone), "until it is removed");
        let listing = list(&state).unwrap();
        assert_eq!((listing.runs.len(), listing.strays.as_slice()), (0, std::slice::from_ref(&gone)));
        assert_eq!(withdrawn(&gone), Some(id(1)));
        assert_eq!(withdrawn(Path::new("/nowhere/note")), None);
        // The same execution can have a directory again, and lose it again.
        RunDir::prepare(&state, &id(1)).unwrap();
        assert_eq!(withdraw(&state, &id(1)).unwrap(), Some(gone));
    }
}
