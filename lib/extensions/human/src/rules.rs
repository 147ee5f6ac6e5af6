//! Its settings: which calls and which starts need an operator's approval, read strictly.
//!
//! What cannot be read is a fault for the configuration, and for the gate a reason to refuse: no rule is skipped.

use std::collections::BTreeSet;

use conduit_api::ScopeId;
use conduit_api::error::Diagnostic;
use conduit_api::id::is_name;
use conduit_config::{Catalogue, Rule};
use serde_json::{Map, Value};

/// How long a request waits for a decision, when its rule does not say: a day.
const TIMEOUT_S: u64 = 86_400;
/// Longest wait for a decision: a year, as for every Wait.
const TIMEOUT_S_MAX: u64 = 366 * 86_400;
/// Most rules, and most entries of one list.
const ENTRIES_MAX: usize = 1024;

/// Every rule; an earlier one goes before a later one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rules {
    calls: Vec<Guard>,
    starts: Vec<Guard>,
}

/// One rule.
#[derive(Debug, PartialEq, Eq)]
struct Guard {
    /// Operations, toolsets resolved; bindings for a start.
    names: BTreeSet<String>,
    /// Extensions all of whose operations are named.
    extensions: BTreeSet<String>,
    /// Every scope, when there is none.
    scopes: Option<BTreeSet<String>>,
    timeout_s: u64,
}

impl Guard {
    fn holds_in(&self, scope: &ScopeId) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.contains(scope.as_str()))
    }
}

impl Rules {
    /// How many seconds a call of `operation` in `scope` waits for a decision; `None` when it needs none.
    pub fn of_call(&self, scope: &ScopeId, operation: &str) -> Option<u64> {
        let owner = operation.split_once('.').map(|(owner, _)| owner);
        let guards = |guard: &&Guard| {
            guard.holds_in(scope)
                && (guard.names.contains(operation) || owner.is_some_and(|owner| guard.extensions.contains(owner)))
        };
        self.calls.iter().find(guards).map(|guard| guard.timeout_s)
    }

    /// How many seconds the start of a Work of `binding` in `scope` waits for a decision; `None` when it needs none.
    pub fn of_start(&self, scope: &ScopeId, binding: &str) -> Option<u64> {
        let guards = |guard: &&Guard| guard.holds_in(scope) && guard.names.contains(binding);
        self.starts.iter().find(guards).map(|guard| guard.timeout_s)
    }
}

/// The rules of `config`, which stands at `pointer`, and its faults. With the `document` that it stands in, a scope or a
/// binding that is not there is one, and so are operations of an extension that is not active: such a rule guards nothing.
pub fn read(
    config: &Value,
    pointer: &str,
    catalogue: &Catalogue,
    document: Option<&Value>,
) -> (Rules, Vec<Diagnostic>) {
    let part = |name: &str| document.map(|document| document.get(name).unwrap_or(&Value::Null));
    let mut reader = Reader { catalogue, scopes: part("scopes"), extensions: part("extensions"), faults: Vec::new() };
    let rules = reader.rules(config, pointer).unwrap_or_default();
    (rules, reader.faults)
}

struct Reader<'c> {
    catalogue: &'c Catalogue,
    /// What the document has for scopes and for extensions; `None` when the settings were checked before.
    scopes: Option<&'c Value>,
    extensions: Option<&'c Value>,
    faults: Vec<Diagnostic>,
}

impl Reader<'_> {
    fn fault(&mut self, rule: Rule, pointer: impl Into<String>, remedy: impl Into<String>) {
        self.faults.push(Diagnostic { pointer: pointer.into(), code: rule.code().to_owned(), remedy: remedy.into() });
    }

    fn rules(&mut self, config: &Value, pointer: &str) -> Option<Rules> {
        let object = self.object(config, pointer, &["rules", "starts"])?;
        let mut guards = |list: &str, names: &str| -> Vec<Guard> {
            let at = format!("{pointer}/{list}");
            let Some(written) = object.get(list) else { return Vec::new() };
            let Some(items) = self.list(written, &at) else { return Vec::new() };
            let items = items.iter().enumerate();
            items.filter_map(|(index, item)| self.guard(item, &format!("{at}/{index}"), names)).collect()
        };
        Some(Rules { calls: guards("rules", "operations"), starts: guards("starts", "bindings") })
    }

    /// One rule, whose `list` says what it is about.
    fn guard(&mut self, item: &Value, at: &str, list: &str) -> Option<Guard> {
        let object = self.object(item, at, &[list, "scopes", "timeout_s"])?;
        let mut guard = Guard {
            names: BTreeSet::new(),
            extensions: BTreeSet::new(),
            scopes: None,
            timeout_s: self.timeout(object.get("timeout_s"), at),
        };
        if let Some(written) = object.get("scopes") {
            guard.scopes = Some(self.scopes_of(written, &format!("{at}/scopes")));
        }
        match object.get(list) {
            None => self.fault(Rule::MissingField, format!("{at}/{list}"), "add the field"),
            Some(written) => {
                let at = format!("{at}/{list}");
                for (index, name) in self.names(written, &at) {
                    let at = format!("{at}/{index}");
                    if list == "operations" {
                        self.operation(&name, &at, &mut guard);
                    } else if !is_name(&name) {
                        self.fault(Rule::InvalidName, at, "use the name of a binding");
                    } else if !self.has_binding(&name, guard.scopes.as_ref()) {
                        self.fault(Rule::UnknownReference, at, "name a binding that a scope of the rule has");
                    } else {
                        guard.names.insert(name);
                    }
                }
            }
        }
        Some(guard)
    }

    /// The scopes that a rule names.
    fn scopes_of(&mut self, written: &Value, at: &str) -> BTreeSet<String> {
        let names = self.names(written, at);
        for (index, name) in &names {
            if !is_name(name) {
                self.fault(Rule::InvalidName, format!("{at}/{index}"), "use the name of a scope");
            } else if self.scopes.is_some_and(|scopes| scopes.get(name).is_none()) {
                self.fault(Rule::UnknownReference, format!("{at}/{index}"), "name a scope that the configuration has");
            }
        }
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// Whether a scope of the rule has the binding; whatever has, when nobody can say.
    fn has_binding(&self, name: &str, among: Option<&BTreeSet<String>>) -> bool {
        let Some(scopes) = self.scopes.and_then(Value::as_object) else { return true };
        let mut those = scopes.iter().filter(|(scope, _)| among.is_none_or(|among| among.contains(*scope)));
        those.any(|(_, scope)| scope.pointer(&format!("/bindings/{name}")).is_some())
    }

    /// Adds an operation, all of an extension's, or a toolset's.
    fn operation(&mut self, name: &str, at: &str, guard: &mut Guard) {
        let unknown = "name an operation, an extension's operations as in github.*, or a toolset as in @github.read, that this release has";
        let catalogue = self.catalogue;
        if let Some(toolset) = name.strip_prefix('@') {
            match catalogue.toolset_operations(toolset) {
                // Builtins pass no gate, so a toolset's are left out.
                Some(members) => {
                    let owned = members.filter_map(|member| Some((member, catalogue.owner_of(member)??)));
                    let (names, owners): (Vec<&str>, BTreeSet<&str>) = owned.unzip();
                    guard.names.extend(names.into_iter().map(str::to_owned));
                    owners.into_iter().for_each(|owner| self.active(owner, at));
                }
                None => self.fault(Rule::UnknownReference, at, unknown),
            }
        } else if let Some(extension) = name.strip_suffix(".*") {
            if catalogue.has_extension(extension) {
                guard.extensions.insert(extension.to_owned());
                self.active(extension, at);
            } else {
                self.fault(Rule::UnknownReference, at, unknown);
            }
        } else {
            match catalogue.owner_of(name) {
                Some(Some(owner)) => {
                    guard.names.insert(name.to_owned());
                    self.active(owner, at);
                }
                Some(None) => self.fault(Rule::InvalidValue, at, "remove it: builtin operations pass no gate"),
                None => self.fault(Rule::UnknownReference, at, unknown),
            }
        }
    }

    /// Notes an extension that the document does not have active: nobody can call what the rule names.
    fn active(&mut self, extension: &str, at: &str) {
        let Some(extensions) = self.extensions else { return };
        let always = || self.catalogue.extensions().any(|(name, always)| always && name == extension);
        // Without the field an entry enables; whatever else stands there is told at its own place.
        let active = match extensions.get(extension) {
            Some(said) => said.get("enabled").is_none_or(|enabled| enabled != &Value::Bool(false)),
            None => always(),
        };
        if !active {
            let remedy = format!("enable the extension {extension}, or remove the entry: it would guard nothing");
            self.fault(Rule::UnknownReference, at, remedy);
        }
    }

    fn timeout(&mut self, written: Option<&Value>, at: &str) -> u64 {
        let Some(written) = written else { return TIMEOUT_S };
        match written.as_u64().filter(|seconds| (1..=TIMEOUT_S_MAX).contains(seconds)) {
            Some(seconds) => seconds,
            None => {
                let rule = if written.is_number() { Rule::OutOfRange } else { Rule::WrongType };
                let remedy = format!("use a whole number from 1 to {TIMEOUT_S_MAX}");
                self.fault(rule, format!("{at}/timeout_s"), remedy);
                TIMEOUT_S
            }
        }
    }

    /// The texts of a list, each with its index; an empty list is a fault, since its rule would guard nothing.
    fn names(&mut self, written: &Value, at: &str) -> Vec<(usize, String)> {
        let Some(items) = self.list(written, at) else { return Vec::new() };
        if items.is_empty() {
            self.fault(Rule::InvalidValue, at, "name at least one, or remove the rule");
        }
        let mut names = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match item.as_str() {
                Some(name) if names.iter().any(|(_, known)| known == name) => {
                    self.fault(Rule::DuplicateEntry, format!("{at}/{index}"), "keep one of the entries of this name");
                }
                Some(name) => names.push((index, name.to_owned())),
                None => self.fault(Rule::WrongType, format!("{at}/{index}"), "use a text"),
            }
        }
        names
    }

    fn list<'v>(&mut self, written: &'v Value, at: &str) -> Option<&'v Vec<Value>> {
        match written.as_array() {
            Some(items) if items.len() <= ENTRIES_MAX => return Some(items),
            Some(_) => self.fault(Rule::TooManyEntries, at, format!("keep at most {ENTRIES_MAX} entries")),
            None => self.fault(Rule::WrongType, at, "use a list"),
        }
        None
    }

    fn object<'v>(&mut self, value: &'v Value, at: &str, fields: &[&str]) -> Option<&'v Map<String, Value>> {
        let Some(object) = value.as_object() else {
            self.fault(Rule::WrongType, at, "use an object");
            return None;
        };
        for key in object.keys().filter(|key| !fields.contains(&key.as_str())) {
            // A key of any length and any characters may stand there; the pointer names it only when it is a name.
            let at = if is_name(key) { format!("{at}/{key}") } else { at.to_owned() };
            self.fault(Rule::UnknownField, at, format!("remove it, or use one of {}", fields.join(", ")));
        }
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::Version;
    use conduit_config::{Listing, Member, Toolset};
    use serde_json::json;

    fn catalogue() -> Catalogue {
        let since = Version::new(0, 1, 0);
        let read = Toolset {
            name: "repo.read".into(),
            summary: "r".into(),
            operations: vec![Member::new("repo.list", since), Member::new("emit", since)],
        };
        let operations = ["repo.list", "repo.merge"];
        Catalogue::new(&[Listing { extension: "repo", always: true, operations: &operations, toolsets: &[read] }])
    }

    fn scope(name: &str) -> ScopeId {
        name.parse().unwrap()
    }

    /// G07
    #[test]
    fn a_rule_guards_an_operation_an_extension_or_a_toolset_in_its_scopes_and_the_first_one_says_how_long() {
        let config = json!({"rules": [
            {"operations": ["repo.merge"], "scopes": ["live"], "timeout_s": 60},
            {"operations": ["@repo.read"]},
            {"operations": ["repo.*"], "scopes": ["live", "test"], "timeout_s": 5},
        ], "starts": [{"bindings": ["deploy"], "scopes": ["live"], "timeout_s": 9}]});
        let (rules, faults) = read(&config, "/c", &catalogue(), None);
        assert_eq!(faults, []);
        assert_eq!(rules.of_call(&scope("live"), "repo.merge"), Some(60));
        assert_eq!(rules.of_call(&scope("test"), "repo.merge"), Some(5));
        assert_eq!(rules.of_call(&scope("other"), "repo.merge"), None);
        assert_eq!(rules.of_call(&scope("other"), "repo.list"), Some(TIMEOUT_S));
        assert_eq!(rules.of_call(&scope("live"), "repository.merge"), None);
        assert_eq!(rules.of_start(&scope("live"), "deploy"), Some(9));
        assert_eq!(rules.of_start(&scope("test"), "deploy"), None);
        assert_eq!(rules.of_start(&scope("live"), "repo.merge"), None);
    }

    /// C01, G07
    #[test]
    fn every_fault_of_the_settings_is_told_at_its_place_and_nothing_is_skipped_in_silence() {
        let config = json!({"rules": [
            {"operations": ["repo.gone", "@repo.gone", "gone.*", "emit", 7, "repo.list", "repo.list"], "scopes": ["X"]},
            {"operations": [], "timeout_s": 0},
            {"scopes": "live", "other": 1},
            3,
        ], "starts": [{"bindings": ["B"], "timeout_s": "1"}], "more": {}});
        let faults = read(&config, "/c", &catalogue(), None).1;
        let mut found: Vec<(&str, &str)> = faults.iter().map(|f| (f.pointer.as_str(), f.code.as_str())).collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [
                ("/c/more", "unknown_field"),
                ("/c/rules/0/operations/0", "unknown_reference"),
                ("/c/rules/0/operations/1", "unknown_reference"),
                ("/c/rules/0/operations/2", "unknown_reference"),
                ("/c/rules/0/operations/3", "invalid_value"),
                ("/c/rules/0/operations/4", "wrong_type"),
                ("/c/rules/0/operations/6", "duplicate_entry"),
                ("/c/rules/0/scopes/0", "invalid_name"),
                ("/c/rules/1/operations", "invalid_value"),
                ("/c/rules/1/timeout_s", "out_of_range"),
                ("/c/rules/2/operations", "missing_field"),
                ("/c/rules/2/other", "unknown_field"),
                ("/c/rules/2/scopes", "wrong_type"),
                ("/c/rules/3", "wrong_type"),
                ("/c/starts/0/bindings/0", "invalid_name"),
                ("/c/starts/0/timeout_s", "wrong_type"),
            ]
        );
        assert_eq!(read(&json!([]), "/c", &catalogue(), None).1[0].code, "wrong_type");
        assert_eq!(read(&json!({}), "/c", &catalogue(), None), (Rules::default(), Vec::new()));
    }

    /// C01, G07
    #[test]
    fn a_rule_for_a_scope_or_a_binding_that_is_not_there_is_a_fault_since_it_would_guard_nothing() {
        let scopes = json!({"live": {"bindings": {"deploy": {}}}, "test": {"bindings": {"try": {}}}});
        let config = json!({
            "rules": [{"operations": ["repo.merge"], "scopes": ["live", "lvie"]}],
            "starts": [{"bindings": ["deploy", "try", "dpeloy"]}, {"bindings": ["try"], "scopes": ["live"]}],
        });
        let document = json!({"scopes": scopes});
        let faults = read(&config, "/c", &catalogue(), Some(&document)).1;
        let found: Vec<(&str, &str)> = faults.iter().map(|f| (f.pointer.as_str(), f.code.as_str())).collect();
        assert_eq!(
            found,
            [
                ("/c/rules/0/scopes/1", "unknown_reference"),
                ("/c/starts/0/bindings/2", "unknown_reference"),
                ("/c/starts/1/bindings/0", "unknown_reference"),
            ]
        );
        // Scopes that are no object are told at their own place.
        let odd = json!({"scopes": 3});
        assert_eq!(read(&json!({"starts": [{"bindings": ["x"]}]}), "/c", &catalogue(), Some(&odd)).1, []);
    }

    /// C01, G07
    #[test]
    fn a_rule_for_an_extension_that_is_not_active_is_a_fault_with_its_place_and_its_remedy() {
        let catalogue = |always| {
            let read = Toolset {
                name: "repo.read".into(),
                summary: "r".into(),
                operations: vec![Member::new("repo.list", Version::new(0, 1, 0))],
            };
            let listing = Listing { extension: "repo", always, operations: &["repo.list"], toolsets: &[read] };
            Catalogue::new(&[listing])
        };
        let config = json!({"rules": [{"operations": ["repo.list", "repo.*", "@repo.read"]}]});
        let faults = |always, document: Value| read(&config, "/c", &catalogue(always), Some(&document)).1;
        for silent in [json!({}), json!({"extensions": {"repo": {"enabled": false}}})] {
            let found = faults(false, silent);
            let places: Vec<&str> = found.iter().map(|fault| fault.pointer.as_str()).collect();
            assert_eq!(places, ["/c/rules/0/operations/0", "/c/rules/0/operations/1", "/c/rules/0/operations/2"]);
            assert!(found.iter().all(|fault| fault.code == "unknown_reference" && fault.remedy.contains("enable")));
        }
        assert_eq!(faults(false, json!({"extensions": {"repo": {}}})), []);
        assert_eq!(faults(true, json!({})), []);
        assert_eq!(faults(true, json!({"extensions": {"repo": {"enabled": false}}})).len(), 3);
    }
}
