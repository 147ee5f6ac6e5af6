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
//! The page is never synced itself: after a power cut, what the log has is on the disk by definition.
//!
//! What SQLite does by itself agrees: it syncs the log before it copies it into the database, and the database before the log
//! is begun anew; and the order of the log makes every earlier commit durable with a later one.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};

use nix::fcntl::{Flock, FlockArg};
use rusqlite::Connection;

use crate::error::{Error, Result, doing_at};
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
    page: Arc<Page>,
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
        let page = state.sync_file();
        let page = Arc::new(share(&page).map_err(doing_at(&page, "opening it"))?);
        Ok(Self { path, log, folder: RefCell::new(Some(folder)), page })
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

    /// Forgets failed syncs. Only who has the store alone, and all of its log in a synced database, may say so.
    pub fn recovered(&self) {
        self.page.failed.store(0, SeqCst);
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
