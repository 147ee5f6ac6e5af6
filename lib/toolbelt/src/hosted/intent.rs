//! Intents: requests whose handler may run, or may have run, and whose result is not on record (T14, design §9.5).
//!
//! A row is committed before a handler runs and goes in the transaction that records its result. One that a host left
//! behind tells the next host that the effect may be there: an idempotent operation is run again, any other is in doubt
//! until an operator says what happened.

use conduit_api::ExecutionId;
use conduit_store::digest::Sha256Digest;
use conduit_store::{Now, Read, Write, column_id, named_params};

use crate::error::{Error, Result};

/// The request that an intent is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestKey {
    pub execution: ExecutionId,
    pub operation: String,
    pub request_id: String,
}

/// What is known of a request that has no result yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// This very host runs it.
    UnderWay,
    /// A host that has ended was about to run it, or ran it.
    LeftBehind,
    /// An operator has to say what happened.
    InDoubt,
}

const FIND: &str = "
    SELECT request_digest, host, state FROM intent
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request";
const PUT: &str = "
    INSERT INTO intent (execution_id, operation, request_id, request_digest, host, state, began_at_us)
    VALUES (:execution, :operation, :request, :digest, :host, 'running', :at)
    ON CONFLICT (execution_id, operation, request_id) DO UPDATE SET host = :host, began_at_us = :at WHERE state = 'running'";
const DOUBT: &str = "
    UPDATE intent SET state = 'in_doubt'
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request AND state = 'running'";
const DELETE: &str = "
    DELETE FROM intent
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request AND host = :host AND state = 'running'";

const LEFT: &str = "
    SELECT i.execution_id, i.operation, i.request_id, e.finished_at_us IS NOT NULL AS ended
      FROM intent i JOIN execution e ON e.id = i.execution_id
     WHERE i.state = 'running' AND i.host <> :host
       AND (i.execution_id, i.operation, i.request_id) > (:execution, :operation, :request)
     ORDER BY i.execution_id, i.operation, i.request_id LIMIT :rows";
const FORGET: &str = "
    DELETE FROM intent
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request AND state = 'running'";

/// A request that a host which has ended left behind.
#[derive(Debug)]
pub(super) struct Left {
    pub key: RequestKey,
    /// Whether its execution has ended, so that nobody can ask again.
    pub ended: bool,
}

/// At most `rows` requests that other hosts than `host` left behind, in the order of keys, after the key `after`.
pub(super) fn left_behind(r: &Read<'_>, host: &str, after: Option<&RequestKey>, rows: i64) -> Result<Vec<Left>> {
    let (execution, operation, request) =
        after.map_or(("", "", ""), |key| (key.execution.as_str(), &key.operation, &key.request_id));
    let params = named_params! {
        ":host": host, ":execution": execution, ":operation": operation, ":request": request, ":rows": rows,
    };
    Ok(r.all("looking for intents that were left behind", LEFT, params, |row| {
        let key = RequestKey {
            execution: column_id(row, "execution_id")?,
            operation: row.get("operation")?,
            request_id: row.get("request_id")?,
        };
        Ok(Left { key, ended: row.get("ended")? })
    })?)
}

/// Throws away what nobody can ask for again and what did no harm if it ran.
pub(super) fn forget(tx: &Write<'_>, key: &RequestKey) -> Result<()> {
    tx.execute(
        "forgetting an intent",
        FORGET,
        named_params! {
            ":execution": key.execution.as_str(), ":operation": key.operation, ":request": key.request_id,
        },
    )?;
    Ok(())
}

/// Looks a request up. Error: `request_conflict` when another body was asked under the same ID.
pub(super) fn find(r: &Read<'_>, key: &RequestKey, digest: &Sha256Digest, host: &str) -> Result<Found> {
    let params = named_params! {
        ":execution": key.execution.as_str(), ":operation": key.operation, ":request": key.request_id,
    };
    let row = r.optional("looking an intent up", FIND, params, |row| {
        Ok((
            row.get::<_, Vec<u8>>("request_digest")?,
            row.get::<_, String>("host")? == host,
            row.get::<_, String>("state")? == "in_doubt",
        ))
    })?;
    match row {
        None => Ok(Found::Nothing),
        Some((asked, ..)) if asked != digest => Err(Error::RequestConflict),
        Some((_, _, true)) => Ok(Found::InDoubt),
        Some((_, true, _)) => Ok(Found::UnderWay),
        Some((_, false, _)) => Ok(Found::LeftBehind),
    }
}

/// Records that the handler of this request is about to run, here.
pub(super) fn put(tx: &Write<'_>, key: &RequestKey, digest: &Sha256Digest, host: &str, now: Now) -> Result<()> {
    tx.execute(
        "recording an intent",
        PUT,
        named_params! {
            ":execution": key.execution.as_str(), ":operation": key.operation, ":request": key.request_id,
            ":digest": digest, ":host": host, ":at": now.wall.0,
        },
    )?;
    Ok(())
}

/// Marks a request as one of which nobody knows whether it was carried out.
pub(super) fn doubt(tx: &Write<'_>, key: &RequestKey) -> Result<()> {
    tx.execute(
        "doubting an intent",
        DOUBT,
        named_params! {
            ":execution": key.execution.as_str(), ":operation": key.operation, ":request": key.request_id,
        },
    )?;
    Ok(())
}

/// Takes the intent of a request that `host` runs away; `false` when there is none. One that another host left behind
/// stays: what that one did is not taken back.
pub(super) fn remove(tx: &Write<'_>, key: &RequestKey, host: &str) -> Result<bool> {
    let removed = tx.execute(
        "removing an intent",
        DELETE,
        named_params! {
            ":execution": key.execution.as_str(), ":operation": key.operation, ":request": key.request_id, ":host": host,
        },
    )?;
    Ok(removed > 0)
}
