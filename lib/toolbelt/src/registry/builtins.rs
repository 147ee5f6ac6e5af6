//! The five operations that every toolbelt has, described like any other so that guidance and docs list them alike.

use conduit_api::limits::{KEY_BYTES_MAX, NAME_BYTES_MAX, REQUEST_ID_BYTES_MAX, WAIT_PREDICATES_MAX, WORK_KEYS_MAX};
use conduit_api::toolbelt::operation;
use serde_json::{Value, json};

use super::registration::{OperationKind, OperationSpec};

/// The builtins, in the order in which [`operation::BUILTINS`] has them.
pub(super) fn specs() -> Vec<OperationSpec> {
    operation::BUILTINS.iter().map(|name| builtin(name)).collect()
}

fn builtin(name: &str) -> OperationSpec {
    let (summary, input) = match name {
        operation::EMIT => (
            "Emit an Event of a family that grants.events lists. It follows from the input that this segment works on.",
            emit(),
        ),
        operation::CREATE_WORK => (
            "Create a child Work of a binding that grants.delegates lists; a core.work.finished tells when it has ended.",
            create_work(),
        ),
        operation::WAIT => (
            "Declare what to wait for, then end the process: authority ends with this call, and a new segment starts when \
             the wait ends.",
            wait(),
        ),
        operation::DECLARE_OUTCOME => {
            ("Declare how the Work ended, then end the process: authority ends with this call.", outcome())
        }
        _ => ("Read the Work, its inputs, its waits and what may be called.", object(&json!({}), &[])),
    };
    OperationSpec::new(name, summary, input).kind(OperationKind::Builtin)
}

fn object(properties: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn text(bytes_max: usize) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": bytes_max})
}

fn emit() -> Value {
    let properties = json!({
        "type": text(NAME_BYTES_MAX),
        "data": {"type": "object"},
        "schema": text(NAME_BYTES_MAX),
        "correlation_key": text(KEY_BYTES_MAX),
        "delivery_id": text(REQUEST_ID_BYTES_MAX),
    });
    object(&properties, &["type"])
}

fn create_work() -> Value {
    let properties = json!({
        "binding": text(NAME_BYTES_MAX),
        "title": {"type": "string"},
        "data": {"type": "object"},
        "keys": {"type": "array", "items": text(KEY_BYTES_MAX), "maxItems": WORK_KEYS_MAX},
    });
    object(&properties, &["binding"])
}

fn wait() -> Value {
    let predicate = json!({
        "type": text(NAME_BYTES_MAX),
        "correlation_key": text(KEY_BYTES_MAX),
        "work_id": {"type": "string"},
        "source": text(NAME_BYTES_MAX),
        "data": {"type": "object"},
    });
    let predicate = object(&predicate, &["type"]);
    let properties = json!({
        "mode": {"enum": ["any", "all"]},
        "predicates": {"type": "array", "items": predicate, "minItems": 1, "maxItems": WAIT_PREDICATES_MAX},
        "timeout_s": {"type": "integer", "minimum": 1},
        "watermark": {"type": "integer", "minimum": 0},
    });
    object(&properties, &["mode", "predicates"])
}

fn outcome() -> Value {
    let properties = json!({
        "status": {"enum": ["succeeded", "failed"]},
        "summary": {"type": "string"},
        "data": {"type": "object"},
    });
    object(&properties, &["status"])
}
