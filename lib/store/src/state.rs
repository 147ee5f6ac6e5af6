//! The state directory: owner-only, ours, and laid out the same everywhere.

use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, doing_at};

/// A state directory that was checked: it belongs to this user, and nobody else can read or write it.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
}

/// Directories that every state directory has.
const INNER: [&str; 6] = ["artifacts", "attempts", "locks", "private", "private/generations", "runs"];

impl StateDir {
    /// Opens `path`, making it and its inner directories (0700) where they are missing.
    ///
    /// Errors: `state_unsafe` when the directory or an inner one belongs to another user or is open to group or
    /// world; `state_unavailable` when it cannot be made or looked at (M01), `storage_full` when there is no room.
    pub fn open(path: &Path) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(doing_at(path, "making it"))?;
        check_private(path)?;
        for inner in INNER {
            let inner = path.join(inner);
            match DirBuilder::new().mode(0o700).create(&inner) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => check_private(&inner)?,
                Err(error) => return Err(doing_at(&inner, "making it")(error)),
            }
        }
        Ok(Self { path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
    pub fn store_file(&self) -> PathBuf {
        self.path.join("store.db")
    }
    /// The page that says what of the store's log is on the disk.
    pub(crate) fn sync_file(&self) -> PathBuf {
        self.path.join("store.sync")
    }
    pub fn history_file(&self) -> PathBuf {
        self.path.join("history.db")
    }
    pub fn generation_file(&self, config_hash: &str) -> PathBuf {
        self.path.join("private/generations").join(format!("{config_hash}.json"))
    }
    /// Where the bytes with this digest are kept.
    pub fn artifact_file(&self, digest: &str) -> PathBuf {
        self.path.join("artifacts").join(digest)
    }
}

/// Refuses a directory that is not ours alone: `state_unsafe`.
pub fn check_private(path: &Path) -> Result<()> {
    let meta = std::fs::symlink_metadata(path).map_err(doing_at(path, "looking at it"))?;
    privacy_fault(&meta, nix::unistd::geteuid().as_raw())
        .map_or(Ok(()), |why| Err(Error::StateUnsafe { path: path.to_owned(), why }))
}

/// Refuses a file that is not ours alone: `state_unsafe`.
pub(crate) fn check_private_file(path: &Path) -> Result<()> {
    let meta = std::fs::symlink_metadata(path).map_err(doing_at(path, "looking at it"))?;
    let why = if meta.is_file() {
        let open = "is open to group or world; make it owner-only (chmod 600)";
        shared_fault(&meta, nix::unistd::geteuid().as_raw(), open)
    } else {
        Some("is not a file (a symbolic link is not followed)")
    };
    why.map_or(Ok(()), |why| Err(Error::StateUnsafe { path: path.to_owned(), why }))
}

/// What is wrong with the privacy of a directory, if anything.
fn privacy_fault(meta: &Metadata, uid: u32) -> Option<&'static str> {
    if !meta.is_dir() {
        return Some("is not a directory (a symbolic link is not followed)");
    }
    shared_fault(meta, uid, "is open to group or world; make it owner-only (chmod 700)")
}

fn shared_fault(meta: &Metadata, uid: u32, open: &'static str) -> Option<&'static str> {
    if meta.uid() != uid {
        Some("belongs to another user; run as its owner, or choose another directory")
    } else if meta.mode() & 0o077 != 0 {
        Some(open)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// M01
    #[test]
    fn a_state_directory_open_to_others_is_refused_and_left_as_it_was() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("state");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(StateDir::open(&path), Err(Error::StateUnsafe { .. })));
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        StateDir::open(&path).unwrap();
        std::fs::set_permissions(path.join("private"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(StateDir::open(&path), Err(Error::StateUnsafe { .. })));
    }

    /// M01
    #[test]
    fn a_link_to_a_state_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        StateDir::open(&base.path().join("real")).unwrap();
        std::os::unix::fs::symlink(base.path().join("real"), base.path().join("link")).unwrap();
        assert!(matches!(StateDir::open(&base.path().join("link")), Err(Error::StateUnsafe { .. })));
    }

    /// M01
    #[test]
    fn a_foreign_state_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let meta = std::fs::symlink_metadata(base.path()).unwrap();
        let someone_else = meta.uid() + 1;
        assert_eq!(privacy_fault(&meta, meta.uid()), None);
        assert!(privacy_fault(&meta, someone_else).is_some_and(|why| why.contains("another user")));
    }
}
