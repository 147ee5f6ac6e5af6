//! What is shown, from the rows of one Work. Of people it names nobody, and of the host no process, path or delivery.

use conduit_api::WorkId;
use conduit_api::views::{EventView, ExecutionView, WorkView};
use conduit_coordination::queries::{self, Filter, Window};
use conduit_extension::desk::Fault;
use conduit_store::Read;
use serde_json::{Map, Value, json};

/// Bytes of one Event's data, or of one outcome, that are shown; what is larger is left out, and its size told.
const DATA_BYTES_MAX: usize = 8 << 10;

type Shown = Result<Option<Value>, Fault>;

fn of(work: &WorkId) -> Filter<'_> {
    Filter { work: Some(work), ..Filter::default() }
}

const fn newest(limit: usize) -> Window<'static> {
    Window { before: None, limit }
}

/// The Work itself; `None` when it is gone.
pub fn work(r: &Read<'_>, work: &WorkId) -> Shown {
    Ok(queries::work::get(r, work)?.map(|found| json!({"work": told(&found)})))
}

/// Its Events: those that are about it.
pub fn events(r: &Read<'_>, work: &WorkId, limit: usize) -> Shown {
    let listed = queries::events::list(r, of(work), newest(limit))?;
    let items: Vec<Value> = listed.items.iter().map(event).collect();
    Ok(Some(json!({"events": items, "more": listed.next.is_some()})))
}

/// The Works that it created.
pub fn children(r: &Read<'_>, work: &WorkId, limit: usize) -> Shown {
    let listed = queries::work::list(r, of(work), newest(limit))?;
    let items: Vec<Value> = listed.items.iter().map(told).collect();
    Ok(Some(json!({"children": items, "more": listed.next.is_some()})))
}

/// Its executions, the calling one among them.
pub fn executions(r: &Read<'_>, work: &WorkId, limit: usize) -> Shown {
    let listed = queries::executions::list(r, of(work), newest(limit))?;
    let items: Vec<Value> = listed.items.iter().map(execution).collect();
    Ok(Some(json!({"executions": items, "more": listed.next.is_some()})))
}

/// An object without what is not there.
fn present<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let present = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(present.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// A document within bounds, or else its size in bytes; the other of the two is null.
fn bounded(document: &Value) -> (Value, Value) {
    let bytes = document.to_string().len();
    if bytes <= DATA_BYTES_MAX { (document.clone(), Value::Null) } else { (Value::Null, json!(bytes)) }
}

fn told(work: &WorkView) -> Value {
    let (outcome, outcome_bytes) = bounded(work.outcome.as_ref().unwrap_or(&Value::Null));
    present([
        ("id", json!(work.id)),
        ("binding", json!(work.binding)),
        ("title", json!(work.title)),
        ("state", json!(work.state)),
        ("blocked_reason", json!(work.blocked_reason)),
        ("keys", json!(work.keys)),
        ("failures", json!(work.failures)),
        ("created_at", json!(work.created_at)),
        ("finished_at", json!(work.finished_at)),
        ("outcome", outcome),
        ("outcome_bytes", outcome_bytes),
    ])
}

fn event(event: &EventView) -> Value {
    let (data, data_bytes) = bounded(&event.data);
    present([
        ("id", json!(event.id)),
        ("sequence", json!(event.sequence)),
        ("type", json!(event.kind)),
        ("source", json!(event.source)),
        ("correlation_key", json!(event.correlation_key)),
        ("cause_id", json!(event.cause_id)),
        ("accepted_at", json!(event.accepted_at)),
        ("data", data),
        ("data_bytes", data_bytes),
    ])
}

fn execution(execution: &ExecutionView) -> Value {
    present([
        ("id", json!(execution.id)),
        ("binding", json!(execution.binding)),
        ("attempt", json!(execution.attempt)),
        ("segment", json!(execution.segment)),
        ("state", json!(execution.state)),
        ("code", json!(execution.code)),
        ("created_at", json!(execution.created_at)),
        ("started_at", json!(execution.started_at)),
        ("finished_at", json!(execution.finished_at)),
        ("deadline_at", json!(execution.deadline_at)),
    ])
}
