//! What this release has for a configuration to name: operations and executors. Passed in, so that this crate knows none.

use std::collections::{BTreeMap, BTreeSet};

use conduit_api::error::Diagnostic;
use conduit_api::toolbelt::operation;
use serde_json::Value;

/// What a configuration may refer to.
pub trait Registry {
    /// Whether a toolbelt of this release has the operation `name`.
    fn has_operation(&self, name: &str) -> bool;

    /// Has the executor `name` look at its part of a binding, which stands at `pointer`; `None` when there is no such executor.
    fn validate_executor(&self, name: &str, config: &Value, pointer: &str) -> Option<Vec<Diagnostic>>;
}

type Validate = Box<dyn Fn(&Value, &str) -> Vec<Diagnostic>>;

/// A registry put together at start: the builtin operations, and whatever is added.
pub struct Registered {
    operations: BTreeSet<String>,
    executors: BTreeMap<String, Validate>,
}

impl Registered {
    /// The builtin operations and no executor.
    pub fn builtins() -> Self {
        let operations = operation::BUILTINS.iter().map(|name| (*name).to_owned()).collect();
        Self { operations, executors: BTreeMap::new() }
    }

    /// With the executor `name`, whose `validate` reports the faults of a binding's `config`.
    #[must_use]
    pub fn executor(mut self, name: &str, validate: impl Fn(&Value, &str) -> Vec<Diagnostic> + 'static) -> Self {
        self.executors.insert(name.to_owned(), Box::new(validate));
        self
    }
}

impl Registry for Registered {
    fn has_operation(&self, name: &str) -> bool {
        self.operations.contains(name)
    }

    fn validate_executor(&self, name: &str, config: &Value, pointer: &str) -> Option<Vec<Diagnostic>> {
        self.executors.get(name).map(|validate| validate(config, pointer))
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let executors: Vec<&String> = self.executors.keys().collect();
        f.debug_struct("Registered").field("operations", &self.operations).field("executors", &executors).finish()
    }
}
