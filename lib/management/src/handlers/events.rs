//! Events: the lists, the chains, and an operator's own Event (M10).

use conduit_api::id::{in_family, is_namespaced};
use conduit_api::limits::KEY_BYTES_MAX;
use conduit_api::views::{EmitReply, EmitRequest};
use conduit_api::{Code, EventId, ScopeId, WorkId};
use conduit_config::Snapshot;
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::{self, NewEvent, kind, source};
use conduit_coordination::queries::{events as shown, work};
use conduit_daemon::http::Reply;
use conduit_store::{Clock, Read, mint, named_params};

use crate::ask::{Ask, check_length, invalid};
use crate::error::{Error, Result};
use crate::host::Host;

pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let paging = ask.page("events", &[])?;
    let listed = host.read(|r, _| Ok(shown::list(r, paging.filter(), paging.window())?))?;
    Ok(Reply::json(200, &paging.shown(listed)))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: EventId = ask.id("Event")?;
    let found = host.read(|r, _| Ok(shown::get(r, &id)?))?;
    Ok(Reply::json(200, &found.ok_or_else(|| Error::not_found("Event"))?))
}

pub(crate) fn chain(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: EventId = ask.id("Event")?;
    let found = host.read(|r, _| Ok(shown::chain(r, &id)?))?;
    Ok(Reply::json(200, &found.ok_or_else(|| Error::not_found("Event"))?))
}

/// Accepts an operator's Event from `core.manual`, a root or following from `cause_id`. The `Idempotency-Key` is its
/// delivery: the same one is accepted once.
///
/// Errors: `unknown_scope`, `event_not_allowed`, `invalid_request`, `idempotency_conflict`, `causal_depth_exceeded`,
/// `causal_rate_exceeded`.
pub(crate) fn emit(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: EmitRequest = ask.body()?;
    check_shape(&request)?;
    let now = Clock.now();
    let delivery = ask.idempotency_key.clone().unwrap_or_else(|| mint::<EventId>(now).to_string());
    let actor = ask.operator.actor();
    let reply = host.write(|tx, active| {
        let snapshot = active.snapshot(tx)?;
        if !delivered(tx, &delivery)? {
            check_scope(&snapshot, &request.scope_id)?;
            check_event(&snapshot, &request)?;
            check_work(tx, &request)?;
        }
        let event = NewEvent {
            schema: request.schema.as_deref(),
            correlation_key: request.correlation_key.as_deref(),
            work: request.work_id.as_ref(),
            cause: request.cause_id.as_ref(),
            actor: Some(&actor),
            ..NewEvent::new(&request.scope_id, &request.kind, source::MANUAL, &delivery, &request.data)
        };
        let accepted = events::accept(tx, &event, Bounds::of(&snapshot), now)?;
        let event = shown::get(tx, &accepted.id)?.ok_or_else(|| Error::not_found("Event"))?;
        Ok(EmitReply { event, replayed: accepted.replayed })
    })?;
    Ok(Reply::json(201, &reply))
}

fn check_shape(request: &EmitRequest) -> Result<()> {
    if !is_namespaced(&request.kind) {
        return Err(invalid("`type` is a namespaced name such as demo.survey.requested"));
    }
    if request.schema.as_deref().is_some_and(|schema| !is_namespaced(schema)) {
        return Err(invalid("`schema` is a namespaced name such as demo.survey.v1"));
    }
    request.correlation_key.as_deref().map_or(Ok(()), |key| check_length("correlation_key", key, KEY_BYTES_MAX))
}

/// Whether this delivery was accepted before: then its answer stands, whatever the configuration says now (M07).
fn delivered(r: &Read<'_>, delivery: &str) -> Result<bool> {
    const DELIVERED: &str = "SELECT EXISTS (SELECT 1 FROM event WHERE source = :source AND delivery_id = :delivery)";
    let params = named_params! { ":source": source::MANUAL, ":delivery": delivery };
    Ok(r.one("looking a delivery up", DELIVERED, params, |row| row.get(0))?)
}

/// Error: `unknown_scope` unless the scope is configured and enabled.
pub(super) fn check_scope(snapshot: &Snapshot, scope: &ScopeId) -> Result<()> {
    if snapshot.enabled_scope(scope).is_some() {
        return Ok(());
    }
    Err(Error::new(
        Code::UnknownScope,
        "the scope is not configured, or it is disabled; `open-conduit scopes` lists them",
    ))
}

fn check_event(snapshot: &Snapshot, request: &EmitRequest) -> Result<()> {
    if in_family(&request.kind, kind::CORE_FAMILY) {
        return Err(Error::new(Code::EventNotAllowed, "Events of the family core are the host's own"));
    }
    if !snapshot.authorize_event(&request.scope_id, &request.kind) {
        return Err(Error::new(
            Code::EventNotAllowed,
            "the type is outside the event families of this scope; `open-conduit config show` lists them under events",
        ));
    }
    Ok(())
}

/// A Work that is named has to stand in the same scope.
fn check_work(r: &Read<'_>, request: &EmitRequest) -> Result<()> {
    let Some(id) = &request.work_id else { return Ok(()) };
    match work::get(r, id as &WorkId)? {
        Some(found) if found.scope_id == request.scope_id => Ok(()),
        _ => Err(invalid("the Work that `work_id` names does not exist in this scope")),
    }
}
