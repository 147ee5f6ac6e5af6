//! What an execution may use up: it is refused what it has not, keeps the right to say how it ends, and may be held.

use conduit_coordination::executions::SegmentEnd;
use conduit_coordination::work;
use conduit_toolbelt::budget;
use serde_json::json;

use crate::support::{Host, SECOND, emission, keyed, request};

/// Design 9.9
#[test]
fn what_is_used_up_is_refused_and_leaves_no_trace_and_a_declaration_costs_nothing() {
    let mut host = Host::new();
    let mut speaker = host.bounded(json!({"emissions": 2, "children": 1}));
    for id in ["a", "b"] {
        speaker.output(&host, &keyed("emit", id, emission()));
    }
    let child = || json!({"binding": "child"});
    let first = speaker.output(&host, &keyed("create_work", "c", child()));
    let rows = host.rows();
    for call in [keyed("emit", "d", emission()), request("emit", emission()), keyed("create_work", "e", child())] {
        assert_eq!(speaker.refusal(&host, &call), "budget_exceeded");
    }
    assert_eq!(host.rows(), rows, "nothing of a refused call is there");
    // What was done is answered as it was, and charged once.
    assert!(speaker.call(&host, &keyed("emit", "a", emission())).unwrap().response.replayed);
    assert_eq!(speaker.output(&host, &keyed("create_work", "c", child())), first);
    assert_eq!(host.rows(), rows);
    speaker.output(&host, &request("read_context", json!({})));
    speaker.output(&host, &request("declare_outcome", json!({"status": "failed"})));
    let refused = host.history(&mut speaker);
    let told = "toolbelt.rejected emit budget_exceeded the budget `emissions` has no room: 1 more on 2 of 2";
    assert_eq!(refused.iter().filter(|line| *line == told).count(), 2, "{refused:?}");
    assert_eq!(host.text("SELECT emissions || ' ' || children FROM spent"), "2 1");
}

/// Design 9.9
#[test]
fn bytes_are_those_of_inputs_that_left_something_and_what_is_left_may_still_be_used() {
    let mut host = Host::new();
    let mut speaker = host.bounded(json!({"bytes": 100}));
    let of = |bytes: usize| json!({"type": "demo.survey.seen", "data": {"x": "y".repeat(bytes)}});
    let fixed = serde_json::to_vec(&of(0)).unwrap().len();
    speaker.output(&host, &keyed("emit", "a", of(90 - fixed)));
    assert_eq!(speaker.refusal(&host, &keyed("emit", "b", of(11))), "budget_exceeded");
    speaker.output(&host, &request("read_context", json!({})));
    let execution = speaker.claimed.execution.clone();
    let shown = host.store.read(|r| budget::view(r, &execution, None)).unwrap();
    assert_eq!(shown, json!({"on_exceeded": "refuse", "bytes": {"limit": 100, "used": 90, "remaining": 10}}));
    let other = host.speaker(&[]).claimed.execution;
    assert!(host.store.read(|r| budget::view(r, &other, None)).unwrap().is_null());
    assert_eq!(host.number("SELECT count(*) FROM spent"), 1, "what has no budget has no row");
}

/// Design 9.9
#[test]
fn calls_come_back_with_time_and_reads_and_refused_inputs_count_among_them() {
    let mut host = Host::new();
    let mut speaker = host.bounded(json!({"calls_per_minute": 3}));
    speaker.output(&host, &request("read_context", json!({})));
    host.pass(60 * SECOND);
    speaker.output(&host, &request("read_context", json!({})));
    speaker.output(&host, &request("emit", emission()));
    assert_eq!(speaker.refusal(&host, &request("emit", json!({"stray": 1}))), "invalid_request");
    let rows = host.rows();
    for call in [request("read_context", json!({})), request("emit", emission())] {
        let refused = speaker.call(&host, &call).unwrap_err();
        assert_eq!((refused.code.as_str(), refused.retry_after_s), ("call_rate_exceeded", Some(20)));
        assert!(refused.message.contains("`calls_per_minute`") && refused.message.contains("20 s"), "{refused:?}");
    }
    assert_eq!(host.rows(), rows);
    host.pass(20 * SECOND);
    speaker.output(&host, &request("read_context", json!({})));
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "call_rate_exceeded");
    speaker.output(&host, &request("declare_outcome", json!({"status": "succeeded"})));
}

/// Design 9.9, M10
#[test]
fn one_that_is_to_be_held_loses_its_authority_and_its_work_waits_for_an_operator() {
    let mut host = Host::new();
    let mut speaker = host.bounded(json!({"emissions": 1, "on_exceeded": "hold"}));
    speaker.output(&host, &keyed("emit", "a", emission()));
    assert_eq!(speaker.refusal(&host, &keyed("emit", "b", emission())), "budget_exceeded");
    let work = speaker.claimed.work.clone();
    let state = "SELECT state || ' ' || coalesce(blocked_reason, '-') FROM work WHERE title = 'a survey'";
    assert_eq!(host.text(state), "blocked budget_exceeded");
    assert_eq!(host.text("SELECT stop_reason FROM execution"), "budget_exceeded");
    for operation in ["emit", "read_context", "declare_outcome"] {
        assert_eq!(speaker.refusal(&host, &request(operation, json!({}))), "forbidden");
    }
    let told = "SELECT type || ' ' || data FROM event WHERE type LIKE 'core.execution.%'";
    let expected =
        format!(r#"core.execution.held {{"budget":"emissions","execution_id":"{}"}}"#, speaker.claimed.execution);
    assert_eq!(host.text(told), expected);

    let claimed = speaker.claimed.clone();
    let completed = host.complete(&claimed, &SegmentEnd::Stopped, false);
    assert_eq!((completed.state, completed.work_state), ("cancelled", "blocked"));
    assert_eq!(host.text("SELECT code FROM execution"), "budget_exceeded");
    let now = host.now;
    host.store.write(|tx| work::retry(tx, &work, "operator:local", now)).unwrap();
    assert_eq!(host.text(state), "ready -");
    let next = host.claim();
    let mut speaker = host.go_on(next);
    speaker.output(&host, &keyed("emit", "b", emission()));
    assert_eq!(host.number("SELECT count(*) FROM event WHERE type = 'core.execution.held'"), 1);
}

/// Design 9.9: what one execution is refused holds no other, though it is of the same Work.
#[test]
fn an_execution_that_was_superseded_while_it_was_refused_holds_nobody() {
    let mut host = Host::new();
    let mut speaker = host.bounded(json!({"emissions": 0, "on_exceeded": "hold"}));
    let claimed = speaker.claimed.clone();
    let next = host.recover(&claimed);
    assert_eq!(speaker.refusal(&host, &keyed("emit", "a", emission())), "forbidden");
    assert_eq!(host.text("SELECT state FROM work WHERE title = 'a survey'"), "running");
    let mut speaker = host.go_on_recovered(next, json!({"emissions": 0, "on_exceeded": "hold"}));
    assert_eq!(speaker.refusal(&host, &keyed("emit", "a", emission())), "budget_exceeded");
    assert_eq!(host.text("SELECT state FROM work WHERE title = 'a survey'"), "blocked");
}

/// Design 9.3, 9.9
#[test]
fn a_decision_beforehand_shows_the_figures_of_the_budget() {
    let mut host = Host::new();
    let mut speaker = host.bounded(json!({"emissions": 1, "bytes": 1000, "calls_per_minute": 9}));
    let execution = speaker.claimed.execution.clone();
    let asked = |host: &mut Host, operation: &str| {
        let view = host.can(&execution, operation);
        let budgets = view.checks.into_iter().filter(|check| check.check == 7);
        (view.allowed, budgets.map(|check| format!("{} {:?}", check.refuses_when, check.outcome)).collect::<Vec<_>>())
    };
    let (allowed, checks) = asked(&mut host, "emit");
    assert!(allowed && checks[1] == "the budget `emissions` has no room (0 of 1) Passed", "{checks:?}");
    speaker.output(&host, &request("emit", emission()));
    let (allowed, checks) = asked(&mut host, "emit");
    assert!(!allowed && checks[1] == "the budget `emissions` has no room (1 of 1) Refused", "{checks:?}");
    assert_eq!(checks.len(), 3);
    assert_eq!(asked(&mut host, "declare_outcome"), (true, Vec::new()));
}
