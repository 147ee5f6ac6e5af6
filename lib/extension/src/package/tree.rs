//! The files of a package: bounded, plain, and bound by one digest.
//!
//! Only directories and regular files; a link, a device, a socket is refused and never followed. Each file is looked at
//! once, through the descriptor that its bytes come from.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use conduit_store::digest::{Sha256Digest, sha256, sha256_parts};
use rustix::fs::OFlags;

/// Files and directories of a package.
pub const ENTRIES_MAX: usize = 2048;
/// Bytes of all its files.
pub const BYTES_MAX: u64 = 64 << 20;
const DEPTH_MAX: usize = 16;

/// Why a tree cannot be a package's.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("`{0}` is neither a regular file nor a directory; links are not followed")]
    Odd(String),
    #[error("it has more than {ENTRIES_MAX} files, or more than {} MiB, or more than {DEPTH_MAX} levels", BYTES_MAX >> 20)]
    Large,
    #[error("the name of one of its files is not UTF-8")]
    Name,
    #[error("`{path}` cannot be read or written: {}", source.kind())]
    Io { path: String, source: std::io::Error },
}

/// One file, with its path below the package's directory.
struct Entry<'e> {
    path: &'e str,
    executable: bool,
    bytes: &'e [u8],
}

/// The digest of the package in `dir`: of each file's path, bytes and whether it can be executed.
pub fn digest(dir: &Path) -> Result<Sha256Digest, Fault> {
    walk(dir, |_| Ok(()))
}

/// Copies the package in `from` to `to`, a new directory, readable by its owner alone and writable by nobody; durably.
/// Returns the digest of what was copied.
pub fn copy(from: &Path, to: &Path) -> Result<Sha256Digest, Fault> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| Fault::Io { path, source }
    };
    DirBuilder::new().mode(0o700).create(to).map_err(failed(to))?;
    let mut directories = vec![to.to_owned()];
    let copied = walk(from, |entry| {
        let path = to.join(entry.path);
        if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
            DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed(parent))?;
            directories.extend(parent.ancestors().take_while(|above| *above != to).map(Path::to_owned));
        }
        let mode = if entry.executable { 0o500 } else { 0o400 };
        let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&path).map_err(failed(&path))?;
        file.write_all(entry.bytes).and_then(|()| file.sync_all()).map_err(failed(&path))
    })?;
    directories.sort();
    directories.dedup();
    for directory in directories.iter().rev() {
        File::open(directory).and_then(|opened| opened.sync_all()).map_err(failed(directory))?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o500)).map_err(failed(directory))?;
    }
    Ok(copied)
}

/// Removes a tree that [`copy`] made; one that is not there is removed already.
pub fn remove(dir: &Path) -> std::io::Result<()> {
    let gone = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    };
    let mut open = vec![dir.to_owned()];
    while let Some(directory) = open.pop() {
        if let Err(error) = std::fs::set_permissions(&directory, Permissions::from_mode(0o700)) {
            return gone(error);
        }
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    std::fs::remove_dir_all(dir).or_else(gone)
}

/// Shows every file to `visit`, in the order of paths, and returns the digest of them all.
fn walk(dir: &Path, mut visit: impl FnMut(&Entry<'_>) -> Result<(), Fault>) -> Result<Sha256Digest, Fault> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut room = BYTES_MAX;
    for path in files(dir)? {
        let (executable, bytes) = read(dir, &path, room)?;
        room -= bytes.len() as u64;
        visit(&Entry { path: &path, executable, bytes: &bytes })?;
        parts.push(path.into_bytes());
        parts.push(vec![u8::from(executable)]);
        parts.push(sha256(&bytes).to_vec());
    }
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(sha256_parts("open-conduit package v1", &parts))
}

/// The paths of all regular files below `dir`, in their order.
fn files(dir: &Path) -> Result<Vec<String>, Fault> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| Fault::Io { path, source }
    };
    let (mut found, mut open, mut entries) = (Vec::new(), vec![(PathBuf::new(), 0)], 0);
    while let Some((below, depth)) = open.pop() {
        let directory = dir.join(&below);
        for entry in std::fs::read_dir(&directory).map_err(failed(&directory))? {
            let entry = entry.map_err(failed(&directory))?;
            entries += 1;
            if entries > ENTRIES_MAX || depth >= DEPTH_MAX {
                return Err(Fault::Large);
            }
            let path = below.join(entry.file_name());
            let name = path.to_str().ok_or(Fault::Name)?.to_owned();
            let kind = entry.file_type().map_err(failed(&path))?;
            if kind.is_dir() {
                open.push((path, depth + 1));
            } else if kind.is_file() {
                found.push(name);
            } else {
                return Err(Fault::Odd(name));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(dir: &Path, path: &str, room: u64) -> Result<(bool, Vec<u8>), Fault> {
    let failed = |source| Fault::Io { path: path.to_owned(), source };
    // Neither followed nor waited for, should it have become something else meanwhile.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(dir.join(path)).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(Fault::Odd(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(room + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > room {
        return Err(Fault::Large);
    }
    Ok((meta.mode() & 0o100 != 0, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn package(base: &Path) -> PathBuf {
        let dir = base.join("package");
        std::fs::create_dir_all(dir.join("lib/deep")).unwrap();
        std::fs::write(dir.join("manifest.json"), "{}").unwrap();
        std::fs::write(dir.join("lib/deep/a"), "a").unwrap();
        std::fs::write(dir.join("main"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(dir.join("main"), Permissions::from_mode(0o755)).unwrap();
        dir
    }

    /// X01
    #[test]
    fn a_copy_has_the_digest_of_its_source_and_is_for_its_owner_alone() {
        let base = tempfile::tempdir().unwrap();
        let (from, to) = (package(base.path()), base.path().join("copy"));
        let copied = copy(&from, &to).unwrap();
        assert_eq!((digest(&from).unwrap(), digest(&to).unwrap()), (copied, copied));
        for path in ["", "main", "lib", "lib/deep", "lib/deep/a"] {
            let mode = std::fs::metadata(to.join(path)).unwrap().permissions().mode();
            assert_eq!(mode & 0o277, 0, "{path} {mode:o}");
        }
        remove(&to).unwrap();
        remove(&to).unwrap();
        assert!(!to.exists());
    }

    /// X01
    #[test]
    fn every_changed_byte_name_or_mode_changes_the_digest() {
        let base = tempfile::tempdir().unwrap();
        let dir = package(base.path());
        let mut seen = vec![digest(&dir).unwrap()];
        let changes: [fn(&Path); 4] = [
            |dir| std::fs::write(dir.join("lib/deep/a"), "b").unwrap(),
            |dir| std::fs::rename(dir.join("lib/deep/a"), dir.join("lib/deep/b")).unwrap(),
            |dir| std::fs::set_permissions(dir.join("main"), Permissions::from_mode(0o644)).unwrap(),
            |dir| std::fs::write(dir.join("new"), "").unwrap(),
        ];
        for change in changes {
            change(&dir);
            let now = digest(&dir).unwrap();
            assert!(!seen.contains(&now));
            seen.push(now);
        }
    }

    /// X01
    #[test]
    fn links_sockets_and_what_is_too_large_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let dir = package(base.path());
        symlink("/etc/passwd", dir.join("link")).unwrap();
        assert!(matches!(digest(&dir), Err(Fault::Odd(name)) if name == "link"));
        std::fs::remove_file(dir.join("link")).unwrap();
        symlink(base.path(), dir.join("above")).unwrap();
        assert!(matches!(digest(&dir), Err(Fault::Odd(_))));
        std::fs::remove_file(dir.join("above")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
        assert!(matches!(digest(&dir), Err(Fault::Odd(_))));
        std::fs::remove_file(dir.join("socket")).unwrap();
        File::create(dir.join("large")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        assert!(matches!(digest(&dir), Err(Fault::Large)));
        assert!(matches!(digest(&base.path().join("nowhere")), Err(Fault::Io { .. })));
    }
}
