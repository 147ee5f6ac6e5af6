//! The daemon dies at each point of an attempt; what a new one makes of it is fixed, and nothing runs twice (K01, K10).

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::host::{Host, lives, until, within};
use conduit_api::AttemptId;
use conduit_kernel::{Adoption, Launched, ProcessEnd, Reason, StopReason, Terminal};
use conduit_store::{Clock, named_params};

/// Where the daemon dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Admitted,
    /// Only some of the bundle's files are there, and one of them is cut short.
    Staging,
    Staged,
    /// Inside the boundary's transaction.
    Dispatching,
    /// Behind the boundary, with nothing launched.
    Dispatched,
    /// Launched, and the store does not know the runner.
    Launched,
    Running,
    /// The result is on disk, and the store does not know.
    Ended,
    /// Inside the terminal transaction.
    Concluding,
    Concluded,
}

/// Each window: how often the program has run in the end, and what the attempt came to.
const WINDOWS: [(Window, u32, Terminal, Reason); 10] = [
    (Window::Admitted, 1, Terminal::Succeeded, Reason::Result),
    (Window::Staging, 1, Terminal::Succeeded, Reason::Result),
    (Window::Staged, 1, Terminal::Succeeded, Reason::Result),
    (Window::Dispatching, 1, Terminal::Succeeded, Reason::Result),
    (Window::Dispatched, 0, Terminal::Lost, Reason::NoStartEvidence),
    (Window::Launched, 1, Terminal::Succeeded, Reason::Result),
    (Window::Running, 1, Terminal::Succeeded, Reason::Result),
    (Window::Ended, 1, Terminal::Succeeded, Reason::Result),
    (Window::Concluding, 1, Terminal::Succeeded, Reason::Result),
    (Window::Concluded, 1, Terminal::Succeeded, Reason::Result),
];

/// Goes as far as `window` and drops everything that the daemon holds.
async fn die_at(host: &mut Host, window: Window) -> AttemptId {
    let attempt = host.admit(&host.shell("1", "echo ran >> runs"));
    let fault = || conduit_kernel::Error::InvalidRequest { why: "the daemon dies here".into() };
    if window == Window::Admitted {
        return attempt;
    }
    if window == Window::Staging {
        std::fs::create_dir(host.bundle(&attempt)).unwrap();
        std::fs::write(host.bundle(&attempt).join("request.json"), "{").unwrap();
        return attempt;
    }
    let staged = host.kernel.stage(&mut host.store, &attempt).unwrap();
    if window == Window::Staged {
        return attempt;
    }
    if window == Window::Dispatching {
        let died: Result<(), conduit_kernel::Error> = host.store.write(|tx| {
            host.kernel.dispatch(tx, &staged, Clock.now())?;
            Err(fault())
        });
        assert!(died.is_err());
        return attempt;
    }
    host.store.write(|tx| host.kernel.dispatch(tx, &staged, Clock.now())).unwrap();
    if window == Window::Dispatched {
        return attempt;
    }
    let launched = host.kernel.launch(staged).unwrap();
    if window == Window::Launched {
        return attempt;
    }
    host.store.write(|tx| host.kernel.record_running(tx, &attempt, &launched, Clock.now())).unwrap();
    if window == Window::Running {
        return attempt;
    }
    within("it ends", launched.exited()).await.unwrap();
    if window == Window::Ended {
        return attempt;
    }
    let ending = host.settle(&attempt).await;
    if window == Window::Concluding {
        let died: Result<(), conduit_kernel::Error> = host.store.write(|tx| {
            host.kernel.conclude(tx, &attempt, &ending, Clock.now())?;
            Err(fault())
        });
        assert!(died.is_err());
        return attempt;
    }
    host.conclude(&attempt, &ending);
    attempt
}

/// K01, K10
#[tokio::test]
async fn a_daemon_that_dies_in_any_window_is_followed_by_one_that_decides_the_same_and_runs_nothing_twice() {
    for (window, runs, terminal, reason) in WINDOWS {
        let mut host = Host::new();
        let attempt = die_at(&mut host, window).await;
        for round in 0..3 {
            host.restart();
            let ended = host.recover(&attempt).await;
            assert_eq!((ended.terminal.as_ref(), ended.reason), (Some(&terminal), reason), "{window:?}, round {round}");
            assert_eq!(host.text(&host.path("runs")).lines().count(), runs as usize, "{window:?}, round {round}");
            assert_eq!(host.record(&attempt).2, "released", "{window:?}");
        }
        assert_eq!(host.store.read(|read| host.kernel.unresolved(read, None, 10)).unwrap(), []);
    }
}

/// K02
#[tokio::test]
async fn an_admission_that_was_not_committed_is_admitted_anew_and_one_that_was_is_found() {
    let mut host = Host::new();
    let request = host.shell("1", "true");
    let died: Result<(), conduit_kernel::Error> = host.store.write(|tx| {
        host.kernel.admit(tx, &request, Clock.now())?;
        Err(conduit_kernel::Error::InvalidRequest { why: "the daemon dies here".into() })
    });
    assert!(died.is_err());
    host.restart();
    let first = host.store.write(|tx| host.kernel.admit(tx, &request, Clock.now())).unwrap();
    host.restart();
    let again = host.store.write(|tx| host.kernel.admit(tx, &request, Clock.now())).unwrap();
    assert!(!first.replayed && again.replayed);
    assert_eq!((first.job, first.attempt), (again.job, again.attempt));
}

/// K10
#[tokio::test]
async fn a_running_process_outlives_its_daemon_and_is_adopted_with_its_output() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo before; until [ -e go ]; do sleep 0.01; done; echo after"));
    let (attempt, unit) = (launched.attempt.clone(), launched.unit().cloned());
    until("it wrote its first line", || host.bundle(&attempt).join("stdout").exists().then_some(())).await;
    drop(launched);
    host.restart();
    let Adoption::Alive(adopted) = host.adopt(&attempt) else { panic!("it lives") };
    assert_eq!(adopted.unit(), unit.as_ref());
    assert!(adopted.is_adopted());
    std::fs::write(host.path("go"), "").unwrap();
    let ended = host.finish(&adopted).await;
    assert_eq!(ended.terminal, Some(Terminal::Succeeded));
    assert_eq!(host.text(&ended.outputs[0].path), "before\nafter\n");
}

/// K10
#[tokio::test]
async fn an_adopted_process_can_be_stopped() {
    let mut host = Host::new();
    let attempt = host.launch(&host.shell("1", "echo $$ > main; exec sleep 1000")).attempt.clone();
    let main = host.pid("main").await;
    host.restart();
    let Adoption::Alive(adopted) = host.adopt(&attempt) else { panic!("it lives") };
    host.store.write(|tx| host.kernel.record_stop(tx, &attempt, StopReason::Cancel, Clock.now())).unwrap();
    // The intent is on record, and the daemon dies before it acts.
    drop(adopted);
    host.restart();
    let Adoption::Alive(adopted) = host.adopt(&attempt) else { panic!("it lives") };
    host.kernel.stop(&adopted).await.unwrap();
    assert_eq!(host.finish(&adopted).await.terminal, Some(Terminal::Cancelled));
    assert!(!lives(main));
}

/// K01
#[tokio::test]
async fn a_runner_that_has_not_said_who_it_is_is_known_by_its_lock_and_waited_for() {
    let mut host = Host::new();
    let attempt = host.admit(&host.shell("1", "echo ran >> runs"));
    // What a fork that has not become a runner yet looks like: the open file that was locked, and nothing else.
    let forked = host.dispatch(&attempt);
    let Adoption::Alive(adopted) = host.adopt(&attempt) else { panic!("someone holds the lock") };
    assert!(adopted.unit().is_none());
    host.store.write(|tx| host.kernel.record_stop(tx, &attempt, StopReason::Cancel, Clock.now())).unwrap();
    let launched = {
        let stopping = host.kernel.stop(&adopted);
        // It becomes a runner while it is being stopped, and finds that it must not start.
        let becoming = async {
            until("the stop is on file", || host.bundle(&attempt).join("stop").exists().then_some(())).await;
            host.kernel.launch(forked).unwrap()
        };
        let (stopped, launched) = tokio::join!(stopping, becoming);
        stopped.unwrap();
        launched
    };
    let ended = host.finish(&launched).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Cancelled), Reason::Result));
    assert!(!host.path("runs").exists());
}

/// K01
#[tokio::test]
async fn a_fork_that_died_before_it_became_a_runner_leaves_the_attempt_lost() {
    let mut host = Host::new();
    let attempt = host.admit(&host.shell("1", "echo ran >> runs"));
    let forked = host.dispatch(&attempt);
    let Adoption::Alive(adopted) = host.adopt(&attempt) else { panic!("someone holds the lock") };
    drop(forked);
    let ended = host.finish(&adopted).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Lost), Reason::NoStartEvidence));
}

/// Starts a runner as no kernel would, with `lock` as its standard output; returns its exit code.
fn stray_runner(bundle: &Path, lock: PathBuf, token: &str) -> Option<i32> {
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(lock).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_open-conduit-runner"))
        .arg(bundle)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(lock)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // A runner that refuses does not read its token.
    let _ = child.stdin.take().unwrap().write_all(token.as_bytes());
    child.wait().unwrap().code()
}

/// K01
#[tokio::test]
async fn a_second_runner_on_a_bundle_refuses_whether_the_first_lives_or_has_ended() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo ran >> runs; until [ -e go ]; do sleep 0.01; done"));
    let bundle = host.bundle(&launched.attempt);
    until("it runs", || host.path("runs").exists().then_some(())).await;
    assert_eq!(stray_runner(&bundle, bundle.join("lock"), "x"), Some(66));
    assert_eq!(stray_runner(&bundle, host.path("other"), "x"), Some(66));
    std::fs::write(host.path("go"), "").unwrap();
    assert_eq!(host.finish(&launched).await.terminal, Some(Terminal::Succeeded));
    assert_eq!(stray_runner(&bundle, bundle.join("lock"), "x"), Some(66));
    assert_eq!(host.text(&host.path("runs")), "ran\n");
    let refused = host.kernel.stage(&mut host.store, &launched.attempt).unwrap_err();
    assert_eq!(refused.code().as_str(), "illegal_state");
}

/// The first letter of a process's state; `None` once it is reaped.
fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The processes that hold `bundle` as their argument: runners.
fn runners_of(bundle: &Path) -> Vec<u32> {
    let name = bundle.to_str().unwrap();
    let is_one =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(name));
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    all.filter(is_one).collect()
}

/// K01
#[tokio::test]
async fn a_runner_that_was_started_before_the_boundary_does_nothing_until_it_is_launched() {
    let mut host = Host::new();
    let prepared = host.kernel.prepare(&host.shell("1", "echo ran >> runs"), Clock.now()).unwrap();
    let mut staged = host.kernel.stage_prepared(&prepared).unwrap();
    host.kernel.start(&mut staged).unwrap();
    host.kernel.start(&mut staged).unwrap();
    let bundle = host.bundle(&prepared.attempt);
    let runners = until("one runner waits", || Some(runners_of(&bundle)).filter(|all| !all.is_empty())).await;
    assert_eq!(runners.len(), 1);
    until("it waits for its token", || (state_of(runners[0]) == Some('S')).then_some(())).await;
    assert!(!bundle.join("start.json").exists() && !host.path("runs").exists());
    host.admit_prepared(&prepared, &staged);
    let launched = host.kernel.launch(staged).unwrap();
    let ended = host.finish(&launched).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Succeeded), Reason::Result));
    assert_eq!(host.text(&host.path("runs")), "ran\n");
}

/// K01, K10
#[tokio::test]
async fn a_runner_whose_launcher_gave_up_or_died_before_the_launch_ends_and_leaves_nothing() {
    for admitted in [false, true] {
        let mut host = Host::new();
        let prepared = host.kernel.prepare(&host.shell("1", "echo ran >> runs"), Clock.now()).unwrap();
        let mut staged = host.kernel.stage_prepared(&prepared).unwrap();
        host.kernel.start(&mut staged).unwrap();
        let (attempt, bundle) = (prepared.attempt.clone(), host.bundle(&prepared.attempt));
        let runners = until("one runner waits", || Some(runners_of(&bundle)).filter(|all| !all.is_empty())).await;
        if admitted {
            host.admit_prepared(&prepared, &staged);
        }
        drop(staged);
        host.restart();
        until("it has ended and is reaped", || state_of(runners[0]).is_none().then_some(())).await;
        assert!(!bundle.join("start.json").exists() && !host.path("runs").exists());
        if admitted {
            let ended = host.recover(&attempt).await;
            assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Lost), Reason::NoStartEvidence));
        } else {
            let tidied = host.kernel.tidy(&mut host.store, Clock.now()).unwrap();
            assert_eq!(tidied.bundles, 1, "nothing is on record, so nobody needs the bundle");
        }
    }
}

/// K01
#[tokio::test]
async fn what_is_abandoned_before_its_launch_is_cancelled_as_far_as_it_is_on_record() {
    for admitted in [false, true] {
        let mut host = Host::new();
        let prepared = host.kernel.prepare(&host.shell("1", "true"), Clock.now()).unwrap();
        let staged = host.kernel.stage_prepared(&prepared).unwrap();
        if admitted {
            host.admit_prepared(&prepared, &staged);
        }
        drop(staged);
        for _ in 0..2 {
            host.store.write(|tx| host.kernel.abandon(tx, &prepared.attempt, Clock.now())).unwrap();
        }
        assert_eq!(host.store.read(|read| host.kernel.unresolved(read, None, 10)).unwrap(), []);
        if admitted {
            let (state, reason, reservation) = host.record(&prepared.attempt);
            let expected = ("cancelled", "stopped_without_result", "released");
            assert_eq!((state.as_str(), reason.as_str(), reservation.as_str()), expected);
        }
    }
}

/// K01, K02
#[tokio::test]
async fn a_bundle_that_is_not_the_admitted_one_is_refused_and_nothing_starts() {
    for tampered in ["plan.json", "request.json", "manifest.json", "token"] {
        let mut host = Host::new();
        let attempt = host.admit(&host.shell("1", "echo ran >> runs"));
        let staged = host.dispatch(&attempt);
        let bundle = host.bundle(&attempt);
        if tampered == "token" {
            drop(staged);
            assert_eq!(stray_runner(&bundle, bundle.join("lock"), &"0".repeat(64)), Some(65));
        } else {
            let path = bundle.join(tampered);
            let text = host.text(&path).replace("ran", "run").replace("\"version\":1", "\"version\":2");
            std::fs::write(path, text).unwrap();
            let launched: Launched = host.kernel.launch(staged).unwrap();
            within("it refuses", launched.exited()).await.unwrap();
        }
        let ended = host.recover(&attempt).await;
        assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Lost), Reason::NoStartEvidence), "{tampered}");
        assert!(!host.path("runs").exists(), "{tampered}");
    }
}

/// K10
#[tokio::test]
async fn two_observers_conclude_the_same_once() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "exit 3"));
    let attempt = launched.attempt.clone();
    within("it ends", launched.exited()).await.unwrap();
    let (one, two) = (host.settle(&attempt).await, host.settle(&attempt).await);
    let first = host.conclude(&attempt, &one);
    assert_eq!(first.terminal, Some(Terminal::Failed { end: ProcessEnd::Exited { code: 3 } }));
    assert_eq!(host.conclude(&attempt, &two), first);
}

/// K10
#[tokio::test]
async fn an_attempt_of_another_boot_without_a_result_is_lost_and_one_with_a_result_is_not() {
    for (window, terminal) in [(Window::Dispatched, Terminal::Lost), (Window::Ended, Terminal::Succeeded)] {
        let mut host = Host::new();
        let attempt = die_at(&mut host, window).await;
        const REBOOT: &str = "UPDATE attempt SET dispatch_boot_id = 'another' WHERE id = :id";
        let id = named_params! { ":id": attempt.as_str() };
        host.store.write(|tx| tx.execute("testing", REBOOT, id)).unwrap();
        let ended = host.recover(&attempt).await;
        assert_eq!(ended.terminal, Some(terminal));
        let expected = if window == Window::Dispatched { Reason::Rebooted } else { Reason::Result };
        assert_eq!(ended.reason, expected);
    }
}

/// K10
#[tokio::test]
async fn a_pid_that_came_back_in_another_boot_is_not_taken_for_the_runner() {
    let mut host = Host::new();
    let attempt = die_at(&mut host, Window::Dispatched).await;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let start = |pid: u32, ticks: u64, boot: &str| {
        serde_json::json!({"attempt": attempt, "operation_digest": "", "pid": pid, "start_ticks": ticks,
                           "boot_id": boot, "started_at_us": 0})
    };
    let boot = Clock.now().boot_id;
    for evidence in [start(std::process::id(), ticks, "another"), start(std::process::id(), ticks + 1, boot)] {
        std::fs::write(host.bundle(&attempt).join("start.json"), evidence.to_string()).unwrap();
        assert!(matches!(host.adopt(&attempt), Adoption::Over));
    }
}

/// K10
#[tokio::test]
async fn a_damaged_result_makes_its_attempt_lost_and_no_other() {
    let mut host = Host::new();
    let damaged = host.launch(&host.shell("1", "echo x"));
    let whole = host.launch(&host.shell("2", "echo y"));
    within("both end", async {
        damaged.exited().await.unwrap();
        whole.exited().await.unwrap();
    })
    .await;
    let result = host.bundle(&damaged.attempt).join("result.json");
    std::fs::write(&result, &host.text(&result)[..40]).unwrap();
    let ended = host.recover(&damaged.attempt).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Lost), Reason::ResultInvalid));
    assert_eq!(host.recover(&whole.attempt).await.terminal, Some(Terminal::Succeeded));
}

/// K10
#[tokio::test]
async fn a_result_of_another_attempt_is_not_believed() {
    let mut host = Host::new();
    let other = host.launch(&host.shell("1", "true"));
    within("it ends", other.exited()).await.unwrap();
    let attempt = host.admit(&host.shell("2", "true"));
    drop(host.dispatch(&attempt));
    std::fs::copy(host.bundle(&other.attempt).join("result.json"), host.bundle(&attempt).join("result.json")).unwrap();
    let ended = host.recover(&attempt).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Lost), Reason::ResultInvalid));
}

/// K10
#[tokio::test]
async fn a_late_result_corrects_an_attempt_that_counted_as_lost() {
    let mut host = Host::new();
    let attempt = die_at(&mut host, Window::Ended).await;
    let (result, aside) = (host.bundle(&attempt).join("result.json"), host.path("aside"));
    std::fs::rename(&result, &aside).unwrap();
    assert_eq!(host.recover(&attempt).await.reason, Reason::NoResult);
    std::fs::rename(&aside, &result).unwrap();
    let ended = host.recover(&attempt).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Succeeded), Reason::Result));
}
