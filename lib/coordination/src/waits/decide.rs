//! Whether an Event is what somebody waits for: pure.

use conduit_api::toolbelt::{Predicate, WaitMode};
use conduit_api::{ScopeId, WorkId};
use serde_json::Value;

use crate::error::{Error, Result};

/// What a predicate looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct EventFacts<'a> {
    pub scope: &'a ScopeId,
    pub kind: &'a str,
    pub source: &'a str,
    pub correlation_key: Option<&'a str>,
    pub work: Option<&'a WorkId>,
    /// The Work that owns the correlation key.
    pub key_owner: Option<&'a WorkId>,
    pub data: &'a Value,
}

/// What a predicate is filed under, so that an Event finds it without a scan.
pub fn subject(predicate: &Predicate, waiting: &WorkId) -> String {
    match (&predicate.work_id, &predicate.correlation_key, &predicate.source) {
        (Some(work), _, _) => format!("work:{work}"),
        (None, Some(key), _) => format!("key:{key}"),
        (None, None, Some(source)) => format!("source:{source}"),
        // Only a type: the Work's own keys (T12).
        (None, None, None) => format!("own:{waiting}"),
    }
}

/// Every subject under which a predicate may be filed that this Event can match.
pub fn subjects(event: &EventFacts<'_>) -> Vec<String> {
    let mut found = vec![format!("source:{}", event.source)];
    found.extend(event.work.map(|work| format!("work:{work}")));
    found.extend(event.correlation_key.map(|key| format!("key:{key}")));
    found.extend(event.key_owner.map(|owner| format!("own:{owner}")));
    found
}

/// Whether the Event is what the predicate of `waiting` asks for.
pub fn matches(predicate: &Predicate, waiting: &WorkId, event: &EventFacts<'_>) -> bool {
    concerns(predicate, waiting, event) && data_matches(&predicate.data, event.data)
}

/// Whether everything but its data is what the predicate of `waiting` asks for.
pub fn concerns(predicate: &Predicate, waiting: &WorkId, event: &EventFacts<'_>) -> bool {
    let names_anything =
        predicate.work_id.is_some() || predicate.correlation_key.is_some() || predicate.source.is_some();
    predicate.kind == event.kind
        && predicate.work_id.as_ref().is_none_or(|work| event.work == Some(work))
        && predicate.correlation_key.as_deref().is_none_or(|key| event.correlation_key == Some(key))
        && predicate.source.as_deref().is_none_or(|source| event.source == source)
        && (names_anything || event.key_owner == Some(waiting))
}

/// Whether every JSON pointer leads to the value it is paired with.
pub fn data_matches(wanted: &serde_json::Map<String, Value>, data: &Value) -> bool {
    wanted.iter().all(|(pointer, value)| data.pointer(pointer) == Some(value))
}

/// How many predicates are still to match before the wait ends.
pub const fn unmatched_at_first(mode: WaitMode, predicates: usize) -> usize {
    match mode {
        WaitMode::Any => 1,
        WaitMode::All => predicates,
    }
}

/// Checks what a caller declares, before it is recorded. Error: `invalid_request`, naming the predicate.
pub fn check(input: &conduit_api::toolbelt::WaitInput) -> Result<()> {
    use conduit_api::limits::{KEY_BYTES_MAX, WAIT_PREDICATES_MAX};
    let invalid = |why: String| Err(Error::Invalid { why });
    if input.predicates.is_empty() || input.predicates.len() > WAIT_PREDICATES_MAX {
        return invalid(format!("a wait has 1 to {WAIT_PREDICATES_MAX} predicates"));
    }
    if input.timeout_s.is_some_and(|s| s == 0 || s > 366 * 86_400) {
        return invalid("timeout_s is between 1 and 31622400 (a year)".into());
    }
    if input.watermark.is_some_and(|w| w < 0) {
        return invalid("watermark is an acceptance sequence, 0 or more".into());
    }
    for (at, predicate) in input.predicates.iter().enumerate() {
        if !conduit_api::id::is_namespaced(&predicate.kind) {
            return invalid(format!(
                "predicates/{at}/type is not a namespaced event type such as demo.survey.requested"
            ));
        }
        if predicate.correlation_key.as_ref().is_some_and(|k| k.is_empty() || k.len() > KEY_BYTES_MAX) {
            return invalid(format!("predicates/{at}/correlation_key has 1 to {KEY_BYTES_MAX} bytes"));
        }
        if predicate.data.keys().any(|pointer| !pointer.is_empty() && !pointer.starts_with('/')) {
            return invalid(format!("predicates/{at}/data has a key that is not a JSON pointer (start it with /)"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn predicate(value: Value) -> Predicate {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_matching_predicate_is_filed_where_the_event_looks() {
        let scope: ScopeId = "demo".parse().unwrap();
        let (waiting, other) = (WorkId::from_parts(1, 1), WorkId::from_parts(2, 2));
        let data = json!({"state": "succeeded"});
        let event = EventFacts {
            scope: &scope,
            kind: "core.work.finished",
            source: "core",
            correlation_key: Some("k"),
            work: Some(&other),
            key_owner: Some(&waiting),
            data: &data,
        };
        let matching = [
            json!({"type": "core.work.finished"}),
            json!({"type": "core.work.finished", "work_id": other}),
            json!({"type": "core.work.finished", "correlation_key": "k", "data": {"/state": "succeeded"}}),
            json!({"type": "core.work.finished", "source": "core"}),
        ];
        for wanted in matching {
            let wanted = predicate(wanted);
            assert!(matches(&wanted, &waiting, &event), "{wanted:?}");
            assert!(subjects(&event).contains(&subject(&wanted, &waiting)), "{wanted:?}");
        }
        let other_things = [
            json!({"type": "core.work.created", "work_id": other}),
            json!({"type": "core.work.finished", "work_id": waiting}),
            json!({"type": "core.work.finished", "correlation_key": "l"}),
            json!({"type": "core.work.finished", "source": "core.manual"}),
            json!({"type": "core.work.finished", "work_id": other, "data": {"/state": "failed"}}),
        ];
        for wanted in other_things {
            assert!(!matches(&predicate(wanted.clone()), &waiting, &event), "{wanted}");
        }
    }

    /// T12
    #[test]
    fn a_wait_for_a_type_alone_hears_only_the_works_own_keys() {
        let scope: ScopeId = "demo".parse().unwrap();
        let (waiting, other) = (WorkId::from_parts(1, 1), WorkId::from_parts(2, 2));
        let wanted = predicate(json!({"type": "demo.answer"}));
        let data = json!({});
        let event = |owner| EventFacts {
            scope: &scope,
            kind: "demo.answer",
            source: "core.manual",
            correlation_key: Some("k"),
            work: None,
            key_owner: owner,
            data: &data,
        };
        assert!(matches(&wanted, &waiting, &event(Some(&waiting))));
        assert!(!matches(&wanted, &waiting, &event(Some(&other))));
        assert!(!matches(&wanted, &waiting, &event(None)));
    }

    #[test]
    fn a_wait_that_could_never_end_as_meant_is_refused() {
        let refused = |value: Value| check(&serde_json::from_value(value).unwrap()).is_err();
        assert!(refused(json!({"mode": "any", "predicates": []})));
        assert!(refused(json!({"mode": "any", "predicates": [{"type": "plain"}]})));
        assert!(refused(json!({"mode": "any", "predicates": [{"type": "a.b"}], "timeout_s": 0})));
        assert!(refused(json!({"mode": "any", "predicates": [{"type": "a.b", "data": {"x": 1}}]})));
        assert!(!refused(json!({"mode": "all", "predicates": [{"type": "a.b"}], "timeout_s": 5})));
    }
}
