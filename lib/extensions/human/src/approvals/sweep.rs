//! What goes: requests that no call meets any more, 90 days after that (M06).
//!
//! A pending request whose time is over, and an approval until a time that has passed, go as long after their own end, though
//! nobody made the call again that would have closed them.

use conduit_coordination::Result;
use conduit_store::{Now, Read, Write, named_params};

/// How long a request is kept after nothing meets it any more: as long as a bypass is shown.
pub const KEEP_US: i64 = 90 * 86_400 * 1_000_000;
/// Rows that one sweep removes, so that it never holds the store for long.
const ROWS_MAX: i64 = 500;

const CLOSED: &str = "
    DELETE FROM approval WHERE id IN (
        SELECT id FROM approval INDEXED BY approval_closed WHERE closed_at_us <= :before LIMIT :rows)";
const LAPSED: &str = "
    DELETE FROM approval WHERE id IN (
        SELECT id FROM approval INDEXED BY approval_lapses WHERE lapses_at_us <= :before LIMIT :rows)";
const OLDEST_CLOSED: &str = "SELECT min(closed_at_us) FROM approval WHERE closed_at_us IS NOT NULL";
const OLDEST_LAPSED: &str = "SELECT min(lapses_at_us) FROM approval WHERE lapses_at_us IS NOT NULL";

/// Deletes what is over since [`KEEP_US`]. Returns how many rows went; a full batch means that there may be more.
pub fn sweep(tx: &Write<'_>, now: Now) -> Result<usize> {
    let params = named_params! { ":before": now.wall.0 - KEEP_US, ":rows": ROWS_MAX };
    let closed = tx.execute("sweeping approvals", CLOSED, params)?;
    Ok(closed + tx.execute("sweeping approvals", LAPSED, params)?)
}

/// When a sweep may have something to do next.
pub fn next_due(r: &Read<'_>, now: Now) -> Result<i64> {
    let oldest = |sql| r.one("looking for old approvals", sql, [], |row| row.get::<_, Option<i64>>(0));
    let oldest = oldest(OLDEST_CLOSED)?.into_iter().chain(oldest(OLDEST_LAPSED)?).min();
    Ok(oldest.map_or(now.wall.0, |at| at.min(now.wall.0)) + KEEP_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::{StateDir, Store};

    /// However many requests stand, a sweep and the question when the next is due read none of them.
    #[test]
    fn a_sweep_of_approvals_reads_only_what_is_over() {
        let base = tempfile::tempdir().unwrap();
        let mut store = Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap();
        for (sql, seek) in [
            (CLOSED, "approval_closed (closed_at_us<?)"),
            (LAPSED, "approval_lapses (lapses_at_us<?)"),
            (OLDEST_CLOSED, "approval_closed"),
            (OLDEST_LAPSED, "approval_lapses"),
        ] {
            let explain = format!("EXPLAIN QUERY PLAN {}", sql.replace(":before", "1").replace(":rows", "1"));
            let plan = store.read(|r| r.all("testing", &explain, [], |row| row.get::<_, String>("detail"))).unwrap();
            assert!(plan.iter().any(|step| step.contains(seek)), "{plan:?}");
            assert!(!plan.iter().any(|step| step == "SCAN approval"), "{plan:?}");
        }
    }
}
