//! Where the socket of a run directory stands: in it, or in a short place when that path is too long (E07).
//!
//! Decides and makes places; binds nothing.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use conduit_api::ApiError;
use conduit_api::limits::SOCKET_PATH_BYTES_MAX;

use crate::rundir::{SOCKET_NAME, failed, make_private, socket_fits, unavailable};

/// Directories that stand in for a run directory whose path is too long, the best first. A `<key>` directory in one of
/// them holds the socket and nothing else; the token stays in the run directory.
#[derive(Debug, Clone)]
pub struct ShortPlaces(Vec<PathBuf>);

impl ShortPlaces {
    /// `$XDG_RUNTIME_DIR/open-conduit` where that is set (nothing ages there), then `/tmp/open-conduit-<uid>`.
    pub fn of_process() -> Self {
        let runtime = conduit_api::places::Environment::of_process().xdg_runtime_dir;
        let uid = rustix::process::geteuid().as_raw();
        let tmp = PathBuf::from(format!("/tmp/open-conduit-{uid}"));
        Self::new(runtime.map(|base| base.join("open-conduit")).into_iter().chain([tmp]).collect())
    }

    pub fn new(bases: Vec<PathBuf>) -> Self {
        Self(bases)
    }

    /// Every path that the socket of `run` may have, the preferred first.
    ///
    /// Error: `endpoint_unavailable` when all are too long, or are not text that a caller can be told.
    pub fn candidates(&self, run: &Path) -> Result<Vec<PathBuf>, ApiError> {
        let inside = run.join(SOCKET_NAME);
        let key = run.file_name().unwrap_or_default();
        let fitting: Vec<PathBuf> = if socket_fits(&inside) {
            vec![inside]
        } else {
            self.0.iter().map(|base| base.join(key).join(SOCKET_NAME)).filter(|path| socket_fits(path)).collect()
        };
        if fitting.is_empty() {
            return Err(unavailable(
                &run.join(SOCKET_NAME),
                &format!(
                    "this path and those that could stand in for it are too long or not UTF-8 (at most {SOCKET_PATH_BYTES_MAX} bytes); choose a shorter state directory"
                ),
            ));
        }
        Ok(fitting)
    }

    /// The path for a socket of `run` that is to be bound now; its directories stand afterwards, owner-only. A
    /// socket that stands in one of the places decides for that place, so that a process that was told of it
    /// finds it again.
    ///
    /// Errors: `endpoint_unavailable` as in [`ShortPlaces::candidates`], or when a directory is not ours alone;
    /// `state_unavailable`, `storage_full` when one cannot be made now.
    pub fn make(&self, run: &Path) -> Result<PathBuf, ApiError> {
        let candidates = self.candidates(run)?;
        let standing = candidates.iter().position(|path| fs::symlink_metadata(path).is_ok()).unwrap_or(0);
        let chosen = candidates.into_iter().nth(standing).unwrap_or_default();
        if let Some(short) = chosen.parent().filter(|parent| *parent != run) {
            make_private(short.parent().unwrap_or(short))?;
            make_private(short)?;
        }
        Ok(chosen)
    }

    /// Removes the socket of `run`, wherever it stands, with the short place made for it.
    ///
    /// Error: `state_unavailable` when something there cannot be removed.
    pub fn clear(&self, run: &Path) -> Result<(), ApiError> {
        let Ok(candidates) = self.candidates(run) else { return Ok(()) }; // none was ever made
        for path in candidates {
            gone(&path, fs::remove_file(&path))?;
            if let Some(short) = path.parent().filter(|parent| *parent != run) {
                gone(short, fs::remove_dir(short))?;
            }
        }
        Ok(())
    }
}

/// The number that the name of a run directory spells, if it is the name of one.
pub fn key_of(run: &Path) -> Option<u64> {
    let name = run.file_name().and_then(OsStr::to_str)?;
    let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (name.len() == 16 && name.bytes().all(digits)).then(|| u64::from_str_radix(name, 16).ok()).flatten()
}

fn gone(path: &Path, removed: std::io::Result<()>) -> Result<(), ApiError> {
    match removed {
        Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Err(failed(path, &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::Code;
    use std::os::unix::fs::PermissionsExt;

    fn long(base: &Path) -> PathBuf {
        base.join("x".repeat(SOCKET_PATH_BYTES_MAX)).join("0123456789abcdef")
    }

    /// E01, E07
    #[test]
    fn a_socket_stands_in_its_run_directory_up_to_a_hundred_bytes() {
        let places = ShortPlaces::new(vec!["/short".into()]);
        let run = |bytes: usize| PathBuf::from(format!("/{}/0123456789abcdef", "s".repeat(bytes - 32)));
        assert_eq!(places.candidates(&run(100)).unwrap(), [run(100).join(SOCKET_NAME)]);
        assert_eq!(run(100).join(SOCKET_NAME).as_os_str().len(), 100);
        assert_eq!(places.candidates(&run(101)).unwrap(), [Path::new("/short/0123456789abcdef/toolbelt.sock")]);
    }

    /// E07
    #[test]
    fn when_every_path_is_too_long_the_refusal_names_it_and_asks_for_a_shorter_one() {
        let places = ShortPlaces::new(vec![PathBuf::from("/".to_owned() + &"y".repeat(90))]);
        let run = long(Path::new("/"));
        let error = places.make(&run).unwrap_err();
        assert_eq!(error.code, Code::EndpointUnavailable);
        assert!(error.message.contains(run.to_str().unwrap()) && error.message.contains("shorter state directory"));
    }

    /// E07
    #[test]
    fn a_short_place_is_owner_only_or_refused() {
        let base = tempfile::tempdir().unwrap();
        let short = base.path().join("s");
        let places = ShortPlaces::new(vec![short.clone()]);
        let run = long(base.path());
        let made = places.make(&run).unwrap();
        assert_eq!(made, short.join("0123456789abcdef").join(SOCKET_NAME));
        for directory in [short.as_path(), made.parent().unwrap()] {
            assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
            let error = places.make(&run).unwrap_err();
            assert_eq!(error.code, Code::EndpointUnavailable);
            assert!(error.message.contains(directory.to_str().unwrap()), "{error}");
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
        }
        fs::remove_dir(made.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(base.path(), made.parent().unwrap()).unwrap();
        assert_eq!(places.make(&run).unwrap_err().code, Code::EndpointUnavailable);
    }

    /// E06, E07
    #[test]
    fn what_was_made_is_found_again_and_cleared_twice() {
        let base = tempfile::tempdir().unwrap();
        let bases = [base.path().join("first"), base.path().join("second")];
        let run = long(base.path());
        let alone = ShortPlaces::new(vec![bases[1].clone()]);
        let made = alone.make(&run).unwrap();
        fs::write(&made, "").unwrap();
        let both = ShortPlaces::new(bases.to_vec());
        assert_eq!(both.make(&run).unwrap(), made);
        both.clear(&run).unwrap();
        both.clear(&run).unwrap();
        assert!(!made.parent().unwrap().exists());
        assert!(both.make(&run).unwrap().starts_with(&bases[0]));
    }

    #[test]
    fn only_sixteen_lower_case_hex_digits_name_a_run_directory() {
        assert_eq!(key_of(Path::new("/r/00000000000000ff")), Some(255));
        for not in ["/r/00000000000000FF", "/r/ff", "/r/+0000000000000ff", "/"] {
            assert_eq!(key_of(Path::new(not)), None, "{not}");
        }
    }
}
