//! Registering a declared wait: its rows and its timeout, and a look back at what came since the watermark (T12).

use conduit_api::toolbelt::{Predicate, WaitInput, WaitMode};
use conduit_api::{WaitId, WorkId};
use conduit_store::{Now, Read, Write, column_id, mint, named_params};
use serde_json::Value;

use super::decide::{self, EventFacts};
use super::settle;
use crate::error::{Error, Result};
use crate::executions::Claimed;
use crate::work;

const INSERT: &str = "
    INSERT INTO wait (id, work_id, execution_id, scope_id, mode, state, watermark, timeout_at_us, unmatched, created_at_us)
    VALUES (:id, :work, :execution, :scope, :mode, 'pending', :watermark, :timeout, :unmatched, :at)";
const PREDICATE: &str = "
    INSERT INTO wait_predicate (wait_id, position, scope_id, type, subject, correlation_key, work_id, source, data, open)
    VALUES (:wait, :position, :scope, :type, :subject, :key, :work, :source, :data, 1)";

/// Registers a wait and backscans the Events accepted after its watermark, which defaults to `told`, the
/// newest input the segment was begun with: what was injected later moves nothing, so nothing before it is missed. A wait that is met already makes the Work ready at once.
pub fn register(tx: &Write<'_>, claimed: &Claimed, input: &WaitInput, told: i64, now: Now) -> Result<WaitId> {
    let id: WaitId = mint(now);
    let watermark = input.watermark.unwrap_or(told);
    let timeout = input
        .timeout_s
        .map(|s| now.wall.0.saturating_add(i64::try_from(s).unwrap_or(i64::MAX).saturating_mul(1_000_000)));
    let mode = match input.mode {
        WaitMode::Any => "any",
        WaitMode::All => "all",
    };
    let unmatched = decide::unmatched_at_first(input.mode, input.predicates.len());
    tx.execute("registering a wait", INSERT, named_params! {
        ":id": id.as_str(), ":work": claimed.work.as_str(), ":execution": claimed.execution.as_str(), ":scope": claimed.scope.as_str(),
        ":mode": mode, ":watermark": watermark, ":timeout": timeout, ":unmatched": i64::try_from(unmatched).unwrap_or(i64::MAX), ":at": now.wall.0,
    })?;
    for (position, predicate) in input.predicates.iter().enumerate() {
        tx.execute("registering a predicate", PREDICATE, named_params! {
            ":wait": id.as_str(), ":position": i64::try_from(position).unwrap_or(i64::MAX), ":scope": claimed.scope.as_str(), ":type": predicate.kind,
            ":subject": decide::subject(predicate, &claimed.work), ":key": predicate.correlation_key,
            ":work": predicate.work_id.as_ref().map(WorkId::as_str), ":source": predicate.source,
            ":data": Value::Object(predicate.data.clone()).to_string(),
        })?;
    }
    for (position, predicate) in input.predicates.iter().enumerate() {
        if let Some(seq) = first_since(tx, claimed, predicate, watermark)?
            && settle::matched(tx, &id, i64::try_from(position).unwrap_or(i64::MAX), seq, now)?
        {
            break; // the losers ended with it
        }
    }
    Ok(id)
}

/// The first Event after `watermark` that matches, found by the narrowest index that the predicate allows.
fn first_since(tx: &Read<'_>, claimed: &Claimed, predicate: &Predicate, watermark: i64) -> Result<Option<i64>> {
    const ABOUT: &str = "
        SELECT seq, source, correlation_key, work_id, data FROM event INDEXED BY event_work
         WHERE work_id = :narrow AND scope_id = :scope AND type = :type AND seq > :after ORDER BY seq";
    const KEYED: &str = "
        SELECT seq, source, correlation_key, work_id, data FROM event INDEXED BY event_key
         WHERE correlation_key = :narrow AND scope_id = :scope AND type = :type AND seq > :after ORDER BY seq";
    const FROM_SOURCE: &str = "
        SELECT seq, source, correlation_key, work_id, data FROM event INDEXED BY event_scope
         WHERE source = :narrow AND scope_id = :scope AND type = :type AND seq > :after ORDER BY seq";
    // A type alone: on any of the Work's keys.
    const OWN: &str = "
        SELECT e.seq, e.source, e.correlation_key, e.work_id, e.data
          FROM work_key k CROSS JOIN event e INDEXED BY event_key ON e.correlation_key = k.key
         WHERE k.work_id = :narrow AND k.active = 1 AND e.scope_id = :scope AND e.type = :type AND e.seq > :after ORDER BY e.seq";
    let (sql, narrow) = match (&predicate.work_id, &predicate.correlation_key, &predicate.source) {
        (Some(work), _, _) => (ABOUT, work.as_str()),
        (None, Some(key), _) => (KEYED, key.as_str()),
        (None, None, Some(source)) => (FROM_SOURCE, source.as_str()),
        (None, None, None) => (OWN, claimed.work.as_str()),
    };
    scan(tx, claimed, predicate, sql, watermark, narrow)
}

fn scan(
    tx: &Read<'_>,
    claimed: &Claimed,
    predicate: &Predicate,
    sql: &str,
    watermark: i64,
    narrow: &str,
) -> Result<Option<i64>> {
    let params = named_params! { ":scope": claimed.scope.as_str(), ":type": predicate.kind, ":after": watermark, ":narrow": narrow };
    let candidates = tx.all("looking back for a wait", sql, params, |row| {
        Ok((
            row.get::<_, i64>("seq")?,
            row.get::<_, String>("source")?,
            row.get::<_, Option<String>>("correlation_key")?,
            row.get::<_, Option<String>>("work_id")?
                .is_some()
                .then(|| column_id::<WorkId>(row, "work_id"))
                .transpose()?,
            row.get::<_, String>("data")?,
        ))
    })?;
    for (seq, source, key, about, data) in candidates {
        let data: Value =
            serde_json::from_str(&data).map_err(|_| Error::Invalid { why: "an Event's data cannot be read".into() })?;
        let key_owner = match &key {
            Some(key) => work::owner_of_key(tx, &claimed.scope, key)?,
            None => None,
        };
        let facts = EventFacts {
            scope: &claimed.scope,
            kind: &predicate.kind,
            source: &source,
            correlation_key: key.as_deref(),
            work: about.as_ref(),
            key_owner: key_owner.as_ref(),
            data: &data,
        };
        if decide::matches(predicate, &claimed.work, &facts) {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}
