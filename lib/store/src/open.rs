//! Opening a database file the same way everywhere.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::checkpoint::PAGES;
use crate::error::{Error, Result, doing, doing_at};
use crate::state::check_private_file;

/// How many times a busy writer is asked again before `store_busy`; with the pauses below about ten seconds.
const BUSY_TRIES_MAX: i32 = 5_100;
/// Bytes of a page. Rows are small, and a commit writes each page that it touches to the log whole: an Event touches seven,
/// and the disk has to take them all before the answer. With still smaller ones a row would often need a page of its own.
const PAGE_BYTES: u32 = 2048;
/// Statements that one connection keeps prepared.
const STATEMENTS_MAX: usize = 128;

/// Waits a little for the writer that holds the lock: SQLite's own handler sleeps whole milliseconds, a commit takes less.
fn busy(tries: i32) -> bool {
    let pause = match tries {
        0..20 => Duration::from_micros(50),
        20..100 => Duration::from_micros(200),
        _ => Duration::from_millis(2),
    };
    std::thread::sleep(pause);
    tries < BUSY_TRIES_MAX
}

/// Opens `path`, owner-only from its first moment, with WAL, foreign keys, and `synchronous` as given (`FULL`, `NORMAL`).
pub(crate) fn open(path: &Path, synchronous: &str) -> Result<Connection> {
    // Closed before SQLite opens it: closing it later would drop SQLite's own locks on it, which belong to the process, and
    // another process could take itself for the last one and remove the log.
    match std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Ok(created) => drop(created),
        Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => check_private_file(path)?,
        Err(source) => return Err(doing_at(path, "making the store")(source)),
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let mut conn = Connection::open_with_flags(path, flags).map_err(doing("opening the store"))?;
    conn.busy_handler(Some(busy)).map_err(doing("setting up the store"))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Without it, SQLite compiles a cached statement with a bound LIMIT anew each time that it is bound: its plan could
    // depend on the value. Ours must not, and a `read_context` would spend most of its time on it.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(doing("setting up the store"))?;
    conn.pragma_update(None, "page_size", PAGE_BYTES).map_err(doing("setting up the store"))?; // of a new file
    let mode: String = conn
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
        .map_err(doing("choosing the journal"))?;
    if mode != "wal" {
        return Err(Error::StateUnavailable {
            path: path.to_owned(),
            doing: "choosing the journal",
            source: std::io::Error::other("the file system does not support a write-ahead log"),
        });
    }
    conn.pragma_update(None, "synchronous", synchronous).map_err(doing("setting up the store"))?;
    conn.pragma_update(None, "foreign_keys", true).map_err(doing("setting up the store"))?;
    // What is taken out of a row is not to be found in the file: an operation's texts go with the end of its attempt.
    conn.pragma_update(None, "secure_delete", true).map_err(doing("setting up the store"))?;
    conn.pragma_update(None, "wal_autocheckpoint", PAGES).map_err(doing("setting up the store"))?;
    conn.pragma_update(None, "cache_size", -2048).map_err(doing("setting up the store"))?;
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_was_just_made_is_locked_as_long_as_it_is_open() {
        use std::os::unix::fs::MetadataExt;
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("x.db");
        let conn = open(&path, "FULL").unwrap();
        let of_it = format!(":{} ", path.metadata().unwrap().ino());
        let held = || std::fs::read_to_string("/proc/locks").unwrap().lines().any(|line| line.contains(&of_it));
        conn.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap();
        assert!(held(), "{}", std::fs::read_to_string("/proc/locks").unwrap());
        drop(conn);
        assert!(!held());
    }

    #[test]
    fn a_cached_statement_with_a_bound_limit_is_compiled_once() {
        let base = tempfile::tempdir().unwrap();
        let conn = open(&base.path().join("x.db"), "FULL").unwrap();
        conn.execute_batch("CREATE TABLE t (a INTEGER PRIMARY KEY) STRICT; INSERT INTO t VALUES (1), (2)").unwrap();
        for _ in 0..3 {
            let mut statement = conn.prepare_cached("SELECT a FROM t ORDER BY a LIMIT ?1").unwrap();
            assert_eq!(statement.query_row([1], |row| row.get::<_, i64>(0)).unwrap(), 1);
            assert_eq!(statement.get_status(rusqlite::StatementStatus::RePrepare), 0);
        }
    }
}
