//! The server and who starts it: a passed socket, an idle end, a ring for the scheduler, and what it refuses to start on.

mod server;

use std::fs::{DirBuilder, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use conduit_store::StateDir;
use serde_json::json;
use server::{PROGRAM, Server, log_file};

/// Starts the server as systemd does, with `listener` as descriptor 3; it ends after a second without a connection.
fn activate(base: &Path, listener: &UnixListener) -> Child {
    let passed: OwnedFd = listener.try_clone().unwrap().into();
    let script = r#"LISTEN_FDS=1 LISTEN_FDNAMES=management exec "$0" "$@" 3<&0 </dev/null"#;
    Command::new("/bin/sh")
        .args(["-c", script, PROGRAM, "--idle-s", "1", "--state"])
        .arg(base.join("s"))
        .arg("--runtime")
        .arg(base.join("r"))
        .stdin(Stdio::from(passed))
        .stderr(log_file(base))
        .spawn()
        .unwrap()
}

/// U02, M01
#[test]
fn a_server_that_was_activated_ends_when_it_is_idle_and_its_socket_outlives_it() {
    let mut kept = None;
    let mut server = Server::start_with(|base| {
        DirBuilder::new().mode(0o700).create(base.join("r")).unwrap();
        let listener = UnixListener::bind(base.join("r/management.sock")).unwrap();
        let child = activate(base, &listener);
        kept = Some(listener);
        child
    });
    assert_eq!(server.get_when_ready("/v1/health").status, 200);
    assert!(server.ended());
    // Whoever dials now waits in the queue for the next one.
    UnixStream::connect(server.socket()).unwrap();
    assert!(kept.is_some());
}

#[test]
fn an_order_rings_the_schedulers_doorbell_and_a_look_does_not() {
    let server = Server::start();
    let bell = UnixDatagram::bind(server.socket().with_file_name("doorbell.sock")).unwrap();
    bell.set_nonblocking(true).unwrap();
    let rings = || std::iter::from_fn(|| bell.recv(&mut [0; 8]).ok()).count();
    let work = server.work();
    assert_eq!(rings(), 1);
    server.get("/v1/work");
    server.post("/v1/config/validate", &json!({"config": {}}));
    assert_eq!(server.post("/v1/work", &json!({"scope_id": "demo", "binding": "nothing"})).status, 422);
    assert_eq!(rings(), 0);
    server.post("/v1/events", &json!({"scope_id": "demo", "type": "demo.x"}));
    server.post(&format!("/v1/work/{work}/cancel"), &json!({}));
    assert_eq!(rings(), 2);
}

/// What the program says when it refuses to start on this base directory.
fn refused(base: &Path) -> String {
    let run =
        Command::new(PROGRAM).arg("--state").arg(base.join("s")).arg("--runtime").arg(base.join("r")).output().unwrap();
    assert!(!run.status.success());
    String::from_utf8(run.stderr).unwrap()
}

/// M01
#[test]
fn an_unsafe_state_a_long_path_and_a_foreign_socket_are_refused_in_a_sentence() {
    let base = tempfile::tempdir().unwrap();
    std::fs::create_dir(base.path().join("s")).unwrap();
    std::fs::set_permissions(base.path().join("s"), Permissions::from_mode(0o755)).unwrap();
    let said = refused(base.path());
    assert!(said.contains("state_unsafe") && said.contains("chmod 700"), "{said}");

    let deep = base.path().join("d".repeat(80));
    let said = refused(&deep);
    assert!(said.contains("socket_path_too_long") && said.contains("shorter"), "{said}");

    let taken = base.path().join("t");
    DirBuilder::new().mode(0o700).recursive(true).create(taken.join("r")).unwrap();
    std::fs::write(taken.join("r/management.sock"), "mine").unwrap();
    let said = refused(&taken);
    assert!(said.contains("state_unsafe") && said.contains("in the way"), "{said}");
    assert_eq!(std::fs::read_to_string(taken.join("r/management.sock")).unwrap(), "mine");
}

/// M02
#[test]
fn a_credential_file_that_the_store_does_not_know_stops_the_start_and_is_left_as_it_is() {
    let base = tempfile::tempdir_in("/tmp").unwrap();
    let state = StateDir::open(&base.path().join("s")).unwrap();
    let file = state.path().join("private/operator.token");
    std::fs::write(&file, "of another store").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let said = refused(base.path());
    assert!(said.contains("does not know") && !said.contains("of another store"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "of another store");
}

/// A request is finished that the server was reading when it was asked to end.
#[test]
fn a_request_under_way_is_answered_before_the_server_ends() {
    use std::io::{Read, Write};
    let mut server = Server::start();
    let body = json!({"scope_id": "demo", "type": "demo.x"}).to_string();
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        server.token(),
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The server reads the body once it says so.
    let mut told = [0; 25];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.ask_to_end();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert!(server.ended());
}
