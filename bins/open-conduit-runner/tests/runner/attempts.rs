//! Attempts from admission to conclusion, with the real runner.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::host::{Host, lives, until, within};
use conduit_kernel::{OperationRequest, ProcessEnd, Reason, StopReason, Stopping, Terminal};
use conduit_store::{Clock, digest};

/// X02
#[tokio::test]
async fn a_program_runs_and_what_it_wrote_is_kept_with_its_digest() {
    let mut host = Host::new();
    let ended = host.run(&host.shell("1", "echo out; echo err >&2")).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Succeeded), Reason::Result));
    let names: Vec<&str> = ended.outputs.iter().map(|output| output.name.as_str()).collect();
    assert_eq!(names, ["stdout", "stderr"]);
    for (output, text) in ended.outputs.iter().zip(["out\n", "err\n"]) {
        assert_eq!(std::fs::read_to_string(&output.path).unwrap(), text);
        assert_eq!(output.digest, digest::hex(&digest::sha256(text.as_bytes())));
        assert_eq!((output.bytes, output.dropped_bytes), (4, 0));
        assert_eq!(std::fs::metadata(&output.path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// K08
#[tokio::test]
async fn a_process_gets_the_configured_environment_and_nothing_of_the_service() {
    let mut host = Host::new();
    let mut request = OperationRequest { executable: "/usr/bin/env".into(), args: vec![], ..host.shell("1", "") };
    request.env.insert("GREETING".into(), "hello".into());
    let ended = host.run(&request).await;
    let home = host.base.path().display();
    let attempt = ended.outputs[0].path.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let mut lines: Vec<String> = host.text(&ended.outputs[0].path).lines().map(str::to_owned).collect();
    lines.sort();
    let expected = [
        "GREETING=hello".to_owned(),
        format!("HOME={home}"),
        "LANG=C.UTF-8".to_owned(),
        "LC_ALL=C.UTF-8".to_owned(),
        format!("OPEN_CONDUIT_KERNEL_ATTEMPT={attempt}"),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        "TMPDIR=/tmp".to_owned(),
        format!("XDG_CACHE_HOME={home}/.cache"),
    ];
    assert_eq!(lines, expected);
}

/// K08
#[tokio::test]
async fn a_process_inherits_no_descriptor_no_blocked_signal_and_no_file_mode_mask() {
    let mut host = Host::new();
    let ended = host
        .run(&host.shell("1", "ls /proc/self/fd; grep SigBlk /proc/self/status; umask; readlink /proc/self/fd/0"))
        .await;
    let text = host.text(&ended.outputs[0].path);
    // 3 is the directory that `ls` itself reads.
    assert_eq!(text, "0\n1\n2\n3\nSigBlk:\t0000000000000000\n0022\n/dev/null\n");
}

/// K08
#[tokio::test]
async fn a_process_may_open_as_many_files_as_was_set_for_it_whatever_its_daemon_may() {
    let mut host = Host::new();
    let ended = host.run(&host.shell("1", "ulimit -Sn; ulimit -Hn")).await;
    assert_eq!(host.text(&ended.outputs[0].path), "77\n88\n");
}

/// K02
#[tokio::test]
async fn a_multicall_program_is_invoked_by_the_name_that_was_asked_for() {
    let mut host = Host::new();
    let link = host.path("called-by-this-name");
    std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
    let request = OperationRequest {
        executable: link.clone(),
        args: vec!["-c".into(), "tr '\\0' ' ' < /proc/$$/cmdline".into()],
        ..host.shell("1", "")
    };
    let ended = host.run(&request).await;
    assert!(host.text(&ended.outputs[0].path).starts_with(link.to_str().unwrap()));
}

#[tokio::test]
async fn a_failure_says_how_the_process_ended() {
    let mut host = Host::new();
    let ended = host.run(&host.shell("1", "exit 7")).await;
    assert_eq!(ended.terminal, Some(Terminal::Failed { end: ProcessEnd::Exited { code: 7 } }));
    let ended = host.run(&host.shell("2", "kill -9 $$")).await;
    assert_eq!(ended.terminal, Some(Terminal::Failed { end: ProcessEnd::Signalled { signal: 9 } }));
}

#[tokio::test]
async fn a_process_past_its_deadline_is_stopped_and_timed_out() {
    let mut host = Host::new();
    let mut request = host.shell("1", "echo $$ > main; exec sleep 1000");
    request.limits.timeout_ms = 1500;
    let ended = host.run(&request).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::TimedOut), Reason::Result));
    assert!(!lives(host.pid("main").await));
}

/// T03: the token of an attempt expires at that instant, so its process has no more time than that either.
#[tokio::test]
async fn a_deadline_counts_from_the_admission_and_a_launch_behind_it_starts_nothing() {
    let mut host = Host::new();
    let mut request = host.shell("1", "echo ran >> runs");
    request.limits.timeout_ms = 1;
    let prepared = host.kernel.prepare(&request, Clock.now()).unwrap();
    let staged = host.kernel.stage_prepared(&prepared).unwrap();
    host.admit_prepared(&prepared, &staged);
    until("the deadline has passed", || (Clock.now().boot_us >= prepared.deadline_boot_us).then_some(())).await;
    let launched = host.kernel.launch(staged).unwrap();
    let ended = host.finish(&launched).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::TimedOut), Reason::Result));
    assert!(!host.path("runs").exists());
}

/// K01
#[tokio::test]
async fn stopping_ends_the_whole_tree_also_what_ignores_sigterm() {
    let mut host = Host::new();
    let script = "trap '' TERM; sh -c 'echo $$ > deep; exec sleep 1000' & echo $$ > main; wait; wait; sleep 1000";
    let mut request = host.shell("1", script);
    request.limits.stop_grace_ms = Some(100);
    let launched = host.launch(&request);
    let (main, deep) = (host.pid("main").await, host.pid("deep").await);
    let asked = host.store.write(|tx| host.kernel.record_stop(tx, &launched.attempt, StopReason::Cancel, Clock.now()));
    assert_eq!(asked.unwrap(), Stopping::Asked);
    host.kernel.stop(&launched).await.unwrap();
    let ended = host.finish(&launched).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Cancelled), Reason::Result));
    assert!(!lives(main) && !lives(deep));
}

/// K10
#[tokio::test]
async fn a_stop_needs_no_room_on_the_disk() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo $$ > main; exec sleep 1000"));
    let main = host.pid("main").await;
    // Where the file would be written, nothing can be: a full disk, a read-only one.
    std::fs::create_dir(host.bundle(&launched.attempt).join("stop")).unwrap();
    host.store.write(|tx| host.kernel.record_stop(tx, &launched.attempt, StopReason::Cancel, Clock.now())).unwrap();
    within("it is stopped", host.kernel.stop(&launched)).await.unwrap();
    assert_eq!(host.finish(&launched).await.terminal, Some(Terminal::Cancelled));
    assert!(!lives(main));
}

/// K10
#[tokio::test]
async fn a_runner_that_its_own_process_stopped_is_ended_in_order_and_as_it_was_asked_to() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo $$ > main; kill -STOP $PPID; exec sleep 1000"));
    let (main, runner) = (host.pid("main").await, launched.unit().unwrap().pid);
    let stopped = || host.text(Path::new(&format!("/proc/{runner}/stat"))).contains(") T ").then_some(());
    until("the runner is stopped", stopped).await;
    host.store.write(|tx| host.kernel.record_stop(tx, &launched.attempt, StopReason::Deadline, Clock.now())).unwrap();
    within("it is stopped", host.kernel.stop(&launched)).await.unwrap();
    let ended = host.finish(&launched).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::TimedOut), Reason::Result), "it left a result");
    assert!(!lives(main));
}

/// K10
#[tokio::test]
async fn a_result_wins_over_a_stop_that_came_too_late() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "true"));
    within("it ends", launched.exited()).await.unwrap();
    host.store.write(|tx| host.kernel.record_stop(tx, &launched.attempt, StopReason::Cancel, Clock.now())).unwrap();
    host.kernel.stop(&launched).await.unwrap();
    assert_eq!(host.finish(&launched).await.terminal, Some(Terminal::Succeeded));
}

/// X02
#[tokio::test]
async fn a_flood_is_drained_and_only_its_first_bytes_are_kept() {
    let mut host = Host::new();
    let mut request =
        host.shell("1", "head -c 50000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2; echo end > done");
    request.limits.output_bytes_max = Some(1000);
    let ended = host.run(&request).await;
    assert_eq!(ended.terminal, Some(Terminal::Succeeded));
    let facts: Vec<(u64, u64)> = ended.outputs.iter().map(|output| (output.bytes, output.dropped_bytes)).collect();
    assert_eq!(facts, [(1000, 49_999_000), (1000, 2_999_000)]);
    assert_eq!(host.text(&ended.outputs[0].path), "x".repeat(1000));
    assert_eq!(host.text(&host.path("done")), "end\n");
}

#[tokio::test]
async fn a_grandchild_that_holds_the_pipe_neither_hangs_the_runner_nor_costs_the_result() {
    let mut host = Host::new();
    let script = "sh -c 'echo $$ > one; exec sleep 1000' & setsid sh -c 'echo $$ > two; exec sleep 1000' & \
                  while [ ! -s one ] || [ ! -s two ]; do :; done; echo said";
    let begun = Instant::now();
    let ended = host.run(&host.shell("1", script)).await;
    assert_eq!(ended.terminal, Some(Terminal::Succeeded));
    assert_eq!(host.text(&ended.outputs[0].path), "said\n");
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(!lives(host.pid("one").await) && !lives(host.pid("two").await));
}

#[tokio::test]
async fn a_straggler_that_ends_within_the_grace_is_not_killed() {
    let mut host = Host::new();
    let ended = host.run(&host.shell("1", "(while [ -e /proc/$$ ]; do :; done; echo late) & echo early")).await;
    assert_eq!(host.text(&ended.outputs[0].path), "early\nlate\n");
}

/// K01, K02
#[tokio::test]
async fn an_executable_that_changed_since_admission_is_not_started() {
    let mut host = Host::new();
    let program = host.path("program");
    std::fs::write(&program, "#!/bin/sh\necho first > ran\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (id, change) in [("1", "#!/bin/sh\necho other > ran\n"), ("2", "")] {
        let request = OperationRequest { executable: program.clone(), args: vec![], ..host.shell(id, "") };
        let attempt = host.admit(&request);
        let staged = host.dispatch(&attempt);
        if change.is_empty() {
            std::fs::remove_file(&program).unwrap();
        } else {
            std::fs::write(&program, change).unwrap();
        }
        let launched = host.kernel.launch(staged).unwrap();
        let ended = host.finish(&launched).await;
        let Some(Terminal::Failed { end: ProcessEnd::NotStarted { code, .. } }) = ended.terminal else {
            panic!("{ended:?}")
        };
        assert_eq!(code, "executable_unavailable");
    }
    assert!(!host.path("ran").exists());
}

#[tokio::test]
async fn a_script_without_its_interpreter_is_a_failure_that_says_so() {
    let mut host = Host::new();
    let program = host.path("program");
    std::fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let request = OperationRequest { executable: program, args: vec![], ..host.shell("1", "") };
    let ended = host.run(&request).await;
    let Some(Terminal::Failed { end: ProcessEnd::NotStarted { code, message } }) = ended.terminal else { panic!() };
    assert_eq!(code, "executable_unavailable");
    assert!(message.contains("cannot be run"), "{message}");
}

/// K10
#[tokio::test]
async fn a_killed_runner_takes_its_process_along_and_the_attempt_is_lost() {
    let mut host = Host::new();
    // The second leaves the session, the third leaves its environment.
    let script = "setsid sh -c 'echo $$ > two; exec sleep 1000' & env -i sh -c 'echo $$ > three; exec sleep 1000' & \
                  echo $$ > main; exec sleep 1000";
    let launched = host.launch(&host.shell("1", script));
    let pids = [host.pid("main").await, host.pid("two").await, host.pid("three").await];
    let runner = rustix::process::Pid::from_raw(launched.unit().unwrap().pid as i32).unwrap();
    until("the main process is on record", || {
        host.bundle(&launched.attempt).join("target.json").exists().then_some(())
    })
    .await;
    rustix::process::kill_process(runner, rustix::process::Signal::KILL).unwrap();
    let ended = host.finish(&launched).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::Lost), Reason::NoResult));
    assert!(pids.iter().all(|pid| !lives(*pid)));
    assert_eq!(host.record(&launched.attempt).2, "released");
}

/// K10
#[tokio::test]
async fn the_main_process_dies_with_its_runner_before_anyone_looks() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo $$ > main; exec sleep 1000"));
    let main = host.pid("main").await;
    let runner = rustix::process::Pid::from_raw(launched.unit().unwrap().pid as i32).unwrap();
    rustix::process::kill_process(runner, rustix::process::Signal::KILL).unwrap();
    until("it is gone", || (!lives(main)).then_some(())).await;
}

/// K10
#[tokio::test]
async fn what_a_terminal_sends_to_the_daemon_reaches_neither_runner_nor_process() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo $$ > main; until [ -e go ]; do sleep 0.01; done"));
    let main = host.pid("main").await;
    let field = |pid: u32, number: usize| -> u32 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(number - 3).unwrap().parse().unwrap()
    };
    let runner = launched.unit().unwrap().pid;
    assert_eq!(field(runner, 5), runner, "the runner leads a process group");
    assert_eq!((field(main, 5), field(main, 6)), (main, main), "its process leads a session");
    let signalled = rustix::process::Pid::from_raw(runner as i32).unwrap();
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::HUP, rustix::process::Signal::QUIT] {
        rustix::process::kill_process(signalled, signal).unwrap();
    }
    std::fs::write(host.path("go"), "").unwrap();
    assert_eq!(host.finish(&launched).await.terminal, Some(Terminal::Succeeded));
}

/// K10
#[tokio::test]
async fn a_runner_that_had_to_be_killed_ends_as_it_was_asked_to() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo $$ > main; exec sleep 1000"));
    let main = host.pid("main").await;
    host.store.write(|tx| host.kernel.record_stop(tx, &launched.attempt, StopReason::Deadline, Clock.now())).unwrap();
    let runner = rustix::process::Pid::from_raw(launched.unit().unwrap().pid as i32).unwrap();
    rustix::process::kill_process(runner, rustix::process::Signal::KILL).unwrap();
    let ended = host.finish(&launched).await;
    assert_eq!((ended.terminal, ended.reason), (Some(Terminal::TimedOut), Reason::StoppedWithoutResult));
    assert!(!lives(main));
}

#[tokio::test]
async fn a_forgotten_bundle_is_gone_and_its_attempt_is_not() {
    let mut host = Host::new();
    let launched = host.launch(&host.shell("1", "echo x"));
    let attempt = launched.attempt.clone();
    host.finish(&launched).await;
    for _ in 0..2 {
        host.kernel.forget_bundle(&attempt).unwrap();
        assert!(!host.bundle(&attempt).exists());
        assert_eq!(host.recover(&attempt).await.terminal, Some(Terminal::Succeeded));
    }
}

/// X01
#[tokio::test]
async fn a_process_with_a_channel_hears_and_answers_its_launcher_and_the_channel_ends_with_it() {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::Shutdown;
    let mut host = Host::new();
    let request = OperationRequest { channel: true, ..host.shell("1", "cat; echo complaint >&2; exit 3") };
    let mut launched = host.launch(&request);
    let mut ours = launched.take_channel().unwrap();
    assert!(launched.take_channel().is_none());
    let mut answers = BufReader::new(ours.try_clone().unwrap());
    let mut line = String::new();
    for word in ["first\n", "second\n"] {
        ours.write_all(word.as_bytes()).unwrap();
        line.clear();
        answers.read_line(&mut line).unwrap();
        assert_eq!(line, word, "and nothing of the token before it");
    }
    ours.shutdown(Shutdown::Write).unwrap();
    line.clear();
    answers.read_to_string(&mut line).unwrap();
    assert_eq!(line, "", "the runner holds no end of it");
    let conclusion = host.finish(&launched).await;
    assert!(matches!(conclusion.terminal, Some(Terminal::Failed { end: ProcessEnd::Exited { code: 3 } })));
    let names: Vec<&str> = conclusion.outputs.iter().map(|output| output.name.as_str()).collect();
    assert_eq!(names, ["stderr"], "what goes through the channel is not kept");
}
