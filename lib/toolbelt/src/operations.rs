//! The builtin operations. Each takes both proofs: an [`Authorized`] for its own type, and a fenced transaction.

use conduit_api::id::{in_family, is_namespaced};
use conduit_api::limits::{KEY_BYTES_MAX, NAME_BYTES_MAX, WORK_KEYS_MAX};
use conduit_api::toolbelt::{
    CreateWorkInput, CreateWorkOutput, Declared, DeclaredOutput, EmitInput, EmitOutput, OutcomeInput, WaitInput,
};
use conduit_api::{Code, EventId, WorkId};
use conduit_config::Snapshot;
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::{self, Delivery, NewEvent, kind, source};
use conduit_coordination::work::{self, NewWork, owner_of_key};
use conduit_coordination::{routing, waits};
use conduit_store::digest::sha256_parts;
use conduit_store::{Fenced, Read, column_id, mint, named_params};
use serde::Serialize;
use serde_json::Value;

use crate::check::{Authorized, CreateWork, DeclareOutcome};
use crate::error::{Error, Result};
use crate::token::TokenRecord;

/// What the caller named that only the host assigns (T08).
fn refuse_forged(fields: [(&str, &Option<Value>); 3]) -> Result<()> {
    match fields.iter().find(|(_, given)| given.is_some()) {
        None => Ok(()),
        Some((name, _)) => {
            Err(Error::operation(Code::ForgedAttribution, format!("`{name}` is assigned by the host; leave it out")))
        }
    }
}

fn refuse_long(name: &str, text: Option<&str>, bytes_max: usize) -> Result<()> {
    match text {
        Some(text) if text.is_empty() || text.len() > bytes_max => {
            Err(Error::operation(Code::InvalidRequest, format!("`{name}` has 1 to {bytes_max} bytes")))
        }
        _ => Ok(()),
    }
}

/// The Event that the running segment follows from.
fn continuation(r: &Read<'_>, token: &TokenRecord) -> Result<EventId> {
    const CAUSE: &str = "SELECT cause_event_id FROM execution WHERE id = :id";
    Ok(r.one("reading a cause", CAUSE, named_params! { ":id": token.execution.as_str() }, |row| {
        column_id(row, "cause_event_id")
    })?)
}

/// What became of an `emit`.
#[derive(Debug)]
pub(crate) struct Emitted {
    pub output: EmitOutput,
    /// Whether this very delivery had been accepted before.
    pub replayed: bool,
    /// Whether the scheduler has to route it.
    pub wanted: bool,
    /// Whether the Event itself tells what the request ID got: it is its delivery identity (T14).
    pub recorded: bool,
}

/// `emit` (T08): the host assigns source, Work, Execution and cause.
///
/// The delivery is looked for before anything else is asked, as what was accepted stays accepted whatever has changed
/// since. Request IDs and delivery IDs of one execution's emissions are names in one space: a request ID that another
/// request used as its delivery ID is a conflict.
///
/// Errors: `event_not_allowed`, `forged_attribution`, `key_not_owned`, `causal_depth_exceeded`, `causal_rate_exceeded`,
/// `request_conflict`, `invalid_request`.
pub(crate) fn emit<O>(
    tx: &Fenced<'_>,
    authorized: &Authorized<O>,
    input: &EmitInput,
    request_id: Option<&str>,
    snapshot: &Snapshot,
) -> Result<Emitted> {
    let token = authorized.token();
    refuse_forged([("source", &input.source), ("parent", &input.parent), ("target", &input.target)])?;
    refuse_long("delivery_id", input.delivery_id.as_deref(), NAME_BYTES_MAX)?;
    let source = source::execution(&token.execution);
    let named = input.delivery_id.as_deref().or(request_id);
    let recorded = named == request_id;
    if let Some(request_id) = request_id
        && !recorded
        && events::is_delivered(tx, &source, request_id)?
    {
        return Err(Error::RequestConflict);
    }
    let minted;
    let delivery_id = match named {
        Some(given) => given,
        None => {
            minted = mint::<EventId>(tx.now()).to_string();
            &minted
        }
    };
    let cause = continuation(tx, token)?;
    let event = NewEvent {
        schema: input.schema.as_deref(),
        correlation_key: input.correlation_key.as_deref(),
        work: Some(&token.work),
        execution: Some(&token.execution),
        cause: Some(&cause),
        ..NewEvent::new(&token.scope, &input.kind, &source, delivery_id, &input.data)
    };
    let (accepted, wanted) = match events::look_up(tx, &event)? {
        Delivery::Accepted(accepted) => (accepted, false),
        Delivery::Unknown(delivery) => {
            refuse_emission(tx, token, input, snapshot)?;
            let route = routing::unwanted(tx, snapshot, &event)?;
            (delivery.accept(tx, Bounds::of(snapshot), route, tx.now())?, route.is_none())
        }
    };
    let output = EmitOutput { event_id: accepted.id, sequence: accepted.sequence };
    Ok(Emitted { output, replayed: accepted.replayed, wanted, recorded })
}

/// What this execution may not emit, or not in this form.
fn refuse_emission(tx: &Fenced<'_>, token: &TokenRecord, input: &EmitInput, snapshot: &Snapshot) -> Result<()> {
    let families = &token.grants.events;
    let granted = is_namespaced(&input.kind)
        && !in_family(&input.kind, kind::CORE_FAMILY)
        && families.iter().any(|family| in_family(&input.kind, family))
        && snapshot.authorize_event(&token.scope, &input.kind);
    if !granted {
        return Err(Error::operation(
            Code::EventNotAllowed,
            "the event type is outside the families that this binding may emit; read_context lists them under grants.events",
        ));
    }
    if input.schema.as_deref().is_some_and(|schema| !is_namespaced(schema)) {
        return Err(Error::operation(Code::InvalidRequest, "`schema` is a namespaced name such as demo.survey.v1"));
    }
    refuse_long("correlation_key", input.correlation_key.as_deref(), KEY_BYTES_MAX)?;
    if let Some(key) = &input.correlation_key
        && owner_of_key(tx, &token.scope, key)?.as_ref() != Some(&token.work)
    {
        return Err(Error::operation(
            Code::KeyNotOwned,
            "the correlation key is not one that this Work owns; read_context lists them under work.keys",
        ));
    }
    Ok(())
}

/// `create_work` (T09): the child and its `core.work.created` in one transaction; its ID is stable for a request ID.
///
/// Errors: `unknown_binding`, `forged_attribution`, `key_taken`, `causal_depth_exceeded`, `causal_rate_exceeded`, `invalid_request`.
pub(crate) fn create_work(
    tx: &Fenced<'_>,
    authorized: &Authorized<CreateWork>,
    input: &CreateWorkInput,
    request_id: Option<&str>,
    snapshot: &Snapshot,
) -> Result<CreateWorkOutput> {
    let token = authorized.token();
    refuse_forged([("source", &input.source), ("parent", &input.parent), ("target", &input.target)])?;
    let delegated =
        token.grants.delegates.contains(&input.binding) && snapshot.binding(&token.scope, &input.binding).is_some();
    if !delegated {
        return Err(Error::operation(
            Code::UnknownBinding,
            "the binding is not one that this execution may delegate to; read_context lists them under grants.delegates",
        ));
    }
    refuse_long("title", input.title.as_deref(), KEY_BYTES_MAX)?;
    if input.keys.len() > WORK_KEYS_MAX {
        return Err(Error::operation(Code::InvalidRequest, format!("a Work owns at most {WORK_KEYS_MAX} keys")));
    }
    for key in &input.keys {
        refuse_long("keys", Some(key), KEY_BYTES_MAX)?;
    }
    let id = match request_id {
        Some(request) => WorkId::from_digest(&sha256_parts(
            "child-work-1",
            &[token.execution.as_str().as_bytes(), request.as_bytes()],
        )),
        None => mint(tx.now()),
    };
    let cause = continuation(tx, token)?;
    let new = NewWork {
        id,
        scope: &token.scope,
        binding: &input.binding,
        title: input.title.as_deref(),
        parent: Some(&token.work),
        keys: &input.keys,
        data: &input.data,
        cause: Some(&cause),
        input: None,
        source: source::CORE,
        actor: None,
    };
    let created = work::create(tx, &new, Bounds::of(snapshot), tx.now())?;
    Ok(CreateWorkOutput { work_id: created.work, event_id: created.event })
}

const DECLARE: &str = "
    INSERT INTO declaration (execution_id, epoch, kind, body, declared_at_us) VALUES (:execution, :epoch, :kind, :body, :at)";

fn declare(tx: &Fenced<'_>, kind: &str, body: &impl Serialize) -> Result<()> {
    let body = serde_json::to_string(body)
        .map_err(|_| Error::operation(Code::Internal, "the declaration cannot be written"))?;
    tx.execute("recording a declaration", DECLARE, named_params! {
        ":execution": tx.held().execution.as_str(), ":epoch": tx.held().epoch, ":kind": kind, ":body": body, ":at": tx.now().wall.0,
    })?;
    Ok(())
}

/// `wait` (T11): recorded under the fence; authority is released by its row, and nothing else happens until the segment ends.
///
/// Error: `invalid_request`, naming the predicate.
pub(crate) fn wait<O>(tx: &Fenced<'_>, _authorized: &Authorized<O>, input: &WaitInput) -> Result<DeclaredOutput> {
    waits::decide::check(input).map_err(|error| Error::operation(Code::InvalidRequest, error.to_string()))?;
    declare(tx, "wait", input)?;
    Ok(DeclaredOutput { declared: Declared::Wait })
}

/// `declare_outcome` (T11): like [`wait`].
pub(crate) fn declare_outcome(
    tx: &Fenced<'_>,
    _authorized: &Authorized<DeclareOutcome>,
    input: &OutcomeInput,
) -> Result<DeclaredOutput> {
    declare(tx, "outcome", input)?;
    Ok(DeclaredOutput { declared: Declared::Outcome })
}
