//! Operators' actions: what is decided before an extension is asked, and what is recorded behind it (M04, M06).

use conduit_api::host::HostAct;
use conduit_api::views::ActionReply;
use conduit_api::{ApiError, Code, EventId};
use conduit_coordination::events::{self, NewEvent, kind, source};
use conduit_store::digest::{canonical_json, hex, sha256, sha256_parts};
use conduit_store::{Clock, Read, column_id, column_json, mint, named_params};
use serde_json::{Map, Value, json};

use super::Hosted;
use crate::error::{Error, Result};
use crate::operators::{self, Operator};
use crate::registry::violations;

/// An action that may be carried out.
#[derive(Debug)]
pub struct Action {
    pub operator: Operator,
    /// Names the request: what is on record under one name is the answer again, and what is not is asked for again by that
    /// name, on which the extension has to be idempotent.
    pub delivery: String,
    /// The settings of the extension in the generation that is active.
    pub settings: Value,
    input_digest: String,
}

/// What an action came to before it was asked for.
#[derive(Debug)]
pub enum Asked {
    /// It was done before, under the same key.
    Done(Box<ActionReply>),
    Open(Box<Action>),
}

impl Hosted {
    /// Whether an action may be carried out: who asks and how far that reaches, what for, and whether it was done before.
    ///
    /// Errors: `unauthenticated`; `unknown_scope`; `not_found` for an action that no extension has which is active in the
    /// scope; `forbidden_role`; `invalid_request` with a diagnostic for each violation of its schema; `idempotency_conflict`.
    pub fn ask_to_act(&mut self, asked: &HostAct) -> Result<Asked> {
        let access = &mut self.access;
        let look = &mut access.look;
        access.store.read(|r| {
            let operator = asked.bearer().map(|digest| operators::find(r, &digest)).transpose()?.flatten();
            let operator =
                operator.ok_or_else(|| Error::operation(Code::Unauthenticated, "actions are for operators alone"))?;
            let snapshot = look.live.active(r)?;
            if snapshot.enabled_scope(&asked.scope_id).is_none() {
                return Err(Error::operation(Code::UnknownScope, "the scope is not configured, or it is disabled"));
            }
            let registration = look.live.registry().registration(&asked.extension);
            let registration = registration.filter(|one| snapshot.registers_in(&one.name, &asked.scope_id));
            let spec = registration.and_then(|one| one.actions.iter().find(|spec| spec.name == asked.action));
            let spec = spec.ok_or_else(|| {
                Error::operation(Code::NotFound, "no extension that is active in this scope has such an action")
            })?;
            if operator.role < spec.role {
                let (needed, own) = (spec.role.as_str(), operator.role.as_str());
                let message = format!("this action needs the role {needed}, and yours is {own}");
                return Err(Error::operation(Code::ForbiddenRole, message));
            }
            let input = Value::Object(asked.input.clone());
            let mut diagnostics =
                violations(&spec.input, &input).map_err(|why| Error::operation(Code::Internal, why))?;
            if !diagnostics.is_empty() {
                diagnostics.iter_mut().for_each(|fault| fault.pointer.insert_str(0, "/input"));
                let told = ApiError::new(Code::InvalidRequest, "the input breaks the action's schema");
                return Err(Error::Operation(ApiError { diagnostics, ..told }));
            }
            let input_digest = hex(&sha256(&canonical_json(&input)));
            let Some(key) = &asked.idempotency_key else {
                let delivery = mint::<EventId>(Clock.now()).to_string();
                let settings = snapshot.settings(&asked.extension);
                return Ok(Asked::Open(Box::new(Action { operator, delivery, settings, input_digest })));
            };
            let parts = [operator.name.as_bytes(), asked.extension.as_bytes(), asked.action.as_bytes(), key.as_bytes()];
            let delivery = hex(&sha256_parts("action-1", &parts));
            if let Some(done) = done(r, asked, &delivery, &input_digest)? {
                return Ok(Asked::Done(Box::new(done)));
            }
            let settings = snapshot.settings(&asked.extension);
            Ok(Asked::Open(Box::new(Action { operator, delivery, settings, input_digest })))
        })
    }

    /// Puts an action on record as an Event of its scope, with the operator as its actor.
    ///
    /// Error: the store's; then nothing is on record, and the same request may be made again.
    pub fn acted(&mut self, asked: &HostAct, action: &Action, output: Value) -> Result<ActionReply> {
        let data = json!({
            "extension": asked.extension, "action": asked.action, "input_digest": action.input_digest, "output": output,
        });
        let Value::Object(data) = data else { return Err(Error::operation(Code::Internal, "no object")) };
        let actor = action.operator.actor();
        let event_id = self.access.store.write(|tx| {
            let event = NewEvent {
                actor: Some(&actor),
                ..NewEvent::new(&asked.scope_id, kind::ACTION_DONE, source::ACTION, &action.delivery, &data)
            };
            Ok::<_, Error>(events::accept_core(tx, &event, Clock.now())?.id)
        })?;
        let (action, scope_id) = (asked.action.clone(), asked.scope_id.clone());
        Ok(ActionReply { action, scope_id, event_id, output, replayed: false })
    }
}

/// What the same request came to before. Error: `idempotency_conflict` when it asked for something else.
fn done(r: &Read<'_>, asked: &HostAct, delivery: &str, input_digest: &str) -> Result<Option<ActionReply>> {
    const DONE: &str = "SELECT id, scope_id, data FROM event WHERE source = :source AND delivery_id = :delivery";
    let params = named_params! { ":source": source::ACTION, ":delivery": delivery };
    let found = r.optional("looking an action up", DONE, params, |row| {
        let data: Map<String, Value> = column_json(row, "data")?;
        Ok((column_id(row, "id")?, column_id(row, "scope_id")?, data))
    })?;
    let Some((event_id, scope_id, mut data)) = found else { return Ok(None) };
    if scope_id != asked.scope_id || data.get("input_digest").and_then(Value::as_str) != Some(input_digest) {
        let message = "the idempotency key was used for another action; use a new one";
        return Err(Error::operation(Code::IdempotencyConflict, message));
    }
    let output = data.remove("output").unwrap_or_default();
    Ok(Some(ActionReply { action: asked.action.clone(), scope_id, event_id, output, replayed: true }))
}
