//! Numbered, forward-only steps from an empty database to the schema this release knows.

use rusqlite::Connection;

use crate::error::{Error, Result, doing};

/// The steps of `store.db`. A step that has been released is never edited.
pub(crate) const STORE: &[&str] =
    &[include_str!("../migrations/0001_core.sql"), include_str!("../migrations/0002_kernel.sql")];
/// The steps of `history.db`.
pub(crate) const HISTORY: &[&str] =
    &[include_str!("../migrations/history_0001.sql"), include_str!("../migrations/history_0002.sql")];

/// The schema that the database has. Error: `store_newer` when this release does not know it.
pub(crate) fn version(conn: &Connection, steps: &[&str]) -> Result<usize> {
    let found: i64 =
        conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(doing("reading the schema version"))?;
    let known = steps.len() as i64;
    usize::try_from(found).ok().filter(|v| *v <= steps.len()).ok_or(Error::Newer { found, known })
}

/// Takes the steps that the database has not taken, each in a transaction of its own, so that a crash leaves whole steps.
pub(crate) fn migrate(conn: &mut Connection, steps: &[&str]) -> Result<()> {
    loop {
        let tx = begin(conn)?;
        let at = version(&tx, steps)?;
        let Some(step) = steps.get(at) else { return Ok(()) };
        take(&tx, step, at + 1)?;
        tx.commit().map_err(doing("committing a migration"))?;
    }
}

/// Gives an empty database its whole schema in one transaction; one that has any is left as it is.
pub(crate) fn create(conn: &mut Connection, steps: &[&str]) -> Result<()> {
    let tx = begin(conn)?;
    if version(&tx, steps)? == 0 {
        for (at, step) in steps.iter().enumerate() {
            take(&tx, step, at + 1)?;
        }
        tx.commit().map_err(doing("committing a migration"))?;
    }
    Ok(())
}

fn begin(conn: &mut Connection) -> Result<rusqlite::Transaction<'_>> {
    conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(doing("beginning a migration"))
}

fn take(tx: &rusqlite::Transaction<'_>, step: &str, reached: usize) -> Result<()> {
    tx.execute_batch(step).map_err(doing("migrating the store"))?;
    tx.pragma_update(None, "user_version", reached as i64).map_err(doing("recording a migration"))
}
