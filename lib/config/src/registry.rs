//! What this release has for a configuration to name: operations, toolsets, extensions, executors, playbooks. Passed in, so
//! that this crate knows none of them.

use std::collections::BTreeMap;
use std::rc::Rc;

use conduit_api::error::Diagnostic;
use serde_json::Value;

use crate::catalogue::Catalogue;
use crate::playbook::Playbook;

/// What a configuration may refer to.
pub trait Registry {
    /// The operations, toolsets and extensions of this release, active or not.
    fn catalogue(&self) -> &Catalogue;

    /// Has the executor `name` look at its part of a binding, which stands at `pointer`; `None` when there is no such executor.
    fn validate_executor(&self, name: &str, config: &Value, pointer: &str) -> Option<Vec<Diagnostic>>;

    /// The extension that has the executor `name`; `None` for one of the suite's own, which every generation has.
    fn executor_extension(&self, name: &str) -> Option<&str>;

    /// The names of the executors, for whoever named another.
    fn executors(&self) -> Vec<&str>;

    /// The names of the playbooks, likewise.
    fn playbooks(&self) -> Vec<&str>;

    /// Has the extension `name`, which the catalogue has, look at its own settings, which stand at `pointer` of `document`: the
    /// whole configuration, as it was written and with whatever faults.
    fn validate_extension(&self, name: &str, config: &Value, pointer: &str, document: &Value) -> Vec<Diagnostic>;

    /// The playbook that a binding of `executor` with `config` starts its turns on, by the name that the executor gives (S05).
    fn named_playbook(&self, executor: &str, config: &Value) -> Named;
}

/// What an executor says about a binding's playbook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// The binding has none.
    Nothing,
    Known(Rc<Playbook>),
    /// It names one that this release does not have.
    Unknown,
}

type Validate = Box<dyn Fn(&Value, &str) -> Vec<Diagnostic>>;
type ValidateExtension = Box<dyn Fn(&Value, &str, &Value) -> Vec<Diagnostic>>;
type NamePlaybook = Box<dyn Fn(&Value) -> Option<String>>;

struct RegisteredExecutor {
    extension: Option<String>,
    validate: Validate,
    playbook: NamePlaybook,
}

/// A registry put together at start.
pub struct Registered {
    catalogue: Catalogue,
    executors: BTreeMap<String, RegisteredExecutor>,
    extensions: BTreeMap<String, ValidateExtension>,
    playbooks: BTreeMap<String, Rc<Playbook>>,
}

impl Registered {
    /// The builtin operations and no executor.
    pub fn builtins() -> Self {
        Self::of(Catalogue::builtins())
    }

    /// The names of `catalogue` and no executor.
    pub fn of(catalogue: Catalogue) -> Self {
        Self { catalogue, executors: BTreeMap::new(), extensions: BTreeMap::new(), playbooks: BTreeMap::new() }
    }

    /// With the executor `name`, whose `validate` reports the faults of a binding's `config`; it names no playbook.
    #[must_use]
    pub fn executor(self, name: &str, validate: impl Fn(&Value, &str) -> Vec<Diagnostic> + 'static) -> Self {
        self.executor_with_playbook(name, validate, |_| None)
    }

    /// With the executor `name`, whose `playbook` names the one that a binding's `config` starts its turns on.
    #[must_use]
    pub fn executor_with_playbook(
        mut self,
        name: &str,
        validate: impl Fn(&Value, &str) -> Vec<Diagnostic> + 'static,
        playbook: impl Fn(&Value) -> Option<String> + 'static,
    ) -> Self {
        let executor =
            RegisteredExecutor { extension: None, validate: Box::new(validate), playbook: Box::new(playbook) };
        self.executors.insert(name.to_owned(), executor);
        self
    }

    /// As [`Registered::executor_with_playbook`], for an executor of `extension`: a binding can name it where that is active.
    #[must_use]
    pub fn executor_of(
        self,
        extension: &str,
        name: &str,
        validate: impl Fn(&Value, &str) -> Vec<Diagnostic> + 'static,
        playbook: impl Fn(&Value) -> Option<String> + 'static,
    ) -> Self {
        let mut registered = self.executor_with_playbook(name, validate, playbook);
        if let Some(executor) = registered.executors.get_mut(name) {
            executor.extension = Some(extension.to_owned());
        }
        registered
    }

    /// With a `validate` for the settings of the extension `name`; without one an extension takes no settings.
    #[must_use]
    pub fn extension(self, name: &str, validate: impl Fn(&Value, &str) -> Vec<Diagnostic> + 'static) -> Self {
        self.extension_of_document(name, move |config, pointer, _| validate(config, pointer))
    }

    /// As [`Registered::extension`], for settings that name scopes or other extensions: `validate` is given the document.
    #[must_use]
    pub fn extension_of_document(
        mut self,
        name: &str,
        validate: impl Fn(&Value, &str, &Value) -> Vec<Diagnostic> + 'static,
    ) -> Self {
        self.extensions.insert(name.to_owned(), Box::new(validate));
        self
    }

    /// With a playbook for executors to name.
    #[must_use]
    pub fn playbook(mut self, playbook: Playbook) -> Self {
        self.playbooks.insert(playbook.name.clone(), Rc::new(playbook));
        self
    }
}

impl Registry for Registered {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn validate_executor(&self, name: &str, config: &Value, pointer: &str) -> Option<Vec<Diagnostic>> {
        self.executors.get(name).map(|executor| (executor.validate)(config, pointer))
    }

    fn executor_extension(&self, name: &str) -> Option<&str> {
        self.executors.get(name)?.extension.as_deref()
    }

    fn executors(&self) -> Vec<&str> {
        self.executors.keys().map(String::as_str).collect()
    }

    fn playbooks(&self) -> Vec<&str> {
        self.playbooks.keys().map(String::as_str).collect()
    }

    fn validate_extension(&self, name: &str, config: &Value, pointer: &str, document: &Value) -> Vec<Diagnostic> {
        match self.extensions.get(name) {
            Some(validate) => validate(config, pointer, document),
            None if config.as_object().is_some_and(|fields| fields.is_empty()) => Vec::new(),
            None => vec![Diagnostic {
                pointer: pointer.to_owned(),
                code: crate::Rule::UnknownField.code().to_owned(),
                remedy: "leave it empty: the extension takes no settings".into(),
            }],
        }
    }

    fn named_playbook(&self, executor: &str, config: &Value) -> Named {
        let Some(name) = self.executors.get(executor).and_then(|executor| (executor.playbook)(config)) else {
            return Named::Nothing;
        };
        self.playbooks.get(&name).map_or(Named::Unknown, |playbook| Named::Known(Rc::clone(playbook)))
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let executors: Vec<&String> = self.executors.keys().collect();
        f.debug_struct("Registered").field("catalogue", &self.catalogue).field("executors", &executors).finish()
    }
}
