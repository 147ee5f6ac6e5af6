//! Doubts: requests of which nobody knows whether they were carried out, and an operator's word about one.
//!
//! Only what is in doubt can be resolved: a request that a handler works on at this moment is none of an operator's business.

use conduit_api::limits::PAGE_ITEMS_MAX;
use conduit_api::views::{DoubtOutcome, DoubtResolveRequest, DoubtView};
use conduit_api::{Code, EventId, UnixMicros};
use conduit_coordination::events::{self, NewEvent, kind, source};
use conduit_coordination::queries::{Key, Listed, Window};
use conduit_store::digest::Sha256Digest;
use conduit_store::{Now, Read, Row, RowResult, Write, column_id, mint, named_params};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::replay;

const LIST: &str = "
    SELECT i.*, e.work_id, e.scope_id, e.binding
      FROM intent i INDEXED BY intent_in_doubt JOIN execution e ON e.id = i.execution_id
     WHERE i.state = 'in_doubt' AND i.began_at_us <= :at
       AND (i.began_at_us < :at OR i.execution_id || ' ' || i.operation || ' ' || i.request_id < :id)
     ORDER BY i.began_at_us DESC, i.execution_id || ' ' || i.operation || ' ' || i.request_id DESC LIMIT :limit";
const GET: &str = "
    SELECT i.*, e.work_id, e.scope_id, e.binding, e.finished_at_us IS NOT NULL AS ended
      FROM intent i JOIN execution e ON e.id = i.execution_id
     WHERE i.execution_id = :execution AND i.operation = :operation AND i.request_id = :request AND i.state = 'in_doubt'";
const DELETE: &str = "
    DELETE FROM intent
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request AND state = 'in_doubt'";

/// What is in doubt, newest first.
pub fn list(r: &Read<'_>, window: Window<'_>) -> Result<Listed<DoubtView>> {
    let limit = window.limit.min(PAGE_ITEMS_MAX);
    let first = Key { at: i64::MAX, id: String::new() };
    let Key { at, id } = window.before.unwrap_or(&first);
    let one_more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let params = named_params! { ":at": at, ":id": id, ":limit": one_more };
    let mut items = r.all("listing doubts", LIST, params, view)?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|last| Key {
        at: last.began_at.0,
        id: format!("{} {} {}", last.execution_id, last.operation, last.request_id),
    });
    Ok(Listed { items, next })
}

/// Carries out what an operator says of a request: that it was done, so that its answer is replayed from now on; or that it
/// was not, so that it may be made again. Told in an Event of its Work, in the transaction that makes it true.
///
/// Errors: `illegal_state` when it is not in doubt; `invalid_request` for an output beside `not_done`.
pub fn resolve(tx: &Write<'_>, asked: &DoubtResolveRequest, actor: &str, now: Now) -> Result<DoubtView> {
    if asked.output.is_some() && asked.outcome == DoubtOutcome::NotDone {
        return Err(Error::operation(Code::InvalidRequest, "`output` is the answer of a request that was done"));
    }
    let params = named_params! {
        ":execution": asked.execution_id.as_str(), ":operation": asked.operation, ":request": asked.request_id,
    };
    let found = tx.optional("reading a doubt", GET, params, |row| {
        Ok((view(row)?, row.get::<_, Sha256Digest>("request_digest")?, row.get::<_, bool>("ended")?))
    })?;
    let (doubt, digest, ended) = found.ok_or_else(|| {
        Error::operation(Code::IllegalState, "the request is not in doubt; `open-conduit doubts` lists those that are")
    })?;
    tx.execute("resolving a doubt", DELETE, params)?;
    // Nobody can ask again for an execution that has ended.
    if asked.outcome == DoubtOutcome::Done && !ended {
        let output = asked.output.as_ref().unwrap_or(&Value::Null);
        replay::put(tx, &doubt.execution_id, &doubt.operation, &doubt.request_id, &digest, output, now)?;
    }
    let data = Map::from_iter([
        ("operation".to_owned(), Value::from(doubt.operation.as_str())),
        ("request_id".to_owned(), Value::from(doubt.request_id.as_str())),
        ("outcome".to_owned(), Value::from(asked.outcome.as_str())),
    ]);
    // The same request may be in doubt again.
    let delivery = mint::<EventId>(now).to_string();
    let event = NewEvent {
        work: Some(&doubt.work_id),
        execution: Some(&doubt.execution_id),
        actor: Some(actor),
        ..NewEvent::new(&doubt.scope_id, kind::REQUEST_RESOLVED, source::ACTION, &delivery, &data)
    };
    events::accept_core(tx, &event, now)?;
    Ok(doubt)
}

fn view(row: &Row<'_>) -> RowResult<DoubtView> {
    Ok(DoubtView {
        execution_id: column_id(row, "execution_id")?,
        work_id: column_id(row, "work_id")?,
        scope_id: column_id(row, "scope_id")?,
        binding: row.get("binding")?,
        operation: row.get("operation")?,
        request_id: row.get("request_id")?,
        began_at: UnixMicros(row.get("began_at_us")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::{StateDir, Store};

    /// However many requests are under way, a list of doubts reads none of them.
    #[test]
    fn a_list_of_doubts_reads_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let mut store = Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap();
        let explain =
            format!("EXPLAIN QUERY PLAN {}", LIST.replace(":at", "1").replace(":id", "''").replace(":limit", "1"));
        let plan = store.read(|r| r.all("testing", &explain, [], |row| row.get::<_, String>("detail"))).unwrap();
        assert!(plan.iter().any(|step| step.contains("intent_in_doubt (began_at_us<?)")), "{plan:?}");
        assert!(!plan.iter().any(|step| step.starts_with("SCAN")), "{plan:?}");
    }
}
