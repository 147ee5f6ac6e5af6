//! What a starter passes to a child process, seen from a real child.
//!
//! Descriptors are taken over while the process has one thread, and the usual test harness has more: this program is
//! its own harness, and its own child.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::ExitCode;

use conduit_api::{ApiError, Code};
use conduit_daemon::activation::{Inherited, bind_datagram, bind_stream};
use conduit_daemon::program::{EXIT_FAILED, EXIT_REFUSED, Start, block_on, run};
use conduit_daemon::spawn::Spawn;
use conduit_daemon::{DaemonArgs, process};

/// Set in the process that a test starts: what it is to do.
const ROLE: &str = "CONDUIT_TEST_ROLE";
const REPORT: &str = "CONDUIT_TEST_REPORT";

const TESTS: &[(&str, fn())] = &[
    (
        "a_child_receives_the_descriptors_that_were_passed_under_their_names",
        a_child_receives_the_descriptors_that_were_passed_under_their_names,
    ),
    ("a_worker_keeps_no_capability_and_leaves_no_core", a_worker_keeps_no_capability_and_leaves_no_core),
    (
        "a_daemon_logs_why_it_ends_once_and_says_whether_starting_again_helps",
        a_daemon_logs_why_it_ends_once_and_says_whether_starting_again_helps,
    ),
    ("a_daemon_ends_with_the_process_that_started_it", a_daemon_ends_with_the_process_that_started_it),
];

fn main() -> ExitCode {
    match std::env::var(ROLE).as_deref() {
        Ok("daemon") => return daemon(),
        Ok(role) => {
            child_process(role);
            return ExitCode::SUCCESS;
        }
        Err(_) => {}
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
    ExitCode::SUCCESS
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

#[derive(clap::Parser)]
struct Args {
    #[command(flatten)]
    common: DaemonArgs,
}

/// A daemon that finds its store too new.
fn daemon() -> ExitCode {
    run(
        "a-daemon",
        |args: &Args| &args.common,
        async |_: Args, start: Start| {
            tracing::info!(state = %start.places.state.display(), "looking");
            Err(ApiError::new(Code::StoreNewer, "the store is newer"))
        },
    )
}

/// Runs [`daemon`] as a process with `args`: its exit code, and what it wrote to standard error.
fn run_daemon(args: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(args).env(ROLE, "daemon").env_remove("OPEN_CONDUIT_LOG").env_remove("JOURNAL_STREAM");
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
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
    let dumpable = rustix::process::dumpable_behavior().unwrap();
    format!(
        "{} {} {} {} {} core={} {dumpable:?}",
        line("CapPrm"),
        line("CapEff"),
        line("CapAmb"),
        line("NoNewPrivs"),
        line("Umask"),
        core[4]
    )
}

/// Starts this program again as `role` and returns what it reports.
fn run_child(role: &str, descriptors: Vec<(String, OwnedFd)>) -> String {
    let dir = owner_only();
    let report = UnixDatagram::bind(dir.path().join("r")).unwrap();
    let mut child = Spawn::new(std::env::current_exe().unwrap());
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
        "CapPrm: 0000000000000000 CapEff: 0000000000000000 CapAmb: 0000000000000000 NoNewPrivs: 1 Umask: 0077 core=0 NotDumpable"
    );
}

fn a_daemon_logs_why_it_ends_once_and_says_whether_starting_again_helps() {
    let (code, errors) = run_daemon(&["--state", "/s", "--log-format", "json"]);
    assert_eq!(code, Some(i32::from(EXIT_REFUSED)), "{errors}");
    let lines: Vec<serde_json::Value> = errors.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert_eq!(lines[0]["state"], "/s");
    assert_eq!(lines[1]["code"], "store_newer");
    assert_eq!(lines[1]["message"], "the store is newer");
    let (_, errors) = run_daemon(&["--state", "/s"]);
    assert!(errors.ends_with("the store is newer code=store_newer\n"), "{errors}");
    assert!(errors.lines().all(|line| line.contains("Z a-daemon ")), "{errors}");
    assert_eq!(run_daemon(&["--none"]).0, Some(2));
}

/// U04
fn a_daemon_ends_with_the_process_that_started_it() {
    let own = std::process::id();
    assert_eq!(run_daemon(&["--state", "/s", "--parent", &own.to_string()]).0, Some(i32::from(EXIT_REFUSED)));
    let (code, errors) = run_daemon(&["--state", "/s", "--parent", "1"]);
    assert_eq!(code, Some(i32::from(EXIT_FAILED)), "{errors}");
    assert!(errors.contains("has ended"), "{errors}");
}
