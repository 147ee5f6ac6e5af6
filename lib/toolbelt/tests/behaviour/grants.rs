//! What a worker makes of a generation's lists: extensions that are active or not, capabilities, and drift.

use serde_json::{Value, json};

use crate::support::{Host, SECOND, configuration, request};

/// `parent` starts on the playbook `survey`, which uses `emit` and `lab.read`, and may call `operations`.
fn lab(enabled: bool, operations: &[&str]) -> Value {
    let mut configuration = configuration();
    configuration["extensions"] = json!({"lab": {"enabled": enabled}});
    configuration["scopes"]["demo"]["operations"] =
        json!(["emit", "wait", "read_context", "lab.read", "lab.credential"]);
    let parent = &mut configuration["scopes"]["demo"]["bindings"]["parent"];
    parent["config"] = json!({"playbook": "survey"});
    parent["operations"] = json!(operations);
    configuration
}

/// S07
#[test]
fn a_refusal_is_recorded_as_drift_only_where_the_pinned_playbook_relies_on_the_operation() {
    let mut host = Host::with(&lab(true, &["read_context"]));
    let mut speaker = host.granted(&["read_context", "wait"]);
    for operation in ["emit", "lab.read", "wait", "lab.credential", "read_context"] {
        let called = speaker.call(&host, &request(operation, json!({})));
        assert_eq!(called.is_ok(), operation == "read_context", "{operation}");
    }
    assert_eq!(
        host.refusals(&mut speaker),
        ["emit config_drift", "lab.read config_drift", "wait", "lab.credential", "read_context"]
    );

    // Another generation, in which the binding has no playbook, is not the one that the call is pinned to.
    host.publish(&configuration());
    assert_eq!(speaker.refusal(&host, &request("emit", json!({}))), "forbidden");
    assert_eq!(host.refusals(&mut speaker).last().unwrap(), "emit config_drift");

    // A token that is no good any more is no matter of the configuration.
    host.pass(3600 * SECOND);
    assert_eq!(speaker.refusal(&host, &request("emit", json!({}))), "forbidden");
    assert_eq!(host.refusals(&mut speaker).last().unwrap(), "emit");
}

/// T18, E02, T07
#[test]
fn an_operation_serves_and_is_guided_to_only_while_its_extension_is_active() {
    let mut host = Host::with(&lab(true, &["lab.credential", "emit"]));
    let mut speaker = host.granted(&["emit", "lab.credential"]);
    let token = speaker.token.clone();
    let mut seen = || {
        let serving = speaker.toolbelt.serving(&token, "git.credential").unwrap()["operations"].clone();
        let guidance = speaker.toolbelt.guidance(&token).unwrap()["operations"].clone();
        let names: Vec<Value> = guidance.as_array().unwrap().iter().map(|known| known["name"].clone()).collect();
        (serving, names)
    };
    assert_eq!(seen(), (json!(["lab.credential"]), vec![json!("emit"), json!("lab.credential")]));
    host.publish(&lab(false, &["lab.credential", "emit"]));
    assert_eq!(seen(), (json!([]), vec![json!("emit")]));
}

/// S02, T07
#[test]
fn a_running_attempt_keeps_its_pinned_grant_when_its_binding_gains_an_operation() {
    let mut host = Host::with(&lab(true, &["read_context"]));
    let mut speaker = host.granted(&["read_context"]);
    host.publish(&lab(true, &["read_context", "wait"]));
    assert_eq!(speaker.refusal(&host, &request("wait", json!({}))), "forbidden");
    speaker.output(&host, &request("read_context", json!({})));
}
