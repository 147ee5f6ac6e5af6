//! Transactions whose type says what they allow.

use std::cell::Cell;
use std::ops::Deref;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Params, Row};

use crate::checkpoint::{self, Length};
use crate::clock::{self, Now, TimeSource};
use crate::error::{Error, Result, doing};
use crate::failpoint;
use crate::journal::{Journal, Ticket};
use crate::lease::{self, Demand, Fence};
use crate::lock::{StateLock, StoreLock};
use crate::state::StateDir;
use crate::turn::Turn;
use crate::{migrate, open};

/// One connection to `store.db`. Every process keeps one; SQLite admits one writer at a time among them all.
#[derive(Debug)]
pub struct Store {
    conn: Connection,
    journal: Journal,
    turn: Turn,
    length: Length,
    _open: StoreLock,
    _lock: StateLock,
}

impl Store {
    /// Opens the store of `state`: makes it where there is none, and migrates an older one when no other process has it open.
    /// Then, too, a store whose disk had failed is read again from what the disk has kept.
    ///
    /// Errors: `store_newer`, `store_unreadable`, `state_locked`, `state_unavailable`, `storage_full`; `internal`
    /// on a machine that does not name its boots.
    pub fn open(state: &StateDir) -> Result<Self> {
        clock::boot_is_named()?;
        let lock = StateLock::shared(state)?;
        let open = StoreLock::shared(state)?;
        let mut conn = connect(state)?;
        // Nobody can depend on a schema that is not there yet, so an empty store needs no exclusion.
        if migrate::version(&conn, migrate::STORE)? == 0 {
            migrate::create(&mut conn, migrate::STORE)?;
        }
        let store = Self::on(state, conn, (open, lock))?;
        if migrate::version(&store.conn, migrate::STORE)? == migrate::STORE.len() && store.journal.check().is_ok() {
            return Ok(store);
        }
        drop(store);
        let lock = StateLock::shared(state)?;
        let alone = StoreLock::exclusive(state)?;
        let mut conn = connect(state)?;
        // Nobody else is there, so with its first look SQLite goes through the log by its checksums.
        let version = migrate::version(&conn, migrate::STORE)?;
        let journal = Journal::open(state, &conn)?;
        if journal.check().is_err() {
            journal.recover(&conn)?;
        }
        if version < migrate::STORE.len() {
            migrate::migrate(&mut conn, migrate::STORE)?;
        }
        drop((journal, conn, alone));
        let open = StoreLock::shared(state)?;
        let conn = connect(state)?;
        migrate::version(&conn, migrate::STORE)?;
        Self::on(state, conn, (open, lock))
    }

    /// A store on `conn`, which has been read from.
    fn on(state: &StateDir, mut conn: Connection, (open, lock): (StoreLock, StateLock)) -> Result<Self> {
        let journal = Journal::open(state, &conn)?;
        let turn = Turn::new(journal.page().clone());
        conn.busy_handler(Some(turn.handler())).map_err(doing("setting up the store"))?;
        conn.pragma_update(None, "synchronous", "NORMAL").map_err(doing("setting up the store"))?;
        let length = Length::follow(&mut conn)?;
        Ok(Self { conn, journal, turn, length, _open: open, _lock: lock })
    }

    /// Runs `look` on one consistent view; nothing can be changed. What it saw is on the disk when this returns.
    pub fn read<T, E: From<Error>>(&mut self, look: impl FnOnce(&Read<'_>) -> Result<T, E>) -> Result<T, E> {
        self.journal.check()?;
        let tx = Tx::begin(&self.conn, None, BEGIN_READ).map_err(doing("beginning to read"))?;
        let read = Read { conn: tx.conn, journal: &self.journal, newest: Cell::new(None) };
        let found = look(&read);
        let newest = read.newest.get();
        drop(tx); // Rolls back, which for a reader is how to end.
        newest.map_or(Ok(()), |newest| self.journal.settle(newest))?;
        found
    }

    /// Runs `change` as a trusted host process and commits it; an error leaves nothing behind. What it wrote, and what it saw,
    /// is on the disk when this returns.
    ///
    /// Error of its own: `state_unavailable` when the log cannot be synced. Then nobody knows whether the change will
    /// outlast a power cut, and no process goes on with this store.
    pub fn write<T, E: From<Error>>(&mut self, change: impl FnOnce(&Write<'_>) -> Result<T, E>) -> Result<T, E> {
        self.journal.check()?;
        self.turn.look();
        let tx = Tx::begin(&self.conn, Some(&self.turn), BEGIN_WRITE).map_err(doing("beginning to write"))?;
        let newest = self.journal.newest();
        let read = Read { conn: tx.conn, journal: &self.journal, newest: Cell::new(Some(newest)) };
        let done = match change(&Write { read }) {
            Ok(done) => done,
            Err(error) => {
                drop(tx);
                self.journal.settle(newest)?; // A refusal tells what was seen.
                return Err(error);
            }
        };
        self.journal.present()?;
        failpoint!("store.before_commit");
        let ticket = self.journal.ticket();
        let committed = tx.commit();
        self.journal.written(ticket);
        committed.map_err(doing("committing"))?;
        failpoint!("store.before_sync");
        match self.length.take() {
            None => self.journal.settle_unused(ticket)?,
            Some(pages) => {
                self.journal.settle(ticket)?;
                checkpoint::if_due(&self.conn, &self.journal, &self.turn, pages);
            }
        }
        failpoint!("store.after_commit");
        Ok(done)
    }

    /// Runs `change` and commits it, provided that `demand` holds for `fence` (T05).
    ///
    /// The time is taken from `time` after the lock: a wait for it makes nothing live longer (T03).
    /// SQLite admits one writer at a time, whatever the process, so what the guard reads cannot change before the
    /// commit. If it does not hold, nothing is written. Errors: `authority_released`, `forbidden`, and `change`'s own.
    pub fn fenced<T, E: From<Error>>(
        &mut self,
        fence: &Fence,
        demand: &Demand,
        time: impl TimeSource,
        change: impl FnOnce(&Fenced<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.write(|tx| change(&tx.fenced(fence, demand, time)?))
    }

    /// Like [`Store::fenced`] for a call that only looks: the guard and the look see the same view.
    pub fn fenced_read<T, E: From<Error>>(
        &mut self,
        fence: &Fence,
        demand: &Demand,
        time: impl TimeSource,
        look: impl FnOnce(&Read<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.read(|tx| {
            lease::guard(tx, fence, demand, time.now())?;
            look(tx)
        })
    }
}

impl Drop for Store {
    /// The last connection to close copies the log into the database and removes it, if it may.
    fn drop(&mut self) {
        if self.journal.may_be_copied() {
            // Where that cannot be said to SQLite, the log stays for the next to open.
            let _ = self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
        }
    }
}

/// A connection that syncs every commit, and leaves the log as it is when it closes.
fn connect(state: &StateDir) -> Result<Connection> {
    let conn = open::open(&state.store_file(), "FULL")?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(doing("setting up the store"))?;
    Ok(conn)
}

const BEGIN_READ: &str = "BEGIN DEFERRED";
const BEGIN_WRITE: &str = "BEGIN IMMEDIATE";
const COMMIT: &str = "COMMIT";
const ROLLBACK: &str = "ROLLBACK";

/// A transaction whose own statements are compiled once for the connection: a call is short enough for that to count.
/// Dropped before it was committed, it rolls back.
struct Tx<'c> {
    conn: &'c Connection,
    /// A writer's, to be passed on.
    turn: Option<&'c Turn>,
}

impl<'c> Tx<'c> {
    /// Only [`Store`] begins one, and holds itself exclusively meanwhile: transactions are never nested.
    fn begin(conn: &'c Connection, turn: Option<&'c Turn>, how: &'static str) -> rusqlite::Result<Self> {
        run(conn, how)?;
        Ok(Self { conn, turn })
    }

    /// A commit that fails leaves the transaction to be rolled back.
    fn commit(self) -> rusqlite::Result<()> {
        run(self.conn, COMMIT)
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if !self.conn.is_autocommit() {
            // What cannot even be rolled back fails the next transaction, which reports it.
            let _ = run(self.conn, ROLLBACK);
        }
        if let Some(turn) = self.turn {
            turn.pass();
        }
    }
}

fn run(conn: &Connection, statement: &'static str) -> rusqlite::Result<()> {
    conn.prepare_cached(statement)?.execute([]).map(drop)
}

/// A view of the store.
#[derive(Debug)]
pub struct Read<'c> {
    conn: &'c Connection,
    journal: &'c Journal,
    /// The newest commit that the view can show, once something has been looked at.
    newest: Cell<Option<Ticket>>,
}

impl Read<'_> {
    /// To be called once a statement has taken its first step: from then on the view is what it is.
    fn looked(&self) {
        if self.newest.get().is_none() {
            self.newest.set(Some(self.journal.newest()));
        }
    }

    /// Asks whether `demand` holds for `fence` at `now`, in this view. Errors: `authority_released`, `forbidden`.
    pub fn guard(&self, fence: &Fence, demand: &Demand, now: Now) -> Result<()> {
        lease::guard(self, fence, demand, now)
    }

    /// The single row of a query that always has one.
    pub fn one<T>(
        &self,
        what: &'static str,
        sql: &str,
        params: impl Params,
        map: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let mut statement = self.conn.prepare_cached(sql).map_err(doing(what))?;
        let found = statement.query_row(params, map);
        self.looked();
        found.map_err(doing(what))
    }

    /// The row of a query that has at most one.
    pub fn optional<T>(
        &self,
        what: &'static str,
        sql: &str,
        params: impl Params,
        map: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        match self.one(what, sql, params, map) {
            Ok(found) => Ok(Some(found)),
            Err(Error::Sql { source: rusqlite::Error::QueryReturnedNoRows, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first answer that `look` has for a row of a query; no row behind it is read.
    pub fn first<R, T, E: From<Error>>(
        &self,
        what: &'static str,
        sql: &str,
        params: impl Params,
        map: impl Fn(&Row<'_>) -> rusqlite::Result<R>,
        mut look: impl FnMut(R) -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let mut statement = self.conn.prepare_cached(sql).map_err(doing(what))?;
        let mut rows = statement.query(params).map_err(doing(what))?;
        loop {
            let row = rows.next();
            self.looked();
            let Some(row) = row.map_err(doing(what))? else { return Ok(None) };
            if let Some(found) = look(map(row).map_err(doing(what))?)? {
                return Ok(Some(found));
            }
        }
    }

    /// Every row of a query; the SQL bounds how many.
    pub fn all<T>(
        &self,
        what: &'static str,
        sql: &str,
        params: impl Params,
        map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.conn.prepare_cached(sql).map_err(doing(what))?;
        let rows = statement.query_map(params, map).map_err(doing(what))?;
        let found = rows.collect::<rusqlite::Result<_>>();
        self.looked();
        found.map_err(doing(what))
    }
}

/// A transaction that may change the store, as a trusted host process does.
#[derive(Debug)]
pub struct Write<'c> {
    read: Read<'c>,
}

impl Write<'_> {
    /// Runs one statement; returns how many rows it changed.
    pub fn execute(&self, what: &'static str, sql: &str, params: impl Params) -> Result<usize> {
        let mut statement = self.conn.prepare_cached(sql).map_err(doing(what))?;
        statement.execute(params).map_err(doing(what))
    }

    /// Runs one INSERT; returns the row's number.
    pub fn insert(&self, what: &'static str, sql: &str, params: impl Params) -> Result<i64> {
        self.execute(what, sql, params)?;
        Ok(self.conn.last_insert_rowid())
    }

    /// This transaction from here on, provided that `demand` holds for `held` at `now`: for a change that takes the lease
    /// and acts under it at once. Errors: as [`Store::fenced`].
    pub fn fenced<'t>(&'t self, held: &'t Fence, demand: &Demand, time: impl TimeSource) -> Result<Fenced<'t>> {
        let now = time.now();
        lease::guard(self, held, demand, now)?;
        Ok(Fenced { write: self, held, now })
    }
}

impl<'c> Deref for Write<'c> {
    type Target = Read<'c>;
    fn deref(&self) -> &Read<'c> {
        &self.read
    }
}

/// A transaction whose lease guard held when it was asked, and holds until it ends.
#[derive(Debug)]
pub struct Fenced<'t> {
    write: &'t Write<'t>,
    held: &'t Fence,
    now: Now,
}

impl Fenced<'_> {
    /// The fence that was checked; SQL names its epoch again where the row changes.
    pub const fn held(&self) -> &Fence {
        self.held
    }
    pub const fn now(&self) -> Now {
        self.now
    }
}

impl<'t> Deref for Fenced<'t> {
    type Target = Write<'t>;
    fn deref(&self) -> &Write<'t> {
        self.write
    }
}

/// Reads an identifier from a column; a value that is not one is a fault of the store.
pub fn column_id<I: std::str::FromStr>(row: &Row<'_>, column: &str) -> rusqlite::Result<I> {
    let text: String = row.get(column)?;
    text.parse().map_err(|_| rusqlite::Error::InvalidColumnName(column.to_owned()))
}

/// Reads a document from a column; a text that is not one is a fault of the store.
pub fn column_json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|_| rusqlite::Error::InvalidColumnName(column.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::named_params;

    fn store(base: &tempfile::TempDir) -> Store {
        Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap()
    }

    #[test]
    fn an_error_inside_a_write_leaves_nothing_behind() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        const PUT: &str = "INSERT INTO generation (number, config_hash, snapshot, published_at_us, published_by) VALUES (:n, 'h', '{}', 0, 'test')";
        let refused: Result<()> = store.write(|tx| {
            tx.execute("testing", PUT, named_params! { ":n": 1 })?;
            Err(Error::Full { doing: "testing" })
        });
        assert!(refused.is_err());
        let count = |store: &mut Store| {
            store.read(|r| r.one("testing", "SELECT count(*) FROM generation", [], |row| row.get::<_, i64>(0))).unwrap()
        };
        assert_eq!(count(&mut store), 0);
        store.write(|tx| tx.execute("testing", PUT, named_params! { ":n": 1 })).unwrap();
        assert_eq!(count(&mut store), 1);
    }

    #[test]
    fn a_writer_waits_for_another_connection_and_for_a_stranger() {
        let base = tempfile::tempdir().unwrap();
        let (mut first, mut second) = (store(&base), store(&base));
        let mut stranger = Connection::open(base.path().join("s/store.db")).unwrap();
        const PUT: &str = "INSERT INTO generation (number, config_hash, snapshot, published_at_us, published_by) VALUES (:n, 'h', '{}', 0, 'test')";
        let put = |tx: &Write<'_>, n: i64| tx.execute("testing", PUT, named_params! { ":n": n });
        let (asking, asked) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let held = stranger.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
            scope.spawn(|| {
                asking.send(()).unwrap();
                second.write(|tx| put(tx, 2)).unwrap();
            });
            asked.recv().unwrap();
            held.commit().unwrap();
        });
        std::thread::scope(|scope| {
            let written: Result<()> = first.write(|tx| {
                scope.spawn(|| {
                    asking.send(()).unwrap();
                    second.write(|tx| put(tx, 4)).unwrap();
                });
                asked.recv().unwrap();
                put(tx, 3).map(drop)
            });
            written.unwrap();
        });
        let count = "SELECT count(*) FROM generation";
        assert_eq!(first.read(|r| r.one("testing", count, [], |row| row.get::<_, i64>(0))).unwrap(), 3);
    }

    #[test]
    fn the_log_is_begun_anew_however_much_is_written() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let table = "CREATE TABLE big (bytes BLOB) STRICT";
        store.write(|tx| tx.execute("testing", table, [])).unwrap();
        let put = "INSERT INTO big VALUES (zeroblob(1000000))";
        for _ in 0..40 {
            store.write(|tx| tx.execute("testing", put, [])).unwrap();
        }
        let log = base.path().join("s/store.db-wal").metadata().unwrap().len();
        assert!(log < 24 << 20, "{log}");
    }

    #[test]
    fn a_newer_store_is_refused_untouched() {
        let base = tempfile::tempdir().unwrap();
        drop(store(&base));
        let path = base.path().join("s/store.db");
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 9999).unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        assert_eq!(Store::open(&state).unwrap_err().code().as_str(), "store_newer");
        let kept: i64 =
            Connection::open(&path).unwrap().pragma_query_value(None, "user_version", |r| r.get(0)).unwrap();
        assert_eq!(kept, 9999);
    }

    #[test]
    fn a_file_that_is_not_a_store_is_named_unreadable() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        std::fs::write(state.store_file(), vec![b'x'; 8192]).unwrap();
        owner_only(&state.store_file());
        assert_eq!(Store::open(&state).unwrap_err().code().as_str(), "store_unreadable");
    }

    #[test]
    fn every_migration_starts_from_every_older_schema() {
        for from in 0..migrate::STORE.len() {
            let base = tempfile::tempdir().unwrap();
            let state = StateDir::open(&base.path().join("s")).unwrap();
            let mut conn = open::open(&state.store_file(), "FULL").unwrap();
            migrate::migrate(&mut conn, &migrate::STORE[..from]).unwrap();
            drop(conn);
            Store::open(&state).unwrap();
            Store::open(&state).unwrap();
        }
    }

    fn owner_only(path: &std::path::Path) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// The spawner holds the state lock for as long as it lives, and runs before the daemons that open the store.
    #[test]
    fn a_store_is_migrated_and_recovered_beside_a_process_that_only_uses_the_directory() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let _spawner = StateLock::shared(&state).unwrap();
        let mut conn = open::open(&state.store_file(), "FULL").unwrap();
        migrate::migrate(&mut conn, &migrate::STORE[..1]).unwrap();
        drop(conn);
        drop(Store::open(&state).unwrap());
        let failed = Store::open(&state).unwrap();
        failed.journal.fail();
        drop(failed);
        let mut recovered = Store::open(&state).unwrap();
        assert!(recovered.write(|_| Ok::<_, Error>(())).is_ok());
    }

    #[test]
    fn nothing_is_acknowledged_into_files_that_were_taken_away() {
        for end in ["", "-wal", "-shm"] {
            let base = tempfile::tempdir().unwrap();
            let mut store = store(&base);
            const PUT: &str = "INSERT INTO generation (number, config_hash, snapshot, published_at_us, published_by) VALUES (:n, 'h', '{}', 0, 'test')";
            let mut put = |n: i64| store.write(|tx| tx.execute("testing", PUT, named_params! { ":n": n }).map(drop));
            put(1).unwrap();
            let file = base.path().join(format!("s/store.db{end}"));
            std::fs::rename(&file, base.path().join("away")).unwrap();
            assert_eq!(put(2).unwrap_err().code().as_str(), "state_unavailable", "{end}");
            std::fs::write(&file, "x").unwrap();
            assert_eq!(put(2).unwrap_err().code().as_str(), "state_unavailable", "another {end}");
            std::fs::rename(base.path().join("away"), &file).unwrap();
            put(2).unwrap();
        }
    }

    /// M01
    #[test]
    fn a_store_that_others_may_open_and_one_that_is_a_link_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        drop(store(&base));
        let state = StateDir::open(&base.path().join("s")).unwrap();
        std::fs::set_permissions(state.store_file(), std::fs::Permissions::from_mode(0o660)).unwrap();
        assert_eq!(Store::open(&state).unwrap_err().code().as_str(), "state_unsafe");
        owner_only(&state.store_file());
        drop(Store::open(&state).unwrap());
        std::fs::rename(state.store_file(), base.path().join("real")).unwrap();
        std::os::unix::fs::symlink(base.path().join("real"), state.store_file()).unwrap();
        assert_eq!(Store::open(&state).unwrap_err().code().as_str(), "state_unsafe");
    }

    #[test]
    fn the_store_is_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let _open = store(&base);
        for name in ["store.db", "store.db-wal", "store.db-shm", "store.sync"] {
            let mode = std::fs::metadata(base.path().join("s").join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{name}");
        }
    }
}
