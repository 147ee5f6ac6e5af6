//! One table: each rule broken once in a good configuration, and exactly the faults that it yields.

use std::collections::BTreeSet;

use conduit_api::Version;
use conduit_api::error::Diagnostic;
use conduit_config::{Catalogue, Listing, Member, Playbook, Registered, Rule, Toolset, parse};
use serde_json::{Value, json};

/// The builtins, the executor `shell`, and an extension `lab` whose settings have one field.
fn registry() -> Registered {
    let fault = |pointer: String, code: &str| Diagnostic { pointer, code: code.into(), remedy: "mend it".into() };
    let member = |operation: &str| Member::new(operation, Version::new(1, 0, 0));
    let author = Toolset {
        name: "lab.author".into(),
        summary: "Writes".into(),
        operations: vec![member("lab.read"), member("lab.write"), member("wait")],
    };
    let lab = Listing { extension: "lab", always: false, operations: &["lab.read", "lab.write"], toolsets: &[author] };
    let shell = move |config: &Value, pointer: &str| match config.get("command") {
        Some(_) => Vec::new(),
        None => vec![fault(format!("{pointer}/command"), "missing_field")],
    };
    Registered::of(Catalogue::new(&[lab]))
        .executor_with_playbook("shell", shell, |config| Some(config.get("playbook")?.as_str()?.to_owned()))
        .extension("lab", move |config, pointer| match config.get("level") {
            Some(Value::String(_)) => vec![fault(format!("{pointer}/level"), "wrong_type")],
            _ => Vec::new(),
        })
        .playbook(Playbook { name: "os".into(), operations: vec!["emit".into()] })
}

fn good() -> Value {
    json!({
        "version": 1,
        "limits": {"executions": 2},
        "extensions": {"lab": {"config": {"level": 1}}},
        "scopes": {"demo": {
            "operations": ["emit", "create_work"],
            "events": ["demo"],
            "bindings": {
                "a": {
                    "executor": "shell", "config": {"command": ["/bin/true"]}, "operations": ["emit"],
                    "events": ["demo.a"], "delegates": ["b"], "retry": {"attempts": 2},
                },
                "b": {"executor": "shell", "config": {"command": ["/bin/true"]}},
            },
            "routes": [
                {"match": {"type": "demo.x.*", "data": {"/n": 1}}, "effect": "start", "binding": "a"},
                {"match": {"type": "demo.y"}, "effect": "drop"},
            ],
        }},
    })
}

/// `document` with `value` at `pointer`, whose parent is there.
fn set(mut document: Value, pointer: &str, value: Value) -> Value {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/").replace("~0", "~");
    match document.pointer_mut(parent).unwrap() {
        Value::Object(fields) => drop(fields.insert(last, value)),
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => items[last.parse::<usize>().unwrap()] = value,
        _ => panic!("{parent} holds nothing"),
    }
    document
}

fn without(mut document: Value, pointer: &str) -> Value {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    document.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(last).unwrap();
    document
}

fn faults(document: &Value) -> Vec<(String, String)> {
    let found = parse(document.to_string().as_bytes(), &registry()).err().unwrap_or_default();
    found.into_iter().map(|d| (d.pointer, d.code)).collect()
}

/// Where, what is put there, and the faults that follow.
type Mutation = (&'static str, Value, &'static [(&'static str, &'static str)]);

#[rustfmt::skip]
fn mutations() -> Vec<Mutation> {
    let many = |n: usize| Value::Array((0..n).map(|i| json!(format!("demo.f{i}"))).collect());
    let mutations: Vec<Mutation> = vec![
        // The document
        ("/version",                          json!(2),            &[("/version", "unsupported_version")]),
        ("/version",                          json!("1"),          &[("/version", "wrong_type")]),
        ("/version",                          json!(1.5),          &[("/version", "out_of_range")]),
        ("/more",                             json!(1),            &[("/more", "unknown_field")]),
        ("/limits",                           json!([]),           &[("/limits", "wrong_type")]),
        ("/limits",                           Value::Null,         &[("/limits", "null_value")]),
        ("/limits/executions",                json!(0),            &[("/limits/executions", "out_of_range")]),
        ("/limits/executions",                json!(1025),         &[("/limits/executions", "out_of_range")]),
        ("/limits/executions",                json!(-1),           &[("/limits/executions", "out_of_range")]),
        ("/limits/causal_depth_max",          json!(0),            &[("/limits/causal_depth_max", "out_of_range")]),
        ("/limits/causal_per_minute",         json!(true),         &[("/limits/causal_per_minute", "wrong_type")]),
        ("/limits/executionz",                json!(1),            &[("/limits/executionz", "unknown_field")]),
        ("/extensions",                       json!([]),           &[("/extensions", "wrong_type")]),
        ("/extensions/lab",                   json!(true),         &[("/extensions/lab", "wrong_type")]),
        ("/extensions/lab/enabled",           json!(1),            &[("/extensions/lab/enabled", "wrong_type")]),
        ("/extensions/lab/config/level",      json!("x"),          &[("/extensions/lab/config/level", "wrong_type")]),
        ("/extensions/lab/level",             json!(1),            &[("/extensions/lab/level", "unknown_field")]),
        ("/extensions/lab/scopes",            json!(["demo"]),     &[]),
        ("/extensions/lab/scopes",            json!(["demos"]),    &[("/extensions/lab/scopes/0", "unknown_reference")]),
        ("/extensions/lab/scopes",            json!(["A", "demo", "demo"]), &[("/extensions/lab/scopes/0", "invalid_name"), ("/extensions/lab/scopes/2", "duplicate_entry")]),
        ("/extensions/labs",                  json!({}),           &[("/extensions/labs", "unknown_reference")]),
        ("/extensions/Lab",                   json!({}),           &[("/extensions/Lab", "invalid_name"),
                                                                     ("/extensions/Lab", "unknown_reference")]),
        ("/scopes",                           json!([]),           &[("/scopes", "wrong_type")]),
        ("/scopes/Demo",                      json!({}),           &[("/scopes/Demo", "invalid_name")]),
        ("/scopes/a~1b",                      json!({}),           &[("/scopes/a~1b", "invalid_name")]),
        ("/scopes/other",                     json!("x"),          &[("/scopes/other", "wrong_type")]),
        ("/scopes/demo/routes/1",             json!({"effect": "x", "match": {"type": "demo", "source": ""}}),
                                                                   &[("/scopes/demo/routes/1/effect", "invalid_value"),
                                                                     ("/scopes/demo/routes/1/match/source", "invalid_value"),
                                                                     ("/scopes/demo/routes/1/match/type", "invalid_name")]),
        // A scope
        ("/scopes/demo/enabled",              json!(1),            &[("/scopes/demo/enabled", "wrong_type")]),
        ("/scopes/demo/concurrency",          json!(0),            &[("/scopes/demo/concurrency", "out_of_range")]),
        ("/scopes/demo/route",                json!([]),           &[("/scopes/demo/route", "unknown_field")]),
        ("/scopes/demo/operations/-",         json!("emitt"),      &[("/scopes/demo/operations/2", "unknown_reference")]),
        ("/scopes/demo/operations/-",         json!("Emit"),       &[("/scopes/demo/operations/2", "invalid_name")]),
        ("/scopes/demo/operations/-",         json!("emit"),       &[("/scopes/demo/operations/2", "duplicate_entry")]),
        ("/scopes/demo/operations/-",         json!(7),            &[("/scopes/demo/operations/2", "wrong_type")]),
        ("/scopes/demo/operations",           json!("emit"),       &[("/scopes/demo/operations", "wrong_type")]),
        ("/scopes/demo/operations",           json!([]),           &[("/scopes/demo/bindings/a/operations/0", "authority_widening")]),
        ("/scopes/demo/operations/-",         json!("lab.read"),   &[]),
        ("/scopes/demo/operations/-",         json!("@lab.author"), &[]),
        ("/scopes/demo/operations/-",         json!("!@lab.author"), &[]),
        ("/scopes/demo/operations/-",         json!("!emit"),      &[("/scopes/demo/bindings/a/operations/0", "operation_denied")]),
        ("/scopes/demo/operations/-",         json!("@lab.writer"), &[("/scopes/demo/operations/2", "unknown_reference")]),
        ("/scopes/demo/operations/-",         json!("!lab.gone"),  &[("/scopes/demo/operations/2", "unknown_reference")]),
        ("/scopes/demo/operations/-",         json!("!@lab.gone"), &[("/scopes/demo/operations/2", "unknown_reference")]),
        ("/scopes/demo/operations/-",         json!("@lab"),       &[("/scopes/demo/operations/2", "invalid_name")]),
        ("/scopes/demo/operations/-",         json!("@!lab.author"), &[("/scopes/demo/operations/2", "invalid_name")]),
        ("/scopes/demo/operations/-",         json!("!!emit"),     &[("/scopes/demo/operations/2", "invalid_name")]),
        ("/scopes/demo/operations/-",         Value::Null,         &[("/scopes/demo/operations/2", "null_value")]),
        ("/scopes/demo/events/-",             json!("core"),       &[("/scopes/demo/events/1", "reserved_name")]),
        ("/scopes/demo/events/-",             json!("core.work"),  &[("/scopes/demo/events/1", "reserved_name")]),
        ("/scopes/demo/events/-",             json!("corelli"),    &[]),
        ("/scopes/demo/events/-",             json!("x..y"),       &[("/scopes/demo/events/1", "invalid_name")]),
        ("/scopes/demo/events",               many(257),           &[("/scopes/demo/events", "too_many_entries")]),
        ("/scopes/demo/events",               json!(["other"]),    &[("/scopes/demo/bindings/a/events/0", "authority_widening")]),
        ("/scopes/demo/bindings",             json!(0),            &[("/scopes/demo/bindings", "wrong_type")]),
        ("/scopes/demo/routes",               json!({}),           &[("/scopes/demo/routes", "wrong_type")]),
        // A binding
        ("/scopes/demo/bindings/B",           good()["scopes"]["demo"]["bindings"]["b"].clone(),
                                                                   &[("/scopes/demo/bindings/B", "invalid_name")]),
        ("/scopes/demo/bindings/b",           json!({}),           &[("/scopes/demo/bindings/b/executor", "missing_field")]),
        ("/scopes/demo/bindings/b/executor",  json!("shel"),       &[("/scopes/demo/bindings/b/executor", "unknown_reference")]),
        ("/scopes/demo/bindings/b/executor",  json!(""),           &[("/scopes/demo/bindings/b/executor", "invalid_name")]),
        ("/scopes/demo/bindings/b/config",    json!({}),           &[("/scopes/demo/bindings/b/config/command", "missing_field")]),
        ("/scopes/demo/bindings/b/config",    json!("x"),          &[("/scopes/demo/bindings/b/config", "wrong_type")]),
        ("/scopes/demo/bindings/b/operations", json!(["emit", "wait"]), &[("/scopes/demo/bindings/b/operations/1", "authority_widening")]),
        ("/scopes/demo/bindings/b/operations", json!(["nothing"]), &[("/scopes/demo/bindings/b/operations/0", "unknown_reference")]),
        ("/scopes/demo/bindings/b/operations", json!(["@lab.author", "!wait"]), &[]),
        ("/scopes/demo/bindings/b/operations", json!(["lab.read"]), &[("/scopes/demo/bindings/b/operations/0", "authority_widening")]),
        ("/scopes/demo/bindings/b/config",    json!({"command": [], "playbook": "os"}), &[]),
        ("/scopes/demo/bindings/b/config",    json!({"command": [], "playbook": "so"}),
                                                                   &[("/scopes/demo/bindings/b/config", "unknown_reference")]),
        ("/scopes/demo/bindings/b/events",    json!(["demolition"]), &[("/scopes/demo/bindings/b/events/0", "authority_widening")]),
        ("/scopes/demo/bindings/b/events",    json!(["demo"]),     &[]),
        ("/scopes/demo/bindings/b/delegates", json!(["b", "c"]),   &[("/scopes/demo/bindings/b/delegates/1", "unknown_reference")]),
        ("/scopes/demo/bindings/b/deadline_s", json!(0),           &[("/scopes/demo/bindings/b/deadline_s", "out_of_range")]),
        ("/scopes/demo/bindings/a/retry/attempts", json!(101),     &[("/scopes/demo/bindings/a/retry/attempts", "out_of_range")]),
        ("/scopes/demo/bindings/a/retry/backoff_max_ms", json!(999), &[("/scopes/demo/bindings/a/retry/backoff_max_ms", "out_of_range")]),
        ("/scopes/demo/bindings/a/retry/backoff_ms", json!(70_000), &[]),
        ("/scopes/demo/bindings/a/retry/x",   json!(1),            &[("/scopes/demo/bindings/a/retry/x", "unknown_field")]),
        ("/scopes/demo/bindings/a/secrets",   json!(["s"]),        &[("/scopes/demo/bindings/a/secrets", "unknown_field")]),
        // A route
        ("/scopes/demo/routes/1",             json!(7),            &[("/scopes/demo/routes/1", "wrong_type")]),
        ("/scopes/demo/routes/1",             json!({}),           &[("/scopes/demo/routes/1/effect", "missing_field"),
                                                                     ("/scopes/demo/routes/1/match", "missing_field")]),
        ("/scopes/demo/routes/1/effect",      json!("ignore"),     &[("/scopes/demo/routes/1/effect", "invalid_value")]),
        ("/scopes/demo/routes/1/effect",      json!("start"),      &[("/scopes/demo/routes/1/binding", "missing_field")]),
        ("/scopes/demo/routes/1/binding",     json!("a"),          &[("/scopes/demo/routes/1/binding", "conflicting_field")]),
        ("/scopes/demo/routes/0/binding",     json!("c"),          &[("/scopes/demo/routes/0/binding", "unknown_reference")]),
        ("/scopes/demo/routes/0/binding",     json!(3),            &[("/scopes/demo/routes/0/binding", "wrong_type")]),
        ("/scopes/demo/routes/0/match",       json!({}),           &[("/scopes/demo/routes/0/match/type", "missing_field")]),
        ("/scopes/demo/routes/0/match/type",  json!("demo"),       &[("/scopes/demo/routes/0/match/type", "invalid_name")]),
        ("/scopes/demo/routes/0/match/type",  json!("demo.*"),     &[]),
        ("/scopes/demo/routes/0/match/type",  json!("*"),          &[("/scopes/demo/routes/0/match/type", "invalid_name")]),
        ("/scopes/demo/routes/0/match/type",  json!("demo.*.x"),   &[("/scopes/demo/routes/0/match/type", "invalid_name")]),
        ("/scopes/demo/routes/0/match/type",  json!("core.work.finished"), &[]),
        ("/scopes/demo/routes/0/match/source", json!(""),          &[("/scopes/demo/routes/0/match/source", "invalid_value")]),
        ("/scopes/demo/routes/0/match/correlation_key", json!("k".repeat(257)),
                                                                   &[("/scopes/demo/routes/0/match/correlation_key", "invalid_value")]),
        ("/scopes/demo/routes/0/match/data/n", json!(1),           &[("/scopes/demo/routes/0/match/data/n", "invalid_pointer")]),
        ("/scopes/demo/routes/0/match/data/~1a~02", json!(1),      &[("/scopes/demo/routes/0/match/data/~1a~02", "invalid_pointer")]),
        ("/scopes/demo/routes/0/match/data/~1a", Value::Null,      &[("/scopes/demo/routes/0/match/data/~1a", "null_value")]),
    ];
    mutations
}

fn owned(faults: &[(&str, &str)]) -> Vec<(String, String)> {
    faults.iter().map(|(pointer, code)| ((*pointer).to_owned(), (*code).to_owned())).collect()
}

/// C01
#[test]
fn each_broken_rule_yields_exactly_its_own_faults() {
    assert_eq!(faults(&good()), []);
    for (pointer, value, expected) in mutations() {
        let document = set(good(), pointer, value.clone());
        assert_eq!(
            faults(&document),
            owned(expected),
            "{pointer} := {}",
            value.to_string().chars().take(60).collect::<String>()
        );
    }
}

/// C01
#[test]
fn each_required_field_is_missed() {
    for pointer in [
        "/version",
        "/scopes",
        "/scopes/demo/bindings/a/executor",
        "/scopes/demo/routes/0/match",
        "/scopes/demo/routes/0/effect",
        "/scopes/demo/routes/0/binding",
        "/scopes/demo/routes/0/match/type",
    ] {
        assert_eq!(faults(&without(good(), pointer)), owned(&[(pointer, "missing_field")]), "{pointer}");
    }
}

/// C01
#[test]
fn every_field_of_every_table_refuses_another_type() {
    let full = set(
        set(
            set(good(), "/scopes/demo/bindings/a/budget", json!({})),
            "/scopes/demo/routes/0/match/source",
            json!("core.manual"),
        ),
        "/scopes/demo/routes/0/match/correlation_key",
        json!("k"),
    );
    for (path, table) in conduit_config::TABLES {
        let parent = match path {
            "" => "",
            "limits" => "/limits",
            "extensions.*" => "/extensions/lab",
            "scopes.*" => "/scopes/demo",
            "scopes.*.bindings.*" => "/scopes/demo/bindings/a",
            "scopes.*.bindings.*.retry" => "/scopes/demo/bindings/a/retry",
            "scopes.*.bindings.*.budget" => "/scopes/demo/bindings/a/budget",
            "scopes.*.routes[]" => "/scopes/demo/routes/0",
            "scopes.*.routes[].match" => "/scopes/demo/routes/0/match",
            other => panic!("the table {other} is not tested"),
        };
        for field in table {
            let at = format!("{parent}/{}", field.name);
            // No field may hold a list of lists, so that this is wrong everywhere.
            let found = faults(&set(full.clone(), &at, json!([[0]])));
            assert!(
                found.iter().any(|(pointer, code)| code == "wrong_type" && pointer.starts_with(&at)),
                "{at}: {found:?}"
            );
        }
    }
}

/// C01
#[test]
fn independent_faults_are_named_all_at_once_in_one_order() {
    let mut document = good();
    for (pointer, value) in [
        ("/version", json!(9)),
        ("/limits/executions", json!("many")),
        ("/scopes/demo/bindings/a/operations/0", json!("wait")),
        ("/scopes/demo/bindings/b/executor", json!("none")),
        ("/scopes/demo/routes/0/binding", json!("z")),
        ("/zzz", Value::Null),
    ] {
        document = set(document, pointer, value);
    }
    let expected = owned(&[
        ("/limits/executions", "wrong_type"),
        ("/scopes/demo/bindings/a/operations/0", "authority_widening"),
        ("/scopes/demo/bindings/b/executor", "unknown_reference"),
        ("/scopes/demo/routes/0/binding", "unknown_reference"),
        ("/version", "unsupported_version"),
        ("/zzz", "null_value"),
        ("/zzz", "unknown_field"),
    ]);
    assert_eq!(faults(&document), expected);
    assert_eq!(faults(&document), faults(&document));
}

/// C01
#[test]
fn no_fault_repeats_a_value() {
    const SECRET: &str = "hunter2-Xyzzy";
    for (pointer, value, _) in mutations() {
        let secret = match value {
            Value::Array(_) => json!([SECRET]),
            _ => json!(SECRET),
        };
        let found = parse(set(good(), pointer, secret).to_string().as_bytes(), &registry()).err().unwrap_or_default();
        assert!(!format!("{found:?}").contains(SECRET), "{pointer}: {found:?}");
    }
    let broken = format!(r#"{{"version":1,"scopes":{{}},"x":"{SECRET}" "#);
    assert!(!format!("{:?}", parse(broken.as_bytes(), &registry())).contains(SECRET));
}

/// C01
#[test]
fn defaults_stand_in_for_what_is_absent() {
    let smallest = parse(br#"{"version":1,"scopes":{"s":{"bindings":{"b":{"executor":"x"}}}}}"#, &{
        Registered::builtins().executor("x", |_, _| Vec::new())
    });
    let config = smallest.unwrap().config;
    assert_eq!(json!(config.limits), json!({"executions": 4, "causal_depth_max": 32, "causal_per_minute": 600}));
    let expected = json!({
        "enabled": true, "concurrency": 4, "operations": [], "events": [], "routes": [],
        "bindings": {"b": {
            "executor": "x", "config": {}, "operations": [], "events": [], "delegates": [], "deadline_s": 3600,
            "retry": {"attempts": 3, "backoff_ms": 1000, "backoff_max_ms": 60000}, "budget": {"on_exceeded": "refuse"},
        }},
    });
    assert_eq!(json!(config.scopes)["s"], expected);
}

/// C01
#[test]
fn every_rule_is_broken_by_some_test() {
    let of_documents = ["document_too_large", "invalid_json", "nested_too_deep", "duplicate_key", "too_many_faults"];
    let mut broken: BTreeSet<&str> = of_documents.into();
    broken.extend(mutations().iter().flat_map(|(_, _, expected)| expected.iter().map(|(_, code)| *code)));
    let all: BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.code()).collect();
    assert_eq!(broken, all);
}
