//! Scopes: what is configured, and how much Work each has.

use conduit_api::ScopeId;
use conduit_api::views::{Page, ScopeView};
use conduit_config::Snapshot;
use conduit_coordination::queries::health;
use conduit_daemon::http::Reply;
use conduit_store::Read;

use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::Host;

/// Every scope of the active generation, by name. A configuration is bounded, and so is this: there is one page.
pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    ask.page("scopes", &[])?;
    let items = host.read(|r, active| {
        let snapshot = active.snapshot(r)?;
        snapshot.config.scopes.keys().filter_map(|id| view(r, &snapshot, id).transpose()).collect::<Result<Vec<_>>>()
    })?;
    Ok(Reply::json(200, &Page { items, next: None }))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: ScopeId = ask.id("scope")?;
    let found = host.read(|r, active| {
        let snapshot = active.snapshot(r)?;
        view(r, &snapshot, &id)
    })?;
    Ok(Reply::json(200, &found.ok_or_else(|| Error::not_found("scope"))?))
}

fn view(r: &Read<'_>, snapshot: &Snapshot, id: &ScopeId) -> Result<Option<ScopeView>> {
    let Some(scope) = snapshot.scope(id) else { return Ok(None) };
    Ok(Some(ScopeView {
        id: id.clone(),
        enabled: scope.enabled,
        bindings: scope.bindings.keys().cloned().collect(),
        routes: scope.routes.len(),
        generation: snapshot.generation,
        work: health::work_of(r, id)?,
    }))
}
