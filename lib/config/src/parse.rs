//! The tables of version 1, and the rules that hold between fields.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use conduit_api::ScopeId;
use conduit_api::error::Diagnostic;
use conduit_api::limits::{KEY_BYTES_MAX, NAME_BYTES_MAX};
use conduit_store::digest;
use serde_json::Value;

use crate::budget::{self, Budget};
use crate::catalogue::Catalogue;
use crate::document;
use crate::fields::{Field, Kind, Object, Presence, Text, Texts};
use crate::grant::{self, GrantList, Resolution};
use crate::model::{Binding, Config, Effect, Extension, Limits, Match, Pattern, Retry, Route, Scope};
use crate::playbook::Playbook;
use crate::registry::{Named, Registry};
use crate::rule::{Faults, Rule, below};

const DAY_S: u64 = 86_400;
const DAY_MS: u64 = DAY_S * 1000;

pub(crate) const fn field(name: &'static str, kind: Kind, presence: Presence) -> Field {
    Field { name, kind, presence }
}
pub(crate) const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max }
}
const fn texts(text: Text) -> Kind {
    Kind::Texts { text, max: 256 }
}

#[rustfmt::skip]
static CONFIG: [Field; 4] = [
    //    name               what it holds                                  when absent
    field("version",         count(0, u64::MAX),                            Presence::Required),
    field("limits",          Kind::Object,                                  Presence::Empty),
    field("extensions",      Kind::Named { max: 256 },                      Presence::Empty),
    field("scopes",          Kind::Named { max: 1024 },                     Presence::Required),
];
#[rustfmt::skip]
static EXTENSION: [Field; 3] = [
    field("enabled",         Kind::Switch,                                  Presence::On),
    field("scopes",          Kind::Texts { text: Text::Name, max: 1024 },   Presence::Optional),
    field("config",          Kind::Object,                                  Presence::Empty),
];
#[rustfmt::skip]
static LIMITS: [Field; 3] = [
    field("executions",        count(1, 1024),                              Presence::Number(4)),
    field("causal_depth_max",  count(1, 1024),                              Presence::Number(32)),
    field("causal_per_minute", count(1, 1_000_000),                         Presence::Number(600)),
];
#[rustfmt::skip]
static SCOPE: [Field; 6] = [
    field("enabled",         Kind::Switch,                                  Presence::On),
    field("concurrency",     count(1, 1024),                                Presence::Number(4)),
    field("operations",      texts(Text::Grant),                            Presence::Empty),
    field("events",          texts(Text::Family),                           Presence::Empty),
    field("bindings",        Kind::Named { max: 256 },                      Presence::Empty),
    field("routes",          Kind::Objects { max: 256 },                    Presence::Empty),
];
#[rustfmt::skip]
static BINDING: [Field; 8] = [
    field("executor",        Kind::Text(Text::Dotted),                      Presence::Required),
    field("config",          Kind::Object,                                  Presence::Empty),
    field("operations",      texts(Text::Grant),                            Presence::Empty),
    field("events",          texts(Text::Family),                           Presence::Empty),
    field("delegates",       texts(Text::Name),                             Presence::Empty),
    field("deadline_s",      count(1, 30 * DAY_S),                          Presence::Number(3600)),
    field("retry",           Kind::Object,                                  Presence::Empty),
    field("budget",          Kind::Object,                                  Presence::Empty),
];
#[rustfmt::skip]
static RETRY: [Field; 3] = [
    field("attempts",        count(1, 100),                                 Presence::Number(3)),
    field("backoff_ms",      count(0, DAY_MS),                              Presence::Number(1000)),
    field("backoff_max_ms",  count(0, DAY_MS),                              Presence::Number(60_000)),
];
#[rustfmt::skip]
static ROUTE: [Field; 3] = [
    field("match",           Kind::Object,                                  Presence::Required),
    field("effect",          Kind::Text(Text::OneOf(&Effect::NAMES)),       Presence::Required),
    field("binding",         Kind::Text(Text::Name),                        Presence::Optional),
];
#[rustfmt::skip]
static MATCH: [Field; 4] = [
    field("type",            Kind::Text(Text::Pattern),                     Presence::Required),
    field("source",          Kind::Text(Text::Free(NAME_BYTES_MAX)),        Presence::Optional),
    field("correlation_key", Kind::Text(Text::Free(KEY_BYTES_MAX)),         Presence::Optional),
    field("data",            Kind::Pointers { max: 32 },                    Presence::Empty),
];

/// Every table of version 1 by the path of its object; `docs/configuration.md` is checked against it.
pub static TABLES: [(&str, &[Field]); 9] = [
    ("", &CONFIG),
    ("limits", &LIMITS),
    ("extensions.*", &EXTENSION),
    ("scopes.*", &SCOPE),
    ("scopes.*.bindings.*", &BINDING),
    ("scopes.*.bindings.*.retry", &RETRY),
    ("scopes.*.bindings.*.budget", &budget::TABLE),
    ("scopes.*.routes[]", &ROUTE),
    ("scopes.*.routes[].match", &MATCH),
];

/// A configuration without faults, and the bytes that stand for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    pub config: Config,
    /// RFC 8785 form of the document as it was written, without defaults.
    pub canonical: Vec<u8>,
    /// SHA-256 of `canonical`, lower-case hex (C02).
    pub hash: String,
}

/// Reads a configuration, strictly; an error lists every independent fault, in the order of pointer and code (C01).
///
/// A fault names a pointer, a code and a remedy, never a value of the document.
pub fn parse(bytes: &[u8], registry: &dyn Registry) -> Result<Checked, Vec<Diagnostic>> {
    read(bytes, registry.catalogue(), Some(registry))
}

/// Reads a configuration that was checked before it was committed. Its lists are resolved against this process's release
/// (S02); what that does not have grants nothing and is no fault here, and no executor is asked.
pub(crate) fn trusted(bytes: &[u8], catalogue: &Catalogue) -> Result<Checked, Vec<Diagnostic>> {
    read(bytes, catalogue, None)
}

fn read(bytes: &[u8], catalogue: &Catalogue, registry: Option<&dyn Registry>) -> Result<Checked, Vec<Diagnostic>> {
    let mut faults = Faults::default();
    let document = document::read(bytes, &mut faults);
    let config = document.as_ref().and_then(|document| {
        Reader { faults: &mut faults, catalogue, registry, active: BTreeSet::new() }.config(document)
    });
    match (faults.sorted(), document, config) {
        (faults, Some(document), Some(config)) if faults.is_empty() => {
            let canonical = digest::canonical_json(&document);
            let hash = digest::hex(&digest::sha256(&canonical));
            Ok(Checked { config, canonical, hash })
        }
        (faults, ..) => Err(faults),
    }
}

/// What a scope grants at most, for the bindings and routes in it.
struct Ceiling<'c> {
    operations: &'c Resolution,
    /// Whether nothing of the scope's list was left out for a fault: else no binding is held against it.
    operations_whole: bool,
    events: &'c Families<'c>,
    /// `None` when its bindings are no object: then nothing is held against them.
    bindings: Option<BTreeSet<&'c str>>,
}

/// The event families that a scope allows.
struct Families<'c> {
    names: BTreeSet<&'c str>,
    whole: bool,
}

impl Families<'_> {
    /// Whether `name` is one of them or lies below one by a dot.
    fn hold(&self, name: &str) -> bool {
        self.names.contains(name) || name.match_indices('.').any(|(end, _)| self.names.contains(&name[..end]))
    }
}

struct Reader<'r> {
    faults: &'r mut Faults,
    catalogue: &'r Catalogue,
    /// `None` when the configuration was checked before.
    registry: Option<&'r dyn Registry>,
    /// The extensions that are active in the scope that is read; known before its first list of grants is.
    active: BTreeSet<Arc<str>>,
}

impl Reader<'_> {
    fn object<'v>(&mut self, value: &'v Value, pointer: &str, table: &'static [Field]) -> Option<Object<'v>> {
        Object::read(value, pointer, table, self.faults)
    }

    /// The object of a field that may be absent: then the table's defaults.
    fn part<'v>(&mut self, parent: &Object<'v>, name: &str, table: &'static [Field]) -> Option<Object<'v>> {
        static NOTHING: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| Value::Object(serde_json::Map::new()));
        let value = parent.get(name).unwrap_or(&*NOTHING);
        self.object(value, &parent.at(name), table)
    }

    fn config(&mut self, value: &Value) -> Option<Config> {
        let object = self.object(value, "", &CONFIG)?;
        if object.get("version").is_some_and(|version| version.as_u64() != Some(1)) {
            self.faults.add(Rule::UnsupportedVersion, object.at("version"), "use 1");
        }
        let limits = self.part(&object, "limits", &LIMITS)?;
        let limits = Limits {
            executions: limits.count_u32("executions"),
            causal_depth_max: limits.count_u32("causal_depth_max"),
            causal_per_minute: limits.count_u32("causal_per_minute"),
        };
        let mut extensions = BTreeMap::new();
        for (name, written) in object.members("extensions") {
            let pointer = below(&object.at("extensions"), name);
            if let Some(extension) = self.extension(name, written, &pointer, value) {
                extensions.insert(name.clone(), extension);
            }
        }
        let active = self.catalogue.active(|name| Some(extensions.get(name)?.enabled));
        let any_is_scoped = extensions.values().any(|said| said.scopes.is_some());
        self.active.clone_from(&active);
        let mut scopes = BTreeMap::new();
        for (id, value) in object.members("scopes") {
            if any_is_scoped {
                let here = |name: &&Arc<str>| extensions.get(&***name).is_none_or(|said| said.is_for(id));
                self.active = active.iter().filter(here).cloned().collect();
            }
            let scope = self.scope(value, &below(&object.at("scopes"), id));
            if let (Ok(id), Some(scope)) = (id.parse::<ScopeId>(), scope) {
                scopes.insert(id, scope);
            }
        }
        Some(Config { limits, extensions, scopes, active })
    }

    fn extension(&mut self, name: &str, value: &Value, pointer: &str, document: &Value) -> Option<Extension> {
        let object = self.object(value, pointer, &EXTENSION)?;
        let config = object.get("config").cloned().unwrap_or_else(empty);
        if let Some(registry) = self.registry {
            if !self.catalogue.has_extension(name) {
                let known: Vec<&str> = self.catalogue.extensions().map(|(name, _)| name).collect();
                self.faults.add(Rule::UnknownReference, pointer, one_of("an extension", &known));
            } else if object.readable("config", value) {
                self.faults.extend(registry.validate_extension(name, &config, &object.at("config"), document));
            }
        }
        let scopes = object.get("scopes").map(|_| {
            let listed = object.texts("scopes", value, self.faults);
            if let Some(known) = document.get("scopes").and_then(Value::as_object) {
                for (place, scope) in listed.texts().enumerate().filter(|(_, scope)| !known.contains_key(*scope)) {
                    let remedy = format!("add the scope {scope} to this configuration, or remove it here");
                    self.faults.add(Rule::UnknownReference, listed.pointer(place), remedy);
                }
            }
            set(&listed)
        });
        Some(Extension { enabled: object.switch("enabled"), scopes, config })
    }

    fn scope(&mut self, value: &Value, pointer: &str) -> Option<Scope> {
        let object = self.object(value, pointer, &SCOPE)?;
        let operations = object.texts("operations", value, self.faults);
        let events = object.texts("events", value, self.faults);
        let resolved = self.resolve(&operations);
        let families = Families { names: events.texts().collect(), whole: events.whole };
        let ceiling = Ceiling {
            operations: &resolved,
            operations_whole: operations.whole
                && resolved.unknown.iter().all(|at| operations.text(*at).is_some_and(is_plain)),
            events: &families,
            bindings: object
                .readable("bindings", value)
                .then(|| object.members("bindings").map(|(name, _)| name.as_str()).collect()),
        };
        let mut bindings = BTreeMap::new();
        for (name, value) in object.members("bindings") {
            if let Some(binding) = self.binding(value, &below(&object.at("bindings"), name), &ceiling) {
                bindings.insert(name.clone(), binding);
            }
        }
        let mut routes = Vec::new();
        for (index, value) in object.items("routes").iter().enumerate() {
            routes.extend(self.route(value, &format!("{}/{index}", object.at("routes")), &ceiling));
        }
        Some(Scope {
            enabled: object.switch("enabled"),
            concurrency: object.count_u32("concurrency"),
            operations: self.list(&operations, &resolved),
            events: set(&events),
            bindings,
            routes,
        })
    }

    /// What a list of grants comes to; notes each entry that names nothing of this release (S03).
    fn resolve(&mut self, texts: &Texts<'_>) -> Resolution {
        let resolved = grant::resolve(texts.texts(), self.catalogue, &|extension| self.active.contains(extension));
        if self.registry.is_some() {
            for place in &resolved.unknown {
                let remedy = "name an operation or a toolset that this release has";
                self.faults.add(Rule::UnknownReference, texts.pointer(*place), remedy);
            }
        }
        resolved
    }

    fn list(&self, texts: &Texts<'_>, resolved: &Resolution) -> GrantList {
        let written = texts.texts().map(str::to_owned).collect();
        GrantList::new(written, &resolved.granted, self.catalogue)
    }

    fn binding(&mut self, value: &Value, pointer: &str, ceiling: &Ceiling<'_>) -> Option<Binding> {
        let object = self.object(value, pointer, &BINDING)?;
        let operations = object.texts("operations", value, self.faults);
        let events = object.texts("events", value, self.faults);
        let delegates = object.texts("delegates", value, self.faults);
        let resolved = self.resolve(&operations);
        self.granted_by_scope(&operations, &resolved, ceiling);
        self.families_of_scope(&events, ceiling.events);
        for (place, name) in delegates.texts().enumerate() {
            self.known_binding(|| delegates.pointer(place), name, ceiling);
        }
        let executor = object.text("executor");
        let config = object.get("config").cloned().unwrap_or_else(empty);
        let mut playbook = None;
        // An executor is not asked about a part that is no object: that is noted already.
        let readable = object.readable("config", value);
        if let (Some(registry), Some(name), true) = (self.registry, executor, readable) {
            match registry.validate_executor(name, &config, &object.at("config")) {
                Some(found) => {
                    self.faults.extend(found);
                    self.active_executor(registry, name, &object.at("executor"));
                    playbook = self.playbook(registry, registry.named_playbook(name, &config), &object.at("config"));
                }
                None => {
                    let remedy = one_of("an executor", &registry.executors());
                    self.faults.add(Rule::UnknownReference, object.at("executor"), remedy);
                }
            }
        }
        let retry = self.part(&object, "retry", &RETRY)?;
        let budget = self.part(&object, "budget", &budget::TABLE)?;
        Some(Binding {
            executor: executor.unwrap_or_default().to_owned(),
            config,
            operations: self.list(&operations, &resolved.under(ceiling.operations)),
            events: set(&events),
            delegates: set(&delegates),
            deadline_s: object.count("deadline_s"),
            retry: self.retry(&retry),
            budget: Budget::of(&budget),
            playbook,
        })
    }

    /// An executor of an extension is there where the extension is active.
    fn active_executor(&mut self, registry: &dyn Registry, name: &str, pointer: &str) {
        if let Some(extension) = registry.executor_extension(name)
            && !self.active.contains(extension)
        {
            let remedy = format!("enable the extension {extension} in this scope; the executor is its");
            self.faults.add(Rule::UnknownReference, pointer, remedy);
        }
    }

    fn playbook(&mut self, registry: &dyn Registry, named: Named, pointer: &str) -> Option<Rc<Playbook>> {
        match named {
            Named::Nothing => None,
            Named::Known(playbook) => Some(playbook),
            Named::Unknown => {
                self.faults.add(Rule::UnknownReference, pointer, one_of("a playbook", &registry.playbooks()));
                None
            }
        }
    }

    fn retry(&mut self, object: &Object<'_>) -> Retry {
        let (wait, longest) = (object.count("backoff_ms"), object.count("backoff_max_ms"));
        // A default bound makes room for a longer wait; a written one has to be meant.
        let written = object.get("backoff_max_ms").is_some();
        if written && longest < wait {
            let remedy = "use at least the value of backoff_ms";
            self.faults.add(Rule::OutOfRange, object.at("backoff_max_ms"), remedy);
        }
        Retry { attempts: object.count_u32("attempts"), backoff_ms: wait, backoff_max_ms: longest.max(wait) }
    }

    /// Notes each operation that the binding names and the scope does not grant; what the binding itself denies it does not
    /// ask for. Toolsets are narrowed instead (S03).
    fn granted_by_scope(&mut self, texts: &Texts<'_>, resolved: &Resolution, ceiling: &Ceiling<'_>) {
        if !ceiling.operations_whole {
            return;
        }
        for (place, id) in &resolved.explicit {
            if ceiling.operations.possible.contains(*id) || resolved.denied.contains(*id) {
                continue;
            }
            let pointer = texts.pointer(*place);
            if ceiling.operations.denied.contains(*id) {
                self.faults.add(Rule::OperationDenied, pointer, "remove it, or the denial in the scope's operations");
            } else {
                self.faults.add(Rule::AuthorityWidening, pointer, "remove it, or add it to the scope's operations");
            }
        }
    }

    /// Notes each event family that lies in none of the scope's.
    fn families_of_scope(&mut self, texts: &Texts<'_>, ceiling: &Families<'_>) {
        for (place, name) in texts.texts().enumerate().filter(|_| ceiling.whole) {
            if !ceiling.hold(name) {
                self.faults.add(
                    Rule::AuthorityWidening,
                    texts.pointer(place),
                    "remove it, or add it to the scope's events",
                );
            }
        }
    }

    fn known_binding(&mut self, pointer: impl FnOnce() -> String, name: &str, ceiling: &Ceiling<'_>) {
        if ceiling.bindings.as_ref().is_some_and(|bindings| !bindings.contains(name)) {
            self.faults.add(Rule::UnknownReference, pointer(), "name a binding of this scope");
        }
    }

    fn route(&mut self, value: &Value, pointer: &str, ceiling: &Ceiling<'_>) -> Option<Route> {
        let object = self.object(value, pointer, &ROUTE)?;
        let binding = object.text("binding");
        if let Some(name) = binding {
            self.known_binding(|| object.at("binding"), name, ceiling);
        }
        let written = value.get("binding").is_some();
        // The match is looked at whatever the effect: its faults are its own.
        let matching = object.get("match").and_then(|value| self.object(value, &object.at("match"), &MATCH));
        let effect = match (object.text("effect")?, written) {
            ("start", false) => {
                self.faults.add(Rule::MissingField, object.at("binding"), "name the binding that the Work is of");
                Effect::Start { binding: String::new() }
            }
            ("start", true) => Effect::Start { binding: binding.unwrap_or_default().to_owned() },
            (other, written) => {
                if written {
                    self.faults.add(
                        Rule::ConflictingField,
                        object.at("binding"),
                        "remove it: only start takes a binding",
                    );
                }
                match other {
                    "queue" => Effect::Queue,
                    "inject" => Effect::Inject,
                    "interrupt" => Effect::Interrupt,
                    "wake" => Effect::Wake,
                    _ => Effect::Drop,
                }
            }
        };
        let matching = matching?;
        let kind = matching.text("type")?;
        Some(Route {
            matching: Match {
                kind: match kind.strip_suffix(".*") {
                    Some(family) => Pattern::Below(family.to_owned()),
                    None => Pattern::Exact(kind.to_owned()),
                },
                source: matching.text("source").map(str::to_owned),
                correlation_key: matching.text("correlation_key").map(str::to_owned),
                data: matching.members("data").map(|(at, wanted)| (at.clone(), wanted.clone())).collect(),
            },
            effect,
        })
    }
}

fn set(texts: &Texts<'_>) -> BTreeSet<String> {
    texts.texts().map(str::to_owned).collect()
}

/// What to do about a name that nothing of its kind has.
fn one_of(kind: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("remove it: this release has not {kind}");
    }
    format!("name {kind} of this release: {}", known.join(", "))
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Whether an entry of a list of grants is an operation's bare name.
fn is_plain(entry: &str) -> bool {
    !entry.starts_with(['!', '@'])
}
