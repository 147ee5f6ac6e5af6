//! Accepting an Event.

use conduit_api::{EventId, ExecutionId, ScopeId, WorkId};
use conduit_store::{Now, Read, Write, column_id, digest, mint, named_params};
use serde_json::{Map, Value, json};

use super::bounds::{Bounded, Bounds, Chain};
use super::source;
use crate::error::{Error, Result};

/// An Event that asks to be accepted. Who fills in source, cause and actor decides what can be trusted.
#[derive(Debug, Clone)]
pub struct NewEvent<'a> {
    pub scope: &'a ScopeId,
    pub kind: &'a str,
    pub source: &'a str,
    /// Names this delivery within its source: the same one is accepted once.
    pub delivery_id: &'a str,
    pub data: &'a Map<String, Value>,
    pub schema: Option<&'a str>,
    pub correlation_key: Option<&'a str>,
    pub work: Option<&'a WorkId>,
    pub execution: Option<&'a ExecutionId>,
    /// The Event it follows from; without one it is a root.
    pub cause: Option<&'a EventId>,
    /// Who said so. Dropped unless the source is an operator's (M06).
    pub actor: Option<&'a str>,
}

impl<'a> NewEvent<'a> {
    /// A plain Event of `scope`; the rest is filled in by field.
    pub const fn new(
        scope: &'a ScopeId,
        kind: &'a str,
        source: &'a str,
        delivery_id: &'a str,
        data: &'a Map<String, Value>,
    ) -> Self {
        Self {
            scope,
            kind,
            source,
            delivery_id,
            data,
            schema: None,
            correlation_key: None,
            work: None,
            execution: None,
            cause: None,
            actor: None,
        }
    }

    /// Digest of everything the deliverer chose, so that a changed redelivery is seen. What an execution emits gets
    /// its cause from the host: the same delivery in a later segment is the same.
    fn request_digest(&self) -> digest::Sha256Digest {
        let cause = self.cause.filter(|_| self.execution.is_none());
        let chosen = json!({
            "scope": self.scope, "type": self.kind, "data": self.data, "schema": self.schema,
            "correlation_key": self.correlation_key, "work": self.work, "cause": cause,
        });
        digest::sha256(&digest::canonical_json(&chosen))
    }
}

/// What acceptance says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    pub id: EventId,
    pub sequence: i64,
    /// Whether this very delivery had been accepted before.
    pub replayed: bool,
}

const DELIVERED: &str = "SELECT id, seq, request_digest FROM event WHERE source = :source AND delivery_id = :delivery";
const CAUSE: &str = "SELECT root_id, depth, scope_id FROM event WHERE id = :id";
const CHAIN: &str = "SELECT depth_max, per_minute, minute, minute_count FROM causal_root WHERE root_id = :root";
const PIN: &str = "
    INSERT INTO causal_root (root_id, depth_max, per_minute, minute, minute_count)
    VALUES (:root, :depth_max, :per_minute, :minute, :count)
    ON CONFLICT (root_id) DO UPDATE SET minute = :minute, minute_count = :count";
const INSERT: &str = "
    INSERT INTO event (id, scope_id, type, source, delivery_id, request_digest, correlation_key, work_id, execution_id,
                       cause_id, root_id, depth, actor, schema, data, accepted_at_us, route)
    VALUES (:id, :scope, :type, :source, :delivery, :digest, :key, :work, :execution, :cause, :root, :depth, :actor, :schema, :data, :at, :route)";

/// Accepts an Event once. Bounds apply to derived Events.
///
/// Errors: `idempotency_conflict` when the delivery was accepted with another content, `invalid_request` for an
/// unknown cause, `causal_depth_exceeded`, `causal_rate_exceeded`.
pub fn accept(tx: &Write<'_>, event: &NewEvent<'_>, bounds: Bounds, now: Now) -> Result<Accepted> {
    insert(tx, event, Bounded::Asked(bounds), now)
}

/// Accepts what routing makes out of an accepted Event: held against the depth of its chain alone.
///
/// Errors: those of [`accept`] but `causal_rate_exceeded`.
pub(crate) fn accept_derived(tx: &Write<'_>, event: &NewEvent<'_>, bounds: Bounds, now: Now) -> Result<Accepted> {
    insert(tx, event, Bounded::Derived(bounds), now)
}

/// Accepts what the host itself has to say; bounds neither count it nor refuse it, so that no ending goes untold.
pub fn accept_core(tx: &Write<'_>, event: &NewEvent<'_>, now: Now) -> Result<Accepted> {
    insert(tx, event, Bounded::Free, now)
}

fn insert(tx: &Write<'_>, event: &NewEvent<'_>, bounded: Bounded, now: Now) -> Result<Accepted> {
    match look_up(tx, event)? {
        Delivery::Accepted(accepted) => Ok(accepted),
        Delivery::Unknown(delivery) => delivery.insert(tx, bounded, None, now),
    }
}

/// What is known of a delivery.
#[derive(Debug)]
pub enum Delivery<'e> {
    /// It was accepted before, with this content.
    Accepted(Accepted),
    Unknown(Unknown<'e>),
}

/// A delivery that was looked for in this transaction and not found.
#[derive(Debug)]
pub struct Unknown<'e> {
    event: &'e NewEvent<'e>,
    request_digest: digest::Sha256Digest,
}

/// Looks a delivery up. Error: `idempotency_conflict` when it was accepted with another content.
pub fn look_up<'e>(tx: &Write<'_>, event: &'e NewEvent<'e>) -> Result<Delivery<'e>> {
    let request_digest = event.request_digest();
    let known = tx.optional(
        "looking a delivery up",
        DELIVERED,
        named_params! { ":source": event.source, ":delivery": event.delivery_id },
        |row| Ok((column_id(row, "id")?, row.get("seq")?, row.get::<_, Vec<u8>>("request_digest")?)),
    )?;
    match known {
        None => Ok(Delivery::Unknown(Unknown { event, request_digest })),
        Some((id, sequence, digest)) if digest == request_digest => {
            Ok(Delivery::Accepted(Accepted { id, sequence, replayed: true }))
        }
        Some(_) => Err(Error::DeliveryConflict),
    }
}

/// Whether `source` delivered anything under this name before.
pub fn is_delivered(r: &Read<'_>, source: &str, delivery_id: &str) -> Result<bool> {
    let params = named_params! { ":source": source, ":delivery": delivery_id };
    Ok(r.optional("looking a delivery up", DELIVERED, params, |_| Ok(()))?.is_some())
}

impl Unknown<'_> {
    /// Accepts the Event, as [`accept`] does. With a `route` it is routed at once, and nobody's turn to look at again.
    ///
    /// Errors: those of [`accept`] but `idempotency_conflict`.
    pub fn accept(self, tx: &Write<'_>, bounds: Bounds, route: Option<&'static str>, now: Now) -> Result<Accepted> {
        self.insert(tx, Bounded::Asked(bounds), route, now)
    }

    fn insert(self, tx: &Write<'_>, bounded: Bounded, route: Option<&'static str>, now: Now) -> Result<Accepted> {
        let Self { event, request_digest } = self;
        let id: EventId = mint(now);
        let (root, depth) = match event.cause {
            None => (id.clone(), 0),
            Some(cause) => {
                let (root, depth) = cause_of(tx, cause, event.scope)?;
                grow_chain(tx, &root, depth + 1, bounded, now)?;
                (root, depth + 1)
            }
        };
        let actor = event.actor.filter(|_| [source::MANUAL, source::ACTION].contains(&event.source));
        let data = serde_json::to_string(event.data).map_err(|e| Error::Invalid { why: e.to_string() })?;
        let sequence = tx.insert(
            "accepting an Event",
            INSERT,
            named_params! {
                ":id": id.as_str(), ":scope": event.scope.as_str(), ":type": event.kind, ":source": event.source,
                ":delivery": event.delivery_id, ":digest": request_digest, ":key": event.correlation_key,
                ":work": event.work.map(WorkId::as_str), ":execution": event.execution.map(ExecutionId::as_str),
                ":cause": event.cause.map(EventId::as_str), ":root": root.as_str(), ":depth": depth, ":actor": actor,
                ":schema": event.schema, ":data": data, ":at": now.wall.0, ":route": route,
            },
        )?;
        Ok(Accepted { id, sequence, replayed: false })
    }
}

/// Root and depth of the cause, which has to stand in the same scope.
fn cause_of(tx: &Read<'_>, cause: &EventId, scope: &ScopeId) -> Result<(EventId, i64)> {
    let found = tx.optional("looking a cause up", CAUSE, named_params! { ":id": cause.as_str() }, |row| {
        Ok((column_id(row, "root_id")?, row.get::<_, i64>("depth")?, row.get::<_, String>("scope_id")?))
    })?;
    match found {
        Some((root, depth, found)) if found == scope.as_str() => Ok((root, depth)),
        _ => Err(Error::UnknownCause),
    }
}

fn grow_chain(tx: &Write<'_>, root: &EventId, depth: i64, bounded: Bounded, now: Now) -> Result<()> {
    let (Bounded::Asked(configured) | Bounded::Derived(configured)) = bounded else { return Ok(()) };
    let pinned = tx.optional("reading a causal chain", CHAIN, named_params! { ":root": root.as_str() }, |row| {
        Ok(Chain {
            bounds: Bounds { depth_max: row.get("depth_max")?, per_minute: row.get("per_minute")? },
            minute: row.get("minute")?,
            minute_count: row.get("minute_count")?,
        })
    })?;
    let chain = pinned.unwrap_or_else(|| Chain::new(configured));
    let grown = match bounded {
        Bounded::Asked(_) => chain.grow(depth, now.boot_us / 60_000_000)?,
        Bounded::Derived(_) | Bounded::Free => chain.deepen(depth)?,
    };
    tx.execute(
        "growing a causal chain",
        PIN,
        named_params! {
            ":root": root.as_str(), ":depth_max": grown.bounds.depth_max, ":per_minute": grown.bounds.per_minute,
            ":minute": grown.minute, ":count": grown.minute_count,
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::{Clock, StateDir, Store};

    const BOUNDS: Bounds = Bounds { depth_max: 3, per_minute: 100 };

    fn store(base: &tempfile::TempDir) -> Store {
        Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap()
    }

    fn put(store: &mut Store, delivery: &str, n: i64, cause: Option<&EventId>) -> Result<Accepted> {
        let scope: ScopeId = "demo".parse().unwrap();
        let data = Map::from_iter([("n".to_owned(), json!(n))]);
        let event = NewEvent { cause, ..NewEvent::new(&scope, "demo.x", "core.manual", delivery, &data) };
        store.write(|tx| accept(tx, &event, BOUNDS, Clock.now()))
    }

    /// T14
    #[test]
    fn the_same_delivery_is_accepted_once_and_a_changed_one_is_a_conflict() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let first = put(&mut store, "a", 1, None).unwrap();
        let again = put(&mut store, "a", 1, None).unwrap();
        assert_eq!((first.id.clone(), first.sequence), (again.id, again.sequence));
        assert!(!first.replayed && again.replayed);
        assert!(matches!(put(&mut store, "a", 2, None), Err(Error::DeliveryConflict)));
        assert_eq!(put(&mut store, "b", 1, None).unwrap().sequence, first.sequence + 1);
    }

    /// T08
    #[test]
    fn a_chain_that_feeds_itself_ends_at_the_depth_its_root_pinned() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let mut last = put(&mut store, "0", 0, None).unwrap().id;
        for depth in 1..=3 {
            last = put(&mut store, &depth.to_string(), depth, Some(&last)).unwrap().id;
        }
        assert!(matches!(put(&mut store, "4", 4, Some(&last)), Err(Error::CausalDepthExceeded { depth_max: 3 })));
    }

    /// T08
    #[test]
    fn a_cause_that_does_not_exist_or_stands_in_another_scope_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let root = put(&mut store, "0", 0, None).unwrap().id;
        assert!(matches!(put(&mut store, "1", 1, Some(&EventId::from_parts(9, 9))), Err(Error::UnknownCause)));
        let other: ScopeId = "other".parse().unwrap();
        let data = Map::new();
        let event = NewEvent { cause: Some(&root), ..NewEvent::new(&other, "demo.x", "core.manual", "2", &data) };
        let refused = store.write(|tx| accept(tx, &event, BOUNDS, Clock.now()));
        assert!(matches!(refused, Err(Error::UnknownCause)));
    }

    /// M06
    #[test]
    fn an_actor_from_any_source_but_an_operator_is_dropped() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let scope: ScopeId = "demo".parse().unwrap();
        let data = Map::new();
        let kept = Some("operator:local");
        for (source, kept) in [("core.manual", kept), ("core.action", kept), ("execution:exe_x", None), ("core", None)]
        {
            let event =
                NewEvent { actor: Some("operator:local"), ..NewEvent::new(&scope, "demo.x", source, source, &data) };
            let id = store.write(|tx| accept(tx, &event, BOUNDS, Clock.now())).unwrap().id;
            let actor: Option<String> = store
                .read(|r| {
                    r.one(
                        "testing",
                        "SELECT actor FROM event WHERE id = :id",
                        named_params! { ":id": id.as_str() },
                        |row| row.get(0),
                    )
                })
                .unwrap();
            assert_eq!(actor.as_deref(), kept);
        }
    }
}
