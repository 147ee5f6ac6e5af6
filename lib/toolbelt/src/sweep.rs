//! Sweeps: what is kept for a day and no longer (T04, T15).

use conduit_store::{Now, Read, Write, named_params};

use crate::error::Result;

/// How long a token record outlives the token, and a replay record its writing.
pub const KEEP_US: i64 = 24 * 3_600 * 1_000_000;
/// Rows of each kind that one sweep removes, so that it never holds the store for long.
pub const ROWS_MAX: i64 = 500;

const TOKENS: &str = "
    DELETE FROM token WHERE digest IN (
        SELECT digest FROM token WHERE coalesce(revoked_at_us, expires_at_us) <= :before LIMIT :rows)";
const REPLAYS: &str = "
    DELETE FROM replay WHERE (execution_id, operation, request_id) IN (
        SELECT r.execution_id, r.operation, r.request_id FROM replay r JOIN execution e ON e.id = r.execution_id
         WHERE r.created_at_us <= :before AND e.finished_at_us IS NOT NULL ORDER BY r.created_at_us LIMIT :rows)";
const OLDEST_TOKEN: &str = "SELECT min(coalesce(revoked_at_us, expires_at_us)) FROM token";
const OLDEST_REPLAY: &str = "SELECT min(created_at_us) FROM replay";

/// Deletes tokens that ended, and replay records of finished executions that were written, at least [`KEEP_US`] ago.
/// Returns how many rows went; a full batch means that there may be more.
pub fn sweep(tx: &Write<'_>, now: Now) -> Result<usize> {
    let before = now.wall.0 - KEEP_US;
    let tokens = tx.execute("sweeping tokens", TOKENS, named_params! { ":before": before, ":rows": ROWS_MAX })?;
    let replays = tx.execute("sweeping replays", REPLAYS, named_params! { ":before": before, ":rows": ROWS_MAX })?;
    Ok(tokens + replays)
}

/// When a sweep may have something to do next: the oldest row, or what is written from now on, becomes due. A replay
/// record of an execution that lives on can make this early, never late.
pub fn next_due(r: &Read<'_>, now: Now) -> Result<i64> {
    let oldest_token: Option<i64> = r.one("looking for old tokens", OLDEST_TOKEN, [], |row| row.get(0))?;
    let oldest_replay: Option<i64> = r.one("looking for old records", OLDEST_REPLAY, [], |row| row.get(0))?;
    let oldest = oldest_token.into_iter().chain(oldest_replay).min();
    Ok(oldest.map_or(now.wall.0, |at| at.min(now.wall.0)) + KEEP_US)
}
