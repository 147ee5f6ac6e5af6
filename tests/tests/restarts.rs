//! Every daemon may die at any moment: what was running goes on, and what was accepted is there.

use std::os::unix::fs::MetadataExt;

use conduit_api::views::EventView;
use conduit_client::ClientError;
use conduit_tests::execution::call;
use conduit_tests::{Execution, Suite, config, until};
use nix::sys::signal::Signal;
use serde_json::json;

fn host() -> Suite {
    Suite::start(|home| {
        let bindings = json!({"hold": config::hold(home), "parks": config::resuming(config::hold(home))});
        config::one_scope(bindings, json!([]))
    })
}

fn code(refused: Result<serde_json::Value, ClientError>) -> String {
    refused.map_or_else(|error| error.code().to_owned(), |output| panic!("it was not refused: {output}"))
}

/// The process that holds `execution`, by its command line.
fn holder(suite: &Suite, execution: &Execution<'_>) -> conduit_tests::processes::Process {
    let id = execution.id.to_string();
    let found = until("the held process runs", || {
        suite.everything().into_iter().find(|p| p.program == "cat" && p.args.iter().any(|arg| arg.contains(&id)))
    });
    assert!(found.lives());
    found
}

/// T02, T06, E06, X02, K10
#[test]
fn an_execution_survives_the_daemon_and_only_its_rotated_token_is_accepted() {
    let suite = host();
    let held = suite.hold("hold");
    let (process, old) = (holder(&suite, &held), held.token());
    held.call("read_context", json!({})).unwrap();
    let dead = suite.kill("open-conduitd");
    suite.replaced(&dead);
    let new = until("the token is rotated", || Some(held.token()).filter(|token| *token != old && !token.is_empty()));
    assert!(process.lives(), "the same process goes on");
    let context = held.call("read_context", json!({})).unwrap();
    assert_eq!(context["execution"]["id"], held.id.as_str());
    let superseded = call(&held.client_with(&old), "read_context", json!({})).unwrap_err();
    let forged = call(&held.client_with(&"A".repeat(new.len())), "read_context", json!({})).unwrap_err();
    assert_eq!((superseded.code(), superseded.to_string()), (forged.code(), forged.to_string()));
    assert_eq!(superseded.code(), "forbidden");

    held.release(1);
    assert_eq!(suite.ended(&held.work).state, "succeeded");
    assert_eq!(suite.executions(&held.work).len(), 1, "it was adopted, not repeated");
}

/// E04, E06: what `os` says of a token that is rotated under it.
#[test]
fn a_script_that_calls_os_without_a_pause_never_fails_however_often_the_daemons_die() {
    let suite = Suite::start(|home| {
        let enough = home.join("enough");
        let said = home.join("said");
        let calls =
            format!("until [ -e '{}' ]; do os context >/dev/null 2>>'{}'; done", enough.display(), said.display());
        config::one_scope(json!({"calls": config::script(&calls)}), json!([]))
    });
    let held = suite.hold("calls");
    for _ in 0..12 {
        let old = held.token();
        let (spawner, scheduler) = (suite.kill("open-conduit-endpointd"), suite.kill("open-conduitd"));
        suite.replaced(&spawner);
        suite.replaced(&scheduler);
        until("the token is rotated", || {
            let work = suite.work_view(&held.work);
            let said = || std::fs::read_to_string(suite.home().join("said")).unwrap_or_default();
            assert_eq!(work.state, "running", "os said: {}", said());
            Some(held.token()).filter(|token| *token != old && !token.is_empty())
        });
    }
    std::fs::write(suite.home().join("enough"), "").unwrap();
    let ended = suite.ended(&held.work);
    assert_eq!(ended.state, "succeeded", "{ended:?}\n{}", suite.log());
    assert_eq!(suite.executions(&held.work).len(), 1);
}

/// E04, E06
#[test]
fn a_spawner_that_stays_away_costs_an_adopted_execution_nothing_and_a_new_one_only_time() {
    let suite = host();
    let held = suite.hold("hold");
    let old = held.token();
    // Its worker stays as long as there are calls, and no other could be started.
    let works = || held.call("read_context", json!({})).unwrap();
    works();
    let spawner = suite.process("open-conduit-endpointd");
    spawner.signal(Signal::SIGSTOP);
    let dead = suite.kill("open-conduitd");
    suite.replaced(&dead);
    let waits = suite.work("hold", json!({}));
    until("its start and the restoration fail", || {
        works();
        let failed = suite.executions(&waits).iter().any(|tried| tried.state == "failed");
        (failed && suite.log().contains("has no new token yet")).then_some(())
    });
    assert_eq!(held.token(), old, "until there is a new one, the old one is good");
    assert_eq!(suite.work_view(&waits).state, "ready", "its only attempt was not spent by a fault of the host");

    spawner.signal(Signal::SIGCONT);
    until("the token is rotated", || Some(held.token()).filter(|token| *token != old && !token.is_empty()));
    held.call("read_context", json!({})).unwrap();
    suite.running(&waits).release(1);
    assert_eq!(suite.ended(&waits).state, "succeeded");
}

/// E06
#[test]
fn a_run_directory_that_cannot_be_closed_goes_once_the_spawner_is_back() {
    let suite = host();
    let held = suite.hold("hold");
    let spawner = suite.process("open-conduit-endpointd");
    spawner.signal(Signal::SIGSTOP);
    held.release(1);
    assert_eq!(suite.ended(&held.work).state, "succeeded");
    until("closing fails", || suite.log().contains("could not be removed yet").then_some(()));
    spawner.signal(Signal::SIGCONT);
    until("nothing is left", || suite.run_directories().is_empty().then_some(()));
}

/// E06, U01
#[test]
fn while_the_daemon_is_down_an_execution_emits_and_declares_and_nothing_of_it_is_lost() {
    let suite = host();
    let held = suite.hold("hold");
    let daemon = suite.process("open-conduitd");
    daemon.signal(Signal::SIGSTOP);
    let emitted = held.call("emit", json!({"type": "test.alone"})).unwrap();
    held.call("declare_outcome", json!({"status": "failed", "summary": "said while alone"})).unwrap();
    assert_eq!(code(held.call("read_context", json!({}))), "authority_released");
    held.release(1);
    assert!(daemon.kill());
    suite.replaced(&daemon);
    let ended = suite.ended(&held.work);
    assert_eq!(ended.state, "failed");
    assert_eq!(ended.outcome.unwrap()["summary"], "said while alone");
    let event: EventView =
        suite.client().get(&format!("/v1/events/{}", emitted["event_id"].as_str().unwrap())).unwrap();
    assert_eq!(event.work_id, Some(held.work.clone()));
}

/// E01, E06
#[test]
fn a_run_socket_is_the_same_one_after_its_spawner_and_its_worker_died() {
    let suite = host();
    let held = suite.hold("hold");
    held.call("read_context", json!({})).unwrap();
    let inode = std::fs::metadata(held.socket()).unwrap().ino();
    let worker = suite.process("open-conduit-endpoint");
    assert!(worker.kill());
    held.call("read_context", json!({})).unwrap();
    let spawner = suite.kill("open-conduit-endpointd");
    suite.replaced(&spawner);
    until("the socket answers", || held.call("emit", json!({"type": "test.after"})).ok());
    assert_eq!(std::fs::metadata(held.socket()).unwrap().ino(), inode);
}

/// E06, U04
#[test]
fn a_stop_keeps_executions_and_their_directories_and_a_start_takes_them_over() {
    let mut suite = host();
    let (process, work, run, old) = {
        let held = suite.hold("hold");
        (holder(&suite, &held), held.work.clone(), held.run_directory().to_owned(), held.token())
    };
    assert!(suite.stop(Signal::SIGINT).success());
    let mut said = Vec::new();
    until("it says what keeps running", || {
        said.extend(suite.said());
        (said.iter().any(|line| line.contains("keep")) || suite.log().contains("keep")).then_some(())
    });
    assert!(process.lives() && run.join("token/token").is_file());
    assert!(suite.processes("open-conduitd").is_empty() && suite.processes("open-conduit-endpoint").is_empty());
    suite.start_again();
    let held = until("the token is rotated", || {
        let held = suite.running(&work);
        (held.token() != old).then_some(held)
    });
    held.call("read_context", json!({})).unwrap();
    held.release(1);
    assert_eq!(suite.ended(&work).state, "succeeded");
    until("the run directory is gone", || (!run.exists()).then_some(()));
}

/// U04, E06
#[test]
fn a_killed_up_takes_its_daemons_along_and_leaves_executions_to_the_next_one() {
    let mut suite = host();
    let (process, work, old) = {
        let held = suite.hold("hold");
        held.call("emit", json!({"type": "test.before"})).unwrap();
        (holder(&suite, &held), held.work.clone(), held.token())
    };
    suite.kill_up();
    until("its daemons are gone", || {
        ["open-conduitd", "open-conduit-endpointd"].iter().all(|name| suite.processes(name).is_empty()).then_some(())
    });
    assert!(process.lives());
    suite.start_again();
    let held = until("the token is rotated", || {
        let held = suite.running(&work);
        (held.token() != old).then_some(held)
    });
    held.call("emit", json!({"type": "test.after"})).unwrap();
    held.release(1);
    assert_eq!(suite.ended(&work).state, "succeeded");
}

/// E06, T12
#[test]
fn a_parked_execution_keeps_its_directory_over_a_restart_and_resumes_with_another_token() {
    let suite = host();
    let held = suite.hold("parks");
    let old = held.token();
    held.call("wait", json!({"mode": "any", "predicates": [{"type": "test.go", "source": "core.manual"}]})).unwrap();
    held.release(1);
    until("it parks", || (suite.executions(&held.work)[0].state == "parked").then_some(()));
    let daemon = suite.kill("open-conduitd");
    suite.replaced(&daemon);
    assert!(held.run_directory().is_dir());
    let go = json!({"scope_id": "test", "type": "test.go"});
    let _: serde_json::Value = suite.client().post("/v1/events", &go).unwrap();
    until("it runs again", || {
        let execution = &suite.executions(&held.work)[0];
        (execution.state == "running" && execution.segment == 2 && held.token() != old).then_some(())
    });
    assert_eq!(code(call(&held.client_with(&old), "read_context", json!({}))), "forbidden");
    held.call("declare_outcome", json!({"status": "succeeded"})).unwrap();
    held.release(2);
    assert_eq!(suite.ended(&held.work).state, "succeeded");
}

/// K01, K10
#[test]
fn a_killed_runner_leaves_a_work_that_only_an_operator_lets_go_on() {
    let suite = host();
    let held = suite.hold("hold");
    let process = holder(&suite, &held);
    suite.kill("open-conduit-runner");
    until("its process is gone", || (!process.lives()).then_some(()));
    let blocked =
        until("the Work is held", || Some(suite.work_view(&held.work)).filter(|view| view.state == "blocked"));
    assert_eq!(blocked.blocked_reason.as_deref(), Some("ambiguous_dispatch"));
    let execution = &suite.executions(&held.work)[0];
    assert_eq!((execution.state.as_str(), execution.code.as_deref()), ("lost", Some("attempt_lost")));
    let _: serde_json::Value = suite.client().post(&format!("/v1/work/{}/retry", held.work), &json!({})).unwrap();
    let again = suite.running(&held.work);
    assert_ne!(again.id, held.id);
    again.release(1);
    assert_eq!(suite.ended(&held.work).state, "succeeded");
}
