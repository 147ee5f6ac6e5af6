//! The playbooks that executors may start a turn on, written where every execution finds them (E05).

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use conduit_release::playbooks::TEXTS;

/// Writes the bundled playbooks as `skills/<name>/SKILL.md` below `dir`.
pub fn write(dir: &Path) -> std::io::Result<()> {
    for (name, text) in TEXTS {
        let skill = dir.join("skills").join(name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&skill)?;
        let temporary = skill.join(".SKILL.md.new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&temporary, skill.join("SKILL.md"))?;
    }
    Ok(())
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
}
