//! Creating a Work: its row, its keys, its `core.work.created`, and its first input, in one transaction (T09).

use conduit_api::{EventId, ScopeId, WorkId};
use conduit_store::{Now, Read, Write, named_params};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::events::bounds::Bounds;
use crate::events::{self, Accepted, NewEvent, kind};
use crate::inputs;

/// A Work that is to exist.
#[derive(Debug, Clone)]
pub struct NewWork<'a> {
    /// Stable for a request: creating it again is a replay.
    pub id: WorkId,
    pub scope: &'a ScopeId,
    pub binding: &'a str,
    pub title: Option<&'a str>,
    pub parent: Option<&'a WorkId>,
    /// Correlation keys that it owns until it ends.
    pub keys: &'a [String],
    /// The data of its `core.work.created`.
    pub data: &'a Map<String, Value>,
    pub cause: Option<&'a EventId>,
    /// The Event that it is to work on; its own `core.work.created` when there is none.
    pub input: Option<i64>,
    /// `core`, or `core.manual` with an actor.
    pub source: &'a str,
    pub actor: Option<&'a str>,
}

/// What creation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub work: WorkId,
    pub event: EventId,
    pub replayed: bool,
}

const INSERT: &str = "
    INSERT INTO work (id, scope_id, binding, title, state, parent_work_id, created_event_id, ready_at_us, created_at_us, updated_at_us)
    VALUES (:id, :scope, :binding, :title, 'ready', :parent, :event, :at, :at, :at)";
const OWN: &str = "INSERT INTO work_key (scope_id, key, work_id, active) VALUES (:scope, :key, :work, 1) ON CONFLICT (work_id, key) DO NOTHING";
const OWNER: &str = "SELECT work_id FROM work_key WHERE scope_id = :scope AND key = :key AND active = 1";

/// The Work, not ended, that owns `key` in `scope`.
pub fn owner_of_key(r: &Read<'_>, scope: &ScopeId, key: &str) -> Result<Option<WorkId>> {
    let params = named_params! { ":scope": scope.as_str(), ":key": key };
    Ok(r.optional("looking a key up", OWNER, params, |row| conduit_store::column_id(row, "work_id"))?)
}

/// Creates a ready Work. Errors: `key_taken`, and those of [`events::accept`].
pub fn create(tx: &Write<'_>, new: &NewWork<'_>, bounds: Bounds, now: Now) -> Result<Created> {
    create_by(tx, new, now, |event| events::accept(tx, event, bounds, now))
}

/// Creates the Work that a route starts. Errors: `key_taken`, and those of [`events::accept_derived`].
pub(crate) fn create_routed(tx: &Write<'_>, new: &NewWork<'_>, bounds: Bounds, now: Now) -> Result<Created> {
    create_by(tx, new, now, |event| events::accept_derived(tx, event, bounds, now))
}

fn create_by(
    tx: &Write<'_>,
    new: &NewWork<'_>,
    now: Now,
    accept: impl FnOnce(&NewEvent<'_>) -> Result<Accepted>,
) -> Result<Created> {
    let delivery = format!("{}.created", new.id);
    let event = NewEvent {
        work: Some(&new.id),
        cause: new.cause,
        actor: new.actor,
        ..NewEvent::new(new.scope, kind::WORK_CREATED, new.source, &delivery, new.data)
    };
    let accepted = accept(&event)?;
    if accepted.replayed {
        return Ok(Created { work: new.id.clone(), event: accepted.id, replayed: true });
    }
    tx.execute(
        "creating a Work",
        INSERT,
        named_params! {
            ":id": new.id.as_str(), ":scope": new.scope.as_str(), ":binding": new.binding, ":title": new.title,
            ":parent": new.parent.map(WorkId::as_str), ":event": accepted.id.as_str(), ":at": now.wall.0,
        },
    )?;
    for key in new.keys {
        if let Some(owner) = owner_of_key(tx, new.scope, key)?
            && owner != new.id
        {
            return Err(Error::KeyTaken { work: owner.to_string() });
        }
        tx.execute(
            "giving a key to a Work",
            OWN,
            named_params! { ":scope": new.scope.as_str(), ":key": key, ":work": new.id.as_str() },
        )?;
    }
    inputs::queue(tx, &new.id, new.input.unwrap_or(accepted.sequence))?;
    Ok(Created { work: new.id.clone(), event: accepted.id, replayed: false })
}
