//! `read_context`: what the execution may know, and never a secret or a token (T10).

use conduit_api::limits::{CONTEXT_DATA_BYTES_MAX, CONTEXT_INPUTS_MAX, CONTEXT_MATCHES_MAX};
use conduit_api::toolbelt::{
    ContextExecution, ContextGrants, ContextInput, ContextView, ContextWait, ContextWork, WaitMode,
};
use conduit_api::{UnixMicros, WorkId};
use conduit_config::Snapshot;
use conduit_store::{Read, Row, column_id, named_params};
use serde_json::Value;

use crate::check::{Authorized, ReadContext};
use crate::error::Result;
use crate::token::TokenRecord;

const HEAD: &str = "
    SELECT w.title, w.parent_work_id, e.attempt, e.epoch, e.segment, e.acknowledged,
           EXISTS (SELECT 1 FROM work_key k WHERE k.work_id = w.id AND k.active = 1) AS has_keys,
           EXISTS (SELECT 1 FROM wait a WHERE a.work_id = w.id) AS has_waits
      FROM execution e JOIN work w ON w.id = e.work_id WHERE e.id = :execution";
const KEYS: &str = "SELECT key FROM work_key WHERE work_id = :work AND active = 1 ORDER BY key";
const INPUTS: &str = "
    SELECT e.id, e.seq, e.type, e.source, e.correlation_key, e.work_id, octet_length(e.data) AS bytes,
           CASE WHEN octet_length(e.data) <= 1024 THEN e.data END AS small, e.accepted_at_us
      FROM work_input i JOIN event e ON e.seq = i.seq
     WHERE i.work_id = :work AND i.state <> 'queued' ORDER BY i.seq DESC LIMIT :limit";
const INPUTS_TOTAL: &str = "SELECT count(*) FROM work_input WHERE work_id = :work AND state <> 'queued'";
const WAITS: &str = "
    SELECT id, mode, state,
           (SELECT count(*) FROM wait_predicate p WHERE p.wait_id = w.id AND p.matched_seq IS NOT NULL) AS matches
      FROM wait w WHERE work_id = :work ORDER BY created_at_us DESC, id DESC LIMIT :limit";
const MATCHES: &str = "
    SELECT e.id, e.seq, e.type, e.source, e.correlation_key, e.work_id, octet_length(e.data) AS bytes,
           CASE WHEN octet_length(e.data) <= 1024 THEN e.data END AS small, e.accepted_at_us
      FROM wait_predicate p JOIN event e ON e.seq = p.matched_seq
     WHERE p.wait_id = :wait ORDER BY p.position LIMIT :limit";
const DATA: &str = "SELECT data FROM event WHERE seq = :seq";
/// Waits that one context shows, newest first.
const WAITS_MAX: i64 = 16;

/// An Event without its data, how many bytes that has, and the data itself when it is small enough to come with its row.
type Found = (ContextInput, i64, Option<String>);

fn event(row: &Row<'_>) -> conduit_store::RowResult<Found> {
    let event = ContextInput {
        event_id: column_id(row, "id")?,
        sequence: row.get("seq")?,
        kind: row.get("type")?,
        source: row.get("source")?,
        correlation_key: row.get("correlation_key")?,
        work_id: row.get::<_, Option<String>>("work_id")?.is_some().then(|| column_id(row, "work_id")).transpose()?,
        data: Value::Null,
        truncated: true,
        accepted_at: UnixMicros(row.get("accepted_at_us")?),
    };
    Ok((event, row.get("bytes")?, row.get("small")?))
}

/// The bytes of data that may be shown yet.
struct Room(i64);

impl Room {
    /// Reads the data of `found`, of each while there is room for it. What has none is not loaded at all.
    fn fill(&mut self, r: &Read<'_>, found: Vec<Found>) -> Result<Vec<ContextInput>> {
        let mut shown = Vec::with_capacity(found.len());
        for (mut event, bytes, small) in found {
            if bytes <= self.0 {
                self.0 -= bytes;
                let read = |row: &Row<'_>| row.get::<_, String>("data");
                let data = match small {
                    Some(data) => data,
                    None => r.one("reading an Event's data", DATA, named_params! { ":seq": event.sequence }, read)?,
                };
                event.data = serde_json::from_str(&data).unwrap_or_default();
                event.truncated = false;
            }
            shown.push(event);
        }
        Ok(shown)
    }
}

fn integer(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads the context of an authorized execution.
pub(crate) fn read(r: &Read<'_>, authorized: &Authorized<ReadContext>, snapshot: &Snapshot) -> Result<ContextView> {
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
        let more: (bool, bool) = (row.get("has_keys")?, row.get("has_waits")?);
        Ok((row.get::<_, Option<String>>("title")?, parent, execution, more))
    })?;
    // Most Works have neither keys nor waits: what is not there is not asked for.
    let (title, parent_work_id, execution, (has_keys, has_waits)) = head;
    let keys = match has_keys {
        true => r.all("reading keys", KEYS, named_params! { ":work": work }, |row| row.get(0))?,
        false => Vec::new(),
    };
    let params = named_params! { ":work": work, ":limit": integer(CONTEXT_INPUTS_MAX) };
    let mut inputs = Room(integer(CONTEXT_DATA_BYTES_MAX)).fill(r, r.all("reading inputs", INPUTS, params, event)?)?;
    inputs.reverse();
    let inputs_total = if inputs.len() < CONTEXT_INPUTS_MAX {
        inputs.len() as u64
    } else {
        r.one("counting inputs", INPUTS_TOTAL, named_params! { ":work": work }, |row| row.get::<_, i64>(0))?
            .unsigned_abs()
    };
    let waits = if has_waits { waits(r, work)? } else { Vec::new() };
    Ok(ContextView {
        scope_id: token.scope.clone(),
        work: ContextWork { id: token.work.clone(), title, binding: token.binding.clone(), parent_work_id, keys },
        execution,
        grants: grants(token, snapshot),
        inputs,
        inputs_total,
        waits,
    })
}

/// The waits of `work`, newest first, with what they matched.
fn waits(r: &Read<'_>, work: &str) -> Result<Vec<ContextWait>> {
    let rows = r.all("reading waits", WAITS, named_params! { ":work": work, ":limit": WAITS_MAX }, |row| {
        let mode = if row.get::<_, String>("mode")? == "any" { WaitMode::Any } else { WaitMode::All };
        let total = row.get::<_, i64>("matches")?.unsigned_abs();
        Ok(ContextWait {
            id: column_id(row, "id")?,
            mode,
            state: row.get("state")?,
            matches: Vec::new(),
            matches_total: total,
        })
    })?;
    let (mut room, mut left) = (Room(integer(CONTEXT_DATA_BYTES_MAX)), CONTEXT_MATCHES_MAX);
    let mut waits = Vec::with_capacity(rows.len());
    for wait in rows {
        let params = named_params! { ":wait": wait.id.as_str(), ":limit": integer(left) };
        let matches = room.fill(r, r.all("reading matches", MATCHES, params, event)?)?;
        left -= matches.len();
        waits.push(ContextWait { matches, ..wait });
    }
    Ok(waits)
}

/// What may be called now: what the token grants, as far as the configuration allows it still (T07, C07).
fn grants(token: &TokenRecord, snapshot: &Snapshot) -> ContextGrants {
    let (scope, granted) = (&token.scope, &token.grants);
    let within =
        |names: &[String], allowed: &dyn Fn(&str) -> bool| names.iter().filter(|name| allowed(name)).cloned().collect();
    ContextGrants {
        operations: within(&granted.operations, &|name| snapshot.authorize_operation(scope, name)),
        events: snapshot.authorize_families(scope, &granted.events),
        delegates: within(&granted.delegates, &|name| snapshot.binding(scope, name).is_some()),
    }
}
