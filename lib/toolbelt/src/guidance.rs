//! Guidance: what each granted operation is for and what it takes, for a process that has read nothing else (E02).

use conduit_api::toolbelt::operation;
use serde_json::{Value, json};

use crate::token::TokenRecord;

/// One sentence and the input's JSON Schema of a builtin.
fn describe(name: &str) -> Option<(&'static str, Value)> {
    let text = || json!({"type": "string"});
    let object = || json!({"type": "object"});
    let schema = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    Some(match name {
        operation::EMIT => (
            "Emit an Event of a family that grants.events lists. It follows from the input that this segment works on.",
            schema(
                json!({"type": text(), "data": object(), "schema": text(), "correlation_key": text(), "delivery_id": text()}),
                &["type"],
            ),
        ),
        operation::CREATE_WORK => (
            "Create a child Work of a binding that grants.delegates lists; a core.work.finished tells when it has ended.",
            schema(
                json!({"binding": text(), "title": text(), "data": object(), "keys": {"type": "array", "items": text()}}),
                &["binding"],
            ),
        ),
        operation::WAIT => (
            "Declare what to wait for, then end the process: authority ends with this call, and a new segment starts when the wait ends.",
            schema(
                json!({
                    "mode": {"enum": ["any", "all"]},
                    "predicates": {"type": "array", "items": schema(
                        json!({"type": text(), "correlation_key": text(), "work_id": text(), "source": text(), "data": object()}),
                        &["type"],
                    )},
                    "timeout_s": {"type": "integer", "minimum": 1},
                    "watermark": {"type": "integer", "minimum": 0},
                }),
                &["mode", "predicates"],
            ),
        ),
        operation::DECLARE_OUTCOME => (
            "Declare how the Work ended, then end the process: authority ends with this call.",
            schema(
                json!({"status": {"enum": ["succeeded", "failed"]}, "summary": text(), "data": object()}),
                &["status"],
            ),
        ),
        operation::READ_CONTEXT => {
            ("Read the Work, its inputs, its waits and what may be called.", schema(json!({}), &[]))
        }
        _ => return None,
    })
}

/// The guidance of the operations that the token grants and the configuration allows now.
pub(crate) fn of(token: &TokenRecord, allowed: impl Fn(&str) -> bool) -> Value {
    let operations: Vec<Value> = token
        .grants
        .operations
        .iter()
        .filter(|name| allowed(name))
        .filter_map(|name| {
            describe(name).map(|(summary, input)| json!({"name": name, "summary": summary, "input": input}))
        })
        .collect();
    json!({"operations": operations})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_is_described() {
        for name in operation::BUILTINS {
            assert!(describe(name).is_some(), "{name}");
        }
    }
}
