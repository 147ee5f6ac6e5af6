//! The client against a real server on a real Unix socket.

mod server;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conduit_api::{ApiError, Code};
use conduit_client::{Answer, AsyncClient, Call, Client, ClientError, Credential, Loss, Method, Unreachable};
use serde_json::{Value, json};
use server::{Reply, Server};
use tempfile::TempDir;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }
    fn socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }
    fn client(&self) -> Client {
        let token = self.dir.path().join("token");
        std::fs::write(&token, "t0ken\n").unwrap();
        Client::new(self.socket(), Credential::from_file(token).unwrap()).unwrap()
    }
}

fn post() -> Call {
    Call::new(Method::Post, "/v1/x").unwrap().json(&json!({"n": 1})).unwrap()
}

/// M13
#[test]
fn a_request_names_localhost_its_bearer_and_itself() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::Json(200, json!({"ok": true})));
    let answer: Value = place.client().post_keyed("/v1/x?y=1", &json!({"n": 1}), "key-1").unwrap();

    assert_eq!(answer, json!({"ok": true}));
    let seen = server.only();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/v1/x?y=1"));
    assert_eq!(seen.header("host"), "localhost");
    assert_eq!(seen.header("authorization"), "Bearer t0ken");
    assert_eq!(seen.header("content-type"), "application/json");
    assert_eq!(seen.header("idempotency-key"), "key-1");
    assert!(seen.header("x-request-id").starts_with("req_"));
    assert_eq!(seen.body, json!({"n": 1}));
}

#[test]
fn put_and_delete_and_an_empty_answer_are_understood() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::Raw(204, Vec::new()));
    let client = Client::new(place.socket(), Credential::none()).unwrap();
    client.put::<_, ()>("/v1/e", &json!({})).unwrap();
    client.delete::<()>("/v1/e").unwrap();
    assert_eq!(server.seen().iter().map(|s| s.method.as_str()).collect::<Vec<_>>(), ["PUT", "DELETE"]);
    assert_eq!(server.seen()[0].header("authorization"), "");
}

#[test]
fn one_connection_serves_many_calls() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::Json(200, json!({})));
    let client = place.client();
    for _ in 0..5 {
        client.get::<Value>("/v1/x").unwrap();
    }
    assert!(server.seen().iter().all(|seen| seen.connection == 0), "{:?}", server.seen());
}

#[test]
fn a_connection_that_the_server_closed_in_between_is_replaced() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::JsonThenClose(200, json!({})));
    let client = place.client();
    for _ in 0..3 {
        client.post::<_, Value>("/v1/x", &json!({})).unwrap();
    }
    assert_eq!(server.seen().iter().map(|s| s.connection).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_refusal_keeps_its_code_its_status_and_its_diagnostics() {
    let place = Place::new();
    let refusal = ApiError::new(Code::StoreBusy, "busy").envelope("req_server");
    let _server = Server::start(&place.socket(), move |_| Reply::Json(503, json!(refusal)));
    let error = place.client().get::<Value>("/v1/x").unwrap_err();
    assert_eq!((error.code(), error.request_id(), error.may_retry()), ("store_busy", Some("req_server"), true));
    assert!(matches!(error, ClientError::Refused { status: 503, .. }));
}

/// M13
#[test]
fn a_redirect_is_not_followed() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::Json(307, json!({"to": "/v1/y"})));
    let error = place.client().get::<Value>("/v1/x").unwrap_err();
    assert_eq!(error.code(), "internal");
    assert!(error.to_string().contains("307"), "{error}");
    server.only();
}

#[test]
fn an_answer_that_is_not_of_this_api_is_a_fault_and_not_a_crash() {
    let place = Place::new();
    let _server = Server::start(&place.socket(), |seen| match seen.target.as_str() {
        "/html" => Reply::Raw(502, b"<html>".to_vec()),
        _ => Reply::Raw(200, b"{\"n\":".to_vec()),
    });
    let client = place.client();
    assert!(matches!(client.get::<Value>("/html"), Err(ClientError::Protocol { .. })));
    assert!(matches!(client.get::<Value>("/cut"), Err(ClientError::Protocol { .. })));
}

#[test]
fn an_answer_past_the_limit_is_not_read_to_its_end() {
    let place = Place::new();
    let _server = Server::start(&place.socket(), |_| Reply::Raw(200, vec![b' '; (64 << 20) + 1]));
    let error = place.client().get::<Value>("/v1/x").unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
}

#[test]
fn a_lost_answer_is_asked_for_once_more_under_the_same_request_id() {
    let place = Place::new();
    let mut first = true;
    let server = Server::start(&place.socket(), move |_| {
        if std::mem::take(&mut first) { Reply::HangUp } else { Reply::Json(200, json!({"n": 2})) }
    });
    let answer: Answer = place.client().send(&post().replayable(true)).unwrap();
    assert_eq!(answer.read::<Value>().unwrap(), json!({"n": 2}));
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].header("x-request-id"), seen[1].header("x-request-id"));
}

#[test]
fn an_answer_that_is_lost_twice_or_may_not_be_asked_for_again_is_reported_as_lost() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::HangUp);
    let client = place.client();
    for (replayable, requests) in [(false, 1), (true, 3)] {
        let error = client.send(&post().request_id("req_mine").replayable(replayable)).unwrap_err();
        assert!(matches!(error, ClientError::AnswerLost { why: Loss::Ended(_), .. }), "{error:?}");
        assert_eq!((error.request_id(), error.code(), error.may_retry()), (Some("req_mine"), "unavailable", true));
        assert_eq!(server.seen().len(), requests);
    }
}

#[test]
fn a_server_that_is_gone_afterwards_may_still_have_done_what_it_was_asked() {
    let place = Place::new();
    let socket = place.socket();
    let server = Server::start(&place.socket(), move |_| {
        std::fs::remove_file(&socket).unwrap();
        Reply::HangUp
    });
    let error = place.client().send(&post().replayable(true)).unwrap_err();
    assert!(matches!(error, ClientError::AnswerLost { .. }), "{error:?}");
    server.only();
}

#[test]
fn an_answer_that_breaks_off_is_lost_and_not_half_an_answer() {
    let place = Place::new();
    let _server = Server::start(&place.socket(), |_| Reply::BreakOff(b"{}".to_vec()));
    let error = place.client().send(&post()).unwrap_err();
    assert!(matches!(error, ClientError::AnswerLost { .. }), "{error:?}");
}

#[test]
fn a_server_that_does_not_answer_is_given_up_after_the_time_limit() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::Silence);
    let client = place.client().with_time_limit(Duration::from_millis(50));
    let error = client.get::<Value>("/v1/x").unwrap_err();
    assert!(matches!(error, ClientError::AnswerLost { why: Loss::Late(_), .. }), "{error:?}");
    server.only();
}

#[test]
fn a_download_comes_in_full_or_fails() {
    let place = Place::new();
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    let sent = content.clone();
    let _server = Server::start(&place.socket(), move |seen| match seen.target.as_str() {
        "/whole" => Reply::Raw(200, sent.clone()),
        "/broken" => Reply::BreakOff(sent.clone()),
        _ => Reply::Json(404, json!(ApiError::new(Code::NotFound, "no such artifact").envelope("r"))),
    });
    let client = place.client();
    let mut out = Vec::new();
    assert_eq!(client.download("/whole", &mut out).unwrap(), content.len() as u64);
    assert!(out == content);
    assert!(matches!(client.download("/broken", &mut out), Err(ClientError::AnswerLost { .. })));
    assert_eq!(client.download("/absent", &mut out).unwrap_err().code(), "not_found");
    assert!(matches!(client.download("/whole", &mut &mut [0u8; 9][..]), Err(ClientError::Output(_))));
}

#[test]
fn calls_of_one_client_may_overlap() {
    let place = Place::new();
    let server = Server::start(&place.socket(), |_| Reply::Json(200, json!({})));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Arc::new(AsyncClient::new(place.socket(), Credential::none()));
        let send =
            |client: Arc<AsyncClient>| async move { client.send(&Call::new(Method::Get, "/v1/x").unwrap()).await };
        let (a, b) = (tokio::spawn(send(client.clone())), tokio::spawn(send(client)));
        assert_eq!(a.await.unwrap().unwrap().status, 200);
        assert_eq!(b.await.unwrap().unwrap().status, 200);
    });
    assert_eq!(server.seen().len(), 2);
}

fn unreachable(client: &Client) -> Unreachable {
    match client.get::<Value>("/v1/x").unwrap_err() {
        ClientError::Unavailable { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_socket_and_no_listener_are_told_as_not_running() {
    let place = Place::new();
    assert!(matches!(unreachable(&place.client()), Unreachable::NotRunning));
    drop(UnixListener::bind(place.socket()).unwrap());
    assert!(place.socket().exists());
    assert!(matches!(unreachable(&place.client()), Unreachable::NotRunning));
}

#[test]
fn a_path_that_no_socket_has_is_refused_by_its_length() {
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(100)));
    let client = Client::new(long, Credential::none()).unwrap();
    assert!(matches!(unreachable(&client), Unreachable::PathTooLong { bytes: 105 }));
}
