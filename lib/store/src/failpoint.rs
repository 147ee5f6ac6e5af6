//! Places where a drill may kill the process. Compiled in only with the feature `failpoints`, which no release has.
//!
//! `OPEN_CONDUIT_FAILPOINT=name` or `name:n` kills the process, by SIGKILL and so without any clean-up, the n-th
//! time it passes the point called `name`. `OPEN_CONDUIT_FAILPOINTS=folder` arms points while the suite runs: a file
//! `folder/name` kills the first process that passes that point, or, when the file names a program, the first
//! process of that program. The file goes first, so that each kills once.

/// Marks a point where a drill may kill the process.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint::reached($name)
    };
}

/// Every failpoint of the store and the kernel; the drill draws from this list.
pub const ALL: &[&str] = &[
    "store.before_commit",
    "store.before_sync", // others see the commit, and a power cut may undo it
    "store.after_commit",
    "kernel.admitted",      // inside the admission's transaction
    "kernel.staging",       // before the first file of a bundle
    "kernel.staged",        // the bundle is complete
    "kernel.dispatching",   // inside the boundary's transaction
    "kernel.dispatched",    // behind the boundary, before the launch
    "kernel.spawned",       // the runner exists and has no token
    "kernel.launched",      // the runner has its token, and the store does not know it
    "kernel.settling",      // the runner has ended
    "kernel.concluding",    // inside the terminal transaction
    "kernel.concluded",     // behind it, with the bundle still there
    "kernel.stop_recorded", // the intent to stop is on record, no signal was sent
];

/// Those of the extension host, around a handler: a test of each kind of operation kills at every one of them.
pub const OF_HOST: [&str; 3] = [
    "host.before_handler", // the intent is on record
    "host.after_handler",  // the handler has answered, and nothing says so
    "host.after_commit",   // the answer is on record, and nobody was told
];

#[cfg(not(feature = "failpoints"))]
#[inline]
pub const fn reached(_name: &str) {}

/// Whether a file arms `name` for this process; the file is taken by asking.
#[cfg(feature = "failpoints")]
fn armed_by_file(name: &str) -> bool {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(folder) = FOLDER.get_or_init(|| std::env::var_os("OPEN_CONDUIT_FAILPOINTS").map(PathBuf::from)) else {
        return false;
    };
    let file = folder.join(name);
    let Ok(program) = std::fs::read_to_string(&file) else { return false };
    let own = std::env::current_exe().ok();
    let own = own.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    (program.is_empty() || own.as_deref() == Some(program.as_str())) && std::fs::remove_file(&file).is_ok()
}

#[cfg(feature = "failpoints")]
pub fn reached(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var("OPEN_CONDUIT_FAILPOINT").ok()?;
        let (name, nth) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), nth.parse().unwrap_or(1)))
    });
    let by_environment =
        armed.as_ref().is_some_and(|(armed, nth)| armed == name && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *nth);
    if by_environment || armed_by_file(name) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}
