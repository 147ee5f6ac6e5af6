//! Executable identity: which file, and which bytes.
//!
//! Bytes are hashed once and remembered by what changes when they do (device, inode, size, mtime, ctime). A file
//! that changed within the granularity of its clock before it was hashed is not trusted to its stamp, but hashed again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use conduit_store::digest::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// What changes when the bytes of a file do. Written as one text: canonical JSON keeps 53 bits of a number, and a time in
/// nanoseconds has more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Stamp {
    pub dev: u64,
    pub ino: u64,
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
}

impl Stamp {
    pub fn of(meta: &Metadata) -> Self {
        let nanos = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime_ns: nanos(meta.mtime(), meta.mtime_nsec()),
            ctime_ns: nanos(meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl From<Stamp> for String {
    fn from(Stamp { dev, ino, size, mtime_ns, ctime_ns }: Stamp) -> Self {
        format!("{dev}:{ino}:{size}:{mtime_ns}:{ctime_ns}")
    }
}

impl TryFrom<String> for Stamp {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, Self::Error> {
        let mut parts = text.split(':');
        let mut next = || parts.next().unwrap_or_default();
        let read = |text: &str| text.parse::<u64>().map_err(|_| "a number of a stamp is none");
        let read_ns = |text: &str| text.parse::<i64>().map_err(|_| "a time of a stamp is none");
        let stamp = Self {
            dev: read(next())?,
            ino: read(next())?,
            size: read(next())?,
            mtime_ns: read_ns(next())?,
            ctime_ns: read_ns(next())?,
        };
        if parts.next().is_some() { Err("a stamp has five numbers") } else { Ok(stamp) }
    }
}

/// A file that can be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Executable {
    /// As the caller wrote it: argv\[0\], for multicall programs.
    pub invoked: PathBuf,
    /// With every link resolved: what is run.
    pub canonical: PathBuf,
    /// SHA-256 of its bytes, lower-case hex.
    pub digest: String,
    pub stamp: Stamp,
    /// Whether an equal stamp proves equal bytes.
    pub settled: bool,
}

/// A file younger than this when it was hashed may change again without its stamp showing it.
const RACY: Duration = Duration::from_millis(100);
/// How many files are remembered.
const REMEMBERED_MAX: usize = 256;

/// Digests of executables that were seen before.
#[derive(Debug, Default)]
pub struct Executables {
    known: RefCell<HashMap<Stamp, String>>,
}

impl Executables {
    /// Resolves and hashes `invoked`. Error: `executable_unavailable`, which says what is wrong with it.
    pub fn identify(&self, invoked: &Path) -> Result<Executable> {
        let unavailable = |why: String| Error::ExecutableUnavailable { path: invoked.to_owned(), why };
        let said = |error: std::io::Error| unavailable(crate::error::in_words(&error));
        let canonical = std::fs::canonicalize(invoked).map_err(said)?;
        let meta = std::fs::metadata(&canonical).map_err(said)?;
        if !meta.is_file() {
            return Err(unavailable("it is not a regular file".into()));
        }
        rustix::fs::access(&canonical, rustix::fs::Access::EXEC_OK)
            .map_err(|_| unavailable("it may not be executed by this user".into()))?;
        let stamp = Stamp::of(&meta);
        if let Some(digest) = self.known.borrow().get(&stamp).cloned() {
            return Ok(Executable { invoked: invoked.to_owned(), canonical, digest, stamp, settled: true });
        }
        let Hashed { digest, stamp, runs_by_itself } = hash(&canonical).map_err(said)?;
        if !runs_by_itself {
            return Err(unavailable("it is no program, and no script whose first line names one (#!)".into()));
        }
        let settled = is_settled(&stamp);
        if settled {
            let mut known = self.known.borrow_mut();
            if known.len() >= REMEMBERED_MAX {
                known.clear();
            }
            known.insert(stamp, digest.clone());
        }
        Ok(Executable { invoked: invoked.to_owned(), canonical, digest, stamp, settled })
    }
}

impl Executable {
    /// Whether the file still has the bytes that were admitted: by its stamp where that proves it, else by hashing.
    pub(crate) fn is_unchanged(&self) -> std::io::Result<bool> {
        if self.settled && Stamp::of(&std::fs::metadata(&self.canonical)?) == self.stamp {
            return Ok(true);
        }
        Ok(hash(&self.canonical)?.digest == self.digest)
    }
}

fn is_settled(stamp: &Stamp) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_nanos());
    u128::try_from(stamp.ctime_ns.max(stamp.mtime_ns)).is_ok_and(|changed| changed + RACY.as_nanos() < now)
}

/// What a file's bytes say.
struct Hashed {
    digest: String,
    /// The same before and after.
    stamp: Stamp,
    /// Whether the kernel runs it, or the program that its first line names. The C library would give any other to a shell.
    runs_by_itself: bool,
}

fn hash(path: &Path) -> std::io::Result<Hashed> {
    let mut file = File::open(path)?;
    let before = Stamp::of(&file.metadata()?);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    let mut runs_by_itself = None;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => {
                runs_by_itself.get_or_insert_with(|| begins_as_program(&buffer[..n]));
                hash.update(&buffer[..n]);
            }
        }
    }
    if Stamp::of(&file.metadata()?) != before {
        return Err(std::io::Error::other("it changed while it was read"));
    }
    Ok(Hashed { digest: hex(&hash.finalize()), stamp: before, runs_by_itself: runs_by_itself.unwrap_or(false) })
}

/// Whether a file that begins so is a program, or says which program reads it.
fn begins_as_program(beginning: &[u8]) -> bool {
    [&b"\x7fELF"[..], b"#!"].iter().any(|mark| beginning.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("program");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// K02
    #[test]
    fn an_executable_is_its_canonical_path_and_its_bytes_and_keeps_the_name_it_was_called_by() {
        let base = tempfile::tempdir().unwrap();
        let path = program(base.path(), "#!one");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let found = Executables::default().identify(&link).unwrap();
        assert_eq!(found.invoked, link);
        assert_eq!(found.canonical, path.canonicalize().unwrap());
        assert_eq!(found.digest, hex(&conduit_store::digest::sha256(b"#!one")));
    }

    /// K02
    #[test]
    fn changed_bytes_are_noticed_however_fast_they_changed() {
        let base = tempfile::tempdir().unwrap();
        let executables = Executables::default();
        let mut before = executables.identify(&program(base.path(), "#!a")).unwrap();
        for text in ["#!b", "#!c", "#!d"] {
            let path = program(base.path(), text);
            assert!(!before.is_unchanged().unwrap(), "{text}");
            let now = executables.identify(&path).unwrap();
            assert_ne!(now.digest, before.digest);
            assert!(now.is_unchanged().unwrap());
            before = now;
        }
    }

    #[test]
    fn a_file_that_has_rested_is_hashed_once() {
        let executables = Executables::default();
        let first = executables.identify(Path::new("/bin/sh")).unwrap();
        assert!(first.settled);
        assert_eq!(executables.known.borrow().len(), 1);
        assert_eq!(executables.identify(Path::new("/bin/sh")).unwrap(), first);
        assert!(first.is_unchanged().unwrap());
    }

    /// K02: what a runner reads of its plan is what was admitted, to the nanosecond, so that it need not hash again.
    #[test]
    fn a_stamp_is_the_same_after_it_was_written_as_canonical_json_and_read() {
        let mut found = Executables::default().identify(Path::new("/bin/sh")).unwrap();
        found.stamp = Stamp { dev: u64::MAX, ino: u64::MAX - 1, mtime_ns: i64::MIN, ctime_ns: i64::MAX, ..found.stamp };
        let read: Executable = serde_json::from_slice(&crate::identity::canonical(&found).unwrap()).unwrap();
        assert_eq!(read, found);
        for not_one in ["", "1:2:3:4", "1:2:3:4:5:6", "1:2:3:4:x"] {
            assert!(Stamp::try_from(not_one.to_owned()).is_err(), "{not_one}");
        }
    }

    #[test]
    fn what_cannot_run_is_named_with_the_reason() {
        let base = tempfile::tempdir().unwrap();
        let plain = base.path().join("plain");
        std::fs::write(&plain, "x").unwrap();
        let words = program(base.path(), "echo run by a shell");
        for (path, why) in [
            (plain.as_path(), "executed"),
            (words.as_path(), "no script"),
            (base.path(), "regular"),
            (Path::new("/no/such"), "it is not there"),
        ] {
            let error = Executables::default().identify(path).unwrap_err();
            assert_eq!(error.code(), conduit_api::Code::ExecutableUnavailable);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
