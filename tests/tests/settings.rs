//! What a configuration says about a package, over whole programs: its settings and its scopes.

use conduit_api::views::{CanIView, ConfigReply, ConfigView};
use conduit_client::ClientError;
use conduit_tests::{Suite, odd, until};
use serde_json::{Value, json};

fn suite() -> Suite {
    let suite = Suite::start(|home| odd::configuration(home, None, None));
    odd::install(&suite);
    suite
}

fn apply(suite: &Suite, settings: Value) -> Result<ConfigReply, ClientError> {
    let config = odd::configuration(suite.home(), Some(settings), None);
    suite.client().post("/v1/config/apply", &json!({"config": config}))
}

/// The code of a refusal, and the places and codes of its faults.
fn faults(answer: Result<ConfigReply, ClientError>) -> (String, Vec<(String, String)>) {
    match answer.unwrap_err() {
        ClientError::Refused { body, .. } => {
            let faults = body.diagnostics.into_iter().map(|fault| (fault.pointer, fault.code)).collect();
            (body.code, faults)
        }
        other => panic!("no refusal: {other}"),
    }
}

fn generation(suite: &Suite) -> i64 {
    suite.client().get::<ConfigView>("/v1/config").unwrap().generation
}

/// C01, X01
#[test]
fn settings_are_held_against_their_schema_and_then_looked_at_by_the_package_itself() {
    let suite = suite();
    let before = generation(&suite);
    let at = |field: &str, code: &str| vec![(format!("/extensions/odd/config{field}"), code.to_owned())];
    for (settings, expected) in [
        (json!({"mark": 0}), at("/mark", "out_of_range")),
        (json!({"mark": "hunter2"}), at("/mark", "wrong_type")),
        (json!({"hunter2": 1}), at("/hunter2", "unknown_field")),
        (json!({"gate": "hunter2"}), at("/gate", "invalid_value")),
        (json!({"once": "x".repeat(70_000)}), at("", "invalid_value")),
        (json!({"validate": "refuse"}), at("/validate", "refused_by_extension")),
    ] {
        let (code, found) = faults(apply(&suite, settings.clone()));
        assert_eq!((code.as_str(), found), ("invalid_config", expected.clone()), "{settings}");
        let config = odd::configuration(suite.home(), Some(settings), None);
        let reply: ConfigReply = suite.client().post("/v1/config/validate", &json!({"config": config})).unwrap();
        assert!(!reply.valid);
        let found: Vec<_> = reply.diagnostics.into_iter().map(|fault| (fault.pointer, fault.code)).collect();
        assert_eq!(found, expected);
    }
    assert_eq!(generation(&suite), before);
}

/// X01
#[test]
fn settings_that_the_package_cannot_look_at_are_refused_rather_than_accepted_unchecked() {
    let suite = suite();
    let before = generation(&suite);
    for how in ["crash", "nonsense"] {
        let (code, _) = faults(apply(&suite, json!({"validate": how})));
        assert_eq!(code, "extension_unavailable", "{how}");
    }
    assert_eq!(generation(&suite), before);
    // What has nothing of the package in it is nobody's to look at.
    let config = odd::configuration(suite.home(), None, None);
    suite.client().post::<_, ConfigReply>("/v1/config/apply", &json!({"config": config})).unwrap();
}

/// X01, T13
#[test]
fn each_question_carries_the_settings_of_the_generation_that_decides_it() {
    let suite = suite();
    apply(&suite, json!({"mark": 1})).unwrap();
    let held = suite.hold("hold");
    assert_eq!(held.call("odd.do", json!({})).unwrap()["settings"], json!({"mark": 1}));
    apply(&suite, json!({"mark": 2, "gate": "refuse"})).unwrap();
    assert_eq!(held.call("odd.do", json!({})).unwrap()["settings"], json!({"mark": 2, "gate": "refuse"}));
    match held.call("introspection.work", json!({})).unwrap_err() {
        ClientError::Refused { body, .. } => assert_eq!(body.code, "odd_gate"),
        other => panic!("no refusal: {other}"),
    }
    apply(&suite, json!({})).unwrap();
    held.call("introspection.work", json!({})).unwrap();
}

/// G01, G06, T18
#[test]
fn a_package_has_operations_and_is_asked_as_a_gate_in_its_scopes_alone() {
    let suite = suite();
    let refuses = json!({"gate": "refuse", "start": "refuse"});
    let apply = |scopes: Value| -> Result<ConfigReply, ClientError> {
        let mut config = odd::configuration(suite.home(), Some(refuses.clone()), Some(scopes));
        config["scopes"]["other"] = json!({});
        suite.client().post("/v1/config/apply", &json!({"config": config}))
    };
    let unknown = vec![("/extensions/odd/scopes/0".to_owned(), "unknown_reference".to_owned())];
    assert_eq!(faults(apply(json!(["nowhere"]))), ("invalid_config".into(), unknown));
    let code = |answer: Result<Value, ClientError>| match answer.unwrap_err() {
        ClientError::Refused { body, .. } => body.code,
        other => panic!("no refusal: {other}"),
    };
    let can = |operation: &str| -> CanIView {
        suite.client().get(&format!("/v1/scopes/test/bindings/hold/can-i/{operation}")).unwrap()
    };
    let gates = |view: CanIView| view.checks.iter().filter(|check| check.check == 6).count();

    apply(json!(["other"])).unwrap();
    let held = suite.hold("hold"); // its start gate is not asked either
    held.call("introspection.work", json!({})).unwrap();
    assert_eq!(code(held.call("odd.do", json!({}))), "forbidden");
    assert!(!can("odd.do").allowed);
    assert_eq!(gates(can("introspection.work")), 0);

    apply(json!(["other", "test"])).unwrap();
    assert_eq!(code(held.call("introspection.work", json!({}))), "odd_gate");
    assert!(can("odd.do").allowed);
    assert_eq!(gates(can("introspection.work")), 1);
    let work = suite.work("hold", json!({}));
    until("its start gate holds the Work", || (suite.work_view(&work).state == "blocked").then_some(()));
}
