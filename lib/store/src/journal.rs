//! What of the store's log is on the disk: nothing is acknowledged or shown before it is.
//!
//! A commit writes the log and does not sync it (`synchronous=NORMAL`), so that it holds the write lock for a short
//! time only; then, outside the lock, the log is synced before the caller hears of it. Syncs of several processes at once are
//! merged by the file system, and one that covers another's commit spares it its own.
//!
//! Four counters in a page that all processes share say who has to sync. A commit takes a *ticket* under the write lock:
//! - `begun`: the newest ticket, set before its commit can be seen;
//! - `written`: tickets up to here have written all they ever will;
//! - `synced`: tickets up to here are on the disk;
//! - `failed`: a sync failed. Nobody may believe a later one (what it could not write may count as written), so the store
//!   is used no more until one process has it alone and has been through the log by its checksums ([`crate::Store::open`]).
//!
//! The counters only ever spare syncs, and what is wrong in them must not spare one too many. So a ticket is above all
//! three: a page that is older than the store, or of before a power cut, or was killed over, means more syncs, not fewer.
//! The page is never synced itself: after a power cut, what the log has is on the disk by definition. Whoever removes its
//! file under running processes parts those that have it from those that come: what is acknowledged stays so, but one may
//! be shown what another has not synced yet.
//!
//! What SQLite does by itself agrees: it syncs the log before it copies it into the database, and the database before the log
//! is begun anew; and the order of the log makes every earlier commit durable with a later one.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};

use nix::fcntl::{Flock, FlockArg};
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use crate::error::{Error, Result, doing, doing_at};
use crate::state::StateDir;
use crate::unsafe_page::{BYTES, Page};

/// The log of one connection, and the page that is shared with all others.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    /// A descriptor of our own: an error of the disk is told to each descriptor once, and SQLite's may hear of it in
    /// a checkpoint.
    log: File,
    /// Where the log has its name, until that is known to be on the disk.
    folder: RefCell<Option<File>>,
    /// The store's files, as they were when they were opened.
    files: [Opened; 3],
    page: Arc<Page>,
}

/// A file by its name and by what it is.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Opened {
    fn look(path: PathBuf) -> Result<Self> {
        let meta = std::fs::symlink_metadata(&path).map_err(doing_at(&path, "looking at it"))?;
        Ok(Self { device: meta.dev(), inode: meta.ino(), path })
    }

    /// Whether its name is still its own.
    fn is_there(&self) -> bool {
        let meta = std::fs::symlink_metadata(&self.path);
        meta.is_ok_and(|meta| (meta.dev(), meta.ino()) == (self.device, self.inode))
    }
}

/// A place in the order of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl Journal {
    /// Opens the log of `conn`, which has read from the database before: then it has a log, and its log stays where it is.
    pub fn open(state: &StateDir, conn: &Connection) -> Result<Self> {
        let mut path = PathBuf::from(conn.path().unwrap_or_default()).into_os_string();
        path.push("-wal");
        let path = PathBuf::from(path);
        let log = File::open(&path).map_err(doing_at(&path, "opening the log"))?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let folder = File::open(folder).map_err(doing_at(folder, "opening it"))?;
        let files = ["", "-wal", "-shm"].map(|end| {
            let mut name = state.store_file().into_os_string();
            name.push(end);
            Opened::look(name.into())
        });
        let [store, wal, shm] = files;
        let page = state.sync_file();
        let page = Arc::new(share(&page).map_err(doing_at(&page, "opening it"))?);
        Ok(Self { path, log, folder: RefCell::new(Some(folder)), files: [store?, wal?, shm?], page })
    }

    pub fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// The next ticket. Only who holds the write lock takes one.
    pub fn ticket(&self) -> Ticket {
        let page = &*self.page;
        let newest = page.begun.load(SeqCst).max(page.written.load(SeqCst)).max(page.synced.load(SeqCst));
        let ticket = newest.saturating_add(1);
        page.begun.store(ticket, SeqCst);
        fence(SeqCst);
        Ticket(ticket)
    }

    /// Says that nothing more will be written under `ticket`: it was committed or rolled back.
    pub fn written(&self, ticket: Ticket) {
        self.page.written.fetch_max(ticket.0, SeqCst);
    }

    /// The newest ticket that a view which exists now can show anything of.
    pub fn newest(&self) -> Ticket {
        fence(SeqCst);
        Ticket(self.page.begun.load(SeqCst))
    }

    /// Refuses to go on after a failed sync, whose ever it was: `state_unavailable`.
    pub fn check(&self) -> Result<()> {
        if self.page.failed.load(SeqCst) == 0 {
            return Ok(());
        }
        let why = "the disk failed to keep what was written; stop every process of the suite, then start it again";
        Err(self.unavailable(io::Error::other(why)))
    }

    /// Refuses to commit to files that are the store's no more: `state_unavailable`. Somebody removed or replaced one under
    /// running processes, and what is acknowledged now nobody would ever find.
    pub fn present(&self) -> Result<()> {
        for opened in &self.files {
            if !opened.is_there() {
                let why = "it was removed or replaced under running processes; stop every process of the suite, put it back, then start";
                let (path, source) = (opened.path.clone(), io::Error::other(why));
                return Err(Error::StateUnavailable { path, doing: "finding the store's file", source });
            }
        }
        Ok(())
    }

    /// Returns when everything up to `ticket` is on the disk. Error: `state_unavailable`, after which nobody goes on.
    pub fn settle(&self, ticket: Ticket) -> Result<()> {
        if self.is_synced(ticket) { Ok(()) } else { self.sync() }
    }

    /// Like [`Journal::settle`] for a ticket under which nothing was written.
    pub fn settle_unused(&self, ticket: Ticket) -> Result<()> {
        if self.is_synced(Ticket(ticket.0.saturating_sub(1))) {
            self.page.synced.fetch_max(ticket.0, SeqCst);
            return Ok(());
        }
        self.sync()
    }

    /// Goes on after a failed sync, for one who has the store alone: all that the log has by its checksums is copied into the
    /// database, which is synced, and the log is begun anew.
    pub fn recover(&self, conn: &Connection) -> Result<()> {
        self.sync_name().map_err(|error| self.unavailable(error))?;
        conn.wal_checkpoint_v2(Some("main"), CheckpointMode::TRUNCATE)
            .map_err(doing("copying the log after a failure"))?;
        self.page.failed.store(0, SeqCst);
        Ok(())
    }

    /// Whether the log may be copied into the database when the last connection closes: not what the disk may have
    /// failed to keep, and nothing from a log whose name a power cut could still give back to an older one.
    pub fn may_be_copied(&self) -> bool {
        self.check().is_ok() && self.sync_name().is_ok()
    }

    /// Says that the disk failed to keep something: nobody goes on.
    pub fn fail(&self) {
        self.page.failed.store(1, SeqCst);
    }

    fn is_synced(&self, ticket: Ticket) -> bool {
        // The last number there is cannot be told from those after it.
        self.page.synced.load(SeqCst) >= ticket.0 && ticket.0 < u64::MAX
    }

    fn sync(&self) -> Result<()> {
        let written = self.page.written.load(SeqCst);
        self.log.sync_data().and_then(|()| self.sync_name()).map_err(|error| {
            self.fail();
            self.unavailable(error)
        })?;
        self.check()?;
        self.page.synced.fetch_max(written, SeqCst);
        Ok(())
    }

    /// A new log's name has to be on the disk too. Once is enough: while a connection is open nobody removes the log.
    fn sync_name(&self) -> io::Result<()> {
        let Some(folder) = self.folder.take() else { return Ok(()) };
        folder.sync_all()
    }

    fn unavailable(&self, source: io::Error) -> Error {
        Error::StateUnavailable { path: self.path.clone(), doing: "syncing the log", source }
    }
}

/// Maps the page in the file `path`, making it where there is none. It is filled before it is mapped, with real bytes: writing
/// to a page that has no room on the disk would kill the process.
fn share(path: &Path) -> io::Result<Page> {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // Alone for as long as this takes: whoever finds the file short is then sure that nobody uses it yet.
    let mut file = Flock::lock(options, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
    if file.metadata()?.len() < BYTES as u64 {
        io::Write::write_all(&mut *file, &[0; BYTES])?;
    }
    Page::map(&file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    /// A journal beside an open store, whose page holds what is given.
    fn journal(base: &tempfile::TempDir, begun: u64, written: u64, synced: u64) -> (Store, Journal) {
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let store = Store::open(&state).unwrap();
        let conn = Connection::open(state.store_file()).unwrap();
        conn.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap();
        let journal = Journal::open(&state, &conn).unwrap();
        journal.page.begun.store(begun, SeqCst);
        journal.page.written.store(written, SeqCst);
        journal.page.synced.store(synced, SeqCst);
        (store, journal)
    }

    /// Something that cannot be synced in place of the log.
    fn unsyncable() -> File {
        File::from(nix::unistd::pipe().unwrap().0)
    }

    #[test]
    fn whatever_the_page_held_a_new_commit_is_not_taken_for_synced() {
        let base = tempfile::tempdir().unwrap();
        let last = u64::MAX;
        for (begun, written, synced) in
            [(0, 0, 0), (5, 5, 5), (5, 4, 3), (1, 2, 9), (1, 9, 2), (last, 0, 0), (0, 0, last)]
        {
            let (_store, journal) = journal(&base, begun, written, synced);
            let ticket = journal.ticket();
            assert!(journal.newest() >= ticket && !journal.is_synced(ticket), "{begun} {written} {synced}");
            journal.settle(ticket).unwrap();
            assert!(!journal.is_synced(ticket), "its commit may come after that sync");
            journal.written(ticket);
            journal.settle(ticket).unwrap();
            assert!(journal.is_synced(ticket) || ticket.0 == last);
        }
    }

    #[test]
    fn a_commit_that_anothers_sync_covered_is_not_synced_again() {
        let base = tempfile::tempdir().unwrap();
        let (_store, mut journal) = journal(&base, 0, 0, 0);
        let (first, second, unused) = (journal.ticket(), journal.ticket(), journal.ticket());
        journal.written(first);
        journal.written(second);
        journal.settle(second).unwrap();
        journal.log = unsyncable();
        journal.settle(first).unwrap();
        journal.settle_unused(unused).unwrap();
        assert_eq!(journal.settle(journal.ticket()).unwrap_err().code().as_str(), "state_unavailable");
        assert!(journal.check().is_err());
    }

    #[test]
    fn a_process_killed_at_its_commit_leaves_more_syncs_and_no_fewer() {
        let base = tempfile::tempdir().unwrap();
        let (_store, mut journal) = journal(&base, 0, 0, 0);
        let killed = journal.ticket();
        journal.settle(journal.newest()).unwrap();
        assert!(!journal.is_synced(killed), "it may have come to commit, so each look syncs");
        let next = journal.ticket();
        journal.written(next);
        journal.settle(next).unwrap();
        journal.log = unsyncable();
        journal.settle(journal.newest()).unwrap();
    }

    #[test]
    fn a_page_that_was_cut_short_is_filled_and_what_is_no_file_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        std::fs::write(state.sync_file(), "x").unwrap();
        drop(Store::open(&state).unwrap());
        assert_eq!(state.sync_file().metadata().unwrap().len(), BYTES as u64);
        std::fs::remove_file(state.sync_file()).unwrap();
        std::fs::create_dir(state.sync_file()).unwrap();
        assert_eq!(Store::open(&state).unwrap_err().code().as_str(), "state_unavailable");
    }
}
