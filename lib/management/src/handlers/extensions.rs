//! Extensions: what there is, and what operators can ask of them (M04, M06).

use std::cell::RefCell;
use std::rc::Rc;

use conduit_api::host::HostAct;
use conduit_api::views::{ActionRequest, ActionView, ExtensionView, Page};
use conduit_config::Snapshot;
use conduit_daemon::http::Reply;
use conduit_store::digest::hex;
use conduit_toolbelt::packages;
use conduit_toolbelt::registry::{ActionRole, ActionSpec, Registration};

use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::routes::{Role, Waits};

/// Every extension of the release and every installed package. There are few, so there is one page.
pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    ask.page("extensions", &[])?;
    host.refresh()?;
    let registry = Rc::clone(host.known.registry());
    let items = host.read(|r, active| {
        let snapshot = match active.snapshot(r) {
            Err(Error::Config(conduit_config::Error::NoGeneration)) => None,
            other => Some(other?),
        };
        let installed = packages::digests(r)?;
        let is_package = |name: &str| installed.iter().any(|(installed, _)| installed == name);
        let registered = registry.registrations().iter();
        Ok(registered.map(|one| view(one, snapshot.as_deref(), is_package(&one.name))).collect())
    })?;
    Ok(Reply::json(200, &Page::<ExtensionView> { items, next: None }))
}

fn view(registration: &Registration, snapshot: Option<&Snapshot>, package: bool) -> ExtensionView {
    let said = snapshot.and_then(|snapshot| snapshot.config.extensions.get(&registration.name));
    let actions = registration.actions.iter().map(|action| ActionView {
        name: action.name.clone(),
        summary: action.summary.clone(),
        role: action.role.as_str().to_owned(),
        input: action.input.clone(),
    });
    ExtensionView {
        name: registration.name.clone(),
        version: registration.version,
        summary: registration.summary.clone(),
        package,
        active: snapshot.is_some_and(|snapshot| snapshot.registers(&registration.name)),
        scopes: said.and_then(|said| said.scopes.clone()).map(|scopes| scopes.into_iter().collect()),
        gate: registration.gate,
        start_gate: registration.start_gate,
        operations: registration.operations.iter().map(|spec| spec.name.clone()).collect(),
        actions: actions.collect(),
    }
}

/// The role that the action in the path asks for; the least one for an action that is not there.
pub(crate) fn role(host: &mut Host, path: &[String]) -> Result<Role> {
    host.refresh()?;
    let [extension, action] = path else { return Ok(Role::View) };
    Ok(spec(host, extension, action).map_or(Role::View, |spec| match spec.role {
        ActionRole::View => Role::View,
        ActionRole::Operate => Role::Operate,
        ActionRole::Admin => Role::Admin,
    }))
}

fn spec<'h>(host: &'h Host, extension: &str, action: &str) -> Option<&'h ActionSpec> {
    host.known.registry().registration(extension)?.actions.iter().find(|spec| spec.name == action)
}

/// Has an extension carry out an action in a scope, under the `Idempotency-Key` once. It is on record as an Event.
///
/// Errors: `host_unavailable`; `unknown_scope`, `not_found`, `forbidden_role`, `invalid_request`, `idempotency_conflict`;
/// the extension's own; `extension_unavailable`.
pub(crate) fn act<'h>(host: &'h RefCell<Host>, ask: &'h Ask) -> Waits<'h> {
    Box::pin(async move {
        let request: ActionRequest = ask.body()?;
        let [extension, action] = &ask.path[..] else { return Err(Error::not_found("action")) };
        if spec(&host.borrow(), extension, action).is_none() {
            return Err(Error::not_found("action"));
        }
        let asked = HostAct {
            bearer_digest: hex(&ask.credential),
            extension: extension.clone(),
            action: action.clone(),
            scope_id: request.scope_id,
            input: request.input,
            idempotency_key: ask.idempotency_key.clone(),
        };
        let daemon = Rc::clone(&host.borrow().daemon);
        Ok(Reply::json(200, &daemon.act(&asked).await?))
    })
}
