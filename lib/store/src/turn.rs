//! Waiting for the write lock: whoever gives it up wakes one who waits, so nobody polls for it.
//!
//! The lock is SQLite's own. Here is only its busy handler, and the word that says that the lock was given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::unsafe_page::Page;

/// How long a call waits for others before `store_busy`.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a checkpoint that no call depends on waits for them.
const PATIENCE_CHECKPOINT: Duration = Duration::from_millis(20);
/// After so long the lock is asked for without having been woken: its holder may have died, or be no part of the suite.
const NAP: Duration = Duration::from_millis(10);

/// This connection's place among those who wait for the write lock.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    page: Arc<Page>,
    /// The word as it was before the lock was last asked for: if it has changed since, there is nothing to sleep for.
    seen: Arc<AtomicU32>,
    hurried: Arc<AtomicBool>,
}

impl Turn {
    pub fn new(page: Arc<Page>) -> Self {
        Self { page, seen: Arc::default(), hurried: Arc::default() }
    }

    /// To be called before the lock is asked for.
    pub fn look(&self) {
        self.seen.store(self.page.turn.load(SeqCst), SeqCst);
    }

    /// To be called when the lock was given up.
    pub fn pass(&self) {
        self.page.turn.fetch_add(1, SeqCst);
        // Whoever is not woken asks again by itself.
        let _ = futex::wake(&self.page.turn, futex::Flags::empty(), 1);
    }

    /// Runs `act` with a busy handler that gives up soon.
    pub fn hurried<T>(&self, act: impl FnOnce() -> T) -> T {
        self.hurried.store(true, SeqCst);
        let done = act();
        self.hurried.store(false, SeqCst);
        done
    }

    /// The busy handler of this connection.
    pub fn handler(&self) -> impl FnMut(i32) -> bool + Send + 'static {
        let turn = self.clone();
        let mut since = Instant::now();
        move |tries| {
            if tries == 0 {
                since = Instant::now();
            }
            let patience = if turn.hurried.load(SeqCst) { PATIENCE_CHECKPOINT } else { PATIENCE };
            if since.elapsed() >= patience {
                return false;
            }
            turn.sleep();
            true
        }
    }

    fn sleep(&self) {
        let nap = futex::Timespec { tv_sec: 0, tv_nsec: i64::from(NAP.subsec_nanos()) };
        match futex::wait(&self.page.turn, futex::Flags::empty(), self.seen.load(SeqCst), Some(&nap)) {
            Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => {}
            // Without futexes there is still time.
            Err(_) => std::thread::sleep(NAP),
        }
        self.look();
    }
}
