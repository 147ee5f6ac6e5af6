//! A configuration as one generation published it, and the questions that are asked of it.

use conduit_api::ScopeId;
use conduit_api::id::{in_family, is_namespaced};
use conduit_store::Read;
use serde_json::{Value, json};

use crate::generation;
use crate::model::{Binding, Config, Scope};
use crate::parse::Checked;

/// What stands for text that only the executor or the extension may see.
const REDACTED: &str = "[redacted]";

/// One generation: its number, the hash of its canonical bytes, and its typed configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub generation: i64,
    /// SHA-256 of the canonical JSON as it was written, lower-case hex (C02).
    pub hash: String,
    pub config: Config,
}

impl Snapshot {
    pub fn new(generation: i64, checked: Checked) -> Self {
        Self { generation, hash: checked.hash, config: checked.config }
    }

    /// Whether this is the generation that is active in the view of `read`.
    pub fn is_active(&self, read: &Read<'_>) -> conduit_store::Result<bool> {
        Ok(generation::active_number(read)? == Some(self.generation))
    }

    /// The scope `id`, enabled or not.
    pub fn scope(&self, id: &ScopeId) -> Option<&Scope> {
        self.config.scopes.get(id)
    }

    /// The scope `id`, unless it is disabled: what may be run and emitted in.
    pub fn enabled_scope(&self, id: &ScopeId) -> Option<&Scope> {
        self.scope(id).filter(|scope| scope.enabled)
    }

    /// The binding `name` of the scope, enabled or not.
    pub fn binding(&self, scope: &ScopeId, name: &str) -> Option<&Binding> {
        self.scope(scope)?.bindings.get(name)
    }

    /// The ceiling for operations: whether `operation` may be called in `scope` now (T05, T07).
    pub fn authorize_operation(&self, scope: &ScopeId, operation: &str) -> bool {
        self.enabled_scope(scope).is_some_and(|scope| scope.operations.contains(operation))
    }

    /// Whether a call of `operation` that was refused is one that the binding's playbook relies on: then the configuration
    /// lags what the playbook uses, and the operator has to mend it (S07). Asked of the generation that the caller is pinned
    /// to; no executor is asked.
    pub fn drift(&self, scope: &ScopeId, binding: &str, operation: &str) -> bool {
        let playbook = self.binding(scope, binding).and_then(|binding| binding.playbook.as_ref());
        playbook.is_some_and(|playbook| playbook.operations.iter().any(|used| used == operation))
    }

    /// Whether the extension is active in this generation, in whatever scopes (T18).
    pub fn registers(&self, extension: &str) -> bool {
        self.config.active.contains(extension)
    }

    /// Whether the extension is active in the scope: its operations are declared there, and its gates asked (T18, G01).
    pub fn registers_in(&self, extension: &str, scope: &ScopeId) -> bool {
        self.config.is_active_in(extension, scope.as_str())
    }

    /// The settings of the extension: an empty object where the generation has none.
    pub fn settings(&self, extension: &str) -> Value {
        self.config.settings(extension)
    }

    /// The ceiling for Events: whether an Event of type `kind` may be emitted in `scope` now (T07, T08).
    pub fn authorize_event(&self, scope: &ScopeId, kind: &str) -> bool {
        self.enabled_scope(scope).is_some_and(|scope| allows_event(scope.events.iter(), kind))
    }

    /// What of the `granted` families lies under the ceiling: each whole, or the parts of it that the scope has (C07).
    pub fn authorize_families(&self, scope: &ScopeId, granted: &[String]) -> Vec<String> {
        let Some(scope) = self.enabled_scope(scope) else { return Vec::new() };
        let narrowed = granted.iter().flat_map(|family| {
            if scope.events.iter().any(|ceiling| in_family(family, ceiling)) {
                vec![family.clone()]
            } else {
                scope.events.iter().filter(|ceiling| in_family(ceiling, family)).cloned().collect()
            }
        });
        narrowed.collect()
    }

    /// The normalized configuration without any text of an executor's or an extension's part: what the store keeps (C02).
    pub fn redacted(&self) -> Value {
        redacted(&self.config)
    }
}

/// Whether the event type `kind` belongs to one of `families`; what is not namespaced belongs to none.
fn allows_event<'f>(mut families: impl Iterator<Item = &'f String>, kind: &str) -> bool {
    is_namespaced(kind) && families.any(|family| in_family(kind, family))
}

/// See [`Snapshot::redacted`].
pub(crate) fn redacted(config: &Config) -> Value {
    let mut hidden = config.clone();
    for extension in hidden.extensions.values_mut() {
        hide(&mut extension.config);
    }
    for binding in hidden.scopes.values_mut().flat_map(|scope| scope.bindings.values_mut()) {
        hide(&mut binding.config);
    }
    normalized(&hidden)
}

/// The configuration with its defaults written out.
pub(crate) fn normalized(config: &Config) -> Value {
    json!({"version": 1, "limits": config.limits, "extensions": config.extensions, "scopes": config.scopes})
}

fn hide(value: &mut Value) {
    match value {
        Value::String(text) => REDACTED.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::Object(fields) => fields.values_mut().for_each(hide),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
