//! Intents: requests whose handler may run, or may have run, and whose result is not on record (T14).
//!
//! A row is committed before a handler runs and goes in the transaction that records its result. One that a host left
//! behind tells the next host that the effect may be there: an idempotent operation is run again, any other is in doubt
//! until an operator says what happened.

use conduit_api::ExecutionId;
use conduit_store::digest::Sha256Digest;
use conduit_store::{Now, Read, Write, named_params};

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
    INSERT INTO intent (execution_id, operation, request_id, request_digest, host, idempotent, state, began_at_us)
    VALUES (:execution, :operation, :request, :digest, :host, :idempotent, 'running', :at)
    ON CONFLICT (execution_id, operation, request_id) DO UPDATE SET host = :host, idempotent = :idempotent, began_at_us = :at
     WHERE state = 'running'";
const DOUBT: &str = "
    UPDATE intent SET state = 'in_doubt'
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request AND state = 'running'";
const DELETE: &str = "
    DELETE FROM intent
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request AND host = :host AND state = 'running'";
const DOUBT_LEFT: &str = "
    UPDATE intent SET state = 'in_doubt' WHERE state = 'running' AND idempotent = 0 AND host <> :host";
const DROP_LEFT: &str = "
    DELETE FROM intent
     WHERE state = 'running' AND idempotent = 1 AND host <> :host AND ended_at_us IS NOT NULL";

/// What became of the requests that hosts which have ended left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftBehind {
    /// They may not run again, and are for an operator from now on.
    pub doubted: usize,
    /// They might run again, but their execution has ended, so nobody can ask.
    pub dropped: usize,
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
pub(super) fn put(
    tx: &Write<'_>,
    key: &RequestKey,
    digest: &Sha256Digest,
    idempotent: bool,
    host: &str,
    now: Now,
) -> Result<()> {
    tx.execute(
        "recording an intent",
        PUT,
        named_params! {
            ":execution": key.execution.as_str(), ":operation": key.operation, ":request": key.request_id,
            ":digest": digest, ":host": host, ":idempotent": idempotent, ":at": now.wall.0,
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

/// Settles what other hosts than `host` left behind; a host does so before it takes its first call, and no two hosts live at
/// once. What may run again stays as it is while somebody can ask for it: the row tells a changed request from the same one.
pub(super) fn settle(tx: &Write<'_>, host: &str) -> Result<LeftBehind> {
    let doubted = tx.execute("doubting what was left behind", DOUBT_LEFT, named_params! { ":host": host })?;
    let dropped = tx.execute("dropping what was left behind", DROP_LEFT, named_params! { ":host": host })?;
    Ok(LeftBehind { doubted, dropped })
}
