//! Ending waits: matched, timed out, woken, cancelled; the losers of an any-of wait end with it.

use conduit_api::toolbelt::Predicate;
use conduit_api::{EventId, ScopeId, WaitId, WorkId};
use conduit_store::{Now, Read, Write, column_id, named_params};
use serde_json::{Map, Value};

use super::decide::{self, EventFacts};
use crate::error::Result;
use crate::events::{self, NewEvent, kind, source};
use crate::{inputs, work};

/// How a wait ended other than by its predicates or its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Woken,
    Cancelled,
}

const CANDIDATES: &str = "
    SELECT p.wait_id, p.position, p.type, p.correlation_key, p.work_id, p.source, p.data, w.work_id AS waiting
      FROM wait_predicate p JOIN wait w ON w.id = p.wait_id
     WHERE p.open = 1 AND p.scope_id = :scope AND p.type = :type AND p.subject = :subject AND w.watermark < :seq ORDER BY p.wait_id, p.position";
const MATCH: &str = "
    UPDATE wait_predicate SET open = 0, matched_seq = :seq WHERE wait_id = :wait AND position = :position AND open = 1";
const COUNT_DOWN: &str = "UPDATE wait SET unmatched = unmatched - 1 WHERE id = :wait AND state = 'pending'";
const LEFT: &str = "SELECT unmatched, work_id FROM wait WHERE id = :wait AND state = 'pending'";
const END: &str = "UPDATE wait SET state = :state, finished_at_us = :at WHERE id = :wait AND state = 'pending'";
const CLOSE: &str = "UPDATE wait_predicate SET open = 0 WHERE wait_id = :wait AND open = 1";
const PENDING: &str = "SELECT id FROM wait INDEXED BY wait_work WHERE work_id = :work AND state = 'pending'";
const DUE: &str = "
    SELECT w.id, w.work_id, w.scope_id, e.cause_event_id FROM wait w INDEXED BY wait_due JOIN execution e ON e.id = w.execution_id
     WHERE w.state = 'pending' AND w.timeout_at_us IS NOT NULL AND w.timeout_at_us <= :now ORDER BY w.timeout_at_us LIMIT :limit";
const NEXT_DUE: &str = "
    SELECT min(timeout_at_us) FROM wait INDEXED BY wait_due WHERE state = 'pending' AND timeout_at_us IS NOT NULL";
const MATCHED: &str =
    "SELECT matched_seq FROM wait_predicate WHERE wait_id = :wait AND matched_seq IS NOT NULL ORDER BY matched_seq";

fn end(tx: &Write<'_>, wait: &WaitId, state: &str, now: Now) -> Result<()> {
    tx.execute("ending a wait", END, named_params! { ":wait": wait.as_str(), ":state": state, ":at": now.wall.0 })?;
    tx.execute("closing predicates", CLOSE, named_params! { ":wait": wait.as_str() })?;
    Ok(())
}

/// Matches one predicate; `true` when that ends the wait, whose Work is ready then and has the matches as input.
pub(super) fn matched(tx: &Write<'_>, wait: &WaitId, position: i64, seq: i64, now: Now) -> Result<bool> {
    let hit = tx.execute(
        "matching a predicate",
        MATCH,
        named_params! { ":wait": wait.as_str(), ":position": position, ":seq": seq },
    )?;
    if hit == 0 {
        return Ok(false);
    }
    tx.execute("counting a match", COUNT_DOWN, named_params! { ":wait": wait.as_str() })?;
    let left = tx.optional("reading a wait", LEFT, named_params! { ":wait": wait.as_str() }, |row| {
        Ok((row.get::<_, i64>("unmatched")?, column_id::<WorkId>(row, "work_id")?))
    })?;
    let Some((unmatched, waiting)) = left else { return Ok(false) };
    if unmatched > 0 {
        return Ok(false);
    }
    end(tx, wait, "matched", now)?;
    let matches =
        tx.all("reading matches", MATCHED, named_params! { ":wait": wait.as_str() }, |row| row.get::<_, i64>(0))?;
    for seq in matches {
        inputs::queue(tx, &waiting, seq)?;
    }
    work::make_ready(tx, &waiting, now)?;
    Ok(true)
}

/// Offers an Event to everything that waits for what came after its watermark, however late it is routed; returns whether it matched anything.
pub fn offer(tx: &Write<'_>, event: &EventFacts<'_>, seq: i64, now: Now) -> Result<bool> {
    let mut any = false;
    for subject in decide::subjects(event) {
        let params =
            named_params! { ":scope": event.scope.as_str(), ":type": event.kind, ":subject": subject, ":seq": seq };
        let candidates = tx.all("looking for waits", CANDIDATES, params, |row| {
            Ok((
                column_id::<WaitId>(row, "wait_id")?,
                row.get::<_, i64>("position")?,
                column_id::<WorkId>(row, "waiting")?,
                Predicate {
                    kind: row.get("type")?,
                    correlation_key: row.get("correlation_key")?,
                    work_id: row
                        .get::<_, Option<String>>("work_id")?
                        .is_some()
                        .then(|| column_id(row, "work_id"))
                        .transpose()?,
                    source: row.get("source")?,
                    data: serde_json::from_str(&row.get::<_, String>("data")?).unwrap_or_default(),
                },
            ))
        })?;
        for (wait, position, waiting, predicate) in candidates {
            if decide::matches(&predicate, &waiting, event) {
                any = true;
                matched(tx, &wait, position, seq, now)?;
            }
        }
    }
    Ok(any)
}

/// Ends every pending wait of a Work.
pub fn cancel_pending(tx: &Write<'_>, work: &WorkId, how: Ended, now: Now) -> Result<()> {
    let state = match how {
        Ended::Woken => "woken",
        Ended::Cancelled => "cancelled",
    };
    for wait in tx.all("looking for waits", PENDING, named_params! { ":work": work.as_str() }, |row| {
        column_id::<WaitId>(row, "id")
    })? {
        end(tx, &wait, state, now)?;
    }
    Ok(())
}

/// When the next wait times out.
pub fn next_due(r: &Read<'_>) -> Result<Option<i64>> {
    Ok(r.one("looking for timeouts", NEXT_DUE, [], |row| row.get(0))?)
}

/// Times out what is due, at most `limit` at once; each Work goes on with a `core.wait.timed_out` as input.
pub fn fire_due(tx: &Write<'_>, limit: i64, now: Now) -> Result<usize> {
    let due = tx.all("looking for timeouts", DUE, named_params! { ":now": now.wall.0, ":limit": limit }, |row| {
        Ok((
            column_id::<WaitId>(row, "id")?,
            column_id::<WorkId>(row, "work_id")?,
            column_id::<ScopeId>(row, "scope_id")?,
            column_id::<EventId>(row, "cause_event_id")?,
        ))
    })?;
    for (wait, waiting, scope, cause) in &due {
        end(tx, wait, "timed_out", now)?;
        let data = Map::from_iter([("wait_id".to_owned(), Value::from(wait.as_str()))]);
        let delivery = format!("{wait}.timed_out");
        let event = NewEvent {
            work: Some(waiting),
            cause: Some(cause),
            ..NewEvent::new(scope, kind::WAIT_TIMED_OUT, source::CORE, &delivery, &data)
        };
        let accepted = events::accept_core(tx, &event, now)?;
        inputs::queue(tx, waiting, accepted.sequence)?;
        work::make_ready(tx, waiting, now)?;
    }
    Ok(due.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::{StateDir, Store};

    /// However many waits there are, an Event and a due time find theirs by an index.
    #[test]
    fn offering_an_event_and_looking_for_due_waits_read_only_what_they_return() {
        let base = tempfile::tempdir().unwrap();
        let mut store = Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap();
        for (sql, index) in [
            (CANDIDATES, "wait_predicate_open (scope_id=? AND type=? AND subject=?)"),
            (DUE, "wait_due"),
            (NEXT_DUE, "wait_due"),
            (PENDING, "wait_work"),
        ] {
            let values = [":scope", ":type", ":subject", ":seq", ":now", ":limit", ":work"]
                .iter()
                .fold(sql.to_owned(), |sql, name| sql.replace(name, "1"));
            let explain = format!("EXPLAIN QUERY PLAN {values}");
            let plan = store.read(|r| r.all("testing", &explain, [], |row| row.get::<_, String>("detail"))).unwrap();
            assert!(plan.iter().any(|step| step.contains(index)), "{plan:?}");
            assert!(!plan.iter().any(|step| step.starts_with("SCAN") || step.contains("TEMP")), "{plan:?}");
        }
    }
}
