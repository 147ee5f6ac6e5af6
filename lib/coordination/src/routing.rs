//! Routing: each accepted Event is offered to the waits, then to its scope's routes, once, in acceptance order.

use conduit_api::{EventId, ScopeId, WorkId};
use conduit_config::{Effect, Snapshot};
use conduit_store::{Now, Read, Write, column_id, mint, named_params};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::events::bounds::Bounds;
use crate::events::{NewEvent, source};
use crate::executions;
use crate::routes::{self, Facts};
use crate::waits::decide::EventFacts;
use crate::work::{self, NewWork, State};
use crate::{inputs, waits};

/// An Event that has not been routed.
#[derive(Debug, Clone)]
struct Pending {
    seq: i64,
    id: EventId,
    scope: ScopeId,
    kind: String,
    source: String,
    correlation_key: Option<String>,
    work: Option<WorkId>,
    from_execution: bool,
    data: Value,
}

/// What a batch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Routed {
    pub events: usize,
    /// Whether a running segment was asked to stop.
    pub interrupted: bool,
}

const PENDING: &str = "
    SELECT seq, id, scope_id, type, source, correlation_key, work_id, execution_id IS NOT NULL AS emitted, data
      FROM event WHERE route IS NULL ORDER BY seq LIMIT :limit";
const ROUTED: &str = "UPDATE event SET route = :route WHERE seq = :seq";

/// Whether any Event waits to be routed.
pub fn pending(r: &Read<'_>) -> Result<bool> {
    Ok(r.one("looking for Events", "SELECT EXISTS (SELECT 1 FROM event WHERE route IS NULL)", [], |row| row.get(0))?)
}

/// Whether anything waits for Events of a type in a scope.
const AWAITED: &str =
    "SELECT EXISTS (SELECT 1 FROM wait_predicate WHERE scope_id = :scope AND type = :type AND open = 1)";

/// How an Event that is about to be accepted is routed at once, when nothing can come of it: no open wait is for its
/// type, and no route matches it, or the one that does drops it. It is then nobody's turn to look at it again, which
/// spares the scheduler a turn and a commit for each Event that is only told. A wait that is registered later looks
/// back at what was accepted, whether it was routed or not. `None`: the scheduler routes it in its turn.
pub fn unwanted(tx: &Write<'_>, snapshot: &Snapshot, event: &NewEvent<'_>) -> Result<Option<&'static str>> {
    if !snapshot.is_active(tx)? {
        return Ok(None); // read before the transaction: routes count as they are now
    }
    let routes = snapshot.enabled_scope(event.scope).map_or(&[][..], |scope| &scope.routes);
    let mut name = "unmatched";
    if !routes.is_empty() {
        let data = Value::Object(event.data.clone());
        let facts =
            Facts { kind: event.kind, source: event.source, correlation_key: event.correlation_key, data: &data };
        match routes::decide(routes, facts) {
            None => {}
            Some((_, Effect::Drop)) => name = Effect::Drop.name(),
            Some(_) => return Ok(None),
        }
    }
    let params = named_params! { ":scope": event.scope.as_str(), ":type": event.kind };
    let awaited: bool = tx.one("looking for waits", AWAITED, params, |row| row.get(0))?;
    Ok((!awaited).then_some(name))
}

/// Routes the oldest unrouted Events, at most `limit`.
pub fn route_batch(tx: &Write<'_>, snapshot: &Snapshot, limit: i64, now: Now) -> Result<Routed> {
    let batch = tx.all("looking for Events", PENDING, named_params! { ":limit": limit }, |row| {
        Ok(Pending {
            seq: row.get("seq")?,
            id: column_id(row, "id")?,
            scope: column_id(row, "scope_id")?,
            kind: row.get("type")?,
            source: row.get("source")?,
            correlation_key: row.get("correlation_key")?,
            work: row.get::<_, Option<String>>("work_id")?.is_some().then(|| column_id(row, "work_id")).transpose()?,
            from_execution: row.get("emitted")?,
            data: serde_json::from_str(&row.get::<_, String>("data")?).unwrap_or(Value::Null),
        })
    })?;
    let mut routed = Routed { events: batch.len(), interrupted: false };
    for event in &batch {
        let name = route_one(tx, snapshot, event, now, &mut routed.interrupted)?;
        tx.execute("routing an Event", ROUTED, named_params! { ":seq": event.seq, ":route": name })?;
    }
    Ok(routed)
}

fn route_one(
    tx: &Write<'_>,
    snapshot: &Snapshot,
    event: &Pending,
    now: Now,
    interrupted: &mut bool,
) -> Result<&'static str> {
    let key_owner = match &event.correlation_key {
        Some(key) => work::owner_of_key(tx, &event.scope, key)?,
        None => None,
    };
    let facts = EventFacts {
        scope: &event.scope,
        kind: &event.kind,
        source: &event.source,
        correlation_key: event.correlation_key.as_deref(),
        work: event.work.as_ref(),
        key_owner: key_owner.as_ref(),
        data: &event.data,
    };
    let woke = waits::offer(tx, &facts, event.seq, now)?;
    let unmatched = if woke { "wake" } else { "unmatched" };
    let Some(scope) = snapshot.enabled_scope(&event.scope) else { return Ok(unmatched) };
    let asked = Facts {
        kind: &event.kind,
        source: &event.source,
        correlation_key: event.correlation_key.as_deref(),
        data: &event.data,
    };
    let Some((_, effect)) = routes::decide(&scope.routes, asked) else { return Ok(unmatched) };
    // What an execution emits is about its own Work but not for it; everything else is for the Work that it names.
    let target = key_owner.clone().or_else(|| event.work.clone().filter(|_| !event.from_execution));
    match effect {
        Effect::Drop => Ok(effect.name()),
        Effect::Start { binding } => match &key_owner {
            Some(owner) => {
                inputs::queue_for(tx, owner, event.seq, "queue")?;
                Ok("queue")
            }
            None => start(tx, snapshot, event, binding, now, unmatched),
        },
        Effect::Queue | Effect::Inject | Effect::Interrupt | Effect::Wake => match target {
            Some(target) if !work::state_of(tx, &target)?.has_ended() => {
                apply(tx, effect, &target, event.seq, now, interrupted)?;
                Ok(effect.name())
            }
            _ => Ok(unmatched),
        },
    }
}

/// A new Work for the Event. A chain that has reached its depth starts nothing more: the Event stays, unmatched.
fn start(
    tx: &Write<'_>,
    snapshot: &Snapshot,
    event: &Pending,
    binding: &str,
    now: Now,
    unmatched: &'static str,
) -> Result<&'static str> {
    let keys: Vec<String> = event.correlation_key.iter().cloned().collect();
    let data = event.data.as_object().cloned().unwrap_or_default();
    let new = NewWork {
        id: mint(now),
        scope: &event.scope,
        binding,
        title: None,
        parent: None,
        keys: &keys,
        data: &data,
        cause: Some(&event.id),
        input: Some(event.seq),
        source: source::CORE,
        actor: None,
    };
    match work::create_routed(tx, &new, Bounds::of(snapshot), now) {
        Ok(_) => Ok("start"),
        Err(Error::CausalDepthExceeded { .. }) => Ok(unmatched),
        Err(error) => Err(error),
    }
}

fn apply(tx: &Write<'_>, effect: &Effect, target: &WorkId, seq: i64, now: Now, interrupted: &mut bool) -> Result<()> {
    let runs = work::state_of(tx, target)? == State::Running;
    match effect {
        // What cannot be told any more is for the next segment, or goes back to routing.
        Effect::Inject if runs && let Some(execution) = executions::listening_of(tx, target)? => {
            return inputs::inject(tx, target, &execution, seq);
        }
        Effect::Interrupt if runs => *interrupted |= executions::interrupt(tx, target)?,
        Effect::Interrupt | Effect::Wake if work::make_ready(tx, target, now)? => {
            waits::cancel_pending(tx, target, waits::Ended::Woken, now)?;
        }
        _ => {}
    }
    inputs::queue_for(tx, target, seq, effect.name())
}
