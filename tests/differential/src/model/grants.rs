//! What lists of grants come to, and which configurations are sound (S01–S03, C07): sets of names, nothing clever.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{BUILTINS, Extension, Generation, Operation, Scope};

/// Everything of a release that a list can name.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Each extension, and whether it is active where nothing is said about it.
    pub extensions: BTreeMap<String, bool>,
    /// Operations of extensions, with their owner.
    pub operations: BTreeMap<String, (String, Operation)>,
    /// Toolsets, with their owner.
    pub toolsets: BTreeMap<String, (String, Vec<String>)>,
}

/// How lists are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Sound,
    WithoutDenials,
}

type Names = BTreeSet<String>;

impl Known {
    pub fn of(accepted: &[Extension]) -> Self {
        let mut known = Self::default();
        for extension in accepted {
            known.extensions.insert(extension.name.clone(), extension.always);
            for operation in &extension.operations {
                known.operations.insert(operation.name.clone(), (extension.name.clone(), operation.clone()));
            }
            for toolset in &extension.toolsets {
                known.toolsets.insert(toolset.name.clone(), (extension.name.clone(), toolset.operations.clone()));
            }
        }
        known
    }

    fn is_operation(&self, name: &str) -> bool {
        BUILTINS.contains(&name) || self.operations.contains_key(name)
    }

    /// Whether the extension is active in a scope of `generation` (T18, G01).
    fn active(&self, generation: &Generation, scope: usize, extension: &str) -> bool {
        match generation.extensions.get(extension) {
            Some(said) => said.enabled && said.scopes.as_ref().is_none_or(|scopes| scopes.contains(&scope)),
            None => self.extensions.get(extension).copied().unwrap_or(false),
        }
    }

    /// Whether the toolbelt has the operation in a scope of `generation`.
    pub fn declares(&self, generation: &Generation, scope: usize, operation: &str) -> bool {
        let owned = |(owner, _): &(String, Operation)| self.active(generation, scope, owner);
        BUILTINS.contains(&operation) || self.operations.get(operation).is_some_and(owned)
    }

    /// What the entries name or deny, as far as `counts` an extension.
    fn named(&self, entries: &[String], denied: bool, counts: &dyn Fn(&str) -> bool) -> Names {
        let mut names = Names::new();
        for entry in entries {
            let (is_denial, name) = entry.strip_prefix('!').map_or((false, entry.as_str()), |name| (true, name));
            if is_denial != denied {
                continue;
            }
            if let Some(toolset) = name.strip_prefix('@') {
                if let Some((owner, members)) = self.toolsets.get(toolset)
                    && counts(owner)
                {
                    names.extend(members.iter().cloned());
                }
            } else if BUILTINS.contains(&name) || self.operations.get(name).is_some_and(|(owner, _)| counts(owner)) {
                names.insert(name.to_owned());
            }
        }
        names
    }

    fn less_denied(&self, entries: &[String], reading: Reading, counts: &dyn Fn(&str) -> bool) -> Names {
        let granted = self.named(entries, false, counts);
        if reading == Reading::WithoutDenials {
            return granted;
        }
        let denied = self.named(entries, true, &|_| true);
        granted.difference(&denied).cloned().collect()
    }

    /// What a list of a scope grants in `generation`.
    fn granted(&self, entries: &[String], generation: &Generation, scope: usize, reading: Reading) -> Names {
        self.less_denied(entries, reading, &|extension| self.active(generation, scope, extension))
    }

    /// What a scope of `generation` grants.
    pub fn of_scope(&self, generation: &Generation, scope: usize, reading: Reading) -> Names {
        self.granted(&generation.scopes[scope].operations, generation, scope, reading)
    }

    /// What a list would grant if every extension were active.
    pub fn possible(&self, entries: &[String]) -> Names {
        self.less_denied(entries, Reading::Sound, &|_| true)
    }

    /// What a binding's token may call, as long as the scope allows it.
    pub fn of_binding(&self, generation: &Generation, scope: usize, binding: usize, reading: Reading) -> Names {
        let own = &generation.scopes[scope].bindings[binding].operations;
        let own = self.granted(own, generation, scope, reading);
        own.intersection(&self.of_scope(generation, scope, reading)).cloned().collect()
    }

    /// Whether an operator may publish it.
    pub fn accepts(&self, generation: &Generation) -> bool {
        let knows = |entry: &String| {
            let name = entry.trim_start_matches('!');
            name.strip_prefix('@').map_or_else(|| self.is_operation(name), |set| self.toolsets.contains_key(set))
        };
        let sound = |scope: &Scope| {
            let ceiling = self.possible(&scope.operations);
            scope.operations.iter().all(knows)
                && scope.bindings.iter().all(|binding| {
                    let denied = self.named(&binding.operations, true, &|_| true);
                    let plain = |entry: &&String| !entry.starts_with(['!', '@']);
                    binding.operations.iter().all(knows)
                        && (scope.events || !binding.events)
                        && (binding.operations.iter().filter(plain))
                            .all(|name| ceiling.contains(name) || denied.contains(name))
                })
        };
        generation.extensions.keys().all(|name| self.extensions.contains_key(name))
            && generation.scopes.iter().all(sound)
    }
}
