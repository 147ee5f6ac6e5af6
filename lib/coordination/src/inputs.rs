//! Inputs: Events that a Work is to know.
//!
//! `queued` for its next segment, `delivered` to the one that runs, `acknowledged` when that one has ended. An input
//! that routing gave to this Work and that no segment was told of when the Work ends goes back to routing, so that it
//! is not lost. What the Work was made from or waited for stays with it: it would only start the same Work once more,
//! or happen a second time to the Work that routing gave it to.

use conduit_api::{EventId, ExecutionId, WorkId};
use conduit_store::{Read, Write, column_id, named_params};

use crate::error::Result;

const ADD: &str = "
    INSERT INTO work_input (work_id, seq, state, execution_id, effect) VALUES (:work, :seq, :state, :execution, :effect)
    ON CONFLICT (work_id, seq) DO UPDATE SET effect = :effect WHERE effect IS NULL AND :effect IS NOT NULL";
const DELIVER: &str = "
    UPDATE work_input INDEXED BY work_input_state SET state = 'delivered', execution_id = :execution
     WHERE work_id = :work AND state = 'queued'";
const NEWEST: &str = "
    SELECT i.seq, e.id FROM work_input i INDEXED BY work_input_state JOIN event e ON e.seq = i.seq
     WHERE i.work_id = :work AND i.execution_id = :execution AND i.state = 'delivered' ORDER BY i.seq DESC LIMIT 1";
const ACKNOWLEDGE: &str = "
    UPDATE work_input INDEXED BY work_input_state SET state = 'acknowledged'
     WHERE work_id = :work AND execution_id = :execution AND state = 'delivered'";
const UNTELL: &str = "
    UPDATE work_input INDEXED BY work_input_state SET state = 'queued', execution_id = NULL
     WHERE work_id = :work AND execution_id = :execution AND state = 'delivered'";
const UNSEEN: &str = "
    SELECT seq FROM work_input INDEXED BY work_input_state
     WHERE work_id = :work AND state = 'queued' AND effect IS NOT NULL ORDER BY seq";
const REROUTE: &str = "UPDATE event SET route = NULL WHERE seq = :seq";
const FORGET: &str = "DELETE FROM work_input WHERE work_id = :work AND seq = :seq";
// One seek for each of the two states: the newest of both is the greater of the two.
const KNOWN: &str = "
    SELECT max(coalesce((SELECT max(seq) FROM work_input INDEXED BY work_input_state WHERE work_id = :work AND state = 'delivered'), 0),
               coalesce((SELECT max(seq) FROM work_input INDEXED BY work_input_state WHERE work_id = :work AND state = 'acknowledged'), 0))";
const WAKES: &str = "
    SELECT EXISTS (SELECT 1 FROM work_input INDEXED BY work_input_state
                    WHERE work_id = :work AND state = 'queued' AND effect IN ('interrupt', 'wake'))";

/// Queues what the Work was made from, or waited for, for its next segment.
pub(crate) fn queue(tx: &Write<'_>, work: &WorkId, seq: i64) -> Result<()> {
    add(tx, work, seq, None, None)
}

/// Queues what routing gives to the Work, for `effect`.
pub(crate) fn queue_for(tx: &Write<'_>, work: &WorkId, seq: i64, effect: &str) -> Result<()> {
    add(tx, work, seq, None, Some(effect))
}

/// Shows an Event to the segment that runs.
pub(crate) fn inject(tx: &Write<'_>, work: &WorkId, execution: &ExecutionId, seq: i64) -> Result<()> {
    add(tx, work, seq, Some(execution), Some("inject"))
}

fn add(tx: &Write<'_>, work: &WorkId, seq: i64, told: Option<&ExecutionId>, effect: Option<&str>) -> Result<()> {
    let state = if told.is_some() { "delivered" } else { "queued" };
    tx.execute("adding an input", ADD, named_params! {
        ":work": work.as_str(), ":seq": seq, ":state": state, ":execution": told.map(ExecutionId::as_str), ":effect": effect,
    })?;
    Ok(())
}

/// Delivers what is queued to a segment that begins; returns the newest input it is told of, if any.
pub(crate) fn deliver(tx: &Write<'_>, work: &WorkId, execution: &ExecutionId) -> Result<Option<(i64, EventId)>> {
    let params = named_params! { ":work": work.as_str(), ":execution": execution.as_str() };
    tx.execute("delivering inputs", DELIVER, params)?;
    Ok(tx.optional("reading inputs", NEWEST, params, |row| Ok((row.get("seq")?, column_id(row, "id")?)))?)
}

/// The newest input that any segment of the Work was told of; 0 when there is none.
pub(crate) fn newest_known(r: &Read<'_>, work: &WorkId) -> Result<i64> {
    Ok(r.one("reading inputs", KNOWN, named_params! { ":work": work.as_str() }, |row| row.get(0))?)
}

/// Whether an input that no segment has seen is there to wake the Work: it came while a segment ran.
pub(crate) fn wakes(r: &Read<'_>, work: &WorkId) -> Result<bool> {
    Ok(r.one("reading inputs", WAKES, named_params! { ":work": work.as_str() }, |row| row.get(0))?)
}

/// The segment that was told of these has ended.
pub(crate) fn acknowledge(tx: &Write<'_>, work: &WorkId, execution: &ExecutionId) -> Result<()> {
    tx.execute(
        "acknowledging inputs",
        ACKNOWLEDGE,
        named_params! { ":work": work.as_str(), ":execution": execution.as_str() },
    )?;
    Ok(())
}

/// The segment failed; the next one is told again.
pub(crate) fn untell(tx: &Write<'_>, work: &WorkId, execution: &ExecutionId) -> Result<()> {
    tx.execute("returning inputs", UNTELL, named_params! { ":work": work.as_str(), ":execution": execution.as_str() })?;
    Ok(())
}

/// The Work has ended; what routing gave to it and no segment was told of is routed again.
pub(crate) fn reroute(tx: &Write<'_>, work: &WorkId) -> Result<()> {
    let unseen = tx.all("returning inputs to routing", UNSEEN, named_params! { ":work": work.as_str() }, |row| {
        row.get::<_, i64>("seq")
    })?;
    for seq in unseen {
        tx.execute("returning inputs to routing", REROUTE, named_params! { ":seq": seq })?;
        tx.execute("returning inputs to routing", FORGET, named_params! { ":work": work.as_str(), ":seq": seq })?;
    }
    Ok(())
}
