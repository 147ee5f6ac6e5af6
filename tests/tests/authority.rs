//! Who may ask for what, over the real sockets: nobody reaches what was not granted.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use conduit_api::views::ConfigReply;
use conduit_client::{Call, Client, ClientError, Credential, Method};
use conduit_tests::execution::{call, call_as};
use conduit_tests::{Suite, config, processes, until};
use serde_json::{Value, json};

fn host() -> Suite {
    Suite::start(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])))
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (u16, String, String) {
    match answer.unwrap_err() {
        ClientError::Refused { body, status } => (status, body.code, body.message),
        other => panic!("no refusal: {other}"),
    }
}

fn code<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (u16, String) {
    let (status, code, _) = refusal(answer);
    (status, code)
}

/// Sends `request` as it stands and reads what comes until the server closes, or `bytes` are there.
fn raw(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let mut bytes = [0; 4096];
    while !answer.contains("\r\n\r\n") {
        let n = stream.read(&mut bytes).unwrap();
        if n == 0 {
            break;
        }
        answer.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    answer
}

/// E03, T05, T06
#[test]
fn another_executions_token_and_another_executions_name_are_refused_alike() {
    let suite = host();
    let (mine, other) = (suite.hold("hold"), suite.hold("hold"));
    mine.call("read_context", json!({})).unwrap();
    let foreign = refusal(call(&mine.client_with(&other.token()), "read_context", json!({})));
    let forged = refusal(call(&mine.client_with(&"Z".repeat(43)), "read_context", json!({})));
    assert_eq!(foreign, forged);
    assert_eq!((foreign.0, foreign.1.as_str()), (403, "forbidden"));
    for assertion in [
        json!({"operation": "read_context", "execution_id": other.id}),
        json!({"operation": "read_context", "work_id": other.work}),
        json!({"operation": "read_context", "scope_id": "elsewhere"}),
    ] {
        let answer = mine.client().post::<_, Value>("/v1/toolbelt/call", &assertion);
        assert_eq!(refusal(answer), forged, "{assertion}");
    }
    let named = json!({"operation": "read_context", "execution_id": mine.id, "work_id": mine.work, "scope_id": "test"});
    mine.client().post::<_, Value>("/v1/toolbelt/call", &named).unwrap();
}

/// E02
#[test]
fn a_run_socket_has_three_routes_and_no_room_for_operators() {
    let suite = host();
    let held = suite.hold("hold");
    let nobody = Client::new(held.socket(), Credential::none()).unwrap();
    for target in ["/", "/v1/health", "/v1/toolbelt", "/v1/work", "/v1/toolbelt/call/more"] {
        assert_eq!(code(nobody.get::<Value>(target)), (404, "not_found".into()), "{target}");
    }
    assert_eq!(code(nobody.get::<Value>("/v1/toolbelt/guidance")), (403, "forbidden".into()));
    let operator = Credential::from_file(suite.places().operator_token());
    let _ = suite.client();
    let operator = operator.or_else(|_| Credential::from_file(suite.places().operator_token())).unwrap();
    let operator = Client::new(held.socket(), operator).unwrap();
    assert_eq!(code(call(&operator, "read_context", json!({}))), (403, "wrong_credential_class".into()));
    let guidance: Value = held.client().get("/v1/toolbelt/guidance").unwrap();
    assert!(guidance.to_string().contains("declare_outcome"), "{guidance}");
    held.client().get::<Value>("/v1/toolbelt/serving?capability=emit").unwrap();
}

/// E08, M04
#[test]
fn an_execution_token_opens_no_route_of_the_management_socket() {
    let suite = host();
    let held = suite.hold("hold");
    let token = Credential::from_file(held.token_file()).unwrap();
    let client = Client::new(suite.places().management_socket(), token).unwrap();
    for route in conduit_management::routes::ROUTES {
        let path = route.path.replace("{id}", "x");
        let method = match route.method.as_str() {
            "GET" => Method::Get,
            "POST" => Method::Post,
            other => panic!("no test for {other}"),
        };
        let mut request = Call::new(method, path.as_str()).unwrap();
        if method == Method::Post {
            request = request.json(&json!({})).unwrap();
        }
        assert_eq!(code(client.send(&request)), (403, "wrong_credential_class".into()), "{method:?} {path}");
    }
    let nobody = Client::new(suite.places().management_socket(), Credential::none()).unwrap();
    assert_eq!(code(nobody.get::<Value>("/v1/health")), (401, "unauthenticated".into()));
}

/// T07
#[test]
fn a_narrower_configuration_holds_for_the_next_call_of_a_running_execution() {
    let suite = host();
    let held = suite.hold("hold");
    held.call("emit", json!({"type": "test.allowed"})).unwrap();
    let applied = |change: &dyn Fn(&mut Value)| {
        let mut config = config::one_scope(json!({"hold": config::hold(suite.home())}), json!([]));
        change(&mut config["scopes"]["test"]);
        let reply: ConfigReply = suite.client().post("/v1/config/apply", &json!({"config": config})).unwrap();
        assert!(reply.valid, "{:?}", reply.diagnostics);
        reply.generation
    };
    let first = applied(&|scope| {
        scope["operations"] = json!(["read_context", "declare_outcome"]);
        scope["bindings"]["hold"]["operations"] = json!(["read_context", "declare_outcome"]);
    });
    assert_eq!(code(held.call("emit", json!({"type": "test.allowed"}))), (403, "forbidden".into()));
    held.call("read_context", json!({})).unwrap();
    assert_eq!(applied(&|scope| scope["enabled"] = json!(false)), first + 1);
    assert_eq!(code(held.call("read_context", json!({}))), (403, "forbidden".into()));
    applied(&|_| {});
    held.call("emit", json!({"type": "test.allowed"})).unwrap();
}

/// T08, T09, T14
#[test]
fn attribution_families_and_request_ids_are_the_hosts_to_judge() {
    let suite = host();
    let held = suite.hold("hold");
    let emit = |input: Value| held.call("emit", input);
    assert_eq!(code(emit(json!({"type": "core.work.finished"}))).1, "event_not_allowed");
    assert_eq!(code(emit(json!({"type": "other.event"}))).1, "event_not_allowed");
    for forged in ["source", "parent", "target"] {
        assert_eq!(code(emit(json!({"type": "test.x", forged: "me"}))).1, "forged_attribution", "{forged}");
    }
    assert_eq!(code(emit(json!({"type": "test.x", "correlation_key": "not mine"}))).1, "key_not_owned");
    assert_eq!(code(held.call("create_work", json!({"binding": "hold"}))).1, "unknown_binding");

    let client = held.client();
    let first = call_as(&client, "emit", json!({"type": "test.once", "data": {"n": 1}}), "req-1").unwrap();
    let again = call_as(&client, "emit", json!({"type": "test.once", "data": {"n": 1}}), "req-1").unwrap();
    assert_eq!(first, again);
    let changed = call_as(&client, "emit", json!({"type": "test.once", "data": {"n": 2}}), "req-1");
    assert_eq!(code(changed).1, "request_conflict");
}

/// T06, T11
#[test]
fn a_declaration_ends_all_authority_at_once() {
    let suite = host();
    let held = suite.hold("hold");
    held.call("declare_outcome", json!({"status": "succeeded"})).unwrap();
    for (operation, input) in [
        ("read_context", json!({})),
        ("emit", json!({"type": "test.late"})),
        ("wait", json!({"mode": "any", "predicates": [{"type": "test.x"}]})),
        ("declare_outcome", json!({"status": "succeeded"})),
    ] {
        assert_eq!(code(held.call(operation, input)), (403, "authority_released".into()), "{operation}");
    }
    assert_eq!(suite.work_view(&held.work).state, "running", "nothing else happens before the segment ends");
    held.release(1);
    assert_eq!(suite.ended(&held.work).state, "succeeded");
}

/// T01, T10
#[test]
fn a_token_is_in_its_file_and_nowhere_else() {
    let suite = host();
    let held = suite.hold("hold");
    let token = held.token();
    let context = held.call("read_context", json!({})).unwrap();
    assert!(!context.to_string().contains(&token));
    let _ = call(&held.client_with("wrong"), "read_context", json!({}));
    assert_eq!(base64_bytes(&token), Some(32), "32 bytes in unpadded base64url");
    let mut folders = vec![suite.state().to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path).is_ok_and(|bytes| contains(&bytes, token.as_bytes())) {
                found.push(path);
            }
        }
    }
    assert_eq!(found, [held.token_file()]);
    assert!(!suite.log().contains(&token));
    for process in processes::with_environment(suite.home()) {
        let shown = ["environ", "cmdline"].map(|file| std::fs::read(format!("/proc/{}/{file}", process.pid)));
        assert!(shown.into_iter().flatten().all(|bytes| !contains(&bytes, token.as_bytes())), "{process:?}");
    }
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

/// How many bytes an unpadded base64url text stands for.
fn base64_bytes(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    plain.then_some(text.len() * 6 / 8)
}

/// Design 9.9, X05: a process that uses its budget up is told so, and can still say how it ended.
#[test]
fn a_process_that_used_up_its_budget_is_told_so_and_declares_and_one_that_is_held_is_stopped() {
    const LOOP: &str = "n=0; while said=$(os emit test.tick '{}' 2>&1); do n=$((n + 1)); done; \
        case $said in *budget_exceeded*) os outcome failed --summary \"after $n\";; esac; exec sleep 600";
    let suite = Suite::start(|_| {
        let mut told = config::script(&LOOP.replace("; exec sleep 600", ""));
        told["budget"] = json!({"emissions": 3});
        let mut held = config::script(LOOP);
        held["budget"] = json!({"emissions": 3, "on_exceeded": "hold"});
        config::one_scope(json!({"told": told, "held": held}), json!([]))
    });
    let told = suite.ended(&suite.work("told", json!({})));
    assert_eq!(told.outcome.unwrap()["summary"], "after 3");
    let work = suite.work("held", json!({}));
    until("the Work is held and its process is gone", || {
        let held = suite.work_view(&work).blocked_reason.as_deref() == Some("budget_exceeded");
        let execution = suite.executions(&work).pop()?;
        (held && execution.state == "cancelled" && execution.code.as_deref() == Some("budget_exceeded")).then_some(())
    });
    assert!(suite.everything().iter().all(|process| process.program != "sleep"));
    suite.client().post_keyed::<_, Value>(&format!("/v1/work/{work}/retry"), &json!({}), "again").unwrap();
    until("the next execution has a budget of its own", || (suite.executions(&work).len() == 2).then_some(()));
}

/// E03, M01
#[test]
fn connections_that_ask_nothing_keep_nobody_from_any_socket() {
    const CONNECTIONS: usize = 320; // more than either socket has places for
    let suite = host();
    let held = suite.hold("hold");
    let client = suite.client();
    held.call("read_context", json!({})).unwrap();
    for socket in [held.socket(), suite.places().management_socket()] {
        let mut silent = Vec::new();
        while silent.len() < CONNECTIONS {
            let mut stream = UnixStream::connect(&socket).unwrap();
            if silent.len() % 2 == 0 {
                stream.write_all(b"POST /v1/toolbelt/call HT").unwrap();
            }
            silent.push(stream);
        }
        held.call("read_context", json!({})).unwrap();
        client.get::<Value>("/v1/health").unwrap();
    }
}

/// T05, M07
#[test]
fn bad_input_gets_its_code_and_kills_nobody() {
    let suite = host();
    let held = suite.hold("hold");
    let (worker, management) = ("open-conduit-endpoint", "open-conduit-management");
    held.call("read_context", json!({})).unwrap();
    let _ = suite.client().get::<Value>("/v1/health").unwrap();
    let before = [suite.process(worker), suite.process(management)];
    let operator = std::fs::read_to_string(suite.places().operator_token()).unwrap();
    let sockets = [
        (held.socket(), held.token(), "/v1/toolbelt/call", r#"{"operation":"emit","input":{"type":"test.x"#),
        (
            suite.places().management_socket(),
            operator.trim().to_owned(),
            "/v1/events",
            r#"{"scope_id":"test","type":"test.x"#,
        ),
    ];
    for (socket, token, path, start) in &sockets {
        let send = |kind: &str, body: &str| {
            let request = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: {kind}\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            raw(socket, &request)
        };
        let end = if *path == "/v1/events" { "" } else { "}" };
        for (name, body) in [
            ("malformed", "{".to_owned()),
            ("not an object", "[]".to_owned()),
            ("duplicate", format!("{start}\",\"type\":\"test.y\"{end}}}")),
            ("null", format!("{start}\",\"data\":null{end}}}")),
            ("unknown field", format!("{start}\",\"surprise\":1{end}}}")),
            ("deep", "[".repeat(100_000)),
        ] {
            let answer = send("application/json", &body);
            assert!(answer.starts_with("HTTP/1.1 400"), "{path} {name}: {answer}");
        }
        assert!(send("text/plain", "{}").starts_with("HTTP/1.1 415"), "{path}");
        let oversized = " ".repeat((1 << 20) + 1);
        assert!(send("application/json", &oversized).starts_with("HTTP/1.1 413"), "{path}");
        assert!(raw(socket, "not http at all\r\n\r\n").starts_with("HTTP/1.1 400"), "{path}");
    }
    held.call("emit", json!({"type": "test.fine"})).unwrap();
    assert_eq!([suite.process(worker), suite.process(management)], before, "no process died of it");
    until("nothing half-written is left", || {
        let events: Value = suite.client().get("/v1/events?limit=500").ok()?;
        let items = events["items"].as_array()?.clone();
        items.iter().all(|event| event["type"] != "test.x" && event["type"] != "test.y").then_some(())
    });
}
