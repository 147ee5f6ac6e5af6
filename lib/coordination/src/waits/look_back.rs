//! The look back of a wait at what was accepted since its watermark (T12): before anything is written, within bounds.

use conduit_api::WorkId;
use conduit_api::toolbelt::{Predicate, WaitInput, WaitMode};
use conduit_store::{Read, Row, column_id, named_params};
use serde_json::Value;

use super::decide::{self, EventFacts};
use crate::error::{Error, Result};
use crate::events::source;
use crate::executions::Claimed;
use crate::work;

/// Events that one wait may look at, all its predicates together.
pub const LOOK_BACK_EVENTS_MAX: usize = 100_000;
/// Bytes of data that it may read from them.
pub const LOOK_BACK_BYTES_MAX: usize = 64 << 20;

/// What one wait may still look at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub events: usize,
    pub bytes: usize,
}

/// The first Event that meets each predicate, by position; for an any-of wait none behind the first that is met.
///
/// `told` is the newest input the segment was begun with, the watermark of a wait that names none: what was injected
/// later moves nothing, so nothing before it is missed. `None` when the wait would have to look at more than
/// [`LOOK_BACK_EVENTS_MAX`] Events or [`LOOK_BACK_BYTES_MAX`] bytes of their data.
pub(crate) fn look_back(
    r: &Read<'_>,
    claimed: &Claimed,
    wait: &WaitInput,
    told: i64,
) -> Result<Option<Vec<Option<i64>>>> {
    within(r, claimed, wait, told, Budget { events: LOOK_BACK_EVENTS_MAX, bytes: LOOK_BACK_BYTES_MAX })
}

pub(super) fn within(
    r: &Read<'_>,
    claimed: &Claimed,
    wait: &WaitInput,
    told: i64,
    mut budget: Budget,
) -> Result<Option<Vec<Option<i64>>>> {
    let mut found = Vec::new();
    for predicate in &wait.predicates {
        let watermark = wait.watermark.unwrap_or(told);
        let seq = match first_since(r, claimed, predicate, watermark, &mut budget)? {
            Look::Found(seq) => Some(seq),
            Look::Nothing => None,
            Look::Spent => return Ok(None),
        };
        found.push(seq);
        if seq.is_some() && wait.mode == WaitMode::Any {
            break;
        }
    }
    Ok(Some(found))
}

/// What the look for one predicate came to.
enum Look {
    Found(i64),
    Nothing,
    Spent,
}

/// An Event without its data, which is read only where a predicate asks for it.
struct Candidate {
    seq: i64,
    /// Whether scope and type are those that are waited for.
    asked: bool,
    source: String,
    correlation_key: Option<String>,
    work: Option<WorkId>,
}

const ABOUT: &str = "
    SELECT seq, scope_id = :scope AND type = :type AS asked, source, correlation_key, work_id FROM event INDEXED BY event_work
     WHERE work_id = :narrow AND seq > :after ORDER BY seq";
const KEYED: &str = "
    SELECT seq, scope_id = :scope AND type = :type AS asked, source, correlation_key, work_id FROM event INDEXED BY event_key
     WHERE scope_id = :scope AND type = :type AND correlation_key = :narrow AND seq > :after ORDER BY seq";
const FROM_SOURCE: &str = "
    SELECT seq, scope_id = :scope AND type = :type AS asked, source, correlation_key, work_id FROM event INDEXED BY event_source
     WHERE scope_id = :scope AND type = :type AND source = :narrow AND execution_id IS NULL AND seq > :after ORDER BY seq";
const WORK_OF: &str = "SELECT work_id FROM execution WHERE id = :execution";
const OWN_KEYS: &str = "SELECT key FROM work_key WHERE work_id = :work AND active = 1";
const DATA: &str = "SELECT data FROM event WHERE seq = :seq";

/// The first Event after `watermark` that matches, found by the narrowest index that the predicate allows.
fn first_since(
    r: &Read<'_>,
    claimed: &Claimed,
    predicate: &Predicate,
    watermark: i64,
    budget: &mut Budget,
) -> Result<Look> {
    let mut scan = |sql, narrow: &str| first_of(r, claimed, predicate, sql, narrow, watermark, budget);
    match (&predicate.work_id, &predicate.correlation_key, &predicate.source) {
        (Some(work), _, _) => scan(ABOUT, work.as_str()),
        (None, Some(key), _) => scan(KEYED, key),
        (None, None, Some(source)) => match source::is_execution(source) {
            None => scan(FROM_SOURCE, source),
            // What an execution emits is found by its Work.
            Some(id) => {
                let params = named_params! { ":execution": id };
                let work = r.optional("reading an execution", WORK_OF, params, |row| row.get::<_, String>(0))?;
                work.map_or(Ok(Look::Nothing), |work| scan(ABOUT, &work))
            }
        },
        // A type alone: on any of the Work's own keys.
        (None, None, None) => {
            let keys = r.all("reading keys", OWN_KEYS, named_params! { ":work": claimed.work.as_str() }, |row| {
                row.get::<_, String>("key")
            })?;
            let mut first = Look::Nothing;
            for key in keys {
                first = match (first, scan(KEYED, &key)?) {
                    (_, Look::Spent) => return Ok(Look::Spent),
                    (Look::Found(before), Look::Found(seq)) => Look::Found(before.min(seq)),
                    (Look::Nothing, found) => found,
                    (found, _) => found,
                };
            }
            Ok(first)
        }
    }
}

fn first_of(
    r: &Read<'_>,
    claimed: &Claimed,
    predicate: &Predicate,
    sql: &str,
    narrow: &str,
    watermark: i64,
    budget: &mut Budget,
) -> Result<Look> {
    let params = named_params! {
        ":scope": claimed.scope.as_str(), ":type": predicate.kind, ":narrow": narrow, ":after": watermark,
    };
    let look = |candidate: Candidate| {
        if budget.events == 0 {
            return Ok(Some(Look::Spent));
        }
        budget.events -= 1;
        if !candidate.asked || !concerned(r, claimed, predicate, &candidate)? {
            return Ok(None);
        }
        if predicate.data.is_empty() {
            return Ok(Some(Look::Found(candidate.seq)));
        }
        let seq = candidate.seq;
        let data: String = r.one("reading an Event", DATA, named_params! { ":seq": seq }, |row| row.get("data"))?;
        let Some(left) = budget.bytes.checked_sub(data.len()) else { return Ok(Some(Look::Spent)) };
        budget.bytes = left;
        // Routing takes data that cannot be read for none, and so does this.
        let data = serde_json::from_str(&data).unwrap_or(Value::Null);
        Ok::<_, Error>(decide::data_matches(&predicate.data, &data).then_some(Look::Found(seq)))
    };
    Ok(r.first("looking back for a wait", sql, params, candidate, look)?.unwrap_or(Look::Nothing))
}

fn candidate(row: &Row<'_>) -> rusqlite::Result<Candidate> {
    Ok(Candidate {
        seq: row.get("seq")?,
        asked: row.get("asked")?,
        source: row.get("source")?,
        correlation_key: row.get("correlation_key")?,
        work: row.get::<_, Option<String>>("work_id")?.is_some().then(|| column_id(row, "work_id")).transpose()?,
    })
}

/// Whether everything but the data is as the predicate asks.
fn concerned(r: &Read<'_>, claimed: &Claimed, predicate: &Predicate, candidate: &Candidate) -> Result<bool> {
    let key_owner = match &candidate.correlation_key {
        Some(key) => work::owner_of_key(r, &claimed.scope, key)?,
        None => None,
    };
    let facts = EventFacts {
        scope: &claimed.scope,
        kind: &predicate.kind,
        source: &candidate.source,
        correlation_key: candidate.correlation_key.as_deref(),
        work: candidate.work.as_ref(),
        key_owner: key_owner.as_ref(),
        data: &Value::Null,
    };
    Ok(decide::concerns(predicate, &claimed.work, &facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::bounds::Bounds;
    use crate::events::{NewEvent, accept, source};
    use conduit_store::{Clock, StateDir, Store};
    use serde_json::json;

    const ALL: Budget = Budget { events: usize::MAX, bytes: usize::MAX };

    /// A hundred Events `demo.x` of one source and one key, the n-th with `{"n": n}`, and a claim of a Work beside them.
    fn hundred() -> (tempfile::TempDir, Store, Claimed) {
        let base = tempfile::tempdir().unwrap();
        let mut store = Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap();
        let scope = "demo".parse().unwrap();
        let about = WorkId::from_parts(2, 2);
        let bounds = Bounds { depth_max: 9, per_minute: 9 };
        let accepted: Result<()> = store.write(|tx| {
            for n in 1..=100 {
                let (data, delivery) = (serde_json::Map::from_iter([("n".to_owned(), json!(n))]), n.to_string());
                let event = NewEvent {
                    work: Some(&about),
                    correlation_key: Some("k"),
                    ..NewEvent::new(&scope, "demo.x", source::MANUAL, &delivery, &data)
                };
                accept(tx, &event, bounds, Clock.now())?;
            }
            Ok(())
        });
        accepted.unwrap();
        let claimed = Claimed {
            execution: conduit_api::ExecutionId::from_parts(1, 1),
            work: WorkId::from_parts(1, 1),
            scope,
            binding: "b".into(),
            generation: 1,
            attempt: 1,
            epoch: 1,
            segment: 1,
            resumed: false,
            owner: "first".into(),
        };
        (base, store, claimed)
    }

    fn predicates() -> [Value; 3] {
        [
            json!({"work_id": WorkId::from_parts(2, 2)}),
            json!({"correlation_key": "k"}),
            json!({"source": source::MANUAL}),
        ]
    }

    fn wait(mut predicate: Value, data: Value) -> WaitInput {
        predicate["type"] = json!("demo.x");
        predicate["data"] = data;
        serde_json::from_value(json!({"mode": "any", "predicates": [predicate], "watermark": 0})).unwrap()
    }

    /// T12
    #[test]
    fn a_look_back_reads_no_event_behind_the_first_that_matches() {
        let (_base, mut store, claimed) = hundred();
        let mut look = |wait: &WaitInput, budget| store.read(|r| within(r, &claimed, wait, 0, budget)).unwrap();
        for predicate in predicates() {
            let one = Budget { events: 1, bytes: 0 };
            assert_eq!(look(&wait(predicate.clone(), json!({})), one), Some(vec![Some(1)]), "{predicate}");
            let third = wait(predicate.clone(), json!({"/n": 3}));
            assert_eq!(look(&third, Budget { events: 3, bytes: 100 }), Some(vec![Some(3)]), "{predicate}");
            assert_eq!(look(&third, Budget { events: 2, bytes: 100 }), None, "{predicate}");
            assert_eq!(look(&third, Budget { events: 3, bytes: 20 }), None, "{predicate}");
            assert_eq!(look(&wait(predicate.clone(), json!({"/n": 101})), ALL), Some(vec![None]), "{predicate}");
        }
    }

    /// However much was accepted, each look begins at its watermark, in an index, and sorts nothing.
    #[test]
    fn a_look_back_begins_at_its_watermark() {
        let (_base, mut store, _) = hundred();
        for (sql, index) in [
            (ABOUT, "event_work (work_id=? AND seq>?)"),
            (KEYED, "event_key (scope_id=? AND type=? AND correlation_key=? AND seq>?)"),
            (FROM_SOURCE, "event_source (scope_id=? AND type=? AND source=? AND seq>?)"),
        ] {
            let values =
                [":scope", ":type", ":narrow", ":after"].iter().fold(sql.to_owned(), |sql, n| sql.replace(n, "1"));
            let explain = format!("EXPLAIN QUERY PLAN {values}");
            let plan = store.read(|r| r.all("testing", &explain, [], |row| row.get::<_, String>("detail"))).unwrap();
            assert!(plan.iter().any(|step| step.contains(index)), "{plan:?}");
            assert!(!plan.iter().any(|step| step.starts_with("SCAN") || step.contains("TEMP")), "{plan:?}");
        }
    }
}
