//! What a starter passes to a child process, seen from a real child.
//!
//! Descriptors are taken over while the process has one thread, and the usual test harness has more: this program is
//! its own harness, and its own child.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use conduit_daemon::activation::{Inherited, bind_datagram, bind_stream};
use conduit_daemon::process;
use conduit_daemon::program::block_on;
use conduit_daemon::spawn::{Base, Spawn};

/// Set in the process that a test starts: what it is to do.
const ROLE: &str = "CONDUIT_TEST_ROLE";
const REPORT: &str = "CONDUIT_TEST_REPORT";

const TESTS: &[(&str, fn())] = &[
    (
        "a_child_receives_the_descriptors_that_were_passed_under_their_names",
        a_child_receives_the_descriptors_that_were_passed_under_their_names,
    ),
    ("a_worker_keeps_no_capability_and_leaves_no_core", a_worker_keeps_no_capability_and_leaves_no_core),
];

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return child_process(&role);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).filter(|arg| *arg != "terse").collect();
    for (name, test) in TESTS.iter().filter(|_| !has("--ignored")) {
        if has("--list") {
            println!("{name}: test");
        } else if filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())) {
            test();
            println!("test {name} ... ok");
        }
    }
}

/// A directory that a socket may be bound in.
fn owner_only() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap()
}

/// What a child process runs, which is this very program started again: it writes what it found to the socket that
/// `REPORT` names.
fn child_process(role: &str) {
    let found = match role {
        "inherit" => inherit(),
        "authority" => authority(),
        other => panic!("{other}"),
    };
    let report = UnixDatagram::unbound().unwrap();
    report.send_to(found.as_bytes(), std::env::var_os(REPORT).unwrap()).unwrap();
}

fn inherit() -> String {
    let mut inherited = Inherited::take().unwrap();
    let listener = inherited.listener("endpointd").unwrap();
    let datagram = inherited.datagram("doorbell").unwrap();
    let runs = inherited.all("run-");
    let again = Inherited::take().map(|_| ()).map_err(|error| error.code);
    let flags = std::fs::read_to_string("/proc/self/fdinfo/3").unwrap();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    let close_on_exec = u32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0;
    let mut stream = listener.unwrap().accept().map(|(stream, _)| stream).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let variables = ["LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"].map(|n| std::env::var_os(n).is_some());
    format!(
        "{text} datagram={} runs={:?} rest={} variables={variables:?} again={again:?} cloexec={close_on_exec}",
        datagram.is_some(),
        runs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        inherited.rest().count(),
    )
}

fn authority() -> String {
    process::harden().unwrap();
    process::drop_authority().unwrap();
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let limits = std::fs::read_to_string("/proc/thread-self/limits").unwrap();
    let line = |name: &str| status.lines().find(|l| l.starts_with(name)).unwrap().replace('\t', " ");
    let core = limits.lines().find(|l| l.starts_with("Max core")).unwrap();
    let core: Vec<&str> = core.split_whitespace().collect();
    format!(
        "{} {} {} {} {} core={}/{}",
        line("CapPrm"),
        line("CapEff"),
        line("CapAmb"),
        line("NoNewPrivs"),
        line("Umask"),
        core[4],
        core[5]
    )
}

/// Starts this program again as `role` and returns what it reports.
fn run_child(role: &str, descriptors: Vec<(String, OwnedFd)>) -> String {
    let dir = owner_only();
    let report = UnixDatagram::bind(dir.path().join("r")).unwrap();
    let mut child = Spawn::new(std::env::current_exe().unwrap());
    child.base = Base::Empty;
    child.variables = vec![(ROLE.into(), role.into()), (REPORT.into(), dir.path().join("r").into())];
    child.descriptors = descriptors;
    let status = block_on(async { child.start().unwrap().wait().await.unwrap() }).unwrap();
    assert!(status.success(), "{status}");
    let mut text = [0; 4096];
    report.set_nonblocking(true).unwrap();
    let bytes = report.recv(&mut text).expect("the child reported");
    String::from_utf8(text[..bytes].to_vec()).unwrap()
}

/// U04
fn a_child_receives_the_descriptors_that_were_passed_under_their_names() {
    let dir = owner_only();
    let path = dir.path().join("e");
    let endpointd = bind_stream(&path).unwrap();
    let doorbell = bind_datagram(&dir.path().join("d")).unwrap();
    let run = UnixListener::bind(dir.path().join("r")).unwrap();
    // It waits in the backlog until the child takes it.
    let mut stream = UnixStream::connect(&path).unwrap();
    std::io::Write::write_all(&mut stream, b"hello").unwrap();
    drop(stream);
    let descriptors = vec![
        ("run-a".to_owned(), run.try_clone().unwrap().into()),
        ("endpointd".to_owned(), endpointd.into()),
        ("doorbell".to_owned(), doorbell.into()),
        ("run-b".to_owned(), run.into()),
    ];
    assert_eq!(
        run_child("inherit", descriptors),
        r#"hello datagram=true runs=["run-a", "run-b"] rest=0 variables=[false, false, false] again=Err(Internal) cloexec=true"#
    );
}

/// T01
fn a_worker_keeps_no_capability_and_leaves_no_core() {
    assert_eq!(
        run_child("authority", Vec::new()),
        "CapPrm: 0000000000000000 CapEff: 0000000000000000 CapAmb: 0000000000000000 NoNewPrivs: 1 Umask: 0077 core=0/0"
    );
}
