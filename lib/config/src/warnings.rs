//! Grant warnings (S06): what a playbook relies on and its binding may not call, and lists that spell out an older version of
//! a toolset. Pure; a warning never fails a configuration.
//!
//! Each says how to mend it with `open-conduit config set POINTER JSON`, which puts a value in the place of the one at
//! POINTER and makes the objects on the way. The commands of all warnings are meant to be run in their order: each
//! starts from what the ones before it made.

use std::collections::{BTreeMap, BTreeSet};

use conduit_api::views::GrantWarning;
use serde_json::json;

use crate::catalogue::{Catalogue, ListedToolset, OperationId};
use crate::grant::{Entry, Name, OperationSet, Resolution, resolve};
use crate::model::{Binding, Config, Scope};
use crate::playbook::Playbook;

/// Every grant warning about the enabled scopes of `config`, in the order of scopes and bindings; a scope's own come first.
pub fn grant_warnings(config: &Config, catalogue: &Catalogue) -> Vec<GrantWarning> {
    let mut toolsets_of = vec![Vec::new(); catalogue.operations_len()];
    for (place, toolset) in catalogue.toolsets().iter().enumerate() {
        // A toolset that is not active grants nothing: naming it instead would take something away (T18).
        if config.active.contains(&toolset.extension) {
            toolset.members.iter().for_each(|(id, _)| toolsets_of[id.0 as usize].push(place));
        }
    }
    let mut work =
        Warner { config, catalogue, toolsets_of, enabled: BTreeSet::new(), opened: BTreeMap::new(), found: Vec::new() };
    for (id, scope) in config.scopes.iter().filter(|(_, scope)| scope.enabled) {
        work.scope(id.as_str(), scope);
    }
    work.found
}

struct Warner<'w> {
    config: &'w Config,
    catalogue: &'w Catalogue,
    /// The toolsets that each operation is in.
    toolsets_of: Vec<Vec<usize>>,
    /// The extensions that a command of an earlier warning enables.
    enabled: BTreeSet<&'w str>,
    /// The scopes of the extensions that a command of an earlier warning has for more scopes.
    opened: BTreeMap<&'w str, BTreeSet<String>>,
    found: Vec<GrantWarning>,
}

/// A list as the commands up to now would leave it.
struct Proposal {
    pointer: String,
    entries: Vec<String>,
    resolved: Resolution,
}

impl Proposal {
    /// Whether an entry grants or denies the toolset.
    fn mentions(&self, toolset: &str) -> bool {
        self.entries.iter().any(|entry| Entry::read(entry).name == Name::Toolset(toolset))
    }
}

impl<'w> Warner<'w> {
    fn proposal(&self, pointer: String, entries: Vec<String>) -> Proposal {
        let resolved = resolve(entries.iter().map(String::as_str), self.catalogue, &|_| true);
        Proposal { pointer, entries, resolved }
    }

    fn scope(&mut self, id: &str, scope: &Scope) {
        let mut ceiling = self.proposal(format!("/scopes/{id}/operations"), scope.operations.written().to_vec());
        self.older(id, None, &mut ceiling, None);
        for (name, binding) in &scope.bindings {
            self.binding(id, name, binding, &mut ceiling);
        }
    }

    fn binding(&mut self, scope: &str, name: &str, binding: &Binding, ceiling: &mut Proposal) {
        let pointer = format!("/scopes/{scope}/bindings/{name}/operations");
        let mut own = self.proposal(pointer, binding.operations.written().to_vec());
        self.older(scope, Some(name), &mut own, Some(&ceiling.resolved.denied));
        if let Some(playbook) = &binding.playbook {
            self.lacking(scope, name, playbook, &mut own, ceiling);
        }
    }

    /// What the playbook uses and the binding or its scope does not grant, or an extension that is not active there has.
    fn lacking(&mut self, scope: &str, name: &str, playbook: &Playbook, own: &mut Proposal, ceiling: &mut Proposal) {
        let (config, catalogue) = (self.config, self.catalogue);
        let used: Vec<OperationId> =
            playbook.operations.iter().filter_map(|used| catalogue.operation_id(used)).collect();
        let without = |list: &Proposal| -> Vec<OperationId> {
            used.iter().copied().filter(|id| !list.resolved.possible.contains(*id)).collect()
        };
        let extension = |id: &OperationId| catalogue.operation(*id).extension.as_deref();
        let asleep = |id: &OperationId| extension(id).filter(|name| !config.active.contains(*name));
        let (of_scope, of_binding) = (without(ceiling), without(own));
        let said = |id: &OperationId| extension(id).and_then(|name| Some((name, config.extensions.get(name)?)));
        let elsewhere = |id: &OperationId| said(id).filter(|(_, said)| !said.is_for(scope));
        let refused = |id: &&OperationId| {
            of_scope.contains(id) || of_binding.contains(id) || asleep(id).is_some() || elsewhere(id).is_some()
        };
        let lacking: Vec<OperationId> = used.iter().filter(refused).copied().collect();
        if lacking.is_empty() {
            return;
        }
        let mut commands = Vec::new();
        for extension in lacking.iter().filter_map(asleep) {
            if self.enabled.insert(extension) {
                commands.push(match config.extensions.contains_key(extension) {
                    true => set(&format!("/extensions/{extension}/enabled"), &json!(true)),
                    false => set(&format!("/extensions/{extension}"), &json!({"enabled": true})),
                });
            }
        }
        for (extension, said) in lacking.iter().filter_map(elsewhere) {
            let listed = self.opened.entry(extension).or_insert_with(|| said.scopes.clone().unwrap_or_default());
            if listed.insert(scope.to_owned()) {
                commands.push(set(&format!("/extensions/{extension}/scopes"), &json!(listed)));
            }
        }
        // The scope first: a binding may not name what its scope does not grant.
        for (list, needed) in [(ceiling, of_scope), (own, of_binding)] {
            if !needed.is_empty() {
                commands.push(self.replace(list, |entries| granting(entries, &needed, catalogue)));
            }
        }
        let operations = self.names(&lacking);
        self.found.push(GrantWarning {
            scope: scope.to_owned(),
            binding: Some(name.to_owned()),
            playbook: Some(playbook.name.clone()),
            toolset: None,
            message: format!(
                "the playbook {} of the binding {name} in the scope {scope} uses {}, which the binding may not call",
                playbook.name,
                operations.join(", ")
            ),
            operations,
            commands,
        });
    }

    /// Lists that name every operation of an earlier version of a toolset, and so lack what it has gained since. What the
    /// list, or the scope (`denied`), denies is not lacking: somebody meant it.
    fn older(&mut self, scope: &str, binding: Option<&str>, list: &mut Proposal, denied: Option<&OperationSet>) {
        let explicit: Vec<OperationId> = list.resolved.explicit.iter().map(|(_, id)| *id).collect();
        let touched: BTreeSet<usize> =
            explicit.iter().flat_map(|id| self.toolsets_of[id.0 as usize].iter().copied()).collect();
        let mut named = OperationSet::none(self.catalogue);
        explicit.iter().for_each(|id| named.insert(*id));
        for toolset in touched.into_iter().filter_map(|place| self.catalogue.toolsets().get(place)) {
            if !self.spells_older(toolset, &named) || list.mentions(&toolset.name) {
                continue;
            }
            let denies = |id: &OperationId| {
                list.resolved.denied.contains(*id) || denied.is_some_and(|denied| denied.contains(*id))
            };
            let members = toolset.members.iter().map(|(id, _)| *id);
            let gained: Vec<OperationId> =
                members.filter(|id| !list.resolved.possible.contains(*id) && !denies(id)).collect();
            if gained.is_empty() {
                continue;
            }
            let command = self.replace(list, |entries| naming(entries, toolset, self.catalogue));
            let operations = self.names(&gained);
            let place = binding.map_or(String::new(), |binding| format!("the binding {binding} in "));
            self.found.push(GrantWarning {
                scope: scope.to_owned(),
                binding: binding.map(str::to_owned),
                playbook: None,
                toolset: Some(toolset.name.to_string()),
                message: format!(
                    "the operations of {place}the scope {scope} spell out an older version of @{} and lack {}",
                    toolset.name,
                    operations.join(", ")
                ),
                operations,
                commands: vec![command],
            });
        }
    }

    /// Whether `named` has everything that some earlier version of the toolset had, and something of its extension's own.
    fn spells_older(&self, toolset: &ListedToolset, named: &OperationSet) -> bool {
        let Some((_, earlier)) = toolset.growth.split_last() else { return false };
        let mut own = false;
        for members in earlier {
            if !members.iter().all(|id| named.contains(*id)) {
                return false;
            }
            own |= members.iter().any(|id| self.catalogue.operation(*id).extension.is_some());
            if own {
                return true;
            }
        }
        false
    }

    /// Changes a list, and returns the command that does it.
    fn replace(&self, list: &mut Proposal, change: impl FnOnce(&[String]) -> Vec<String>) -> String {
        let entries = change(&list.entries);
        *list = self.proposal(std::mem::take(&mut list.pointer), entries);
        set(&list.pointer, &json!(list.entries))
    }

    fn names(&self, ids: &[OperationId]) -> Vec<String> {
        ids.iter().map(|id| self.catalogue.operation(*id).name.to_string()).collect()
    }
}

/// The list with each of `needed` granted: denials of them go, and a denied toolset gives way to the rest of what it denies.
fn granting(entries: &[String], needed: &[OperationId], catalogue: &Catalogue) -> Vec<String> {
    let needs = |id: &OperationId| needed.contains(id);
    let mut list: Vec<String> = Vec::new();
    let mut add = |entry: String| {
        if !list.contains(&entry) {
            list.push(entry);
        }
    };
    for entry in entries {
        match Entry::read(entry) {
            Entry { denied: true, name: Name::Operation(name) }
                if catalogue.operation_id(name).as_ref().is_some_and(needs) => {}
            Entry { denied: true, name: Name::Toolset(name) } => match catalogue.toolset(name) {
                Some(toolset) if toolset.members.iter().any(|(id, _)| needs(id)) => {
                    let others = toolset.members.iter().map(|(id, _)| id).filter(|id| !needs(id));
                    others.for_each(|id| add(format!("!{}", catalogue.operation(*id).name)));
                }
                _ => add(entry.clone()),
            },
            _ => add(entry.clone()),
        }
    }
    let granted = resolve(list.iter().map(String::as_str), catalogue, &|_| true).possible;
    let missing = needed.iter().filter(|id| !granted.contains(**id));
    let missing: Vec<String> = missing.map(|id| catalogue.operation(*id).name.to_string()).collect();
    list.extend(missing);
    list
}

/// The list with the toolset in the place of the operations that it holds.
fn naming(entries: &[String], toolset: &ListedToolset, catalogue: &Catalogue) -> Vec<String> {
    let held = |entry: &str| {
        let id = catalogue.operation_id(entry);
        id.is_some_and(|id| toolset.members.iter().any(|(member, _)| *member == id))
    };
    let first = entries.iter().position(|entry| held(entry)).unwrap_or(entries.len());
    let mut list: Vec<String> = entries.iter().filter(|entry| !held(entry)).cloned().collect();
    list.insert(first.min(list.len()), format!("@{}", toolset.name));
    list
}

/// The command that puts `value` at `pointer`. No name in either has a character that a shell would read.
fn set(pointer: &str, value: &serde_json::Value) -> String {
    format!("open-conduit config set {pointer} '{value}'")
}
