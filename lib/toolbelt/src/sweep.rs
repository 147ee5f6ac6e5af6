//! Sweeps: what is kept for a day and no longer (T04, T15), and doubts about executions that have ended, for thirty.

use conduit_store::{Now, Read, Write, named_params};

use crate::error::Result;

/// How long a token record outlives the token, and how old a replay record of an execution that has ended becomes.
pub const KEEP_US: i64 = 24 * 3_600 * 1_000_000;
/// How long a doubt outlives its execution: until then an operator finds it, and can say what happened.
pub const DOUBT_KEEP_US: i64 = 30 * KEEP_US;
/// Rows of each kind that one sweep removes, so that it never holds the store for long.
pub const ROWS_MAX: i64 = 500;

const TOKENS: &str = "
    DELETE FROM token WHERE digest IN (
        SELECT digest FROM token WHERE coalesce(revoked_at_us, expires_at_us) <= :before LIMIT :rows)";
const REPLAYS: &str = "
    DELETE FROM replay WHERE (execution_id, operation, request_id) IN (
        SELECT r.execution_id, r.operation, r.request_id
          FROM replay_ended d INDEXED BY replay_ended_oldest CROSS JOIN replay r ON r.execution_id = d.execution_id
         WHERE d.oldest_us <= :before AND r.created_at_us <= :before ORDER BY d.oldest_us LIMIT :rows)";
const SWEPT: &str = "
    DELETE FROM replay_ended WHERE execution_id IN (
        SELECT d.execution_id FROM replay_ended d INDEXED BY replay_ended_oldest
         WHERE d.oldest_us <= :before AND NOT EXISTS (SELECT 1 FROM replay r WHERE r.execution_id = d.execution_id)
         ORDER BY d.oldest_us LIMIT :rows)";
const KEPT: &str = "
    UPDATE replay_ended INDEXED BY replay_ended_oldest
       SET oldest_us = (SELECT min(created_at_us) FROM replay r WHERE r.execution_id = replay_ended.execution_id)
     WHERE oldest_us <= :before AND EXISTS (SELECT 1 FROM replay r WHERE r.execution_id = replay_ended.execution_id)";
const INTENTS: &str = "
    DELETE FROM intent WHERE (execution_id, operation, request_id) IN (
        SELECT execution_id, operation, request_id FROM intent INDEXED BY intent_ended
         WHERE state = :state AND ended_at_us <= :before ORDER BY ended_at_us LIMIT :rows)";
const OLDEST_INTENT: &str = "
    SELECT min(ended_at_us) FROM intent INDEXED BY intent_ended WHERE state = :state AND ended_at_us IS NOT NULL";
const OLDEST_TOKEN: &str = "SELECT min(coalesce(revoked_at_us, expires_at_us)) FROM token";
const OLDEST_ENDED: &str = "SELECT min(oldest_us) FROM replay_ended";

/// Both states of an intent, and how long it is kept once its execution has ended.
const INTENT_KEPT: [(&str, i64); 2] = [("running", KEEP_US), ("in_doubt", DOUBT_KEEP_US)];

/// Deletes tokens that ended, and replay records that were written, at least [`KEEP_US`] ago; records of an execution
/// that has not ended stay. Intents of executions that have ended go too, doubts after [`DOUBT_KEEP_US`].
/// Returns how many rows went; a full batch means that there may be more.
pub fn sweep(tx: &Write<'_>, now: Now) -> Result<usize> {
    let before = now.wall.0 - KEEP_US;
    let tokens = tx.execute("sweeping tokens", TOKENS, named_params! { ":before": before, ":rows": ROWS_MAX })?;
    let replays = tx.execute("sweeping replays", REPLAYS, named_params! { ":before": before, ":rows": ROWS_MAX })?;
    tx.execute("sweeping replays", SWEPT, named_params! { ":before": before, ":rows": ROWS_MAX })?;
    if replays > 0 {
        tx.execute("sweeping replays", KEPT, named_params! { ":before": before })?;
    }
    let mut intents = 0;
    for (state, kept) in INTENT_KEPT {
        let params = named_params! { ":state": state, ":before": now.wall.0 - kept, ":rows": ROWS_MAX };
        intents += tx.execute("sweeping intents", INTENTS, params)?;
    }
    Ok(tokens + replays + intents)
}

/// When a sweep may have something to do next: the oldest row, or what ends from now on, becomes due. What
/// lives is not looked at, so it cannot make this early.
pub fn next_due(r: &Read<'_>, now: Now) -> Result<i64> {
    let oldest_token: Option<i64> = r.one("looking for old tokens", OLDEST_TOKEN, [], |row| row.get(0))?;
    let oldest_ended: Option<i64> = r.one("looking for old records", OLDEST_ENDED, [], |row| row.get(0))?;
    let oldest = oldest_token.into_iter().chain(oldest_ended).min();
    let mut due = oldest.map_or(now.wall.0, |at| at.min(now.wall.0)) + KEEP_US;
    for (state, kept) in INTENT_KEPT {
        let params = named_params! { ":state": state };
        let oldest: Option<i64> = r.one("looking for old intents", OLDEST_INTENT, params, |row| row.get(0))?;
        due = oldest.map_or(due, |at| due.min(at + kept));
    }
    Ok(due)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::{StateDir, Store};

    /// However many records living executions have, a sweep and the question when the next is due read none of them.
    #[test]
    fn a_sweep_reads_only_what_has_ended() {
        let base = tempfile::tempdir().unwrap();
        let mut store = Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap();
        for (sql, seek) in [
            (REPLAYS, "replay_ended_oldest (oldest_us<?)"),
            (SWEPT, "replay_ended_oldest (oldest_us<?)"),
            (KEPT, "replay_ended_oldest (oldest_us<?)"),
            (OLDEST_ENDED, "replay_ended_oldest"),
            (TOKENS, "token_ended (<expr><?)"),
            (OLDEST_TOKEN, "token_ended"),
            (INTENTS, "intent_ended (state=? AND ended_at_us<?)"),
            (OLDEST_INTENT, "intent_ended (state=? AND ended_at_us>?)"),
        ] {
            let explain = format!(
                "EXPLAIN QUERY PLAN {}",
                sql.replace(":before", "1").replace(":rows", "1").replace(":state", "'running'")
            );
            let plan = store.read(|r| r.all("testing", &explain, [], |row| row.get::<_, String>("detail"))).unwrap();
            assert!(plan.iter().any(|step| step.contains(seek)), "{plan:?}");
            assert!(!plan.iter().any(|step| step.starts_with("SCAN") || step.contains("TEMP")), "{plan:?}");
        }
    }
}
