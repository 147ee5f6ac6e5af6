//! Stopping an execution: authority goes first, in one transaction; the process follows.

use conduit_api::{EventId, ExecutionId, ScopeId, WorkId};
use conduit_store::{Now, Read, Write, column_id, named_params};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::events::{self, NewEvent, kind, source};
use crate::work::{self, BlockedReason, Event};

/// Why the scheduler is to stop a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    OperatorCancelled,
    WorkCancelled,
    /// It asked for more than its budget, and its binding says that it is to be held then.
    BudgetExceeded,
    /// An Event interrupts the segment; the Work goes on with it as input.
    Interrupted,
}

impl StopReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OperatorCancelled => "operator_cancelled",
            Self::WorkCancelled => "work_cancelled",
            Self::BudgetExceeded => "budget_exceeded",
            Self::Interrupted => "interrupted",
        }
    }
    pub(crate) fn from_row(text: &str) -> Option<Self> {
        [Self::OperatorCancelled, Self::WorkCancelled, Self::BudgetExceeded, Self::Interrupted]
            .into_iter()
            .find(|r| r.as_str() == text)
    }
}

const LIVE: &str = "SELECT id FROM execution WHERE work_id = :work AND state IN ('claimed', 'running', 'orphaned')";
const REVOKE: &str = "UPDATE token SET revoked_at_us = :at WHERE revoked_at_us IS NULL AND execution_id IN (SELECT id FROM execution WHERE work_id = :work)";
const REQUEST: &str = "
    UPDATE execution SET stop_reason = :reason, revision = revision + 1
     WHERE work_id = :work AND state IN ('claimed', 'running', 'orphaned')
       AND (stop_reason IS NULL OR (stop_reason = 'interrupted' AND :reason <> 'interrupted'))";
const END_PARKED: &str = "
    UPDATE execution INDEXED BY execution_work SET state = 'cancelled', code = 'operator_cancelled', stop_reason = :reason, finished_at_us = :at,
                         revision = revision + 1
     WHERE work_id = :work AND state = 'parked'";
const REQUESTED: &str = "
    SELECT id, stop_reason FROM execution INDEXED BY execution_stop WHERE stop_reason IS NOT NULL AND state IN ('claimed', 'running', 'orphaned')";
const CANCELLABLE: &str = "SELECT work_id, scope_id, state, cause_event_id, stop_reason FROM execution WHERE id = :id";

/// The execution of `work` whose process may live, if any.
pub fn live_of(r: &Read<'_>, work: &WorkId) -> Result<Option<ExecutionId>> {
    Ok(r.optional("looking for a live execution", LIVE, named_params! { ":work": work.as_str() }, |row| {
        column_id(row, "id")
    })?)
}

const LISTENING: &str = "
    SELECT x.id FROM execution x
     WHERE x.work_id = :work AND x.state IN ('claimed', 'running') AND x.stop_reason IS NULL
       AND NOT EXISTS (SELECT 1 FROM declaration d WHERE d.execution_id = x.id AND d.epoch = x.epoch)";

/// The execution of `work` whose segment can still be told something: it has declared nothing and is not being stopped.
pub(crate) fn listening_of(r: &Read<'_>, work: &WorkId) -> Result<Option<ExecutionId>> {
    Ok(r.optional("looking for a live execution", LISTENING, named_params! { ":work": work.as_str() }, |row| {
        column_id(row, "id")
    })?)
}

/// Takes a Work's executions out of authority: tokens revoked, the running one marked to be stopped, a parked one ended.
///
/// An operator's reason replaces an interruption that is under way: whoever cancels is not to find the Work going on.
pub fn fence(tx: &Write<'_>, work: &WorkId, reason: StopReason, now: Now) -> Result<()> {
    let work_id = work.as_str();
    tx.execute("revoking tokens", REVOKE, named_params! { ":work": work_id, ":at": now.wall.0 })?;
    tx.execute("asking for a stop", REQUEST, named_params! { ":work": work_id, ":reason": reason.as_str() })?;
    tx.execute(
        "ending a parked execution",
        END_PARKED,
        named_params! { ":work": work_id, ":reason": reason.as_str(), ":at": now.wall.0 },
    )?;
    Ok(())
}

/// Marks the running segment to be stopped because of an Event; its authority ends with its process. `false` when none runs.
pub(crate) fn interrupt(tx: &Write<'_>, work: &WorkId) -> Result<bool> {
    Ok(tx.execute(
        "asking for a stop",
        REQUEST,
        named_params! { ":work": work.as_str(), ":reason": StopReason::Interrupted.as_str() },
    )? > 0)
}

/// Every execution that somebody asked to stop and whose process may live.
pub fn stop_requested(r: &Read<'_>) -> Result<Vec<(ExecutionId, StopReason)>> {
    let rows = r.all("looking for stops", REQUESTED, [], |row| {
        Ok((column_id(row, "id")?, row.get::<_, String>("stop_reason")?))
    })?;
    Ok(rows.into_iter().filter_map(|(id, reason)| StopReason::from_row(&reason).map(|reason| (id, reason))).collect())
}

const ENDED_PARKED: &str = "
    SELECT id FROM execution INDEXED BY execution_stop WHERE stop_reason IS NOT NULL AND state = 'cancelled'";
const CLEARED: &str = "UPDATE execution SET stop_reason = NULL WHERE id = :id AND state = 'cancelled'";

/// Executions that were ended while they were parked: no process is left, but their run directories are (E06).
pub fn ended_while_parked(r: &Read<'_>) -> Result<Vec<ExecutionId>> {
    Ok(r.all("looking for ended executions", ENDED_PARKED, [], |row| column_id(row, "id"))?)
}

/// The scheduler has taken note of an execution that ended while it was parked.
pub fn noted(tx: &Write<'_>, execution: &ExecutionId) -> Result<()> {
    tx.execute("noting an ended execution", CLEARED, named_params! { ":id": execution.as_str() })?;
    Ok(())
}

/// Fences one attempt by an operator's word; its Work is held `operator_cancelled` until a manual retry (M10).
///
/// Errors: `not_found`, `illegal_state` when the execution has ended or is being stopped.
pub fn cancel(tx: &Write<'_>, execution: &ExecutionId, actor: &str, now: Now) -> Result<WorkId> {
    let found =
        tx.optional("reading an execution", CANCELLABLE, named_params! { ":id": execution.as_str() }, |row| {
            Ok((
                column_id::<WorkId>(row, "work_id")?,
                column_id::<ScopeId>(row, "scope_id")?,
                row.get::<_, String>("state")?,
                column_id::<EventId>(row, "cause_event_id")?,
                row.get::<_, Option<String>>("stop_reason")?,
            ))
        })?;
    let (work, scope, state, cause, stopping) = found.ok_or(Error::NotFound { what: "execution" })?;
    let stopping = stopping.is_some_and(|reason| reason != StopReason::Interrupted.as_str());
    if !matches!(state.as_str(), "claimed" | "running" | "parked" | "orphaned") || stopping {
        let state = if stopping { "being stopped".to_owned() } else { state };
        return Err(Error::IllegalState { what: "execution", state, remedy: "only a live one can be cancelled" });
    }
    crate::waits::cancel_pending(tx, &work, crate::waits::Ended::Cancelled, now)?;
    if work::state_of(tx, &work)?.after(Event::Held(BlockedReason::OperatorCancelled)).is_ok() {
        work::set_state(tx, &work, Event::Held(BlockedReason::OperatorCancelled), now.wall.0, None, now)?;
    }
    fence(tx, &work, StopReason::OperatorCancelled, now)?;
    let delivery = format!("{execution}.cancelled");
    let data = Map::from_iter([("execution_id".to_owned(), Value::from(execution.as_str()))]);
    let event = NewEvent {
        work: Some(&work),
        execution: None,
        cause: Some(&cause),
        actor: Some(actor),
        ..NewEvent::new(&scope, kind::EXECUTION_CANCELLED, source::MANUAL, &delivery, &data)
    };
    events::accept_core(tx, &event, now)?;
    Ok(work)
}

/// Holds the Work of an execution that asked for more of `budget` than it has: its authority goes at once, its process
/// follows, and an operator's retry lets the Work go on, in another execution with a budget of its own.
///
/// Told in an Event. What is being stopped already is left alone.
pub fn hold_for_budget(tx: &Write<'_>, execution: &ExecutionId, budget: &str, now: Now) -> Result<()> {
    let (work, scope, cause) =
        tx.one("reading an execution", CANCELLABLE, named_params! { ":id": execution.as_str() }, |row| {
            Ok((
                column_id::<WorkId>(row, "work_id")?,
                column_id::<ScopeId>(row, "scope_id")?,
                column_id::<EventId>(row, "cause_event_id")?,
            ))
        })?;
    let held = Event::Held(BlockedReason::BudgetExceeded);
    if work::state_of(tx, &work)?.after(held).is_err() {
        return Ok(());
    }
    work::set_state(tx, &work, held, now.wall.0, None, now)?;
    fence(tx, &work, StopReason::BudgetExceeded, now)?;
    let delivery = format!("{execution}.held");
    let data = Map::from_iter([
        ("execution_id".to_owned(), Value::from(execution.as_str())),
        ("budget".to_owned(), Value::from(budget)),
    ]);
    let event = NewEvent {
        work: Some(&work),
        cause: Some(&cause),
        ..NewEvent::new(&scope, kind::EXECUTION_HELD, source::CORE, &delivery, &data)
    };
    events::accept_core(tx, &event, now)?;
    Ok(())
}

const IS_LIVE: &str = "
    SELECT EXISTS (SELECT 1 FROM execution WHERE id = :id AND state IN ('claimed', 'running', 'parked', 'orphaned'))";

/// Whether an execution has not ended; one that is parked has not (E06).
pub fn is_live(r: &Read<'_>, execution: &ExecutionId) -> Result<bool> {
    Ok(r.one("looking for a live execution", IS_LIVE, named_params! { ":id": execution.as_str() }, |row| row.get(0))?)
}
