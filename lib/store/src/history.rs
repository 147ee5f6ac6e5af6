//! `history.db`: what was observed, kept apart so that observing never slows or blocks committing.
//!
//! Records are gathered in memory and written together; a crash may lose the newest of them, which is the price of
//! a call that does not wait for its own record. Nothing here is ever read to decide anything.

use std::borrow::Cow;
use std::time::Duration;

use conduit_api::UnixMicros;
use rusqlite::{Connection, named_params};

use crate::error::{Error, Result, doing};
use crate::state::StateDir;
use crate::{migrate, open};

/// Records that are gathered before they are written, at most.
pub const PENDING_MAX: usize = 256;
/// Records that wait for a writer of another process to be done, at most; what comes then is dropped together.
const WAITING_MAX: usize = 4 * PENDING_MAX;
/// How long a write waits for one of another process: calls wait behind it.
const BUSY_TIME_MAX: Duration = Duration::from_millis(10);
/// How long the last write of a process waits for others.
const LAST_TIME_MAX: Duration = Duration::from_secs(2);
/// Records that are kept; the oldest go first.
pub const RECORDS_MAX: i64 = 200_000;

/// One toolbelt call, as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolbeltRecord {
    pub at: UnixMicros,
    /// Whether the call was carried out: `toolbelt.called`, or else `toolbelt.rejected`.
    pub called: bool,
    pub execution_id: Option<String>,
    pub work_id: Option<String>,
    pub scope_id: Option<String>,
    pub operation: String,
    pub request_id: Option<String>,
    /// `ok`, or the code of the refusal.
    pub result: String,
    /// Which check refused, in the words of the decision; never shown to the caller.
    pub rule: Option<Cow<'static, str>>,
    /// `toolbelt.refusal`: what the refusal tells an operator, where it tells more than its code (S07).
    pub refusal: Option<&'static str>,
    /// `toolbelt.gate`: the registration whose gate parked or refused the call (G05).
    pub gate: Option<String>,
    pub generation: Option<i64>,
}

/// A record as it is read back; see [`ToolbeltRecord`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub at: UnixMicros,
    pub called: bool,
    pub execution_id: Option<String>,
    pub work_id: Option<String>,
    pub scope_id: Option<String>,
    pub operation: String,
    pub result: String,
    pub rule: Option<String>,
    pub refusal: Option<String>,
    pub gate: Option<String>,
    pub generation: Option<i64>,
}

/// The history of one process, and what it has not written yet.
#[derive(Debug)]
pub struct History {
    conn: Connection,
    pending: Vec<ToolbeltRecord>,
}

const RECORD: &str = "
    INSERT INTO toolbelt_record (at_us, kind, execution_id, work_id, scope_id, operation, request_id, result, rule, refusal, gate, generation)
    VALUES (:at, :kind, :execution, :work, :scope, :operation, :request, :result, :rule, :refusal, :gate, :generation)";
const PRUNE: &str = "DELETE FROM toolbelt_record WHERE id <= (SELECT max(id) FROM toolbelt_record) - :keep";

impl History {
    /// Opens the history of `state`. One that is damaged is set aside and begun anew: nothing is decided from it, and nobody's
    /// call shall fail for it. Errors: as for the store, when that does not help.
    pub fn open(state: &StateDir) -> Result<Self> {
        match Self::on(state) {
            Err(error @ (Error::Unreadable { .. } | Error::Sql { .. })) => {
                let file = state.history_file();
                tracing::error!(%error, path = %file.display(), "the history cannot be used; it is set aside, and begun anew");
                for end in ["", "-wal", "-shm"] {
                    let named = |suffix: &str| {
                        let mut name = file.clone().into_os_string();
                        name.push(suffix);
                        name
                    };
                    // What is not there need not be moved; what cannot be moved shows in the next try.
                    let _ = std::fs::rename(named(end), named(&format!(".damaged{end}")));
                }
                Self::on(state)
            }
            opened => opened,
        }
    }

    fn on(state: &StateDir) -> Result<Self> {
        let mut conn = open::open(&state.history_file(), "NORMAL")?;
        if migrate::version(&conn, migrate::HISTORY)? < migrate::HISTORY.len() {
            // The step's own transaction excludes other writers, and nobody reads history to decide.
            migrate::migrate(&mut conn, migrate::HISTORY)?;
        }
        conn.busy_timeout(BUSY_TIME_MAX).map_err(doing("setting up history"))?;
        Ok(Self { conn, pending: Vec::new() })
    }

    /// Remembers a call; writes whenever another [`PENDING_MAX`] have gathered. While others write, they wait longer.
    pub fn note(&mut self, record: ToolbeltRecord) -> Result<()> {
        self.pending.push(record);
        if !self.pending.len().is_multiple_of(PENDING_MAX) {
            return Ok(());
        }
        match self.flush() {
            Err(Error::Busy { .. }) if self.has_pending() => Ok(()),
            done => done,
        }
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes what has gathered. On an error what was gathered is dropped, since history is bounded before it is
    /// complete; while others write, a bounded number is kept for the next time.
    pub fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let written = self.write(&pending);
        if matches!(written, Err(Error::Busy { .. })) && pending.len() < WAITING_MAX {
            self.pending = pending;
        }
        written
    }

    /// Writes what has gathered before this process ends: nobody waits behind it, so it waits for others.
    pub fn finish(&mut self) -> Result<()> {
        self.conn.busy_timeout(LAST_TIME_MAX).map_err(doing("setting up history"))?;
        self.flush()
    }

    fn write(&mut self, records: &[ToolbeltRecord]) -> Result<()> {
        let tx = self
            .conn
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(doing("writing history"))?;
        {
            let mut insert = tx.prepare_cached(RECORD).map_err(doing("writing history"))?;
            for record in records {
                let kind = if record.called { "toolbelt.called" } else { "toolbelt.rejected" };
                insert
                    .execute(named_params! {
                        ":at": record.at.0, ":kind": kind, ":execution": record.execution_id, ":work": record.work_id,
                        ":scope": record.scope_id, ":operation": record.operation, ":request": record.request_id,
                        ":result": record.result, ":rule": record.rule, ":refusal": record.refusal, ":gate": record.gate, ":generation": record.generation,
                    })
                    .map_err(doing("writing history"))?;
            }
            tx.prepare_cached(PRUNE)
                .and_then(|mut s| s.execute(named_params! { ":keep": RECORDS_MAX }))
                .map_err(doing("pruning history"))?;
        }
        tx.commit().map_err(doing("writing history"))
    }

    /// The newest records of one request ID, newest first: any execution may have chosen it.
    pub fn of_request(&self, request_id: &str, records_max: usize) -> Result<Vec<Remembered>> {
        const SELECT: &str = "SELECT * FROM toolbelt_record WHERE request_id = :request ORDER BY id DESC LIMIT :limit";
        let mut statement = self.conn.prepare_cached(SELECT).map_err(doing("reading history"))?;
        let limit = i64::try_from(records_max).unwrap_or(i64::MAX);
        let rows = statement
            .query_map(named_params! { ":request": request_id, ":limit": limit }, |row| {
                Ok(Remembered {
                    at: UnixMicros(row.get("at_us")?),
                    called: row.get::<_, String>("kind")? == "toolbelt.called",
                    execution_id: row.get("execution_id")?,
                    work_id: row.get("work_id")?,
                    scope_id: row.get("scope_id")?,
                    operation: row.get("operation")?,
                    result: row.get("result")?,
                    rule: row.get("rule")?,
                    refusal: row.get("refusal")?,
                    gate: row.get("gate")?,
                    generation: row.get("generation")?,
                })
            })
            .map_err(doing("reading history"))?;
        rows.collect::<rusqlite::Result<_>>().map_err(doing("reading history"))
    }

    /// The newest records of one execution, newest first; for tests.
    pub fn of_execution(&self, execution: &str, records_max: usize) -> Result<Vec<(String, String, String)>> {
        const SELECT: &str = "
            SELECT kind, operation, result FROM toolbelt_record WHERE execution_id = :execution ORDER BY id DESC LIMIT :limit";
        let mut statement = self.conn.prepare_cached(SELECT).map_err(doing("reading history"))?;
        let limit = i64::try_from(records_max).unwrap_or(i64::MAX);
        let rows = statement
            .query_map(named_params! { ":execution": execution, ":limit": limit }, |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .map_err(doing("reading history"))?;
        rows.collect::<rusqlite::Result<_>>().map_err(doing("reading history"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(operation: &str, called: bool) -> ToolbeltRecord {
        ToolbeltRecord {
            at: UnixMicros(1),
            called,
            execution_id: Some("exe".into()),
            work_id: None,
            scope_id: None,
            operation: operation.into(),
            request_id: None,
            result: if called { "ok" } else { "forbidden" }.into(),
            rule: None,
            refusal: None,
            gate: None,
            generation: None,
        }
    }

    #[test]
    fn a_record_does_not_wait_for_a_writer_that_does_not_end_and_is_written_after_it() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let mut history = History::open(&state).unwrap();
        let mut other = Connection::open(state.history_file()).unwrap();
        let writing = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        let began = std::time::Instant::now();
        for _ in 0..PENDING_MAX {
            history.note(record("emit", true)).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        for _ in PENDING_MAX..WAITING_MAX - 1 {
            history.note(record("emit", true)).unwrap();
        }
        assert!(history.note(record("emit", true)).is_err() && !history.has_pending(), "what waits is bounded");
        history.note(record("wait", true)).unwrap();
        assert!(history.flush().is_err());
        drop(writing);
        history.flush().unwrap();
        assert_eq!(history.of_execution("exe", 10).unwrap().len(), 1);
    }

    #[test]
    fn a_damaged_history_is_set_aside_and_begun_anew() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let aside = base.path().join("s/history.db.damaged");
        std::fs::write(state.history_file(), vec![b'x'; 8192]).unwrap();
        std::fs::set_permissions(state.history_file(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let mut history = History::open(&state).unwrap();
        history.note(record("emit", true)).unwrap();
        history.flush().unwrap();
        assert_eq!(std::fs::read(&aside).unwrap(), vec![b'x'; 8192]);
    }

    #[test]
    fn records_are_written_together_and_read_back_newest_first() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let mut history = History::open(&state).unwrap();
        history.note(record("emit", true)).unwrap();
        history.note(record("wait", false)).unwrap();
        assert!(history.of_execution("exe", 10).unwrap().is_empty());
        history.flush().unwrap();
        let read = History::open(&state).unwrap().of_execution("exe", 10).unwrap();
        assert_eq!(read[0], ("toolbelt.rejected".into(), "wait".into(), "forbidden".into()));
        assert_eq!(read[1], ("toolbelt.called".into(), "emit".into(), "ok".into()));
    }
}
