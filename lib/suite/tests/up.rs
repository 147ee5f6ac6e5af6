//! `open-conduit up` as a process of its own, with small programs in place of the suite's.
//!
//! Descriptors are taken over while a process has one thread, and the usual test harness has more: this program is
//! its own harness, and, under other names, `up` and every program that `up` keeps.

#[path = "up/host.rs"]
mod host;
#[path = "up/stand_in.rs"]
mod stand_in;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use host::{Host, Signal};

type Test = (&'static str, fn());

macro_rules! tests {
    ($($name:ident,)*) => { &[$((stringify!($name), $name as fn()),)*] };
}

const TESTS: &[Test] = tests![
    programs_are_started_with_their_sockets_and_the_readiness_is_printed,
    the_management_server_is_started_by_a_connection_and_again_by_the_next,
    a_run_socket_survives_a_crash_of_the_spawner_with_its_backlog,
    a_program_that_crashes_is_started_again_and_again,
    a_second_up_on_the_same_state_is_refused,
    a_program_that_refuses_to_start_ends_up_with_its_reason,
    a_stop_ends_every_program_and_names_the_executions_that_run,
    a_second_signal_does_not_wait_for_a_stubborn_program,
    programs_end_with_up_and_the_next_up_takes_over,
    a_state_directory_whose_socket_paths_are_too_long_is_refused,
];

fn main() {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(code) = stand_in::main(name) {
        std::process::exit(code);
    }
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "terse").collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    for (name, test) in TESTS.iter().filter(|_| !has("--ignored")) {
        if has("--list") {
            println!("{name}: test");
        } else if filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())) {
            test();
            println!("test {name} ... ok");
        }
    }
}

/// U04
fn programs_are_started_with_their_sockets_and_the_readiness_is_printed() {
    let host = Host::new();
    let mut up = host.up();
    assert_eq!(up.line(), "open-conduit up: ready");
    assert_eq!(up.line(), format!("  socket  {}", host.places().management_socket().display()));
    let mut reports = [host.report(), host.report()];
    reports.sort();
    assert!(reports[0].starts_with("open-conduit-endpointd started kept=0 "), "{reports:?}");
    assert!(reports[1].starts_with("open-conduitd started kept=0 "), "{reports:?}");
}

/// U04
fn the_management_server_is_started_by_a_connection_and_again_by_the_next() {
    let host = Host::new();
    let _up = host.ready();
    for _ in 0..2 {
        let mut stream = UnixStream::connect(host.places().management_socket()).unwrap();
        assert!(host.report().starts_with("open-conduit-management started kept=0 "));
        stream.write_all(b"GET /v1/executions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(host.report(), "open-conduit-management idle");
    }
}

/// E06, U04
fn a_run_socket_survives_a_crash_of_the_spawner_with_its_backlog() {
    let host = Host::new();
    let _up = host.ready();
    host.command("open");
    let opened = host.report();
    let inode = opened.strip_prefix("opened ").unwrap().to_owned();
    // It waits in the backlog over the crash.
    let mut waiting = UnixStream::connect(host.run_socket()).unwrap();
    waiting.write_all(b"x").unwrap();
    host.kill("open-conduit-endpointd");
    let started = host.report();
    assert!(started.starts_with("open-conduit-endpointd started kept=1 "), "{started}");
    host.command("inode");
    assert_eq!(host.report(), format!("inode {inode}"));
    host.command("accept");
    assert_eq!(host.report(), "accepted x");
    host.command("close");
    assert_eq!(host.report(), "closed");
    host.kill("open-conduit-endpointd");
    assert!(host.report().starts_with("open-conduit-endpointd started kept=0 "));
}

/// U04
fn a_program_that_crashes_is_started_again_and_again() {
    let host = Host::new();
    let _up = host.ready();
    let mut pids = Vec::new();
    for _ in 0..3 {
        pids.push(host.kill("open-conduitd"));
        assert!(host.report().starts_with("open-conduitd started"));
    }
    pids.dedup();
    assert_eq!(pids.len(), 3);
}

/// M01
fn a_second_up_on_the_same_state_is_refused() {
    let host = Host::new();
    let _up = host.ready();
    let (code, errors) = host.up().end();
    assert_eq!(code, Some(1));
    assert!(errors.contains("another `open-conduit up` runs") && errors.contains("(state_locked)"), "{errors}");
    // The first one is as it was.
    UnixStream::connect(host.places().management_socket()).unwrap();
    assert!(host.report().starts_with("open-conduit-management started"));
}

fn a_program_that_refuses_to_start_ends_up_with_its_reason() {
    let host = Host::new();
    host.mark("refuse");
    let (code, errors) = host.up().end();
    assert_eq!(code, Some(1));
    assert!(errors.contains("the store is newer") && errors.contains("code=store_newer"), "{errors}");
    assert!(errors.contains("open-conduitd could not be kept running"), "{errors}");
    assert!(!host.places().management_socket().exists());
}

fn a_stop_ends_every_program_and_names_the_executions_that_run() {
    for signal in [Signal::TERM, Signal::INT] {
        let host = Host::new();
        host.operator();
        let mut up = host.ready();
        up.signal(signal);
        let mut reports: Vec<String> = (0..4).map(|_| host.report()).collect();
        reports.retain(|report| report.ends_with(" stopped"));
        reports.sort();
        assert_eq!(
            reports,
            ["open-conduit-endpointd stopped", "open-conduit-management stopped", "open-conduitd stopped"]
        );
        let said = up.rest();
        let (code, errors) = up.end();
        assert_eq!(code, Some(0), "{errors}");
        assert!(
            said.ends_with(&format!("keep running (1), for the next start to take over:\n  {}\n", stand_in::running())),
            "{said}{errors}"
        );
        assert!(!host.places().management_socket().exists());
        assert!(!host.places().doorbell_socket().exists());
    }
}

fn a_second_signal_does_not_wait_for_a_stubborn_program() {
    let host = Host::new();
    host.mark("stubborn");
    let up = host.ready();
    let stubborn = host.pid("open-conduitd");
    up.signal(Signal::TERM);
    assert_eq!(host.report(), "open-conduit-endpointd stopped");
    up.signal(Signal::TERM);
    let (code, errors) = up.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(!Path::new(&format!("/proc/{stubborn}")).exists());
}

fn programs_end_with_up_and_the_next_up_takes_over() {
    let host = Host::new();
    let up = host.ready();
    up.signal(Signal::KILL);
    let mut reports = [host.report(), host.report()];
    reports.sort();
    assert_eq!(reports, ["open-conduit-endpointd stopped", "open-conduitd stopped"]);
    drop(up);
    let _next = host.ready();
}

/// E07
fn a_state_directory_whose_socket_paths_are_too_long_is_refused() {
    let host = Host::new();
    let (code, errors) = host.up_in(&host.home().join("x".repeat(80))).end();
    assert_eq!(code, Some(1));
    assert!(errors.contains("(socket_path_too_long)") && errors.contains("shorter --state"), "{errors}");
}
