//! Gates: which are asked, and break-glass, an administrator's word that for a while none is.

use conduit_api::BypassId;
use conduit_api::views::{BypassRequest, BypassView, GatesView};
use conduit_coordination::bypasses::{self, NewBypass};
use conduit_daemon::http::Reply;
use conduit_store::digest::sha256_parts;
use conduit_store::{Clock, Now, Read, mint};

use super::{Nothing, events};
use crate::ask::{Ask, check_length};
use crate::error::{Error, Result};
use crate::host::{Active, Host};

const REASON_BYTES_MAX: usize = 1024;

pub(crate) fn get(host: &mut Host, _ask: &Ask) -> Result<Reply> {
    let registered = host.gates();
    let view = host.read(|r, active| view(r, active, &registered, Clock.now()))?;
    Ok(Reply::json(200, &view))
}

fn view(r: &Read<'_>, active: &mut Active<'_>, registered: &[Gates], now: Now) -> Result<GatesView> {
    let snapshot = active.snapshot(r)?;
    let named = |is: fn(&Gates) -> bool| -> Vec<String> {
        let active = registered.iter().filter(|gates| is(gates) && snapshot.registers(&gates.name));
        active.map(|gates| gates.name.clone()).collect()
    };
    Ok(GatesView {
        gates: named(|gates| gates.gate),
        start_gates: named(|gates| gates.start_gate),
        bypasses: bypasses::newest(r, now)?,
    })
}

/// What a registration of this release is asked.
#[derive(Debug, Clone)]
pub(crate) struct Gates {
    pub name: String,
    pub gate: bool,
    pub start_gate: bool,
}

/// Has no gate asked for a while. The `Idempotency-Key` is the identity of the bypass: the same order begins one.
///
/// Errors: `invalid_request`, `unknown_scope`, `idempotency_conflict`.
pub(crate) fn bypass(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: BypassRequest = ask.body()?;
    check_length("reason", &request.reason, REASON_BYTES_MAX)?;
    let (actor, now) = (ask.operator.actor(), Clock.now());
    let id: BypassId = match &ask.idempotency_key {
        Some(key) => {
            BypassId::from_digest(&sha256_parts("gate-bypass-1", &[ask.operator.name.as_bytes(), key.as_bytes()]))
        }
        None => mint(now),
    };
    let view = host.write(|tx, active| {
        if let Some(before) = bypasses::get(tx, &id, now)? {
            return same(before, &request);
        }
        let snapshot = active.snapshot(tx)?;
        request.scope_id.as_ref().map_or(Ok(()), |scope| events::check_scope(&snapshot, scope))?;
        let (scope, reason) = (request.scope_id.as_ref(), request.reason.as_str());
        let new = NewBypass { id: id.clone(), scope, seconds: request.seconds, reason, actor: &actor };
        bypasses::begin(tx, &new, snapshot.config.scopes.keys(), now)?;
        bypasses::get(tx, &id, now)?.ok_or_else(|| Error::not_found("bypass"))
    })?;
    Ok(Reply::json(201, &view))
}

/// A replay asks for the same bypass.
fn same(before: BypassView, request: &BypassRequest) -> Result<BypassView> {
    let seconds = u64::try_from((before.until.0 - before.created_at.0) / 1_000_000).unwrap_or_default();
    if before.scope_id == request.scope_id && before.reason == request.reason && seconds == request.seconds {
        return Ok(before);
    }
    let message = "the idempotency key was used for another bypass; use a new one";
    Err(Error::new(conduit_api::Code::IdempotencyConflict, message))
}

/// Has gates asked again from now on, whoever bypassed them. Nothing is done when none is bypassed.
pub(crate) fn restore(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let _: Nothing = ask.body()?;
    let (actor, now, registered) = (ask.operator.actor(), Clock.now(), host.gates());
    let view = host.write(|tx, active| {
        let snapshot = active.snapshot(tx)?;
        bypasses::restore(tx, &actor, snapshot.config.scopes.keys(), now)?;
        view(tx, active, &registered, now)
    })?;
    Ok(Reply::json(200, &view))
}
