//! Where the suite's programs are.

use std::path::{Path, PathBuf};

/// Every program of the suite, by the name of its file.
pub const ALL: [&str; 7] = [
    "open-conduit",
    "open-conduitd",
    "open-conduit-endpoint",
    "open-conduit-endpointd",
    "open-conduit-management",
    "open-conduit-runner",
    "os",
];

/// Names the folder with the programs, for tests of other builds than the one beside the test.
pub const BIN_DIR: &str = "CONDUIT_BIN_DIR";

/// The folder with the programs: `CONDUIT_BIN_DIR`, else the target directory that this test was built into.
///
/// # Panics
/// When a program is missing there; the message says how to build it.
pub fn folder() -> PathBuf {
    let folder = match std::env::var_os(BIN_DIR) {
        Some(named) => PathBuf::from(named),
        None => beside(&std::env::current_exe().expect("a process can name its own program")),
    };
    check(&folder).unwrap_or_else(|what| panic!("{what}"));
    folder
}

/// The folder with the programs that the drill's failpoints are compiled into; `None` where they were not built.
pub fn with_failpoints() -> Option<PathBuf> {
    let folder = folder().join("failpoints");
    check(&folder).is_ok().then_some(folder)
}

/// The folder that a test's own executable was built beside: tests lie in `deps`, programs one level up.
fn beside(executable: &Path) -> PathBuf {
    let folder = executable.parent().unwrap_or(Path::new("/"));
    if folder.ends_with("deps") { folder.parent().unwrap_or(folder).to_owned() } else { folder.to_owned() }
}

/// Says which programs are missing from `folder`.
pub fn check(folder: &Path) -> Result<(), String> {
    let missing: Vec<&str> = ALL.into_iter().filter(|name| !folder.join(name).is_file()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} has no {}; run `cargo build --workspace --bins`, or name another folder in {BIN_DIR}",
        folder.display(),
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_lie_above_the_folder_of_the_tests() {
        assert_eq!(beside(Path::new("/t/debug/deps/x-1")), Path::new("/t/debug"));
        assert_eq!(beside(Path::new("/t/release/drill")), Path::new("/t/release"));
    }
}
