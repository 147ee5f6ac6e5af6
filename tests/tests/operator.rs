//! The operator's command on a running suite, as a person or a script uses it.

use std::process::{Command, Output, Stdio};

use conduit_tests::{Suite, config};
use serde_json::{Value, json};

/// A suite whose one binding says hello and declares how it went.
fn suite() -> Suite {
    Suite::start(|_| {
        let mut greet = config::script(
            "echo hello; os emit test.said '{}' >/dev/null; os outcome succeeded --summary 'it said hello'",
        );
        greet["deadline_s"] = json!(60);
        config::one_scope(
            json!({"greet": greet}),
            json!([{"match": {"type": "test.asked"}, "effect": "start", "binding": "greet"}]),
        )
    })
}

/// Runs `open-conduit` with the directories of the suite alone: socket and credential are discovered.
fn conduit(suite: &Suite, words: &[&str]) -> Output {
    Command::new(suite.programs().join("open-conduit"))
        .args(words)
        .arg("--state")
        .arg(suite.state())
        .arg("--runtime")
        .arg(&suite.places().runtime)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn answered(suite: &Suite, words: &[&str]) -> String {
    let output = conduit(suite, words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn document(suite: &Suite, words: &[&str]) -> Value {
    let text = answered(suite, &[words, &["--json"]].concat());
    assert_eq!(text.lines().count(), 1, "one document on one line");
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn refused(suite: &Suite, words: &[&str]) -> (i32, String) {
    let output = conduit(suite, words);
    assert!(output.stdout.is_empty(), "{words:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// M02, M13, M14
#[test]
fn an_operator_follows_an_event_to_its_outcome_with_nothing_but_the_command() {
    let suite = suite();
    // The very first command finds no credential yet: it is made when the server starts, which dialling does.
    assert!(answered(&suite, &["health"]).starts_with("status         ok"));
    let event = answered(&suite, &["emit", "test.asked", r#"{"n":1}"#, "--scope", "test", "--request-id", "once"]);
    let event = event.trim();
    assert_eq!(
        answered(&suite, &["emit", "test.asked", r#"{"n":1}"#, "--scope", "test", "--request-id", "once"]).trim(),
        event
    );
    let work = conduit_tests::until("the event started a Work", || {
        document(&suite, &["work", "list"])["items"][0]["id"].as_str()?.parse().ok()
    });
    assert_eq!(suite.ended(&work).state, "succeeded");

    let chain = answered(&suite, &["events", "chain", event]);
    assert!(
        chain.lines().count() == 5 && chain.contains("├─ test.said") && chain.contains("└─ core.work.finished"),
        "{chain}"
    );
    let list = answered(&suite, &["work"]);
    assert!(list.contains(work.as_str()) && list.contains("it said hello"), "{list}");
    let artifact = document(&suite, &["artifacts", "list", "--work", work.as_str()])["items"][0].clone();
    assert_eq!(answered(&suite, &["artifacts", "cat", artifact["id"].as_str().unwrap()]), "hello\n");
    let execution = document(&suite, &["executions", "list", "--work", work.as_str(), "--in", "succeeded"]);
    assert_eq!(execution["items"].as_array().unwrap().len(), 1);

    // The table and the document are of one view.
    let view = document(&suite, &["work", "get", work.as_str()]);
    let shown = answered(&suite, &["work", "get", work.as_str()]);
    for field in ["id", "binding", "state", "created_event_id"] {
        assert!(shown.contains(view[field].as_str().unwrap()), "{field}: {shown}");
    }

    let (code, said) = refused(&suite, &["work", "cancel", work.as_str()]);
    assert!(code == 1 && said.contains("illegal_state"), "{code} {said}");
    let (code, _) = refused(&suite, &["work", "get", "wrk_00000000000000000000000000"]);
    assert_eq!(code, 3);
}

/// C01, C06, T07
#[test]
fn an_operator_checks_and_applies_a_configuration_with_nothing_but_the_command() {
    let suite = suite();
    let file = suite.home().join("next.json");
    let path = file.to_str().unwrap();
    std::fs::write(&file, r#"{"version": 1, "scopes": {"test": {"enabled": null, "enabled": true}, "X": {}}}"#)
        .unwrap();
    for words in [["config", "validate", path], ["config", "apply", path]] {
        let (code, said) = refused(&suite, &words);
        assert_eq!(code, 1, "{said}");
        for fault in
            ["/scopes/test/enabled  null_value", "/scopes/test/enabled  duplicate_key", "/scopes/X  invalid_name"]
        {
            assert!(said.contains(fault), "{fault}: {said}");
        }
    }
    let next = json!({"version": 1, "scopes": {"test": {"events": ["test", "more"]}}});
    std::fs::write(&file, next.to_string()).unwrap();
    assert!(answered(&suite, &["config", "validate", path]).starts_with("valid  "));
    let (code, said) = refused(&suite, &["config", "apply", path, "--expected-generation", "7"]);
    assert!(code == 1 && said.contains("generation_conflict"), "{code} {said}");
    assert_eq!(answered(&suite, &["config", "apply", path, "--expected-generation", "1"]), "generation 2 is active\n");
    assert_eq!(document(&suite, &["config", "show"])["config"]["scopes"]["test"]["events"], json!(["more", "test"]));
    answered(&suite, &["emit", "more.x", "--scope", "test"]);
    assert!(answered(&suite, &["scopes"]).contains("test"));

    assert_eq!(answered(&suite, &["config", "set", "/scopes/test/events/-", "\"third\""]), "generation 3 is active\n");
    assert_eq!(document(&suite, &["config", "get", "/scopes/test/events"]), json!(["more", "test", "third"]));
    answered(&suite, &["emit", "third.x", "--scope", "test"]);
    for (words, exit, told) in [
        (["config", "set", "/version/x", "1"], 1, "invalid_request"),
        (["config", "set", "/scopes/test/enabled", "maybe"], 2, "not JSON"),
        (["config", "set", "/scopes/test/enabled", "7"], 1, "wrong_type"),
    ] {
        let (code, said) = refused(&suite, &words);
        assert!(code == exit && said.contains(told), "{code} {said}");
    }
    assert!(refused(&suite, &["config", "get", "/nowhere"]).1.contains("nothing at"));
}

/// S05, S06
#[test]
fn the_commands_of_a_warning_can_be_run_as_they_are_printed_and_end_it() {
    let suite = suite();
    let file = suite.home().join("next.json");
    let binding =
        json!({"executor": "shell", "config": {"command": ["/bin/true"], "playbook": "os"}, "operations": ["emit"]});
    let next = json!({"version": 1, "scopes": {"test": {"operations": ["emit"], "bindings": {"b": binding}}}});
    std::fs::write(&file, next.to_string()).unwrap();
    let path = file.to_str().unwrap();
    answered(&suite, &["config", "apply", path]);
    let warned = document(&suite, &["config", "validate", path]);
    let commands = warned["warnings"][0]["commands"].as_array().unwrap();
    assert_eq!(commands.len(), 2);
    for command in commands {
        let path = format!("{}:/usr/bin:/bin", suite.programs().display());
        let ran = std::process::Command::new("/bin/sh")
            .args(["-c", command.as_str().unwrap()])
            .env("PATH", path)
            .env(conduit_api::http::env::MANAGEMENT_ENDPOINT, suite.places().management_socket())
            .env(conduit_api::http::env::OPERATOR_TOKEN_FILE, suite.places().operator_token())
            .output()
            .unwrap();
        assert!(ran.status.success(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    let own = std::fs::read(suite.home().join("config.json")).unwrap();
    let own: Value = serde_json::from_slice(&own).unwrap();
    std::fs::write(&file, own.to_string()).unwrap();
    assert_eq!(document(&suite, &["config", "validate", path])["warnings"], Value::Null);
    assert_eq!(own["scopes"]["test"]["bindings"]["b"]["operations"].as_array().unwrap().len(), 5);
}

/// T14, M10: what nobody knows is listed, and an operator's word ends it, once.
#[test]
fn an_operator_resolves_a_request_that_is_in_doubt() {
    let suite = Suite::start(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    let held = suite.hold("hold");
    assert_eq!(document(&suite, &["doubts"])["items"], json!([]));
    let store = rusqlite::Connection::open(suite.state().join("store.db")).unwrap();
    let doubt =
        "INSERT INTO intent (execution_id, operation, request_id, request_digest, host, idempotent, state, began_at_us)
        SELECT id, 'lab.once', 'r1', zeroblob(32), 'a host that has ended', 0, 'in_doubt', 1 FROM execution";
    assert_eq!(store.execute(doubt, []).unwrap(), 1);
    let listed = document(&suite, &["doubts", "list"]);
    assert_eq!(listed["items"][0]["operation"], "lab.once");
    assert!(answered(&suite, &["doubts"]).contains("lab.once"));
    let execution = listed["items"][0]["execution_id"].as_str().unwrap();
    let resolve = ["doubts", "resolve", execution, "lab.once", "r1", "--done", r#"{"n":1}"#];
    let resolved = document(&suite, &resolve);
    assert_eq!(resolved["request_id"], "r1");
    let (_, error) = refused(&suite, &resolve);
    assert!(error.contains("not in doubt"), "{error}");
    let (status, _) = refused(&suite, &["doubts", "resolve", execution, "lab.once", "r1"]);
    assert_eq!(status, 2, "nothing was said");
    assert_eq!(document(&suite, &["doubts"])["items"], json!([]));
    let recorded: String = store.query_row("SELECT output FROM replay", [], |row| row.get(0)).unwrap();
    assert_eq!(recorded, r#"{"n":1}"#);
    held.release(1);
}

/// T05, T06: the caller is told nothing, and the operator the whole decision; beforehand the same rules are asked.
#[test]
fn an_operator_sees_why_a_call_ended_as_it_did_and_whether_one_would_be_allowed() {
    let suite = Suite::start(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    let held = suite.hold("hold");
    let client = held.client();
    conduit_tests::execution::call_as(&client, "emit", json!({"type": "test.allowed"}), "allowed").unwrap();
    conduit_tests::execution::call_as(&client, "nothing.here", json!({}), "refused").unwrap_err();
    // Records are written when the endpoint is quiet.
    let explained = |id: &str| {
        conduit_tests::until("the call is on record", || {
            conduit(&suite, &["explain", id]).status.success().then_some(())
        });
        document(&suite, &["explain", id])["calls"][0].clone()
    };
    let outcomes = |view: &Value| -> Vec<String> {
        let checks = view["checks"].as_array().unwrap().iter();
        checks.map(|check| check["outcome"].as_str().unwrap().to_owned()).collect()
    };
    let allowed = explained("allowed");
    assert_eq!(allowed["result"], "ok");
    assert!(outcomes(&allowed).iter().all(|outcome| outcome == "passed"), "{allowed}");
    let refused_call = explained("refused");
    assert_eq!(refused_call["rule"], "the operation is not declared in the scope");
    assert_eq!(outcomes(&refused_call)[6..9], ["passed", "refused", "not_asked"]);

    let execution = refused_call["execution_id"].as_str().unwrap();
    let can = |operation: &str| document(&suite, &["can-i", operation, "--execution", execution]);
    assert_eq!(can("emit")["allowed"], true);
    assert_eq!(can("emit")["checks"], allowed["checks"], "the same rules, asked beforehand");
    assert_eq!(can("nothing.here")["checks"], refused_call["checks"]);
    let of_binding = document(&suite, &["can-i", "nothing.here", "--binding", "test/hold"]);
    assert_eq!((&of_binding["allowed"], of_binding["checks"][0]["outcome"].as_str()), (&json!(false), Some("refused")));
    assert_eq!(document(&suite, &["can-i", "emit", "--binding", "test/hold"])["allowed"], true);
    assert!(
        answered(&suite, &["explain", "refused"]).contains("3  refused    the operation is not declared in the scope")
    );

    held.call("declare_outcome", json!({"status": "succeeded"})).unwrap();
    let after = can("emit");
    assert_eq!(after["checks"].as_array().unwrap().last().unwrap()["outcome"], "refused");
    let (_, error) = refused(&suite, &["explain", "nobody-asked-this"]);
    assert!(error.contains("there is no such call on record"), "{error}");
    let (status, _) = refused(&suite, &["can-i", "emit"]);
    assert_eq!(status, 2);
    held.release(1);
}
