//! The worker as a process, on a socket that it was passed, over a real store.

mod host;

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use conduit_api::ExecutionId;
use conduit_client::{AsyncClient, Call, Method};
use host::{Host, call, read_context};
use serde_json::{Value, json};

async fn refusal(client: &AsyncClient, call: &Call) -> String {
    client.send(call).await.unwrap_err().code().to_owned()
}

fn get(target: &str) -> Call {
    Call::new(Method::Get, target).unwrap()
}

/// E02
#[tokio::test]
async fn a_run_socket_answers_three_routes_and_no_other_before_it_asks_who_calls() {
    let host = Host::start();
    let holder = host.client(Some(&host.own.token));
    holder.send(&read_context()).await.unwrap();
    let guidance: Value = holder.send(&get("/v1/toolbelt/guidance")).await.unwrap().read().unwrap();
    assert!(guidance.to_string().contains("read_context"));
    let serving: Value =
        holder.send(&get("/v1/toolbelt/serving?capability=git.credential")).await.unwrap().read().unwrap();
    assert_eq!(serving["capability"], "git.credential");
    for client in [holder, host.client(None)] {
        for target in ["/v1/executions", "/v1/health", "/v1/toolbelt", "/"] {
            assert_eq!(refusal(&client, &get(target)).await, "not_found", "{target}");
        }
        assert_eq!(refusal(&client, &get("/v1/toolbelt/call")).await, "method_not_allowed");
    }
}

/// E02
#[tokio::test]
async fn an_operator_credential_on_a_run_socket_is_of_the_wrong_class() {
    let mut host = Host::start();
    let digest = conduit_store::digest::sha256(b"operator-secret");
    host.store
        .write(|tx| {
            tx.execute(
                "adding an operator",
                "INSERT INTO operator (id, digest, name, role, created_at_us) VALUES ('opr_1', ?1, 'o', 'admin', 0)",
                [&digest[..]],
            )
        })
        .unwrap();
    let operator = host.client(Some("operator-secret"));
    assert_eq!(refusal(&operator, &read_context()).await, "wrong_credential_class");
    assert_eq!(refusal(&operator, &call(&json!({"nonsense": 1}))).await, "wrong_credential_class");
    assert_eq!(refusal(&operator, &get("/v1/executions")).await, "not_found");
}

/// E03, T06
#[tokio::test]
async fn another_executions_token_is_refused_as_a_forged_one_and_so_is_a_call_that_names_another_execution() {
    let host = Host::start();
    let forged = "A".repeat(43);
    let strangers = [None, Some(forged.as_str()), Some(host.other.token.as_str())];
    for credential in strangers {
        let client = host.client(credential);
        assert_eq!(refusal(&client, &read_context()).await, "forbidden");
        assert_eq!(refusal(&client, &get("/v1/toolbelt/guidance")).await, "forbidden");
        assert_eq!(refusal(&client, &get("/v1/toolbelt/serving")).await, "forbidden");
        // Nor does a stranger learn what is wrong with a request.
        assert_eq!(refusal(&client, &call(&json!({"nonsense": 1}))).await, "forbidden");
    }
    let holder = host.client(Some(&host.own.token));
    let asserting = |id: &ExecutionId| call(&json!({"operation": "read_context", "execution_id": id.as_str()}));
    assert_eq!(refusal(&holder, &asserting(&host.other.id)).await, "forbidden");
    holder.send(&asserting(&host.own.id)).await.unwrap();
}

/// E06, T02
#[tokio::test]
async fn a_rotated_token_is_taken_and_the_old_one_refused_by_a_worker_that_runs() {
    let mut host = Host::start();
    let old = host.client(Some(&host.own.token));
    old.send(&read_context()).await.unwrap();
    let token = host.rotate();
    assert_eq!(refusal(&old, &read_context()).await, "forbidden");
    host.client(Some(&token)).send(&read_context()).await.unwrap();
}

/// T14
#[tokio::test]
async fn an_emission_is_committed_rings_the_doorbell_and_is_replayed_under_either_kind_of_request_id() {
    let host = Host::start();
    let bell = UnixDatagram::bind(host.places.doorbell_socket()).unwrap();
    bell.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let holder = host.client(Some(&host.own.token));
    let emit = |n: u64| json!({"operation": "emit", "input": {"type": "demo.wanted", "data": {"n": n}}});
    let keyed = |n: u64, key: &str| call(&emit(n)).idempotency_key(key);
    let first: Value = holder.send(&keyed(1, "k1")).await.unwrap().read().unwrap();
    assert_eq!(first["replayed"], false);
    bell.recv(&mut [0; 1]).expect("the doorbell rings");
    let again: Value = holder.send(&keyed(1, "k1")).await.unwrap().read().unwrap();
    assert_eq!((&again["replayed"], &again["output"]), (&json!(true), &first["output"]));
    assert_eq!(refusal(&holder, &keyed(2, "k1")).await, "request_conflict");
    let mut named = emit(3);
    named["request_id"] = json!("k2");
    let first: Value = holder.send(&call(&named)).await.unwrap().read().unwrap();
    let again: Value = holder.send(&keyed(3, "k2")).await.unwrap().read().unwrap();
    assert_eq!((&again["replayed"], &again["output"]), (&json!(true), &first["output"]));
    assert_eq!(host.count("store.db", "SELECT count(*) FROM event WHERE type = 'demo.wanted'"), 2);
}

#[tokio::test]
async fn a_request_out_of_protocol_gets_its_code_and_the_worker_lives() {
    let host = Host::start();
    let holder = host.client(Some(&host.own.token));
    let raw = |text: &str| {
        let head = format!(
            "POST /v1/toolbelt/call HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n",
            host.own.token
        );
        exchange(&host, &format!("{head}{text}"))
    };
    let body = |text: &str| raw(&format!("content-length: {}\r\nconnection: close\r\n\r\n{text}", text.len()));
    for (text, code) in [
        (r#"{"operation":"read_context","operation":"emit"}"#, "invalid_request"),
        (r#"{"operation":"read_context","input":null}"#, "invalid_request"),
        (r#"{"operation":"read_context","extra":1}"#, "invalid_request"),
        (r#"{"operation":"read_context""#, "invalid_request"),
        (r#"{"operation":"unheard_of"}"#, "forbidden"),
    ] {
        assert!(body(text).contains(&format!("\"{code}\"")), "{text}");
    }
    let large = "x".repeat((1 << 20) + 1);
    assert!(body(&large).starts_with("HTTP/1.1 413"));
    let twice = raw(
        "idempotency-key: a\r\nidempotency-key: b\r\ncontent-length: 28\r\nconnection: close\r\n\r\n{\"operation\":\"read_context\"}",
    );
    assert!(twice.contains("\"invalid_request\""), "{twice}");
    let bare = Call::new(Method::Post, "/v1/toolbelt/call").unwrap();
    assert_eq!(refusal(&holder, &bare).await, "unsupported_media_type");
    let named = holder.send(&read_context().request_id("req-of-mine")).await.unwrap();
    assert_eq!(named.request_id, "req-of-mine");
    assert_eq!(holder.send(&call(&json!({}))).await.unwrap_err().request_id().map(str::len), Some(36));
}

/// One request as it is, and everything that comes back until the connection ends.
fn exchange(host: &Host, text: &str) -> String {
    let mut stream = UnixStream::connect(host.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// E03: a flood of connections that ask nothing neither ends the worker, nor leaves it with more than its bound, nor keeps
/// anybody waiting: the oldest of them make room.
#[tokio::test]
async fn a_flood_of_connections_is_bounded_and_passes() {
    let host = Host::start();
    let call = || async { host.client(Some(&host.own.token)).send(&read_context()).await.unwrap() };
    call().await;
    let flood: Vec<UnixStream> = (0..400).filter_map(|_| UnixStream::connect(host.socket()).ok()).collect();
    call().await;
    let mut oldest = &flood[0];
    oldest.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(oldest.read(&mut [0; 12]).unwrap(), 0, "it was closed");
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", host.pid())).unwrap().count();
    assert!(descriptors < 256 + 64, "{descriptors}");
    drop(flood);
    call().await;
}

/// E06
#[tokio::test]
async fn an_idle_worker_ends_well_and_the_next_serves_who_connected_meanwhile() {
    let mut host = Host::new();
    host.start_idle(1);
    host.client(Some(&host.own.token)).send(&read_context()).await.unwrap();
    assert_eq!(host.ended().await, Some(0));
    // The socket outlives the worker: this connection waits in its queue.
    let holder = host.client(Some(&host.own.token));
    let call = read_context();
    let (answer, ()) = tokio::join!(holder.send(&call), async { host.start_idle(600) });
    answer.unwrap();
}

#[tokio::test]
async fn a_worker_that_is_told_to_end_finishes_the_request_under_way() {
    let mut host = Host::start();
    let body = br#"{"operation":"emit","input":{"type":"demo.x"},"request_id":"under-way"}"#;
    let mut stream = UnixStream::connect(host.socket()).unwrap();
    write!(
        stream,
        "POST /v1/toolbelt/call HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        host.own.token,
        body.len()
    )
    .unwrap();
    // The interim answer says that the request is being handled; only then is the worker told.
    let mut interim = [0; 25];
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.read_exact(&mut interim).unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100"));
    host.terminate();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(host.ended().await, Some(0));
    assert_eq!(host.count("history.db", "SELECT count(*) FROM toolbelt_record WHERE request_id = 'under-way'"), 1);
}

#[tokio::test]
async fn records_of_calls_are_written_in_a_quiet_moment() {
    let host = Host::start();
    let holder = host.client(Some(&host.own.token));
    holder.send(&call(&json!({"operation": "read_context", "request_id": "seen"}))).await.unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while host.count("history.db", "SELECT count(*) FROM toolbelt_record WHERE request_id = 'seen'") == 0 {
        assert!(Instant::now() < end, "the record is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A store that cannot be used is said to the caller, and a worker that says so serves again once it can be.
#[tokio::test]
async fn a_store_that_cannot_be_read_is_told_to_the_caller_until_it_can_be() {
    let mut host = Host::new();
    // With its journal: SQLite would read whole pages from there.
    let at = |name: &str, end: &str| host.places.state.join(format!("{name}{end}"));
    let back: Vec<_> = ["", "-wal", "-shm"].map(|end| (at("aside.db", end), at("store.db", end))).into();
    back.iter().for_each(|(to, from)| std::fs::rename(from, to).unwrap());
    std::fs::write(at("store", ".db"), [7; 4096]).unwrap();
    std::fs::set_permissions(at("store", ".db"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    host.start_idle(600);
    let holder = host.client(Some(&host.own.token));
    assert_eq!(refusal(&holder, &read_context()).await, "store_unreadable");
    assert_eq!(refusal(&holder, &get("/v1/other")).await, "not_found");
    back.iter().for_each(|(from, to)| std::fs::rename(from, to).unwrap());
    holder.send(&read_context()).await.unwrap();
}

#[tokio::test]
async fn a_worker_has_no_capability_and_no_way_to_gain_one() {
    let host = Host::start();
    host.client(Some(&host.own.token)).send(&read_context()).await.unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!((value("CapEff:"), value("CapPrm:")), ("0".repeat(16), "0".repeat(16)));
    assert_eq!(value("NoNewPrivs:"), "1");
}
