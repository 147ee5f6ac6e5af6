//! Rows of the registry. Every transition goes through [`transition`]: state, reservation and event in one transaction.

use conduit_api::{AttemptId, JobId};
use conduit_store::digest::Sha256Digest;
use conduit_store::{Now, Read, Row, Write, column_id, named_params};

use crate::attempt::state::{AttemptState, Event, Reason, StopReason, Terminal};
use crate::bundle::OutputFact;
use crate::error::{Error, Result};
use crate::identity::operation_digest;
use crate::launcher::Unit;

/// An attempt as it is on record.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub id: AttemptId,
    pub state: AttemptState,
    pub reason: Reason,
    pub outputs: Vec<OutputFact>,
    pub revision: i64,
    pub request_digest: Sha256Digest,
    pub plan_digest: Sha256Digest,
}

impl Record {
    pub fn operation_digest(&self) -> Sha256Digest {
        operation_digest(&self.request_digest, &self.plan_digest)
    }
}

/// An operation that is about to be admitted.
#[derive(Debug)]
pub(crate) struct NewOperation<'a> {
    pub job: &'a JobId,
    pub attempt: &'a AttemptId,
    pub principal: &'a str,
    pub client_request_id: &'a str,
    pub request_digest: Sha256Digest,
    pub plan_digest: Sha256Digest,
    pub token_digest: Sha256Digest,
    pub request: &'a str,
    pub plan: &'a str,
}

const FIND: &str = "
    SELECT o.job_id, o.request_digest, a.id FROM operation o JOIN attempt a ON a.job_id = o.job_id
     WHERE o.principal = :principal AND o.client_request_id = :request";

/// The operation of this principal and request ID: its job, its request digest, its attempt.
pub(crate) fn find(
    read: &Read<'_>,
    principal: &str,
    client_request_id: &str,
) -> Result<Option<(JobId, Sha256Digest, AttemptId)>> {
    let row = |row: &Row<'_>| Ok((column_id(row, "job_id")?, row.get("request_digest")?, column_id(row, "id")?));
    let key = named_params! { ":principal": principal, ":request": client_request_id };
    Ok(read.optional("looking up an operation", FIND, key, row)?)
}

const PUT_OPERATION: &str = "
    INSERT INTO operation (job_id, principal, client_request_id, request_digest, plan_digest, request, plan, admitted_at_us)
    VALUES (:job, :principal, :request_id, :request_digest, :plan_digest, :request, :plan, :now)";
const PUT_ATTEMPT: &str = "
    INSERT INTO attempt (id, job_id, token_digest, state, reason) VALUES (:id, :job, :token, 'admitted', 'admitted')";
const PUT_RESERVATION: &str = "INSERT INTO reservation (attempt_id, state, since_us) VALUES (:id, 'active', :now)";

/// Puts an operation, its attempt and its reservation on record.
pub(crate) fn put(tx: &Write<'_>, new: &NewOperation<'_>, now: Now) -> Result<()> {
    let operation = named_params! {
        ":job": new.job.as_str(), ":principal": new.principal, ":request_id": new.client_request_id,
        ":request_digest": new.request_digest, ":plan_digest": new.plan_digest,
        ":request": new.request, ":plan": new.plan, ":now": now.wall.0,
    };
    tx.execute("admitting an operation", PUT_OPERATION, operation)?;
    let id = new.attempt.as_str();
    let attempt = named_params! { ":id": id, ":job": new.job.as_str(), ":token": new.token_digest };
    tx.execute("admitting an attempt", PUT_ATTEMPT, attempt)?;
    tx.execute("reserving a slot", PUT_RESERVATION, named_params! { ":id": id, ":now": now.wall.0 })?;
    put_event(tx, new.attempt, 1, AttemptState::Admitted.as_str(), Reason::Admitted, now)
}

const PUT_EVENT: &str = "
    INSERT INTO attempt_event (attempt_id, revision, state, reason, at_us) VALUES (:id, :revision, :state, :reason, :now)";

fn put_event(tx: &Write<'_>, id: &AttemptId, revision: i64, state: &str, reason: Reason, now: Now) -> Result<()> {
    let event = named_params! {
        ":id": id.as_str(), ":revision": revision, ":state": state, ":reason": reason.as_str(), ":now": now.wall.0,
    };
    tx.execute("recording a transition", PUT_EVENT, event)?;
    Ok(())
}

const LOAD: &str = "
    SELECT a.state, a.reason, a.dispatch_boot_id, a.pid, a.start_ticks, a.stop_intent, a.terminal, a.outputs, a.revision,
           o.request_digest, o.plan_digest
      FROM attempt a JOIN operation o ON o.job_id = a.job_id WHERE a.id = :id";

/// The attempt `id`. Errors: `not_found`, and `internal` when the row contradicts itself.
pub(crate) fn load(read: &Read<'_>, id: &AttemptId) -> Result<Record> {
    let found = read.optional("loading an attempt", LOAD, named_params! { ":id": id.as_str() }, |row| {
        let raw = Raw {
            state: row.get("state")?,
            reason: row.get("reason")?,
            boot_id: row.get("dispatch_boot_id")?,
            pid: row.get("pid")?,
            start_ticks: row.get("start_ticks")?,
            stop_intent: row.get("stop_intent")?,
            terminal: row.get("terminal")?,
            outputs: row.get("outputs")?,
            revision: row.get("revision")?,
        };
        Ok((raw, row.get("request_digest")?, row.get("plan_digest")?))
    })?;
    let (raw, request_digest, plan_digest) = found.ok_or_else(|| Error::UnknownAttempt { attempt: id.clone() })?;
    let damaged = |why: &str| Error::Damaged { attempt: id.clone(), why: why.to_owned() };
    let reason = Reason::ALL.iter().copied().find(|reason| reason.as_str() == raw.reason);
    let outputs = raw.outputs.as_deref().map_or(Ok(Vec::new()), serde_json::from_str);
    Ok(Record {
        id: id.clone(),
        reason: reason.ok_or_else(|| damaged("its reason is not one"))?,
        outputs: outputs.map_err(|_| damaged("its outputs cannot be read"))?,
        revision: raw.revision,
        state: raw.state().ok_or_else(|| damaged("its state lacks what belongs to it"))?,
        request_digest,
        plan_digest,
    })
}

struct Raw {
    state: String,
    reason: String,
    boot_id: Option<String>,
    pid: Option<u32>,
    start_ticks: Option<i64>,
    stop_intent: Option<String>,
    terminal: Option<String>,
    outputs: Option<String>,
    revision: i64,
}

impl Raw {
    fn state(&self) -> Option<AttemptState> {
        let intent = match self.stop_intent.as_deref() {
            None => None,
            Some("cancel") => Some(StopReason::Cancel),
            Some("deadline") => Some(StopReason::Deadline),
            Some(_) => return None,
        };
        let unit = || {
            let boot_id = self.boot_id.clone()?;
            Some(Unit { pid: self.pid?, start_ticks: u64::try_from(self.start_ticks?).ok()?, boot_id })
        };
        Some(match self.state.as_str() {
            "admitted" => AttemptState::Admitted,
            "dispatching" => AttemptState::Dispatching { boot_id: self.boot_id.clone()? },
            "running" => AttemptState::Running { unit: unit()? },
            "stopping" => AttemptState::Stopping { reason: intent?, unit: unit(), boot_id: self.boot_id.clone()? },
            "orphaned" => AttemptState::Orphaned { intent, boot_id: self.boot_id.clone()? },
            name => {
                let terminal: Terminal = serde_json::from_str(self.terminal.as_deref()?).ok()?;
                if terminal.as_str() != name {
                    return None;
                }
                AttemptState::Ended { terminal }
            }
        })
    }
}

const MOVE: &str = "
    UPDATE attempt
       SET state = :state, reason = :reason, revision = revision + 1,
           dispatch_boot_id = coalesce(:boot, dispatch_boot_id),
           dispatched_at_us = CASE WHEN :state = 'dispatching' THEN :now ELSE dispatched_at_us END,
           pid = coalesce(:pid, pid), start_ticks = coalesce(:start_ticks, start_ticks),
           stop_intent = coalesce(:intent, stop_intent),
           terminal = :terminal, outputs = :outputs,
           finished_at_us = CASE WHEN :terminal IS NULL THEN NULL ELSE :now END
     WHERE id = :id AND revision = :revision";
const MOVE_RESERVATION: &str = "
    UPDATE reservation SET state = :state, since_us = :now WHERE attempt_id = :id AND state <> :state";

// The digests stay: they answer a replay. The texts have served, and hold arguments and environment.
const FORGET_DOCUMENTS: &str = "
    UPDATE operation SET request = '', plan = '' WHERE job_id = (SELECT job_id FROM attempt WHERE id = :id)";

/// Moves an attempt, with its reservation and its event; with its end the texts of its operation go. Error: `illegal_state` for a move that its state lacks.
pub(crate) fn transition(
    tx: &Write<'_>,
    record: Record,
    event: Event,
    reason: Reason,
    outputs: &[OutputFact],
    now: Now,
) -> Result<Record> {
    let illegal =
        Error::IllegalTransition { attempt: record.id.clone(), state: record.state.as_str(), event: event.as_str() };
    let Some(state) = record.state.after(event) else { return Err(illegal) };
    let (unit, intent, terminal) = match &state {
        AttemptState::Admitted | AttemptState::Dispatching { .. } => (None, None, None),
        AttemptState::Running { unit } => (Some(unit), None, None),
        AttemptState::Stopping { reason, unit, .. } => (unit.as_ref(), Some(*reason), None),
        AttemptState::Orphaned { intent, .. } => (None, *intent, None),
        AttemptState::Ended { terminal } => (None, None, Some(text(&record.id, terminal)?)),
    };
    let kept = if outputs.is_empty() { None } else { Some(text(&record.id, &outputs)?) };
    let moved = tx.execute("moving an attempt", MOVE, named_params! {
        ":id": record.id.as_str(), ":revision": record.revision, ":state": state.as_str(), ":reason": reason.as_str(),
        ":boot": state.boot_id(), ":pid": unit.map(|unit| unit.pid),
        ":start_ticks": unit.and_then(|unit| i64::try_from(unit.start_ticks).ok()),
        ":intent": intent.map(StopReason::as_str), ":terminal": terminal, ":outputs": kept,
        ":now": now.wall.0,
    })?;
    if moved != 1 {
        return Err(Error::Damaged { attempt: record.id, why: "its revision changed inside a transaction".into() });
    }
    let held = match &state {
        AttemptState::Ended { .. } => "released",
        AttemptState::Orphaned { .. } => "held_orphaned",
        AttemptState::Admitted
        | AttemptState::Dispatching { .. }
        | AttemptState::Running { .. }
        | AttemptState::Stopping { .. } => "active",
    };
    if matches!(state, AttemptState::Ended { .. }) {
        tx.execute("forgetting an operation's texts", FORGET_DOCUMENTS, named_params! { ":id": record.id.as_str() })?;
    }
    let slot = named_params! { ":id": record.id.as_str(), ":state": held, ":now": now.wall.0 };
    tx.execute("moving a reservation", MOVE_RESERVATION, slot)?;
    let revision = record.revision + 1;
    put_event(tx, &record.id, revision, state.as_str(), reason, now)?;
    Ok(Record { state, reason, revision, outputs: outputs.to_vec(), ..record })
}

fn text<T: serde::Serialize>(id: &AttemptId, what: &T) -> Result<String> {
    serde_json::to_string(what).map_err(|_| Error::Damaged { attempt: id.clone(), why: "a path is not UTF-8".into() })
}

const DOCUMENTS: &str = "
    SELECT o.request, o.plan FROM attempt a JOIN operation o ON o.job_id = a.job_id WHERE a.id = :id";

/// The canonical bytes of request and plan, as a bundle holds them; empty once the attempt has ended.
pub(crate) fn documents(read: &Read<'_>, id: &AttemptId) -> Result<(String, String)> {
    let row = |row: &Row<'_>| Ok((row.get("request")?, row.get("plan")?));
    let found = read.optional("loading an operation", DOCUMENTS, named_params! { ":id": id.as_str() }, row)?;
    found.ok_or_else(|| Error::UnknownAttempt { attempt: id.clone() })
}

const UNRESOLVED: &str = "SELECT id FROM attempt WHERE finished_at_us IS NULL AND id > :after ORDER BY id LIMIT :max";

/// Attempts that have not ended, by ID, after `after`.
pub(crate) fn unresolved(read: &Read<'_>, after: Option<&AttemptId>, max: usize) -> Result<Vec<AttemptId>> {
    let page =
        named_params! { ":after": after.map_or("", AttemptId::as_str), ":max": i64::try_from(max).unwrap_or(i64::MAX) };
    Ok(read.all("listing attempts", UNRESOLVED, page, |row| column_id(row, "id"))?)
}

const UNRESOLVED_OF: &str = "
    SELECT a.id FROM attempt a JOIN operation o ON o.job_id = a.job_id
     WHERE a.finished_at_us IS NULL AND substr(o.principal, 1, length(:prefix)) = :prefix";

/// Attempts that have not ended, of principals whose names begin with `prefix`.
pub(crate) fn unresolved_of(read: &Read<'_>, prefix: &str) -> Result<Vec<AttemptId>> {
    Ok(read.all("listing attempts", UNRESOLVED_OF, named_params! { ":prefix": prefix }, |row| column_id(row, "id"))?)
}

const ADMITTED: &str = "SELECT id FROM attempt WHERE finished_at_us IS NULL AND state = 'admitted' ORDER BY id";

/// Every attempt that has not crossed the boundary.
pub(crate) fn admitted(read: &Read<'_>) -> Result<Vec<AttemptId>> {
    Ok(read.all("listing attempts", ADMITTED, [], |row| column_id(row, "id"))?)
}

const IS_UNRESOLVED: &str =
    "SELECT EXISTS (SELECT 1 FROM attempt WHERE id = :id AND finished_at_us IS NULL) AS unresolved";

/// Whether the attempt is on record and has not ended.
pub(crate) fn is_unresolved(read: &Read<'_>, id: &AttemptId) -> Result<bool> {
    let id = named_params! { ":id": id.as_str() };
    Ok(read.one("looking up an attempt", IS_UNRESOLVED, id, |row| row.get("unresolved"))?)
}
