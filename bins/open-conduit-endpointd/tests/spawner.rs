//! The spawner as a process: its sockets, its workers, and what it survives.

mod host;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use conduit_api::{Code, ExecutionId};
use conduit_client::{AsyncClient, Call, Credential, Method};
use conduit_endpoint::control;
use conduit_endpoint::rundir::{self, RunDir};
use host::{Host, id, inode, runs, until};

const WORKS: &str = "exec sleep 1000 > /dev/null 2>&1";

fn refused(socket: &Path) -> bool {
    UnixStream::connect(socket)
        .is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused))
}

/// E01, E04
#[tokio::test]
async fn an_endpoint_takes_connections_before_any_worker_runs_and_starts_one_for_all_of_them() {
    let mut host = Host::start(WORKS).await;
    let (id, socket) = host.serve(1).await;
    assert_eq!(socket, RunDir::open(&host.places.state, &id).unwrap().socket());
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(host.workers().len(), 0);
    let _held: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    host.worker(1).await;
    // A second endpoint's worker comes after whatever the first one's connections could start.
    let (_, other) = host.serve(2).await;
    let _other = UnixStream::connect(&other).unwrap();
    host.worker(2).await;
    let workers = host.workers();
    assert_eq!(workers.len(), 2);
    assert!(workers[0].contains(" 1 toolbelt ") && workers[0].contains(&format!("--execution {}", id.as_str())));
}

/// E01
#[tokio::test]
async fn an_execution_without_a_run_directory_or_with_anothers_gets_no_endpoint() {
    let mut host = Host::start(WORKS).await;
    let missing = control::serve(&host.places, &id(1)).await.unwrap_err();
    assert_eq!(missing.code, Code::StateUnavailable);
    let dir = RunDir::prepare(&host.places.state, &id(1)).unwrap();
    fs::write(dir.path().join("execution"), id(2).as_str()).unwrap();
    let foreign = control::serve(&host.places, &id(1)).await.unwrap_err();
    assert_eq!(foreign.code, Code::EndpointUnavailable);
    assert!(foreign.message.contains("another execution"));
    assert!(!dir.socket().exists());
    host.serve(3).await;
}

/// E06
#[tokio::test]
async fn a_closed_endpoint_loses_its_socket_and_its_worker_and_closing_is_repeatable() {
    let mut host = Host::start_in(0, WORKS, true).await;
    let (id, socket) = host.serve(1).await;
    let _held = UnixStream::connect(&socket).unwrap();
    let worker = host.worker(1).await;
    assert_eq!((host.kept.len(), control::endpoints(&host.places).await.unwrap()), (1, vec![id.clone()]));
    for _ in 0..2 {
        host.close(&id).await.unwrap();
        assert!(refused(&socket));
    }
    until("the worker has ended", || !runs(worker)).await;
    assert_eq!((host.kept.len(), control::endpoints(&host.places).await.unwrap()), (0, Vec::new()));
    let (_, again) = host.serve(1).await;
    assert_eq!(again, socket);
    let _held = UnixStream::connect(&socket).unwrap();
    host.worker(2).await;
}

#[tokio::test]
async fn a_worker_that_ends_is_started_again_for_whoever_still_waits_and_a_crash_loop_slows_down() {
    let mut host = Host::start("exit 1").await;
    let (id, socket) = host.serve(1).await;
    let start = Instant::now();
    let _waits = UnixStream::connect(&socket).unwrap();
    host.worker(4).await;
    assert!(start.elapsed() >= Duration::from_millis(100 + 200 + 400), "{:?}", start.elapsed());
    host.close(&id).await.unwrap();
    // Another endpoint is not slowed by its neighbour.
    let (next, other) = host.serve(2).await;
    let _waits = UnixStream::connect(&other).unwrap();
    until("the neighbour's worker is started", || host.workers().iter().any(|line| line.contains(next.as_str()))).await;
}

/// E06
#[tokio::test]
async fn a_killed_spawner_serves_every_run_directory_again_without_being_asked() {
    let mut host = Host::start(WORKS).await;
    let (id, socket) = host.serve(1).await;
    let held = UnixStream::connect(&socket).unwrap();
    host.worker(1).await;
    host.kill().await;
    host.kill_workers(); // a real one ends by itself
    drop(held);
    until("nobody holds the socket", || refused(&socket)).await;
    host.start_again().await;
    let _held = UnixStream::connect(&socket).unwrap();
    host.worker(2).await;
    assert_eq!(control::endpoints(&host.places).await.unwrap(), [id]);
}

/// E06
#[tokio::test]
async fn a_socket_in_the_managers_keeping_survives_a_kill_with_its_inode_and_its_queue() {
    let mut host = Host::start_in(0, WORKS, true).await;
    let (_, socket) = host.serve(1).await;
    let (_, second) = host.serve(2).await;
    assert_eq!(host.kept.len(), 2);
    let before = inode(&socket);
    host.kill().await;
    // Nobody serves, and nobody is refused.
    let _waits = UnixStream::connect(&socket).unwrap();
    host.start_again().await;
    host.worker(1).await;
    assert_eq!(inode(&socket), before);
    assert_eq!(host.kept.len(), 2);

    // A path that was lost meanwhile is bound anew, and the old socket leaves the manager.
    host.kill().await;
    fs::remove_file(&second).unwrap();
    host.start_again().await;
    assert_eq!(host.kept.len(), 2);
    let _waits = UnixStream::connect(&second).unwrap();
    host.worker(2).await;
    host.take_news();
    assert_eq!(host.kept.len(), 2);
}

/// E06
#[tokio::test]
async fn a_kept_socket_without_a_run_directory_is_let_go() {
    let mut host = Host::start_in(0, WORKS, true).await;
    let (id, socket) = host.serve(1).await;
    host.kill().await;
    let gone = rundir::withdraw(&host.places.state, &id).unwrap().unwrap();
    rundir::remove_stray(&gone).unwrap();
    host.start_again().await;
    assert!(host.kept.is_empty() && !socket.exists());
    assert_eq!(control::endpoints(&host.places).await.unwrap(), Vec::<ExecutionId>::new());
}

/// E07
#[tokio::test]
async fn a_run_directory_with_a_long_path_gets_its_socket_in_a_short_place_and_keeps_its_token() {
    let mut host = Host::start_in(80, WORKS, false).await;
    let (id, socket) = host.serve(1).await;
    let short = host.base.path().join("open-conduit").join(rundir::key(&id));
    assert_eq!(socket, short.join("toolbelt.sock"));
    let dir = RunDir::open(&host.places.state, &id).unwrap();
    dir.write_token("t").unwrap();
    assert!(dir.token_file().starts_with(&host.places.state) && !dir.socket().exists());
    let _held = UnixStream::connect(&socket).unwrap();
    host.worker(1).await;
    host.kill().await;
    host.start_again().await;
    let _held = UnixStream::connect(&socket).unwrap();
    host.close(&id).await.unwrap();
    assert!(!short.exists());
}

/// E07
#[tokio::test]
async fn a_short_place_that_others_can_enter_is_refused() {
    let mut host = Host::start_in(80, WORKS, false).await;
    let short = host.base.path().join("open-conduit");
    fs::create_dir(&short).unwrap();
    fs::set_permissions(&short, fs::Permissions::from_mode(0o755)).unwrap();
    RunDir::prepare(&host.places.state, &id(1)).unwrap();
    let error = control::serve(&host.places, &id(1)).await.unwrap_err();
    assert_eq!(error.code, Code::EndpointUnavailable);
    assert!(error.message.contains(short.to_str().unwrap()), "{error}");
    fs::set_permissions(&short, fs::Permissions::from_mode(0o700)).unwrap();
    host.serve(1).await;
}

/// E06
#[tokio::test]
async fn an_orderly_end_takes_the_workers_along_and_leaves_every_directory() {
    let mut host = Host::start(WORKS).await;
    let (id, socket) = host.serve(1).await;
    let _held = UnixStream::connect(&socket).unwrap();
    let worker = host.worker(1).await;
    assert_eq!(host.terminate().await, Some(0));
    assert!(!runs(worker));
    RunDir::open(&host.places.state, &id).unwrap();
    host.start_again().await;
    assert_eq!(control::endpoints(&host.places).await.unwrap(), [id]);
}

#[tokio::test]
async fn requests_out_of_protocol_get_their_code_and_the_spawner_lives() {
    let mut host = Host::start(WORKS).await;
    let client = AsyncClient::new(host.places.endpointd_socket(), Credential::none());
    let target = format!("{}/{}", control::ENDPOINTS, id(1).as_str());
    let put = |body: serde_json::Value| Call::new(Method::Put, &target).unwrap().json(&body).unwrap();
    let cases = [
        (Call::new(Method::Get, "/v1/other").unwrap(), "not_found"),
        (Call::new(Method::Get, "/v1/endpointsx").unwrap(), "not_found"),
        (Call::new(Method::Post, control::ENDPOINTS).unwrap(), "method_not_allowed"),
        (Call::new(Method::Get, &target).unwrap(), "method_not_allowed"),
        (Call::new(Method::Delete, "/v1/endpoints/../../x").unwrap(), "invalid_request"),
        (Call::new(Method::Put, &target).unwrap(), "unsupported_media_type"),
        (put(serde_json::json!({"path": "/etc"})), "invalid_request"),
        (put(serde_json::json!({"x": "y".repeat(8 << 10)})), "body_too_large"),
    ];
    for (call, code) in cases {
        assert_eq!(client.send(&call).await.unwrap_err().code(), code, "{call:?}");
    }
    host.serve(1).await;
}

/// What an idle socket costs is its descriptor: no process, no task, no buffer.
#[tokio::test]
async fn thousands_of_idle_sockets_cost_only_descriptors() {
    let mut host = Host::start(WORKS).await;
    let figures = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        (kib, fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
    };
    let (before, _) = figures(host.pid());
    host.kill().await;
    let room = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let count = u128::from(room.saturating_sub(100).min(3_000));
    for n in 0..count {
        RunDir::prepare(&host.places.state, &id(n)).unwrap();
    }
    host.start_again().await;
    let (after, descriptors) = figures(host.pid());
    assert!(descriptors as u128 >= count, "{descriptors}");
    let each = (after - before) * 1024 / count as usize;
    assert!(each < 1024, "{each} bytes for each idle socket");
    assert_eq!(host.workers().len(), 0);
}
