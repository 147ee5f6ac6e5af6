//! The rows as the gate meets them, each meeting in one transaction. Nothing is used up here: see [`super::used`].

use conduit_api::views::Reach;
use conduit_api::{ApprovalId, EventId, ExecutionId, ScopeId, UnixMicros, WorkId};
use conduit_config::Snapshot;
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::{self, NewEvent};
use conduit_extension::OperationError;
use conduit_extension::desk::Fault;
use conduit_store::digest::Sha256Digest;
use conduit_store::{Now, Row, RowResult, Write, column_id, mint, named_params};
use serde_json::{Map, Value};

use super::used;
use crate::verdict::{self, Standing, Verdict};
use crate::{REQUESTED, SOURCE};

/// Who asks for what.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub digest: Sha256Digest,
    pub work: &'a WorkId,
    pub scope: &'a ScopeId,
    pub binding: &'a str,
    /// A call; without one it is the start of the Work.
    pub call: Option<AskedCall<'a>>,
    /// How long an operator has.
    pub timeout_s: u64,
}

#[derive(Debug)]
pub(crate) struct AskedCall<'a> {
    pub execution: &'a ExecutionId,
    pub operation: &'a str,
    pub request_id: &'a str,
    /// As operators see it.
    pub input: Value,
}

/// What was met.
#[derive(Debug)]
pub(crate) enum Met {
    Through,
    /// Wait for the decision, which may come until then.
    Wait {
        approval: ApprovalId,
        expires_at: Option<UnixMicros>,
    },
    Refuse(OperationError),
}

const OPEN: &str = "
    SELECT id, state, reach, until_us, used_execution_id, note, expires_at_us FROM approval INDEXED BY approval_open
     WHERE work_id = :work AND call_digest = :digest AND open = 1";
const EXPIRE: &str = "UPDATE approval SET state = 'expired', open = 0, closed_at_us = :at, revision = revision + 1 WHERE id = :id AND state = 'pending'";
const CLOSE: &str =
    "UPDATE approval SET open = 0, closed_at_us = :at, revision = revision + 1 WHERE id = :id AND open = 1";
const INSERT: &str = "
    INSERT INTO approval (id, call_digest, work_id, scope_id, binding, execution_id, operation, input, state, open,
                          created_at_us, expires_at_us)
    VALUES (:id, :digest, :work, :scope, :binding, :execution, :operation, :input, 'pending', 1, :at, :expires)";
const CAUSE_OF_CALL: &str = "SELECT cause_event_id AS cause FROM execution WHERE id = :execution";
const CAUSE_OF_START: &str = "SELECT created_event_id AS cause FROM work WHERE id = :work";

/// Meets what there is for `asked`, and does what follows: a call is let through, parked on its one request, or refused.
pub(crate) fn meet(tx: &Write<'_>, asked: &Asked<'_>, snapshot: &Snapshot, now: Now) -> Result<Met, Fault> {
    // The same request is the same call: it was let through before, and nothing says that it was carried out.
    if let Some(call) = &asked.call
        && used::is_by(tx, asked, call)?
    {
        return Ok(Met::Through);
    }
    let Some((id, standing)) = open(tx, asked)? else {
        return ask(tx, asked, snapshot, now);
    };
    let execution = asked.call.as_ref().map(|call| call.execution);
    let expires_at = if let Standing::Pending { expires_at } = &standing { *expires_at } else { None };
    match verdict::decide(standing, execution, now.wall) {
        // What it uses up goes when the call is about to run.
        Verdict::Through | Verdict::Take | Verdict::Consume => Ok(Met::Through),
        Verdict::Park => Ok(Met::Wait { approval: id, expires_at }),
        Verdict::Expire => {
            tx.execute("ending a request", EXPIRE, named_params! { ":id": id.as_str(), ":at": now.wall.0 })?;
            let message = format!("nobody decided about {id} in time; the same call asks again");
            Ok(Met::Refuse(OperationError::new("approval_expired", message)))
        }
        Verdict::Deny { note } => {
            let note = note.map_or_else(String::new, |note| format!(": {note}"));
            let message = format!("an operator denied {id}{note}");
            Ok(Met::Refuse(OperationError::new("approval_denied", message)))
        }
        Verdict::AskAnew => {
            tx.execute("ending an approval", CLOSE, named_params! { ":id": id.as_str(), ":at": now.wall.0 })?;
            ask(tx, asked, snapshot, now)
        }
    }
}

/// The one request that is open for this call.
pub(super) fn open(tx: &Write<'_>, asked: &Asked<'_>) -> Result<Option<(ApprovalId, Standing)>, Fault> {
    let params = named_params! { ":work": asked.work.as_str(), ":digest": asked.digest };
    Ok(tx.optional("looking for an approval", OPEN, params, standing)?)
}

fn standing(row: &Row<'_>) -> RowResult<(ApprovalId, Standing)> {
    let standing = match row.get::<_, String>("state")?.as_str() {
        "approved" => Standing::Approved {
            reach: reach(row)?,
            until: row.get::<_, Option<i64>>("until_us")?.map(UnixMicros),
            used_by: row
                .get::<_, Option<String>>("used_execution_id")?
                .is_some()
                .then(|| column_id(row, "used_execution_id"))
                .transpose()?,
        },
        "denied" => Standing::Denied { note: row.get("note")? },
        // Whatever else is open lets nothing through.
        _ => Standing::Pending { expires_at: row.get::<_, Option<i64>>("expires_at_us")?.map(UnixMicros) },
    };
    Ok((column_id(row, "id")?, standing))
}

/// The reach of an approval; the narrowest for a word that this release does not know.
fn reach(row: &Row<'_>) -> RowResult<Reach> {
    let text: Option<String> = row.get("reach")?;
    Ok(Reach::ALL.into_iter().find(|reach| Some(reach.as_str()) == text.as_deref()).unwrap_or_default())
}

/// Makes a request and tells of it. The Event follows from what the caller follows from, within the bounds of that chain, so
/// that no route can turn requests into more requests without end.
fn ask(tx: &Write<'_>, asked: &Asked<'_>, snapshot: &Snapshot, now: Now) -> Result<Met, Fault> {
    let id: ApprovalId = mint(now);
    let seconds = i64::try_from(asked.timeout_s).unwrap_or(i64::MAX);
    let expires_at = now.wall.plus(seconds.saturating_mul(1_000_000));
    let (execution, operation) = asked.call.as_ref().map(|call| (call.execution.as_str(), call.operation)).unzip();
    let input = asked.call.as_ref().map_or_else(|| "{}".to_owned(), |call| call.input.to_string());
    let cause: EventId = match execution {
        Some(execution) => {
            tx.one("reading a cause", CAUSE_OF_CALL, named_params! { ":execution": execution }, cause)?
        }
        None => tx.one("reading a cause", CAUSE_OF_START, named_params! { ":work": asked.work.as_str() }, cause)?,
    };
    tx.execute(
        "asking for an approval",
        INSERT,
        named_params! {
            ":id": id.as_str(), ":digest": asked.digest, ":work": asked.work.as_str(), ":scope": asked.scope.as_str(),
            ":binding": asked.binding, ":execution": execution, ":operation": operation, ":input": input,
            ":at": now.wall.0, ":expires": expires_at.0,
        },
    )?;
    let data = Map::from_iter([
        ("approval_id".to_owned(), Value::from(id.as_str())),
        ("binding".to_owned(), Value::from(asked.binding)),
        ("operation".to_owned(), operation.map_or(Value::Null, Value::from)),
        ("expires_at".to_owned(), Value::from(expires_at.to_string())),
    ]);
    let event = NewEvent {
        work: Some(asked.work),
        cause: Some(&cause),
        ..NewEvent::new(asked.scope, REQUESTED, SOURCE, id.as_str(), &data)
    };
    events::accept(tx, &event, Bounds::of(snapshot), now)?;
    Ok(Met::Wait { approval: id, expires_at: Some(expires_at) })
}

fn cause(row: &Row<'_>) -> RowResult<EventId> {
    column_id(row, "cause")
}
