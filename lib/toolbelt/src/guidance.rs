//! Guidance: what each granted operation is for and what it takes, for a process that has read nothing else (E02).

use conduit_config::Snapshot;
use serde_json::{Value, json};

use crate::registry::Registry;
use crate::token::TokenRecord;

/// The guidance of the operations that the token grants and the configuration allows now.
pub(crate) fn of(token: &TokenRecord, snapshot: &Snapshot, registry: &Registry) -> Value {
    let known = allowed(token, snapshot).filter_map(|name| registry.operation(name));
    let operations: Vec<Value> = known
        .map(|known| json!({"name": known.spec.name, "summary": known.spec.summary, "input": known.spec.input}))
        .collect();
    json!({"operations": operations})
}

/// Those of the operations that the token grants and the configuration allows now that serve `capability`.
pub(crate) fn serving(token: &TokenRecord, snapshot: &Snapshot, registry: &Registry, capability: &str) -> Value {
    let mut operations = registry.serving(capability);
    operations.retain(|name| allowed(token, snapshot).any(|allowed| allowed == *name));
    json!({"capability": capability, "operations": operations})
}

fn allowed<'t>(token: &'t TokenRecord, snapshot: &'t Snapshot) -> impl Iterator<Item = &'t str> {
    let granted = token.grants.operations.iter().map(String::as_str);
    granted.filter(|name| snapshot.authorize_operation(&token.scope, name))
}
