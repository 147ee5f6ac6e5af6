//! Works: the lists, and an operator's orders about them (M10).

use conduit_api::limits::{KEY_BYTES_MAX, WORK_KEYS_MAX};
use conduit_api::views::{WorkCreateRequest, WorkReply, WorkView};
use conduit_api::{Code, WorkId};
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::source;
use conduit_coordination::queries::work as shown;
use conduit_coordination::work::{self, NewWork};
use conduit_daemon::http::Reply;
use conduit_store::digest::sha256_parts;
use conduit_store::{Clock, Now, Read, Write, mint};

use super::{Nothing, events};
use crate::ask::{Ask, check_length, invalid};
use crate::error::{Error, Result};
use crate::host::Host;

const STATES: [&str; 7] = ["ready", "running", "waiting", "blocked", "succeeded", "failed", "cancelled"];

pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let paging = ask.page("work", &STATES)?;
    let listed = host.read(|r, _| Ok(shown::list(r, paging.filter(), paging.window())?))?;
    Ok(Reply::json(200, &paging.shown(listed)))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: WorkId = ask.id("Work")?;
    Ok(Reply::json(200, &host.read(|r, _| view(r, &id))?))
}

fn view(r: &Read<'_>, id: &WorkId) -> Result<WorkView> {
    shown::get(r, id)?.ok_or_else(|| Error::not_found("Work"))
}

/// Creates a Work from `core.manual`. Its identity derives from the operator and the `Idempotency-Key` (M07).
///
/// Errors: `unknown_scope`, `unknown_binding`, `key_taken`, `idempotency_conflict`, `invalid_request`.
pub(crate) fn create(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: WorkCreateRequest = ask.body()?;
    check_shape(&request)?;
    let now = Clock.now();
    let id = match &ask.idempotency_key {
        Some(key) => {
            WorkId::from_digest(&sha256_parts("manual-work-1", &[ask.operator.name.as_bytes(), key.as_bytes()]))
        }
        None => mint(now),
    };
    let actor = ask.operator.actor();
    let reply = host.write(|tx, active| {
        let snapshot = active.snapshot(tx)?;
        if let Some(before) = shown::get(tx, &id)? {
            check_same(&before, &request)?;
        } else {
            events::check_scope(&snapshot, &request.scope_id)?;
            if snapshot.binding(&request.scope_id, &request.binding).is_none() {
                let message = "the scope has no such binding; `open-conduit scopes get` lists them";
                return Err(Error::new(Code::UnknownBinding, message));
            }
        }
        let new = NewWork {
            id: id.clone(),
            scope: &request.scope_id,
            binding: &request.binding,
            title: request.title.as_deref(),
            parent: None,
            keys: &request.keys,
            data: &request.data,
            cause: None,
            input: None,
            source: source::MANUAL,
            actor: Some(&actor),
        };
        let created = work::create(tx, &new, Bounds::of(&snapshot), now)?;
        Ok(WorkReply { work: view(tx, &id)?, replayed: created.replayed })
    })?;
    Ok(Reply::json(201, &reply))
}

fn check_shape(request: &WorkCreateRequest) -> Result<()> {
    request.title.as_deref().map_or(Ok(()), |title| check_length("title", title, KEY_BYTES_MAX))?;
    if request.keys.len() > WORK_KEYS_MAX {
        return Err(invalid(format!("a Work owns at most {WORK_KEYS_MAX} keys")));
    }
    request.keys.iter().try_for_each(|key| check_length("keys", key, KEY_BYTES_MAX))
}

/// A replay asks for the same Work. Its data and scope are compared by the digest of its first Event.
fn check_same(before: &WorkView, request: &WorkCreateRequest) -> Result<()> {
    let mut keys = request.keys.clone();
    keys.sort();
    keys.dedup();
    if before.binding == request.binding && before.title == request.title && before.keys == keys {
        return Ok(());
    }
    Err(Error::new(Code::IdempotencyConflict, "the idempotency key was used for another Work; use a new one"))
}

/// Ends a Work: its control Event, its waits, its tokens and its execution in one transaction. Error: `illegal_state`.
pub(crate) fn cancel(host: &mut Host, ask: &Ask) -> Result<Reply> {
    order(host, ask, work::cancel)
}

/// Lets a blocked, failed or cancelled Work go on. Error: `illegal_state`.
pub(crate) fn retry(host: &mut Host, ask: &Ask) -> Result<Reply> {
    order(host, ask, work::retry)
}

fn order(
    host: &mut Host,
    ask: &Ask,
    change: fn(&Write<'_>, &WorkId, &str, Now) -> conduit_coordination::Result<()>,
) -> Result<Reply> {
    let _: Nothing = ask.body()?;
    let id: WorkId = ask.id("Work")?;
    let actor = ask.operator.actor();
    let work = host.write(|tx, _| {
        change(tx, &id, &actor, Clock.now())?;
        view(tx, &id)
    })?;
    Ok(Reply::json(200, &WorkReply { work, replayed: false }))
}
