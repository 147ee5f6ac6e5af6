//! Which registrations are accepted (T16, S04), by the words of the requirement alone.

use std::collections::BTreeSet;

use crate::history::{BUILTINS, Extension};

/// Those that keep the rules, in the order of names, whatever the order in which they were offered.
pub fn accepted(offered: &[Extension]) -> Vec<Extension> {
    let mut kept: Vec<Extension> = offered
        .iter()
        .filter(|extension| {
            let of_this_name = offered.iter().filter(|other| other.name == extension.name).count();
            of_this_name == 1 && is_sound(extension)
        })
        .cloned()
        .collect();
    kept.sort_by(|one, other| one.name.cmp(&other.name));
    kept
}

fn is_sound(extension: &Extension) -> bool {
    let name = extension.name.as_str();
    if name == "core" || BUILTINS.contains(&name) {
        return false;
    }
    let namespace = format!("{name}.");
    let is_own = |text: &str| text.strip_prefix(&namespace).is_some_and(|suffix| !suffix.is_empty());
    let mut taken = BTreeSet::new();
    for operation in &extension.operations {
        if !is_own(&operation.name) || !taken.insert(operation.name.as_str()) {
            return false;
        }
    }
    let own = taken.clone();
    for toolset in &extension.toolsets {
        if !is_own(&toolset.name) || !taken.insert(toolset.name.as_str()) || toolset.operations.is_empty() {
            return false;
        }
        let members: BTreeSet<&str> = toolset.operations.iter().map(String::as_str).collect();
        let may = |member: &&str| own.contains(member) || BUILTINS.contains(member);
        if members.len() != toolset.operations.len() || !members.iter().all(may) {
            return false;
        }
    }
    true
}
