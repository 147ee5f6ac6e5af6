//! The playbooks that executors may start a turn on, written where every execution finds them (E05).
//!
//! What stands there already is left alone, so that a start on a full disk needs no room.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use conduit_store::state::check_private;

use conduit_release::playbooks::TEXTS;

/// Refuses a directory of playbooks that is a link or not ours alone: `state_unsafe`. One that is missing is none.
pub fn check(dir: &Path) -> conduit_store::Result<()> {
    if fs::symlink_metadata(dir).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(());
    }
    check_private(dir)
}

/// Writes the bundled playbooks as `skills/<name>/SKILL.md` below `dir`, where they are missing or differ.
pub fn write(dir: &Path) -> std::io::Result<()> {
    for (name, text) in TEXTS {
        let skill = dir.join("skills").join(name);
        let file = skill.join("SKILL.md");
        // One that cannot be read is written anew, and that says what is wrong.
        if fs::read(&file).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&skill)?;
        let temporary = skill.join(".SKILL.md.new");
        if let Err(error) = replace(&file, &temporary, text) {
            if let Err(left) = fs::remove_file(&temporary) {
                tracing::debug!(error = %left, "a temporary playbook was left behind");
            }
            return Err(error);
        }
    }
    Ok(())
}

fn replace(file: &Path, temporary: &Path, text: &str) -> std::io::Result<()> {
    let mut new = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
    new.write_all(text.as_bytes())?;
    fs::rename(temporary, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E05
    #[test]
    fn every_bundled_playbook_stands_where_an_executor_looks_for_it() {
        let base = tempfile::tempdir().unwrap();
        write(base.path()).unwrap();
        write(base.path()).unwrap();
        let text = fs::read_to_string(base.path().join("skills/os/SKILL.md")).unwrap();
        assert!(text.contains("os outcome"));
    }

    /// E05: what is there needs no room on a full disk.
    #[test]
    fn a_playbook_that_is_there_is_not_written_again_and_one_that_differs_is() {
        use std::os::unix::fs::MetadataExt;
        let base = tempfile::tempdir().unwrap();
        write(base.path()).unwrap();
        let file = base.path().join("skills/os/SKILL.md");
        let inode = || fs::metadata(&file).unwrap().ino();
        let before = inode();
        write(base.path()).unwrap();
        assert_eq!(inode(), before);
        fs::write(&file, "old").unwrap();
        write(base.path()).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("os outcome"));
    }

    #[test]
    fn a_write_that_fails_leaves_no_temporary_file() {
        let base = tempfile::tempdir().unwrap();
        let (name, _) = TEXTS[0];
        let skill = base.path().join("skills").join(name);
        fs::create_dir_all(skill.join("SKILL.md")).unwrap(); // nothing can be renamed over it
        write(base.path()).unwrap_err();
        assert!(!skill.join(".SKILL.md.new").exists());
    }

    /// M01
    #[test]
    fn a_directory_of_playbooks_that_is_a_link_or_open_to_others_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("playbooks");
        check(&dir).unwrap();
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        check(&dir).unwrap();
        symlink(&dir, base.path().join("link")).unwrap();
        let unsafe_code = conduit_api::Code::StateUnsafe;
        assert_eq!(check(&base.path().join("link")).unwrap_err().code(), unsafe_code);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check(&dir).unwrap_err().code(), unsafe_code);
    }
}
