//! An operator's decision: the row, and the Event that wakes whoever waits for it, in one transaction (G07, M06).
//!
//! Until it is used up, or its Work has ended, a decision can be changed: a standing approval is withdrawn by denying it.

use conduit_api::views::Reach;
use conduit_api::{ApprovalId, EventId, ScopeId, UnixMicros, WorkId};
use conduit_coordination::events::{self, NewEvent, source};
use conduit_coordination::{Error, Result};
use conduit_store::{Now, Row, RowResult, Write, column_id, named_params};
use serde_json::{Map, Value};

use crate::{DECIDED, SOURCE};

/// What an operator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// `until` with [`Reach::Until`] alone.
    Approve {
        reach: Reach,
        until: Option<UnixMicros>,
    },
    Deny,
}

/// The request as it stands.
struct Request {
    work: WorkId,
    scope: ScopeId,
    state: String,
    open: bool,
    expires_at_us: Option<i64>,
    revision: i64,
    /// What was decided: state, reach, end, note, who.
    decided: (String, Option<String>, Option<i64>, Option<String>, Option<String>),
}

const GET: &str = "
    SELECT work_id, scope_id, state, open, expires_at_us, revision, reach, until_us, note, actor FROM approval WHERE id = :id";
const DECIDE: &str = "
    UPDATE approval SET state = :state, reach = :reach, until_us = :until, note = :note, actor = :actor,
                        used_execution_id = NULL, decided_at_us = :at, revision = revision + 1
     WHERE id = :id AND open = 1 AND state IN ('pending', 'approved', 'denied')";
const REQUESTED_BY: &str = "SELECT id FROM event WHERE source = :source AND delivery_id = :id";

/// Records what `actor` decided about the request `id`; the very same decision again changes nothing.
///
/// Errors: `not_found`; `illegal_state` when it was used up, is over, or its Work has ended; `invalid_request` for an end
/// that has passed or does not go with the reach.
pub fn decide(
    tx: &Write<'_>,
    id: &ApprovalId,
    decision: Decision,
    note: Option<&str>,
    actor: &str,
    now: Now,
) -> Result<()> {
    let (state, reach, until) = match decision {
        Decision::Approve { reach, until } => ("approved", Some(reach), until),
        Decision::Deny => ("denied", None, None),
    };
    if (reach == Some(Reach::Until)) != until.is_some() {
        return Err(Error::Invalid { why: "an approval has an end if, and only if, it is given until a time".into() });
    }
    if until.is_some_and(|until| until <= now.wall) {
        return Err(Error::Invalid { why: "the time until which it is approved has passed".into() });
    }
    let params = named_params! { ":id": id.as_str() };
    let found = tx.optional("reading an approval", GET, params, request)?;
    let request = found.ok_or(Error::NotFound { what: "approval" })?;
    let reach = reach.map(Reach::as_str);
    let asked = (
        state.to_owned(),
        reach.map(str::to_owned),
        until.map(|at| at.0),
        note.map(str::to_owned),
        Some(actor.to_owned()),
    );
    if request.open && request.decided == asked {
        return Ok(());
    }
    let expired = request.state == "pending" && request.expires_at_us.is_some_and(|at| at <= now.wall.0);
    if !request.open || expired {
        let state = if expired { "expired".to_owned() } else { request.state };
        return Err(Error::IllegalState {
            what: "approval",
            state,
            remedy: "it is over; the same call makes a new request",
        });
    }
    tx.execute(
        "deciding about a request",
        DECIDE,
        named_params! {
            ":id": id.as_str(), ":state": state, ":reach": reach, ":until": until.map(|at| at.0), ":note": note,
            ":actor": actor, ":at": now.wall.0,
        },
    )?;
    let mut data = Map::from_iter([
        ("approval_id".to_owned(), Value::from(id.as_str())),
        ("decision".to_owned(), Value::from(state)),
    ]);
    let words = [
        ("for", reach.map(str::to_owned)),
        ("until", until.map(|at| at.to_string())),
        ("note", note.map(str::to_owned)),
    ];
    data.extend(words.into_iter().filter_map(|(name, word)| Some((name.to_owned(), Value::from(word?)))));
    let params = named_params! { ":source": SOURCE, ":id": id.as_str() };
    let cause: Option<EventId> = tx.optional("reading a cause", REQUESTED_BY, params, |row| column_id(row, "id"))?;
    let delivery = format!("{id}.{}", request.revision);
    let event = NewEvent {
        work: Some(&request.work),
        cause: cause.as_ref(),
        actor: Some(actor),
        ..NewEvent::new(&request.scope, DECIDED, source::ACTION, &delivery, &data)
    };
    events::accept_core(tx, &event, now)?;
    Ok(())
}

fn request(row: &Row<'_>) -> RowResult<Request> {
    let state: String = row.get("state")?;
    Ok(Request {
        work: column_id(row, "work_id")?,
        scope: column_id(row, "scope_id")?,
        open: row.get("open")?,
        expires_at_us: row.get("expires_at_us")?,
        revision: row.get("revision")?,
        decided: (state.clone(), row.get("reach")?, row.get("until_us")?, row.get("note")?, row.get("actor")?),
        state,
    })
}
