//! The rules of registrations (T16, S04): pure, over the whole set at once, so that the order of loading decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use conduit_api::id::{in_family, is_name, is_namespaced};
use conduit_api::toolbelt::operation;
use serde_json::Value;

use super::error::{Fault, Refused};
use super::registration::{OperationKind, Registration};

/// Stands for a gate in the record of a call while gates are bypassed.
pub const BREAK_GLASS: &str = "break_glass";
/// Executors that come with the suite: no registration is called so and has an executor.
pub const OWN_EXECUTORS: [&str; 1] = ["shell"];
/// Longest summary, in characters.
const SUMMARY_CHARS_MAX: usize = 200;
/// Most operations, toolsets, playbooks or actions of one registration.
const ENTRIES_MAX: usize = 1024;

/// Parts a set of registrations into those that keep every rule and the faults of the others, both in the order of names.
///
/// A name that several registrations claim belongs to none of them: nobody can know which one was meant.
pub(super) fn accepted(registrations: Vec<Registration>) -> (Vec<Registration>, Vec<Refused>) {
    let mut by_name: BTreeMap<String, Vec<Registration>> = BTreeMap::new();
    for registration in registrations {
        by_name.entry(registration.name.clone()).or_default().push(registration);
    }
    let (mut kept, mut refused) = (Vec::new(), BTreeSet::new());
    for (name, mut claimants) in by_name {
        let mut faults = BTreeSet::new();
        if claimants.len() > 1 {
            let why = format!("is the name of {} registrations", claimants.len());
            faults.insert(Refused { registration: name.clone(), part: name, fault: Fault::Conflict, why });
        }
        for claimant in &claimants {
            faults.extend(faults_of(claimant));
        }
        match claimants.pop() {
            Some(sound) if faults.is_empty() => kept.push(sound),
            _ => refused.extend(faults),
        }
    }
    (kept, refused.into_iter().collect())
}

/// Every fault that a registration has by itself. Namespaces do not nest, so two that keep these rules and have different
/// names cannot collide.
pub(super) fn faults_of(registration: &Registration) -> Vec<Refused> {
    let mut check = Check { registration, found: Vec::new(), taken: BTreeMap::new() };
    check.itself();
    check.settings();
    check.operations();
    check.toolsets();
    check.playbooks();
    check.actions();
    check.executors();
    check.found
}

struct Check<'r> {
    registration: &'r Registration,
    found: Vec<Refused>,
    /// Every name of the namespace, and what it is the name of.
    taken: BTreeMap<&'r str, &'static str>,
}

impl<'r> Check<'r> {
    fn refuse(&mut self, fault: Fault, part: &str, why: impl Into<String>) {
        let registration = self.registration.name.clone();
        self.found.push(Refused { registration, part: part.to_owned(), fault, why: why.into() });
    }

    fn invalid(&mut self, part: &str, why: impl Into<String>) {
        self.refuse(Fault::Invalid, part, why);
    }

    fn itself(&mut self) {
        let registration = self.registration;
        let name = &registration.name;
        if !is_name(name) {
            self.invalid(name, "is no registration name: a lower-case letter, then at most 63 letters, digits, - or _");
        }
        let reserved = in_family(name, "core") || name == BREAK_GLASS;
        if operation::BUILTINS.contains(&name.as_str()) || reserved {
            self.refuse(Fault::Conflict, name, "is a name of the host");
        }
        self.summary(name, &registration.summary);
        self.families(name, &registration.event_families);
        self.families(name, &registration.wait_families);
        for (what, count) in [
            ("operations", registration.operations.len()),
            ("toolsets", registration.toolsets.len()),
            ("playbooks", registration.playbooks.len()),
            ("actions", registration.actions.len()),
            ("executors", registration.executors.len()),
        ] {
            if count > ENTRIES_MAX {
                self.invalid(name, format!("has more than {ENTRIES_MAX} {what}"));
            }
        }
    }

    fn settings(&mut self) {
        let registration = self.registration;
        match &registration.settings {
            Some(schema) if schema.get("type").and_then(Value::as_str) != Some("object") => {
                self.invalid(&registration.name, "has a schema of settings that is not of type `object`");
            }
            None if registration.validate => self.invalid(&registration.name, "validates settings, and takes none"),
            _ => {}
        }
    }

    fn operations(&mut self) {
        for spec in &self.registration.operations {
            let name = &spec.name;
            self.own_name(name, "an operation");
            self.summary(name, &spec.summary);
            self.schema(name, &spec.input);
            self.families(name, &spec.families);
            if spec.kind == OperationKind::Builtin {
                self.invalid(name, "is said to be a builtin; only the host has builtins");
            }
            if spec.kind == OperationKind::Read && !spec.idempotent {
                self.invalid(name, "only reads, and is said not to be repeatable");
            }
            if let Some(odd) = spec.capabilities.iter().find(|c| !is_name(c) && !is_namespaced(c)) {
                self.invalid(name, format!("serves `{odd}`, which is no name of a capability"));
            }
        }
    }

    fn toolsets(&mut self) {
        let registration = self.registration;
        let own: BTreeSet<&str> = registration.operations.iter().map(|spec| spec.name.as_str()).collect();
        for toolset in &registration.toolsets {
            let name = &toolset.name;
            self.own_name(name, "a toolset");
            self.summary(name, &toolset.summary);
            if toolset.operations.is_empty() {
                self.invalid(name, "grants nothing");
            }
            let mut seen = BTreeSet::new();
            for member in &toolset.operations {
                let operation = member.operation.as_str();
                if !own.contains(operation) && !operation::BUILTINS.contains(&operation) {
                    self.invalid(name, format!("grants `{operation}`, which is neither its extension's nor a builtin"));
                }
                if !seen.insert(operation) {
                    self.refuse(Fault::Conflict, name, format!("lists `{operation}` twice"));
                }
                if member.since > registration.version {
                    let (since, version) = (member.since, registration.version);
                    self.invalid(name, format!("has `{operation}` since {since}, which is after {version}"));
                }
            }
        }
    }

    fn playbooks(&mut self) {
        let mut seen = BTreeSet::new();
        for playbook in &self.registration.playbooks {
            let name = &playbook.name;
            if !is_name(name) {
                self.invalid(name, "is no name of a playbook");
            }
            if !seen.insert(name) {
                self.refuse(Fault::Conflict, name, "is the name of two playbooks");
            }
            if let Some(odd) = playbook.operations.iter().find(|o| !is_operation_name(o)) {
                self.invalid(name, format!("uses `{odd}`, which is no name of an operation"));
            }
        }
    }

    fn actions(&mut self) {
        for action in &self.registration.actions {
            self.own_name(&action.name, "an action");
            self.summary(&action.name, &action.summary);
            self.schema(&action.name, &action.input);
        }
    }

    /// Bindings name executors, and grants do not: an executor may have the name of the registration itself, and one of its
    /// operations.
    fn executors(&mut self) {
        let namespace = &self.registration.name;
        let mut seen = BTreeSet::new();
        for spec in &self.registration.executors {
            let name = &spec.name;
            if OWN_EXECUTORS.contains(&name.as_str()) {
                self.refuse(Fault::Conflict, name, "is an executor of the suite");
            } else if !(name == namespace || in_family(name, namespace) && is_namespaced(name)) {
                self.invalid(name, format!("is neither `{namespace}` nor in the namespace `{namespace}.*`"));
            }
            if !seen.insert(name) {
                self.refuse(Fault::Conflict, name, "is the name of two executors");
            }
            self.summary(name, &spec.summary);
            if spec.config.get("type").and_then(Value::as_str) != Some("object") {
                self.invalid(name, "has a schema of `config` that is not of type `object`");
            }
            if let Some(field) = &spec.playbook_field
                && spec.config.get("properties").and_then(|properties| properties.get(field)).is_none()
            {
                self.invalid(name, format!("names its playbook in `{field}`, which its `config` does not have"));
            }
        }
    }

    /// Notes a name that is a builtin's, lies outside the namespace, or stands twice in it.
    fn own_name(&mut self, name: &'r str, what: &'static str) {
        if operation::BUILTINS.contains(&name) {
            return self.refuse(Fault::Conflict, name, "is a builtin operation");
        }
        let namespace = &self.registration.name;
        if name == namespace || !in_family(name, namespace) || !is_namespaced(name) {
            return self.invalid(name, format!("is outside the namespace `{namespace}.*`"));
        }
        if let Some(other) = self.taken.insert(name, what) {
            let why = if other == what { format!("is {what} already") } else { format!("is {other} and {what}") };
            self.refuse(Fault::Conflict, name, why);
        }
    }

    fn summary(&mut self, part: &str, summary: &str) {
        let sound = !summary.trim().is_empty()
            && summary.chars().count() <= SUMMARY_CHARS_MAX
            && !summary.chars().any(char::is_control);
        if !sound {
            self.invalid(part, format!("has no summary of one line, at most {SUMMARY_CHARS_MAX} characters"));
        }
    }

    fn schema(&mut self, part: &str, schema: &Value) {
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            self.invalid(part, "has an input schema that is not of type `object`");
        }
    }

    fn families(&mut self, part: &str, families: &[String]) {
        for family in families {
            if in_family(family, "core") {
                self.refuse(Fault::Conflict, part, format!("names the event family `{family}`, which is the host's"));
            } else if !is_name(family) && !is_namespaced(family) {
                self.invalid(part, format!("names `{family}`, which is no event family"));
            }
        }
    }
}

/// Whether `name` is spelt as operations are: a builtin's one name, or several joined by dots.
pub(super) fn is_operation_name(name: &str) -> bool {
    is_name(name) || is_namespaced(name)
}
