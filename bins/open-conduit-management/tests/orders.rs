//! What operators order and are shown, by the real program.

mod server;

use conduit_store::digest::{hex, sha256};
use conduit_store::named_params;
use serde_json::{Value, json};
use server::{Answer, Ask, Server, configuration};

fn emit(kind: &str) -> Value {
    json!({"scope_id": "demo", "type": kind, "data": {"n": 1}})
}

fn refusal(code: &str, status: u16) -> (u16, String) {
    (status, code.to_owned())
}

#[track_caller]
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("text in {value}")).to_owned()
}

/// M06, M07, M10
#[test]
fn an_event_under_one_key_is_accepted_once_and_another_under_that_key_is_a_conflict() {
    let mut server = Server::start();
    let first = server.post_keyed("/v1/events", "k-1", &emit("demo.asked"));
    assert_eq!(first.status, 201);
    let event = first.json()["event"].clone();
    assert_eq!(
        (&event["source"], &event["actor"], &event["delivery_id"]),
        (&json!("core.manual"), &json!("operator:local"), &json!("k-1"))
    );
    assert_eq!(event["root_id"], event["id"]);

    server.restart();
    let again = server.post_keyed("/v1/events", "k-1", &emit("demo.asked"));
    assert_eq!((again.status, &again.json()["event"], &again.json()["replayed"]), (201, &event, &json!(true)));
    assert_eq!(
        server.post_keyed("/v1/events", "k-1", &emit("demo.other")).refusal(),
        refusal("idempotency_conflict", 409)
    );
    assert_ne!(server.post("/v1/events", &emit("demo.asked")).json()["event"]["id"], event["id"]);

    for key in ["", "a b", "wrk_x.created", &"k".repeat(129)] {
        assert_eq!(
            server.post_keyed("/v1/events", key, &emit("demo.asked")).refusal(),
            refusal("invalid_request", 400),
            "{key}"
        );
    }
    assert_eq!(server.get("/v1/health").json()["events"], 2);
}

/// M10
#[test]
fn an_event_outside_its_scope_or_its_families_is_refused_and_nothing_is_written() {
    let server = Server::start();
    let refused = |body: Value| server.post("/v1/events", &body).refusal();
    let with = |name: &str, value: Value| {
        let mut body = emit("demo.asked");
        body[name] = value;
        body
    };
    for (body, expected) in [
        (with("scope_id", json!("nowhere")), refusal("unknown_scope", 422)),
        (with("scope_id", json!("off")), refusal("unknown_scope", 422)),
        (emit("core.work.finished"), refusal("event_not_allowed", 422)),
        (emit("other.asked"), refusal("event_not_allowed", 422)),
        (emit("demolition.asked"), refusal("event_not_allowed", 422)),
        (emit("demo"), refusal("invalid_request", 400)),
        (emit("demo..x"), refusal("invalid_request", 400)),
        (with("schema", json!("flat")), refusal("invalid_request", 400)),
        (with("correlation_key", json!("")), refusal("invalid_request", 400)),
        (with("correlation_key", json!("k".repeat(257))), refusal("invalid_request", 400)),
        (with("work_id", json!("wrk_00000000000000000000000000")), refusal("invalid_request", 400)),
        (with("cause_id", json!("evt_00000000000000000000000000")), refusal("invalid_request", 400)),
        (with("source", json!("core")), refusal("invalid_request", 400)),
        (with("actor", json!("operator:someone")), refusal("invalid_request", 400)),
    ] {
        assert_eq!(refused(body.clone()), expected, "{body}");
    }
    assert_eq!(server.get("/v1/health").json()["events"], 0);
}

/// M10
#[test]
fn a_chain_is_shown_from_any_of_its_events() {
    let server = Server::start();
    let root = text(&server.post("/v1/events", &emit("demo.asked")).json()["event"]["id"]);
    let mut follows = emit("demo.more");
    follows["cause_id"] = json!(root);
    let child = server.post("/v1/events", &follows).json()["event"].clone();
    assert_eq!((&child["root_id"], &child["cause_id"], &child["depth"]), (&json!(root), &json!(root), &json!(1)));
    server.post("/v1/events", &emit("demo.stranger"));
    for asked in [&root, &text(&child["id"])] {
        let chain = server.get(&format!("/v1/events/{asked}/chain")).json();
        let ids: Vec<&Value> = chain["events"].as_array().unwrap().iter().map(|event| &event["id"]).collect();
        assert_eq!(ids, [&json!(root), &child["id"]]);
    }
}

/// M07, M10
#[test]
fn a_work_under_one_key_is_created_once_with_everything_that_it_was_asked_with() {
    let server = Server::start();
    let body = json!({"scope_id": "demo", "binding": "survey", "title": "one", "data": {"n": 1}, "keys": ["b", "a"]});
    let first = server.post_keyed("/v1/work", "w-1", &body);
    assert_eq!(first.status, 201);
    let work = first.json()["work"].clone();
    assert_eq!((&work["state"], &work["keys"]), (&json!("ready"), &json!(["a", "b"])));
    let again = server.post_keyed("/v1/work", "w-1", &body).json();
    assert_eq!((&again["work"], &again["replayed"]), (&work, &json!(true)));
    for (name, value) in
        [("title", json!("two")), ("data", json!({"n": 2})), ("keys", json!(["a"])), ("scope_id", json!("off"))]
    {
        let mut changed = body.clone();
        changed[name] = value;
        assert_eq!(
            server.post_keyed("/v1/work", "w-1", &changed).refusal(),
            refusal("idempotency_conflict", 409),
            "{name}"
        );
    }
    assert_eq!(server.post("/v1/work", &body).refusal(), refusal("key_taken", 409));
    let with = |name: &str, value: Value| {
        let mut body = json!({"scope_id": "demo", "binding": "survey"});
        body[name] = value;
        server.post("/v1/work", &body).refusal()
    };
    assert_eq!(with("binding", json!("nothing")), refusal("unknown_binding", 422));
    assert_eq!(with("scope_id", json!("off")), refusal("unknown_scope", 422));
    assert_eq!(with("keys", json!(vec!["k"; 65])), refusal("invalid_request", 400));
    assert_eq!(with("title", json!("")), refusal("invalid_request", 400));
    assert_eq!(server.get("/v1/work").json()["items"].as_array().unwrap().len(), 1);
}

/// M10
#[test]
fn a_work_is_cancelled_once_and_retried_from_there() {
    let server = Server::start();
    let work = server.work();
    let order = |what: &str| server.post(&format!("/v1/work/{work}/{what}"), &json!({}));
    assert_eq!(order("retry").refusal(), refusal("illegal_state", 409));
    let cancelled = order("cancel").json()["work"].clone();
    assert_eq!((&cancelled["state"], &cancelled["outcome"]["actor"]), (&json!("cancelled"), &json!("operator:local")));
    assert_eq!(order("cancel").refusal(), refusal("illegal_state", 409));
    assert_eq!(order("retry").json()["work"]["state"], "ready");
    let events = server.get(&format!("/v1/events?work_id={work}")).json();
    let kinds: Vec<String> = events["items"].as_array().unwrap().iter().map(|event| text(&event["type"])).collect();
    assert_eq!(kinds, ["core.work.retried", "core.work.finished", "core.work.created"]);
    assert!(events["items"].as_array().unwrap().iter().all(|event| event["actor"] == "operator:local"));
}

/// M10
#[test]
fn cancelling_an_execution_holds_its_work_and_revokes_its_tokens() {
    let server = Server::start();
    let work = server.work();
    let id = "exe_00000000000000000000000001";
    server.execution(id, &work, "running");
    server.store().write(|tx| tx.execute("testing", "UPDATE work SET state = 'running'", [])).unwrap();
    let answer = server.post(&format!("/v1/executions/{id}/cancel"), &json!({}));
    assert_eq!(answer.status, 200, "{answer:?}");
    let held = server.get(&format!("/v1/work/{work}")).json();
    assert_eq!((&held["state"], &held["blocked_reason"]), (&json!("blocked"), &json!("operator_cancelled")));
    let live: i64 = server
        .store()
        .read(|r| r.one("testing", "SELECT count(*) FROM token WHERE revoked_at_us IS NULL", [], |row| row.get(0)))
        .unwrap();
    assert_eq!(live, 0);
    let again = server.post(&format!("/v1/executions/{id}/cancel"), &json!({}));
    assert_eq!(again.refusal(), refusal("illegal_state", 409));
    let page = server.get(&format!("/v1/executions?work_id={work}&state=running")).json();
    assert_eq!(page["items"][0]["id"], id);
}

/// M09
#[test]
fn pages_show_each_item_once_while_more_arrive() {
    let server = Server::start();
    let mut expected: Vec<String> = (0..7).map(|_| server.work()).collect();
    expected.reverse();
    let (mut seen, mut target) = (Vec::new(), "/v1/work?limit=3".to_owned());
    loop {
        let page = server.get(&target).json();
        seen.extend(page["items"].as_array().unwrap().iter().map(|work| text(&work["id"])));
        server.work();
        match page["next"].as_str() {
            Some(cursor) => target = format!("/v1/work?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, expected);
}

fn artifact(server: &Server, bytes: &[u8], execution: &str) -> String {
    let digest = hex(&sha256(bytes));
    std::fs::write(server.state().join("artifacts").join(&digest), bytes).unwrap();
    const INSERT: &str = "
        INSERT INTO artifact (id, execution_id, work_id, scope_id, segment, name, media_type, digest, bytes, dropped_bytes, created_at_us)
        SELECT :id, id, work_id, scope_id, 1, 'stdout', 'text/plain', :digest, :bytes, 0, 1 FROM execution WHERE id = :execution";
    let id = "art_00000000000000000000000001";
    let bytes = i64::try_from(bytes.len()).unwrap();
    let params = named_params! { ":id": id, ":digest": digest, ":bytes": bytes, ":execution": execution };
    server.store().write(|tx| tx.execute("testing", INSERT, params)).unwrap();
    digest
}

#[test]
fn the_bytes_of_an_artifact_are_shown_only_while_they_are_the_recorded_ones() {
    let server = Server::start();
    let execution = "exe_00000000000000000000000001";
    server.execution(execution, &server.work(), "succeeded");
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let digest = artifact(&server, &bytes, execution);
    let view = server.get("/v1/artifacts").json()["items"][0].clone();
    assert_eq!((&view["digest"], &view["bytes"]), (&json!(digest), &json!(bytes.len())));
    let content = format!("/v1/artifacts/{}/content", text(&view["id"]));
    let answer = server.get(&content);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/plain")));
    assert!(answer.bytes == bytes);

    std::fs::write(server.state().join("artifacts").join(&digest), b"altered").unwrap();
    let refused = server.get(&content);
    assert_eq!(refused.refusal(), refusal("artifact_unavailable", 503));
    assert!(!String::from_utf8(refused.bytes).unwrap().contains(server.state().to_str().unwrap()));
    assert!(server.log().contains("another digest"));
}

/// C01, C02, C06
#[test]
fn a_configuration_is_checked_applied_and_shown_without_what_is_the_executors() {
    let server = Server::start();
    let shown = server.get("/v1/config").json();
    assert_eq!((&shown["generation"], &shown["published_by"]), (&json!(1), &json!("start")));

    let faulty = r#"{"config": {"version": 1, "version": 1, "scopes": {"A": {}, "demo": {"enabled": null}}}}"#;
    let ask = Ask::new("POST", "/v1/config/validate").bearer(&server.token()).json(faulty);
    let checked = server.send(&ask).json();
    assert_eq!((&checked["valid"], &checked["generation"]), (&json!(false), &json!(1)));
    let codes: Vec<String> = checked["diagnostics"].as_array().unwrap().iter().map(|d| text(&d["code"])).collect();
    assert!(codes.contains(&"duplicate_key".to_owned()) && codes.contains(&"null_value".to_owned()), "{codes:?}");
    let refused = server.send(&Ask { target: "/v1/config/apply".into(), ..ask });
    assert_eq!(refused.refusal(), refusal("invalid_config", 422));
    assert_eq!(refused.json()["error"]["diagnostics"], checked["diagnostics"]);

    let mut next = configuration();
    next["scopes"]["off"]["enabled"] = json!(true);
    let apply =
        |expected: i64| server.post("/v1/config/apply", &json!({"config": next, "expected_generation": expected}));
    assert_eq!(apply(7).refusal(), refusal("generation_conflict", 409));
    assert_eq!(apply(1).json()["generation"], 2);
    let scope = server.get("/v1/scopes/off").json();
    assert_eq!((&scope["enabled"], &scope["generation"]), (&json!(true), &json!(2)));
    let saved: Value = serde_json::from_slice(&std::fs::read(server.config_file()).unwrap()).unwrap();
    assert_eq!(saved, next);
    let shown = server.get("/v1/config");
    assert_eq!(shown.json()["published_by"], "operator:local");
    assert!(!String::from_utf8(shown.bytes).unwrap().contains("hush-hush"));

    server.work();
    let gone = server.post("/v1/config/apply", &json!({"config": {"version": 1, "scopes": {"off": {}}}}));
    assert_eq!(gone.refusal(), refusal("scope_in_use", 409));
    // An executor's own rules are asked too.
    next["scopes"]["demo"]["bindings"]["survey"]["config"] = json!({"command": ["relative"]});
    let checked = server.post("/v1/config/validate", &json!({"config": next})).json();
    assert_eq!(checked["diagnostics"][0]["pointer"], "/scopes/demo/bindings/survey/config/command/0");
}

/// S05, S06
#[test]
fn validate_and_apply_warn_of_a_playbook_that_its_binding_lags_and_say_the_command() {
    let server = Server::start();
    let mut next = configuration();
    next["scopes"]["off"] = json!({"operations": ["emit"], "bindings": {"b": {
        "executor": "shell", "config": {"command": ["/bin/true"], "playbook": "os"}, "operations": ["emit"],
    }}});
    for path in ["/v1/config/validate", "/v1/config/apply"] {
        let reply = server.post(path, &json!({"config": next})).json();
        let warning = &reply["warnings"][0];
        assert_eq!(
            (&reply["valid"], &warning["scope"], &warning["binding"]),
            (&json!(true), &json!("off"), &json!("b"))
        );
        assert_eq!(warning["operations"], json!(["create_work", "wait", "declare_outcome", "read_context"]));
        let command = "open-conduit config set /scopes/off/operations \
                       '[\"emit\",\"create_work\",\"wait\",\"declare_outcome\",\"read_context\"]'";
        assert_eq!(warning["commands"][0], command);
    }
    // One that this release does not have is a fault, told by its place.
    next["scopes"]["off"]["bindings"]["b"]["config"]["playbook"] = json!("so");
    let checked = server.post("/v1/config/validate", &json!({"config": next})).json();
    assert_eq!(checked["diagnostics"][0]["code"], "unknown_reference");
}

#[test]
fn health_says_which_parts_are_away() {
    let server = Server::start();
    server.work();
    let health = server.get("/v1/health").json();
    assert_eq!(
        (&health["status"], &health["scheduler"], &health["endpointd"]),
        (&json!("degraded"), &json!(false), &json!(false))
    );
    assert_eq!((&health["generation"], &health["work"]), (&json!(1), &json!({"ready": 1})));
}

/// M01, M02
#[test]
fn the_credential_and_its_socket_are_the_owners_alone_and_no_answer_or_log_repeats_a_credential() {
    use std::os::unix::fs::PermissionsExt;
    let mut server = Server::start();
    let token = server.token();
    for path in [server.socket(), server.state().join("private/operator.token")] {
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    let execution = "exe_00000000000000000000000001";
    let tokens = server.execution(execution, &server.work(), "running");
    let secrets = [token.as_str(), &tokens[0], &tokens[1]];
    let digests = secrets.map(|secret| hex(&sha256(secret.as_bytes())));
    let clean = |what: &str, bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        for secret in secrets.iter().copied().chain(digests.iter().map(String::as_str)) {
            assert!(!text.contains(secret), "{what}");
        }
    };
    let mut answers: Vec<Answer> = Vec::new();
    for path in ["health", "scopes", "events", "work", "executions", "waits", "artifacts", "config"] {
        answers.push(server.get(&format!("/v1/{path}")));
    }
    answers.push(server.send(&Ask::new("GET", "/v1/health").bearer(&tokens[0])));
    for answer in &answers {
        clean(&answer.head, &answer.bytes);
        assert!(answer.header("x-request-id").is_some());
    }
    clean("the log", server.log().as_bytes());

    server.restart();
    assert_eq!(server.token(), token, "a restart keeps the credential");
    assert_eq!(server.get("/v1/health").status, 200);
    assert!(server.stop(), "SIGTERM is no failure");
}
