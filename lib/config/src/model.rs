//! A configuration, typed and with its defaults applied. Only `parse` makes one, so that every value here keeps the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use conduit_api::ScopeId;
use conduit_api::id::in_family;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::budget::Budget;
use crate::grant::GrantList;
use crate::playbook::Playbook;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    pub limits: Limits,
    /// What is said about extensions, by name.
    pub extensions: BTreeMap<String, Extension>,
    pub scopes: BTreeMap<ScopeId, Scope>,
    /// The extensions that are active in some scope of this generation, of those that this release has.
    #[serde(skip)]
    pub active: BTreeSet<Arc<str>>,
}

impl Config {
    /// Whether the extension is active in the scope (T18, G01).
    pub fn is_active_in(&self, extension: &str, scope: &str) -> bool {
        self.active.contains(extension) && self.extensions.get(extension).is_none_or(|said| said.is_for(scope))
    }

    /// The settings of the extension: an empty object where nothing is said.
    pub fn settings(&self, extension: &str) -> Value {
        let said = self.extensions.get(extension).map(|said| said.config.clone());
        said.unwrap_or_else(|| Value::Object(serde_json::Map::new()))
    }
}

/// What a configuration says about one extension.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Extension {
    /// Whether its operations are registered in this generation.
    pub enabled: bool,
    /// The scopes that it is active in; `None` for every one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<BTreeSet<String>>,
    /// Understood by the extension alone.
    pub config: Value,
}

impl Extension {
    /// Whether it may be active in `scope` (G01).
    pub fn is_for(&self, scope: &str) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.contains(scope))
    }
}

/// Bounds over all scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most executions that run at once.
    pub executions: u32,
    /// Most steps from a root Event to the last that follows from it; pinned on the root (T08).
    pub causal_depth_max: u32,
    /// Most Events that follow from one root in one minute; pinned on the root (T08).
    pub causal_per_minute: u32,
}

/// One scope: a ceiling, and what runs under it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scope {
    /// A disabled scope keeps its Work and authorizes nothing (T07).
    pub enabled: bool,
    /// Most executions of this scope that run at once.
    pub concurrency: u32,
    /// The operations that a binding here may be granted.
    pub operations: GrantList,
    /// The event families that may be emitted here, by bindings and by operators.
    pub events: BTreeSet<String>,
    pub bindings: BTreeMap<String, Binding>,
    /// Asked in this order; the first that matches decides.
    pub routes: Vec<Route>,
}

/// How Work of one kind is run, and what its process may ask for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Binding {
    pub executor: String,
    /// Understood by the executor alone.
    pub config: Value,
    /// The operations that its process may call, already narrowed to the scope's.
    pub operations: GrantList,
    /// The event families that its process may emit.
    pub events: BTreeSet<String>,
    /// The bindings of this scope that its process may create Work for.
    pub delegates: BTreeSet<String>,
    /// Longest run of one segment, in seconds.
    pub deadline_s: u64,
    pub retry: Retry,
    /// What one of its executions may use up.
    pub budget: Budget,
    /// What its executor starts turns on, as it was when the generation was validated (S05).
    #[serde(skip)]
    pub playbook: Option<Rc<Playbook>>,
}

/// What a failed attempt costs, and how long the next one waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Retry {
    /// Most attempts of one Work, the first included.
    pub attempts: u32,
    /// Wait before the second attempt; it doubles with each further one.
    pub backoff_ms: u64,
    /// The wait never grows past this.
    pub backoff_max_ms: u64,
}

impl Retry {
    /// The wait before the attempt that follows `failures` failed ones, in milliseconds.
    pub fn backoff_after(&self, failures: u32) -> u64 {
        let doublings = failures.saturating_sub(1).min(63);
        self.backoff_ms.saturating_mul(1 << doublings).min(self.backoff_max_ms)
    }
}

/// One rule of a scope: what it matches, and what becomes of an Event that it matches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Route {
    #[serde(rename = "match")]
    pub matching: Match,
    #[serde(flatten)]
    pub effect: Effect,
}

/// What an Event has to have; every part that is given must hold.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Match {
    #[serde(rename = "type")]
    pub kind: Pattern,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_key: Option<String>,
    /// JSON pointers into the Event's data, each with the value that must stand there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, Value>,
}

impl Match {
    /// Whether an Event of this type, source, correlation key and data has all that is asked for.
    pub fn holds(&self, kind: &str, source: &str, correlation_key: Option<&str>, data: &Value) -> bool {
        self.kind.matches(kind)
            && self.source.as_deref().is_none_or(|wanted| wanted == source)
            && self.correlation_key.as_deref().is_none_or(|wanted| Some(wanted) == correlation_key)
            && self.data.iter().all(|(pointer, wanted)| data.pointer(pointer) == Some(wanted))
    }
}

/// The types that a route is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This type alone.
    Exact(String),
    /// Every type below this family, spelt `family.*`; the family's own name is not below itself.
    Below(String),
}

impl Pattern {
    pub fn matches(&self, kind: &str) -> bool {
        match self {
            Self::Exact(wanted) => wanted == kind,
            Self::Below(family) => kind != family && in_family(kind, family),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(kind) => f.write_str(kind),
            Self::Below(family) => write!(f, "{family}.*"),
        }
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What becomes of an Event that a route matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// Starts Work of `binding`.
    Start { binding: String },
    /// Becomes input of the Work that it is for, seen by the next segment.
    Queue,
    /// Becomes input of the Work, also of the segment that runs.
    Inject,
    /// Stops the segment that runs; the next one sees the Event.
    Interrupt,
    /// Ends the Work's wait.
    Wake,
    /// Is recorded, and nothing else.
    Drop,
}

impl Effect {
    /// How the configuration and the store spell the effects.
    pub const NAMES: [&'static str; 6] = ["start", "queue", "inject", "interrupt", "wake", "drop"];

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Queue => "queue",
            Self::Inject => "inject",
            Self::Interrupt => "interrupt",
            Self::Wake => "wake",
            Self::Drop => "drop",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pattern_with_a_star_matches_what_lies_below_and_not_the_family_itself() {
        let below = Pattern::Below("demo.survey".into());
        assert!(below.matches("demo.survey.requested") && below.matches("demo.survey.a.b"));
        assert!(!below.matches("demo.survey") && !below.matches("demo.surveyor.requested"));
        assert!(
            Pattern::Exact("demo.a".into()).matches("demo.a") && !Pattern::Exact("demo.a".into()).matches("demo.a.b")
        );
    }

    #[test]
    fn every_part_that_a_match_names_has_to_hold() {
        let matching = Match {
            kind: Pattern::Exact("demo.a".into()),
            source: Some("core.manual".into()),
            correlation_key: Some("k".into()),
            data: [("/n/0".to_owned(), json!(1))].into(),
        };
        let data = json!({"n": [1]});
        assert!(matching.holds("demo.a", "core.manual", Some("k"), &data));
        assert!(!matching.holds("demo.b", "core.manual", Some("k"), &data));
        assert!(!matching.holds("demo.a", "other", Some("k"), &data));
        assert!(!matching.holds("demo.a", "core.manual", None, &data));
        assert!(!matching.holds("demo.a", "core.manual", Some("k"), &json!({"n": [2]})));
        assert!(!matching.holds("demo.a", "core.manual", Some("k"), &json!({})));
    }

    #[test]
    fn the_wait_between_attempts_doubles_up_to_its_bound() {
        let retry = Retry { attempts: 9, backoff_ms: 1000, backoff_max_ms: 5000 };
        assert_eq!(
            [0, 1, 2, 3, 4, 4_000_000_000].map(|n| retry.backoff_after(n)),
            [1000, 1000, 2000, 4000, 5000, 5000]
        );
    }
}
