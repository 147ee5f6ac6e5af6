//! The same request gets the same answer, a changed one is a conflict, and records go when nobody can ask again.

use std::rc::Rc;

use conduit_coordination::executions::SegmentEnd;
use conduit_toolbelt::registry::Registry;
use conduit_toolbelt::{Toolbelt, sweep};
use serde_json::json;

use crate::support::{HOUR, Host, SECOND, emission, keyed, request};

/// T14
#[test]
fn a_repeated_request_gets_the_committed_answer_and_happens_once() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let call = keyed("emit", "r1", emission());
    let first = speaker.call(&host, &call).unwrap();
    let rows = host.rows();
    let again = speaker.call(&host, &call).unwrap();
    assert!(!first.response.replayed && again.response.replayed);
    assert_eq!(host.number("SELECT count(*) FROM replay"), 0, "the Event is the record of the request that named it");
    assert_eq!(first.response.output, again.response.output);
    assert_eq!(host.rows(), rows);
    // The same document in another order is the same request.
    let reordered: conduit_api::toolbelt::CallRequest = serde_json::from_str(
        r#"{"request_id":"r1","operation":"emit","input":{"data":{"n":1.0},"type":"demo.survey.seen"}}"#,
    )
    .unwrap();
    assert_eq!(speaker.output(&host, &reordered), first.response.output);
}

/// T14
#[test]
fn a_changed_request_under_the_same_id_is_a_conflict_and_changes_nothing() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.output(&host, &keyed("emit", "r", emission()));
    speaker.output(&host, &keyed("create_work", "r", json!({"binding": "child"}))); // another operation, another request
    let rows = host.rows();
    assert_eq!(speaker.refusal(&host, &keyed("emit", "r", json!({"type": "demo.survey.other"}))), "request_conflict");
    assert_eq!(
        speaker.refusal(&host, &keyed("create_work", "r", json!({"binding": "child", "title": "x"}))),
        "request_conflict"
    );
    assert_eq!(host.rows(), rows);
}

/// T14
#[test]
fn the_header_names_the_request_when_the_body_does_not() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let token = speaker.token.clone();
    let mut call = |call: &conduit_api::toolbelt::CallRequest, header| {
        speaker.toolbelt.call_at(&token, call, header, host.now).unwrap().response
    };
    let plain = request("emit", emission());
    let first = call(&plain, Some("h"));
    assert_eq!(call(&plain, Some("h")).output, first.output);
    assert_eq!(call(&keyed("emit", "h", emission()), None).output, first.output, "by either way it is the same ID");
    assert_ne!(call(&keyed("emit", "body", emission()), Some("h")).output, first.output, "the body's own ID wins");
    assert_ne!(call(&plain, None).output, call(&plain, None).output, "without an ID nothing is a repetition");
}

/// T14
#[test]
fn two_executions_may_use_the_same_request_id() {
    let mut host = Host::new();
    let (mut one, mut two) = (host.speaker(&[]), host.speaker(&[]));
    let call = keyed("create_work", "r", json!({"binding": "child"}));
    assert_ne!(one.output(&host, &call)["work_id"], two.output(&host, &call)["work_id"]);
}

/// T14
#[test]
fn an_emission_is_accepted_once_by_its_delivery_whatever_its_request() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let delivered = json!({"type": "demo.survey.seen", "data": {"n": 1}, "delivery_id": "d"});
    let first = speaker.output(&host, &keyed("emit", "r1", delivered.clone()));
    let other = speaker.call(&host, &keyed("emit", "r2", delivered.clone())).unwrap();
    assert!(other.response.replayed);
    assert_eq!(other.response.output, first);
    let mut changed = delivered;
    changed["data"] = json!({"n": 2});
    assert_eq!(speaker.refusal(&host, &keyed("emit", "r3", changed)), "request_conflict");
    assert_eq!(host.number("SELECT count(*) FROM event WHERE type = 'demo.survey.seen'"), 1);
}

/// T14: a request ID and a delivery ID name emissions of one execution in one space; each name has one content for good.
#[test]
fn a_request_that_names_another_delivery_than_before_is_a_conflict_in_either_order() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let as_delivery = |id: &str| json!({"type": "demo.survey.seen", "data": {"n": 1}, "delivery_id": id});
    let plain = speaker.output(&host, &keyed("emit", "r1", emission()));
    assert_eq!(speaker.refusal(&host, &keyed("emit", "r1", as_delivery("d1"))), "request_conflict");
    assert_eq!(
        speaker.output(&host, &keyed("emit", "r1", as_delivery("r1"))),
        plain,
        "that is what it is named by itself"
    );
    let named = speaker.output(&host, &keyed("emit", "r2", as_delivery("d2")));
    assert_eq!(speaker.refusal(&host, &keyed("emit", "r2", emission())), "request_conflict");
    assert_eq!(speaker.output(&host, &keyed("emit", "r2", as_delivery("d2"))), named);
    assert_eq!(speaker.refusal(&host, &keyed("emit", "d2", as_delivery("d3"))), "request_conflict");
}

/// T14: what was accepted is answered, whatever has been taken from the grant since; what was not is refused.
#[test]
fn a_repeated_emission_is_answered_after_its_family_was_withdrawn() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let first = speaker.output(&host, &keyed("emit", "r", emission()));
    let mut narrower = crate::support::configuration();
    narrower["scopes"]["demo"]["events"] = json!(["demo.other"]);
    for binding in narrower["scopes"]["demo"]["bindings"].as_object_mut().unwrap().values_mut() {
        binding.as_object_mut().unwrap().remove("events");
    }
    host.publish(&narrower);
    assert_eq!(speaker.output(&host, &keyed("emit", "r", emission())), first);
    assert_eq!(speaker.refusal(&host, &keyed("emit", "s", emission())), "event_not_allowed");
}

/// T14: a segment that goes on after a wait may say again what it is not sure to have said.
#[test]
fn a_later_segment_repeats_a_request_and_a_delivery_of_an_earlier_one() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let delivered = json!({"type": "demo.survey.seen", "delivery_id": "d"});
    let by_request = speaker.output(&host, &keyed("emit", "r", emission()));
    let by_delivery = speaker.output(&host, &request("emit", delivered.clone()));
    speaker.output(&host, &request("wait", json!({"mode": "any", "predicates": [{"type": "demo.x"}], "timeout_s": 1})));
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, true);
    host.pass(SECOND);
    let now = host.now;
    host.store.write(|tx| conduit_coordination::waits::fire_due(tx, 10, now)).unwrap();
    let claimed = host.claim();
    let mut resumed = host.go_on(claimed);
    assert_eq!(resumed.output(&host, &keyed("emit", "r", emission())), by_request);
    assert_eq!(resumed.output(&host, &request("emit", delivered)), by_delivery);
}

/// T14: a refusal is not an answer to keep.
#[test]
fn a_refused_request_can_be_asked_again() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    assert_eq!(speaker.refusal(&host, &keyed("emit", "r", json!({"type": "core.x"}))), "event_not_allowed");
    speaker.output(&host, &keyed("emit", "r", emission()));
}

/// T14: processes that ask at the same moment share one effect and one answer.
#[test]
fn concurrent_repetitions_of_one_request_commit_once() {
    let mut host = Host::new();
    let speaker = host.speaker(&[]);
    let call = keyed("create_work", "r", json!({"binding": "child", "keys": ["only"]}));
    let (state, token, execution, now) = (host.state(), &speaker.token, &speaker.claimed.execution, host.now);
    let ask = || {
        Toolbelt::open(&state, execution.clone(), Rc::new(Registry::builtins()))
            .unwrap()
            .call_at(token, &call, None, now)
            .unwrap()
            .response
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| answer.output == answers[0].output));
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
    assert_eq!(host.number("SELECT count(*) FROM work WHERE binding = 'child'"), 1);
}

/// T15
#[test]
fn a_replay_record_is_kept_a_day_and_as_long_as_its_execution_lives() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.output(&host, &keyed("create_work", "r", json!({"binding": "child"})));
    host.sql("INSERT INTO replay SELECT '', operation, request_id, request_digest, output, created_at_us FROM replay");
    let sweep = |host: &mut Host, after: i64| {
        let now = host.now.plus(after);
        host.store.write(|tx| sweep::sweep(tx, now)).unwrap();
        host.number("SELECT count(*) FROM replay WHERE execution_id <> ''")
    };
    assert_eq!(sweep(&mut host, 240 * HOUR), 1, "its execution lives");
    let due = host.store.read(|r| sweep::next_due(r, host.now.plus(240 * HOUR))).unwrap();
    assert!(due > host.now.plus(240 * HOUR).wall.0, "and nobody looks at it again and again");
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, false);
    assert_eq!(sweep(&mut host, 24 * HOUR - 1), 1);
    assert_eq!(sweep(&mut host, 24 * HOUR), 0);
    sweep(&mut host, 2400 * HOUR);
    assert_eq!(host.number("SELECT count(*) FROM replay"), 1, "a record that names no execution is kept");
}

/// T15: the day counts from the writing, also when the execution lives through most of it.
#[test]
fn a_replay_record_of_an_ended_execution_goes_a_day_after_it_was_written() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.output(&host, &keyed("create_work", "old", json!({"binding": "child"})));
    let written = host.now;
    host.sql("UPDATE replay SET created_at_us = created_at_us - 82800000000 WHERE request_id = 'old'"); // 23 h earlier
    speaker.output(&host, &keyed("create_work", "new", json!({"binding": "child"})));
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, false);
    let kept = |host: &mut Host, after: i64| {
        let now = written.plus(after);
        host.store.write(|tx| sweep::sweep(tx, now)).unwrap();
        host.number("SELECT count(*) FROM replay")
    };
    assert_eq!(kept(&mut host, HOUR - 1), 2);
    assert_eq!(kept(&mut host, HOUR), 1);
    assert_eq!(kept(&mut host, 24 * HOUR - 1), 1);
    assert_eq!(kept(&mut host, 24 * HOUR), 0);
}

/// T15
#[test]
fn a_sweep_removes_a_bounded_number_of_rows_at_a_time() {
    let mut host = Host::new();
    let speaker = host.speaker(&[]);
    host.sql(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
         INSERT INTO replay SELECT '{}', 'emit', 'r' || i, x'00', '{{}}', 0 FROM n",
        speaker.claimed.execution
    ));
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, false);
    let now = host.now.plus(24 * HOUR);
    let mut swept = Vec::new();
    while host.number("SELECT count(*) FROM replay") > 0 {
        swept.push(host.store.write(|tx| sweep::sweep(tx, now)).unwrap());
    }
    assert_eq!(swept, [501, 500, 200], "and the token");
    assert_eq!(host.number("SELECT count(*) FROM replay_ended"), 0);
}
