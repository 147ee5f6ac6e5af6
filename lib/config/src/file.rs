//! Files that are replaced whole or not at all, and the operator's configuration file.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use conduit_api::limits::BODY_BYTES_MAX;
use nix::errno::Errno;

use crate::error::{Error, Result};

/// Longest chain of symbolic links that leads to the configuration file.
const LINKS_MAX: usize = 16;

/// The operator's configuration file. A link to it is followed, and what it leads to is replaced beside itself.
#[derive(Debug, Clone)]
pub(crate) struct ConfigFile {
    path: PathBuf,
}

impl ConfigFile {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the file holds, at most one byte more than a configuration may have; `None` when there is no file.
    ///
    /// Error: `config_file_unavailable`, also when it is no regular file or somebody else may write it.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>> {
        self.reading(&self.path)
    }

    /// What was active before the last apply that began, in the operator's spelling. Errors: as for [`ConfigFile::read`].
    pub(crate) fn last_good(&self) -> Result<Option<Vec<u8>>> {
        self.reading(&with_suffix(&self.target()?, ".last-good"))
    }

    fn reading(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let mut read = || -> io::Result<()> {
            let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
            let about = file.metadata()?;
            if !about.is_file() {
                return Err(io::Error::other("it is not a regular file"));
            }
            if let Some(why) = trust_fault(&about, nix::unistd::geteuid().as_raw()) {
                return Err(io::Error::other(why));
            }
            file.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map(|_| ())
        };
        match read() {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File { path: path.to_owned(), doing: "reading it", source }),
        }
    }

    /// Replaces the file by `bytes`. Errors: `config_file_unavailable`, `storage_full`.
    pub(crate) fn save(&self, bytes: &[u8]) -> Result<()> {
        self.saving(&self.target()?, bytes, "saving it")
    }

    /// Keeps `bytes` beside the file, as the configuration that was active before. Errors: as for [`ConfigFile::save`].
    pub(crate) fn keep_last_good(&self, bytes: &[u8]) -> Result<()> {
        self.saving(&with_suffix(&self.target()?, ".last-good"), bytes, "keeping the last good one beside it")
    }

    fn saving(&self, target: &Path, bytes: &[u8], doing: &'static str) -> Result<()> {
        replace(target, bytes).map_err(|source| match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EBUSY | Errno::EXDEV) => Error::FileMounted { path: self.path.clone() },
            Some(Errno::ENOSPC | Errno::EDQUOT) => Error::Store(conduit_store::Error::Full { doing }),
            _ => Error::File { path: self.path.clone(), doing, source },
        })
    }

    /// Where the links lead, whether something is there or not.
    fn target(&self) -> Result<PathBuf> {
        let mut target = self.path.clone();
        for _ in 0..LINKS_MAX {
            match std::fs::read_link(&target) {
                Ok(next) => target = target.parent().unwrap_or(Path::new("/")).join(next),
                Err(_) => return Ok(target), // not a link, or nothing there: saving will say what is wrong, if anything
            }
        }
        let source = io::Error::other("too many symbolic links");
        Err(Error::File { path: self.path.clone(), doing: "following its links", source })
    }
}

/// Why a file with these rights is not to be trusted, if so: what it says is run as the user `own`.
fn trust_fault(about: &Metadata, own: u32) -> Option<&'static str> {
    if ![own, 0].contains(&about.uid()) {
        Some("it belongs to another user; make it your own (chown)")
    } else if about.mode() & 0o022 != 0 {
        Some("others may write it; take that right away (chmod go-w)")
    } else {
        None
    }
}

/// Replaces `path` by an owner-only file with `bytes`, durably: whoever looks, also after a power loss, finds the old
/// bytes or the new ones.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = with_suffix(path, ".new");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {} // what a crash left is of no use
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let renamed = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&fresh, path));
    if let Err(error) = renamed {
        let _ = std::fs::remove_file(&fresh); // the first error is the one to tell; the next save removes it too
        return Err(error);
    }
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// C06
    #[test]
    fn a_file_is_replaced_owner_only_whatever_a_crash_left_beside_it() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("config.json");
        std::fs::write(&path, "old").unwrap();
        std::fs::write(base.path().join("config.json.new"), "half").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }

    /// C06
    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("real")).unwrap();
        let (link, real) = (base.path().join("config.json"), base.path().join("real/own.json"));
        symlink("real/own.json", &link).unwrap();
        let file = ConfigFile::new(link.clone());
        file.save(b"{}").unwrap();
        file.keep_last_good(b"[]").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&real).unwrap(), b"{}");
        assert_eq!(std::fs::read(base.path().join("real/own.json.last-good")).unwrap(), b"[]");
    }

    #[test]
    fn what_is_no_private_enough_regular_file_is_refused_and_absence_is_no_error() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("config.json");
        let file = ConfigFile::new(path.clone());
        assert_eq!(file.read().unwrap(), None);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(file.read().unwrap_err().code().as_str(), "config_file_unavailable");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "{}").unwrap();
        for open in [0o620, 0o602] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(open)).unwrap();
            assert_eq!(file.read().unwrap_err().code().as_str(), "config_file_unavailable", "{open:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(file.read().unwrap(), Some(b"{}".to_vec()));
        let about = std::fs::metadata(&path).unwrap();
        assert_eq!(trust_fault(&about, about.uid()), None);
        let foreign = trust_fault(&about, about.uid() + 1);
        assert!(about.uid() == 0 || foreign.is_some(), "root's file is anybody's configuration, and nobody else's is");
        symlink("loop", base.path().join("loop")).unwrap();
        assert!(ConfigFile::new(base.path().join("loop")).save(b"{}").is_err());
    }
}
