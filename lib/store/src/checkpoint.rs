//! Copying the log into the database when it has grown long: after a commit was synced, outside the write lock.
//!
//! SQLite's automatic checkpoint is off, because it would swallow what the disk says, and because with many writers the log
//! moves on while it is copied, so that it would never be begun anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode};

use crate::error::{Result, doing};
use crate::journal::Journal;
use crate::turn::Turn;

/// Pages of the log (16 MiB) after which it is copied. Commits write the same few pages again and again, so a longer log
/// copies each of them less often; readers pay little for its length.
pub(crate) const PAGES: u32 = 8_000;

/// How long the log is, as the last commit of this connection left it.
#[derive(Debug)]
pub(crate) struct Length(Arc<AtomicI32>);

impl Length {
    /// Takes the place of SQLite's automatic checkpoint on `conn`.
    pub fn follow(conn: &mut Connection) -> Result<Self> {
        let length = Arc::new(AtomicI32::new(0));
        let told = Arc::clone(&length);
        let hook = move |_: &mut Wal, pages| {
            told.store(pages, SeqCst);
            Ok(())
        };
        conn.wal_hook(Some(hook)).map_err(doing("setting up the store"))?;
        Ok(Self(length))
    }

    /// The length that a commit told since this was asked last; none if nothing was written.
    pub fn take(&self) -> Option<u64> {
        u64::try_from(self.0.swap(0, SeqCst)).ok().filter(|pages| *pages > 0)
    }
}

/// Whether the log is to be copied at `pages`, where it was last at `last`; and what `last` is from here on.
const fn due(pages: u64, last: u64) -> (bool, u64) {
    // So short, it has been begun anew; a little shorter is what a process says that committed a moment earlier.
    let last = if pages < PAGES as u64 / 2 { 0 } else { last };
    if pages >= last.saturating_add(PAGES as u64) { (true, pages) } else { (false, last) }
}

/// Copies the log of `pages` if that is due and no other process has begun to. A failure of the disk makes the store
/// unusable from the next call on; what else cannot be done now, as others are busy or the disk is full, is left for later.
pub(crate) fn if_due(conn: &Connection, journal: &Journal, turn: &Turn, pages: u64) {
    let last = journal.page().checkpointed.load(SeqCst);
    let (is_due, next) = due(pages, last);
    if next == last || journal.page().checkpointed.compare_exchange(last, next, SeqCst, SeqCst).is_err() || !is_due {
        return;
    }
    // Most of it while others write; then what they wrote meanwhile, with the lock, so that the log can be begun anew.
    for mode in [CheckpointMode::PASSIVE, CheckpointMode::FULL] {
        turn.look();
        let done = turn.hurried(|| conn.wal_checkpoint_v2(Some("main"), mode));
        turn.pass();
        let Err(error) = done else { continue };
        if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) {
            journal.fail();
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_copied_once_for_every_so_many_pages() {
        const PAGES: u64 = super::PAGES as u64;
        assert_eq!(due(PAGES - 1, 0), (false, 0));
        assert_eq!(due(PAGES + 5, 0), (true, PAGES + 5));
        assert_eq!(due(PAGES + 17, PAGES + 5), (false, PAGES + 5));
        assert_eq!(due(2 * PAGES + 5, PAGES + 5), (true, 2 * PAGES + 5));
        assert_eq!(due(PAGES + 3, PAGES + 5), (false, PAGES + 5), "a commit before the one that was told of");
        assert_eq!(due(12, PAGES + 5), (false, 0), "begun anew");
    }
}
