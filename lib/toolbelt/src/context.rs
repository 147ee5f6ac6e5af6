//! `read_context`: what the execution may know, and never a secret or a token (T10).

use conduit_api::limits::CONTEXT_INPUTS_MAX;
use conduit_api::toolbelt::{
    ContextExecution, ContextGrants, ContextInput, ContextView, ContextWait, ContextWork, WaitMode,
};
use conduit_api::{UnixMicros, WaitId, WorkId};
use conduit_store::{Read, Row, column_id, named_params};

use crate::check::{Authorized, ReadContext};
use crate::error::Result;

const HEAD: &str = "
    SELECT w.title, w.parent_work_id, e.attempt, e.epoch, e.segment, e.acknowledged
      FROM execution e JOIN work w ON w.id = e.work_id WHERE e.id = :execution";
const KEYS: &str = "SELECT key FROM work_key WHERE work_id = :work AND active = 1 ORDER BY key";
const INPUTS: &str = "
    SELECT e.id, e.seq, e.type, e.source, e.correlation_key, e.work_id, e.data, e.accepted_at_us
      FROM work_input i JOIN event e ON e.seq = i.seq
     WHERE i.work_id = :work AND i.state <> 'queued' ORDER BY i.seq DESC LIMIT :limit";
const INPUTS_TOTAL: &str = "SELECT count(*) FROM work_input WHERE work_id = :work AND state <> 'queued'";
const WAITS: &str =
    "SELECT id, mode, state FROM wait WHERE work_id = :work ORDER BY created_at_us DESC, id DESC LIMIT :limit";
const MATCHES: &str = "
    SELECT e.id, e.seq, e.type, e.source, e.correlation_key, e.work_id, e.data, e.accepted_at_us
      FROM wait_predicate p JOIN event e ON e.seq = p.matched_seq WHERE p.wait_id = :wait ORDER BY p.position";
/// Waits that one context shows, newest first.
const WAITS_MAX: i64 = 16;

fn input(row: &Row<'_>) -> conduit_store::RowResult<ContextInput> {
    let data: String = row.get("data")?;
    Ok(ContextInput {
        event_id: column_id(row, "id")?,
        sequence: row.get("seq")?,
        kind: row.get("type")?,
        source: row.get("source")?,
        correlation_key: row.get("correlation_key")?,
        work_id: row.get::<_, Option<String>>("work_id")?.is_some().then(|| column_id(row, "work_id")).transpose()?,
        data: serde_json::from_str(&data).unwrap_or_default(),
        accepted_at: UnixMicros(row.get("accepted_at_us")?),
    })
}

/// Reads the context of an authorized execution.
pub(crate) fn read(r: &Read<'_>, authorized: &Authorized<ReadContext>) -> Result<ContextView> {
    let token = authorized.token();
    let work = token.work.as_str();
    let head = r.one("reading a context", HEAD, named_params! { ":execution": token.execution.as_str() }, |row| {
        let parent: Option<WorkId> = row
            .get::<_, Option<String>>("parent_work_id")?
            .is_some()
            .then(|| column_id(row, "parent_work_id"))
            .transpose()?;
        let execution = ContextExecution {
            id: token.execution.clone(),
            attempt: row.get("attempt")?,
            epoch: row.get("epoch")?,
            segment: row.get("segment")?,
            acknowledged: row.get("acknowledged")?,
        };
        Ok((row.get::<_, Option<String>>("title")?, parent, execution))
    })?;
    let (title, parent_work_id, execution) = head;
    let keys = r.all("reading keys", KEYS, named_params! { ":work": work }, |row| row.get(0))?;
    let limit = i64::try_from(CONTEXT_INPUTS_MAX).unwrap_or(i64::MAX);
    let mut inputs = r.all("reading inputs", INPUTS, named_params! { ":work": work, ":limit": limit }, input)?;
    inputs.reverse();
    let inputs_total = if inputs.len() < CONTEXT_INPUTS_MAX {
        inputs.len() as u64
    } else {
        r.one("counting inputs", INPUTS_TOTAL, named_params! { ":work": work }, |row| row.get::<_, i64>(0))?
            .unsigned_abs()
    };
    let rows = r.all("reading waits", WAITS, named_params! { ":work": work, ":limit": WAITS_MAX }, |row| {
        Ok((column_id::<WaitId>(row, "id")?, row.get::<_, String>("mode")?, row.get::<_, String>("state")?))
    })?;
    let mut waits = Vec::with_capacity(rows.len());
    for (id, mode, state) in rows {
        let matches = r.all("reading matches", MATCHES, named_params! { ":wait": id.as_str() }, input)?;
        let mode = if mode == "any" { WaitMode::Any } else { WaitMode::All };
        waits.push(ContextWait { id, mode, state, matches });
    }
    Ok(ContextView {
        scope_id: token.scope.clone(),
        work: ContextWork { id: token.work.clone(), title, binding: token.binding.clone(), parent_work_id, keys },
        execution,
        grants: ContextGrants {
            operations: token.grants.operations.clone(),
            events: token.grants.events.clone(),
            delegates: token.grants.delegates.clone(),
        },
        inputs,
        inputs_total,
        waits,
    })
}
