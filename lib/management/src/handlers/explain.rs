//! Decisions: why a call ended as it did, and whether one would be allowed now. Neither changes anything.

use conduit_api::views::ExplainView;
use conduit_api::{ExecutionId, ScopeId};
use conduit_daemon::http::Reply;
use conduit_store::Clock;
use conduit_store::history::History;
use conduit_toolbelt::explain::{self, Ground};

use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::Host;

/// Calls of one request ID that are shown at most.
const CALLS_MAX: usize = 50;

pub(crate) fn call(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request_id = ask.path.first().cloned().unwrap_or_default();
    let records = History::open(&host.state)?.of_request(&request_id, CALLS_MAX)?;
    if records.is_empty() {
        return Err(Error::not_found("call on record"));
    }
    let calls = records.into_iter().map(explain::of_record).collect();
    Ok(Reply::json(200, &ExplainView { request_id, calls }))
}

pub(crate) fn can_execution(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: ExecutionId = ask.id("execution")?;
    host.refresh()?;
    let (registry, operation) =
        (std::rc::Rc::clone(host.known.registry()), ask.path.get(1).cloned().unwrap_or_default());
    let view = host.read(|r, active| {
        let snapshot = active.snapshot(r)?;
        let ground = Ground { snapshot: &snapshot, registry: &registry, operation: &operation, now: Clock.now() };
        explain::can_execution(r, &id, &ground)?.ok_or_else(|| Error::not_found("execution"))
    })?;
    Ok(Reply::json(200, &view))
}

pub(crate) fn can_binding(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let scope: ScopeId = ask.id("scope")?;
    let binding = ask.path.get(1).cloned().unwrap_or_default();
    host.refresh()?;
    let (registry, operation) =
        (std::rc::Rc::clone(host.known.registry()), ask.path.get(2).cloned().unwrap_or_default());
    let view = host.read(|r, active| {
        let snapshot = active.snapshot(r)?;
        let ground = Ground { snapshot: &snapshot, registry: &registry, operation: &operation, now: Clock.now() };
        explain::can_binding(&scope, &binding, &ground).ok_or_else(|| Error::not_found("binding"))
    })?;
    Ok(Reply::json(200, &view))
}
