//! An extension's settings over whole programs: the schema, what the package says itself, and where they reach.

use conduit_api::views::{ConfigReply, ConfigView};
use conduit_client::ClientError;
use conduit_tests::{Suite, odd};
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
