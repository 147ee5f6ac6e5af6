//! Places where a drill may kill the process. Compiled in only with the feature `failpoints`, which no release has.
//!
//! `OPEN_CONDUIT_FAILPOINT=name` or `name:n` kills the process, by SIGKILL and so without any clean-up, the n-th
//! time it passes the point called `name`.

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

#[cfg(not(feature = "failpoints"))]
#[inline]
pub const fn reached(_name: &str) {}

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
    if let Some((armed, nth)) = armed
        && armed == name
        && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *nth
    {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}
