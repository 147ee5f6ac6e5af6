//! Changing a Work: every move goes through [`State::after`], and its row names the state it moved from.

use conduit_api::{EventId, WorkId};
use conduit_store::{Now, Read, Write, column_id, named_params};
use serde_json::{Map, Value};

use super::state::{Event, State};
use crate::error::{Error, Result};
use crate::events::{self, NewEvent, kind, source};
use crate::{executions, inputs, waits};

/// A Work as its moves need it.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub state: State,
    pub scope: conduit_api::ScopeId,
    pub created_event: EventId,
    pub revision: i64,
}

const STANDING: &str = "SELECT state, blocked_reason, scope_id, created_event_id, revision FROM work WHERE id = :id";
const MOVE: &str = "
    UPDATE work SET state = :state, blocked_reason = :reason, updated_at_us = :at, finished_at_us = :finished, ready_at_us = :ready,
                    outcome = :outcome, failures = CASE WHEN :forgive THEN 0 ELSE failures END, revision = revision + 1
     WHERE id = :id AND state = :from";
const RELEASE_KEYS: &str = "UPDATE work_key SET active = 0 WHERE work_id = :work AND active = 1";
const REOWN_KEYS: &str = "
    UPDATE work_key SET active = 1 WHERE work_id = :work AND active = 0
       AND NOT EXISTS (SELECT 1 FROM work_key o WHERE o.scope_id = work_key.scope_id AND o.key = work_key.key AND o.active = 1)";

pub(crate) fn standing(r: &Read<'_>, work: &WorkId) -> Result<Standing> {
    let found = r.optional("reading a Work", STANDING, named_params! { ":id": work.as_str() }, |row| {
        Ok((
            State::from_row(
                &row.get::<_, String>("state")?,
                row.get::<_, Option<String>>("blocked_reason")?.as_deref(),
            ),
            column_id(row, "scope_id")?,
            column_id(row, "created_event_id")?,
            row.get("revision")?,
        ))
    })?;
    let (state, scope, created_event, revision) = found.ok_or(Error::NotFound { what: "Work" })?;
    let state = state
        .ok_or_else(|| Error::Invalid { why: "the Work's row holds a state that this release does not know".into() })?;
    Ok(Standing { state, scope, created_event, revision })
}

pub(crate) fn state_of(r: &Read<'_>, work: &WorkId) -> Result<State> {
    Ok(standing(r, work)?.state)
}

/// Moves a Work by `event`; `ready_at` says from when it may be claimed.
pub(crate) fn set_state(
    tx: &Write<'_>,
    work: &WorkId,
    event: Event,
    ready_at_us: i64,
    outcome: Option<&Value>,
    now: Now,
) -> Result<State> {
    let before = standing(tx, work)?.state;
    let after = before.after(event)?;
    let reason = if let State::Blocked(reason) = after { Some(reason.as_str()) } else { None };
    tx.execute("moving a Work", MOVE, named_params! {
        ":id": work.as_str(), ":from": before.as_str(), ":state": after.as_str(), ":reason": reason, ":at": now.wall.0,
        ":finished": after.has_ended().then_some(now.wall.0), ":ready": ready_at_us, ":outcome": outcome.map(Value::to_string),
        ":forgive": event == Event::Retried,
    })?;
    if after.has_ended() {
        tx.execute("releasing keys", RELEASE_KEYS, named_params! { ":work": work.as_str() })?;
        inputs::reroute(tx, work)?;
    }
    Ok(after)
}

/// Wakes a waiting Work at once; `false` when it was not waiting.
pub fn make_ready(tx: &Write<'_>, work: &WorkId, now: Now) -> Result<bool> {
    if state_of(tx, work)? != State::Waiting {
        return Ok(false);
    }
    set_state(tx, work, Event::Woken, now.wall.0, None, now)?;
    Ok(true)
}

/// Ends a running Work with an outcome, and tells so in a `core.work.finished` that follows from `cause`.
pub fn finish(
    tx: &Write<'_>,
    work: &WorkId,
    how: Event,
    outcome: &Map<String, Value>,
    cause: &EventId,
    now: Now,
) -> Result<State> {
    let standing = standing(tx, work)?;
    let after = set_state(tx, work, how, now.wall.0, Some(&Value::Object(outcome.clone())), now)?;
    tell_finished(tx, work, &standing, after, outcome, cause, source::CORE, None, now)?;
    Ok(after)
}

#[allow(clippy::too_many_arguments)] // one private sentence with one caller on each side
fn tell_finished(
    tx: &Write<'_>,
    work: &WorkId,
    standing: &Standing,
    after: State,
    outcome: &Map<String, Value>,
    cause: &EventId,
    source: &str,
    actor: Option<&str>,
    now: Now,
) -> Result<()> {
    let data = Map::from_iter([
        ("state".to_owned(), Value::from(after.as_str())),
        ("outcome".to_owned(), Value::Object(outcome.clone())),
    ]);
    // A Work that was retried ends more than once; the revision tells its endings apart.
    let delivery = format!("{work}.finished.{}", standing.revision);
    let event = NewEvent {
        work: Some(work),
        cause: Some(cause),
        actor,
        ..NewEvent::new(&standing.scope, kind::WORK_FINISHED, source, &delivery, &data)
    };
    events::accept_core(tx, &event, now)?;
    Ok(())
}

/// Ends a Work by an operator's word: its control Event, its waits, its tokens and its execution in one transaction (M10).
///
/// Its process is stopped by the scheduler, which finds `stop_reason` on the execution. Error: `illegal_state` when it has ended.
pub fn cancel(tx: &Write<'_>, work: &WorkId, actor: &str, now: Now) -> Result<()> {
    let standing = standing(tx, work)?;
    let outcome =
        Map::from_iter([("status".to_owned(), Value::from("cancelled")), ("actor".to_owned(), Value::from(actor))]);
    let after = set_state(tx, work, Event::Cancels, now.wall.0, Some(&Value::Object(outcome.clone())), now)?;
    waits::cancel_pending(tx, work, waits::Ended::Cancelled, now)?;
    executions::fence(tx, work, executions::StopReason::WorkCancelled, now)?;
    let cause = standing.created_event.clone();
    tell_finished(tx, work, &standing, after, &outcome, &cause, source::MANUAL, Some(actor), now)
}

/// Lets a blocked, failed or cancelled Work go on: ready at once, with its failures forgiven.
///
/// Errors: `illegal_state` when it runs, waits or succeeded, or while the process of its last execution may still live.
pub fn retry(tx: &Write<'_>, work: &WorkId, actor: &str, now: Now) -> Result<()> {
    let standing = standing(tx, work)?;
    // What runs or is about to is told so; only what had an end can still be on its way there.
    standing.state.after(Event::Retried)?;
    if executions::live_of(tx, work)?.is_some() {
        return Err(Error::IllegalState {
            what: "Work",
            state: "still being stopped".into(),
            remedy: "try again when its execution has ended (open-conduit executions)",
        });
    }
    set_state(tx, work, Event::Retried, now.wall.0, None, now)?;
    tx.execute("taking keys back", REOWN_KEYS, named_params! { ":work": work.as_str() })?;
    let delivery = format!("{work}.retried.{}", standing.revision);
    let data = Map::from_iter([("was".to_owned(), Value::from(standing.state.as_str()))]);
    let event = NewEvent {
        work: Some(work),
        cause: Some(&standing.created_event),
        actor: Some(actor),
        ..NewEvent::new(&standing.scope, kind::WORK_RETRIED, source::MANUAL, &delivery, &data)
    };
    let accepted = events::accept_core(tx, &event, now)?;
    inputs::queue(tx, work, accepted.sequence)
}
