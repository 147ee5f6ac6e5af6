//! The end of a segment: what it leaves of the execution, the Work, its inputs, its tokens and its waits (T12).

use crate::support::{Host, RETRY, SECOND, Said, failed, said};
use conduit_api::Code;
use conduit_coordination::executions::{Claimed, SegmentEnd};
use serde_json::{Value, json};

/// What a segment is told to do, and what is done to it, before it ends.
#[derive(Debug, Clone, Copy)]
enum Before {
    Nothing,
    Outcome(&'static str),
    Wait,
    Interrupted,
    ExecutionCancelled,
    WorkCancelled,
}

/// A segment that runs with one input and a token, after `before`; one more Event was queued for it meanwhile.
fn segment(before: Before) -> (Host, Claimed, i64, i64) {
    let mut host = Host::new();
    let told = host.say(&Said { key: Some("k"), ..said("demo.start") });
    let claimed = host.run();
    let queued = host.say(&Said { key: Some("k"), ..said("demo.queue") });
    match before {
        Before::Nothing => {}
        Before::Outcome(status) => host.declare(&claimed, "outcome", &json!({"status": status, "data": {"n": 7}})),
        Before::Wait => host.declare(&claimed, "wait", &json!({"mode": "any", "predicates": [{"type": "demo.never"}]})),
        Before::Interrupted => {
            host.say(&Said { key: Some("k"), ..said("demo.interrupt") });
        }
        Before::ExecutionCancelled => assert_eq!(host.cancel_execution(&claimed.execution).unwrap(), claimed.work),
        Before::WorkCancelled => host.cancel_work(&claimed.work).unwrap(),
    }
    (host, claimed, told, queued)
}

/// T12, K01, M10
#[test]
fn every_way_in_which_a_segment_can_end_leaves_what_its_row_says() {
    let lost = |started| SegmentEnd::Lost { started };
    let process = || failed(Code::ProcessFailed, true);
    let late = || failed(Code::DeadlineExceeded, true);
    let impossible = || failed(Code::ExecutableUnavailable, false);
    #[rustfmt::skip]
    let rows = [
        // before                       end                      execution     the Work                      told            queued
        (Before::Nothing,               SegmentEnd::Succeeded,   "succeeded",  "succeeded",                  "acknowledged", "again"),
        (Before::Nothing,               process(),               "failed",     "ready",                      "queued",       "queued"),
        (Before::Nothing,               late(),                  "timed_out",  "ready",                      "queued",       "queued"),
        (Before::Nothing,               impossible(),            "failed",     "failed",                     "acknowledged", "again"),
        (Before::Nothing,               lost(false),             "lost",       "ready",                      "queued",       "queued"),
        (Before::Nothing,               lost(true),              "lost",       "blocked:ambiguous_dispatch", "queued",       "queued"),
        (Before::Nothing,               SegmentEnd::Stopped,     "failed",     "ready",                      "queued",       "queued"),
        (Before::Outcome("succeeded"),  SegmentEnd::Succeeded,   "succeeded",  "succeeded",                  "acknowledged", "again"),
        (Before::Outcome("succeeded"),  process(),               "succeeded",  "succeeded",                  "acknowledged", "again"),
        (Before::Outcome("succeeded"),  late(),                  "succeeded",  "succeeded",                  "acknowledged", "again"),
        (Before::Outcome("succeeded"),  SegmentEnd::Stopped,     "succeeded",  "succeeded",                  "acknowledged", "again"),
        (Before::Outcome("failed"),     SegmentEnd::Succeeded,   "failed",     "failed",                     "acknowledged", "again"),
        (Before::Outcome("succeeded"),  lost(true),              "lost",       "blocked:ambiguous_dispatch", "queued",       "queued"),
        (Before::Outcome("succeeded"),  lost(false),             "lost",       "ready",                      "queued",       "queued"),
        (Before::Wait,                  SegmentEnd::Succeeded,   "succeeded",  "waiting",                    "acknowledged", "queued"),
        (Before::Wait,                  process(),               "succeeded",  "waiting",                    "acknowledged", "queued"),
        (Before::Wait,                  lost(true),              "lost",       "blocked:ambiguous_dispatch", "queued",       "queued"),
        (Before::Interrupted,           SegmentEnd::Stopped,     "cancelled",  "ready",                      "queued",       "queued"),
        (Before::Interrupted,           SegmentEnd::Succeeded,   "succeeded",  "succeeded",                  "acknowledged", "again"),
        (Before::Interrupted,           process(),               "failed",     "ready",                      "queued",       "queued"),
        (Before::ExecutionCancelled,    SegmentEnd::Stopped,     "cancelled",  "blocked:operator_cancelled", "queued",       "queued"),
        (Before::ExecutionCancelled,    SegmentEnd::Succeeded,   "cancelled",  "blocked:operator_cancelled", "queued",       "queued"),
        (Before::ExecutionCancelled,    lost(true),              "cancelled",  "blocked:operator_cancelled", "queued",       "queued"),
        (Before::WorkCancelled,         SegmentEnd::Stopped,     "cancelled",  "cancelled",                  "queued",       "again"),
        (Before::WorkCancelled,         SegmentEnd::Succeeded,   "cancelled",  "cancelled",                  "queued",       "again"),
        (Before::WorkCancelled,         lost(true),              "cancelled",  "cancelled",                  "queued",       "again"),
    ];
    for (before, end, execution, work, told_state, queued_state) in rows {
        let (mut host, claimed, told, queued) = segment(before);
        let row = format!("{before:?}, then {end:?}");
        let completed = host.complete(&claimed, &end);
        assert_eq!(
            (host.execution_state(&claimed.execution).as_str(), completed.state),
            (execution, execution),
            "{row}"
        );
        assert_eq!(host.state(&claimed.work), work, "{row}");
        assert_eq!(host.live_tokens(&claimed.work), 0, "{row}");
        assert_eq!(host.input(&claimed.work, told), told_state, "{row}");
        if queued_state == "again" {
            assert_eq!((host.input(&claimed.work, queued), host.routed(queued)), Default::default(), "{row}");
        } else {
            assert_eq!(host.input(&claimed.work, queued), queued_state, "{row}");
        }
        let waits: &[&str] = if work == "waiting" { &["pending"] } else { &[] };
        assert_eq!(host.waits(&claimed.work), waits, "{row}");
        let keys = host.number("SELECT count(*) FROM work_key WHERE active = 1");
        assert_eq!(keys, i64::from(!["succeeded", "failed", "cancelled"].contains(&work)), "{row}");
        let ends = host.number("SELECT count(*) FROM event WHERE type = 'core.work.finished'");
        assert_eq!(ends, i64::from(keys == 0), "one ending is told of: {row}");
        assert!(host.try_complete(&claimed, &end, false).is_err(), "a segment ends once: {row}");
    }
}

/// T12
#[test]
fn a_declared_outcome_is_the_works_outcome_and_its_end_follows_from_its_input() {
    let (mut host, claimed, told, _) = segment(Before::Outcome("succeeded"));
    host.complete(&claimed, &failed(Code::ProcessFailed, true));
    let outcome: Value = serde_json::from_str(&host.text("SELECT outcome FROM work")).unwrap();
    assert_eq!((&outcome["status"], &outcome["data"]["n"]), (&json!("succeeded"), &json!(7)));
    let finished: Value =
        serde_json::from_str(&host.text("SELECT data FROM event WHERE type = 'core.work.finished'")).unwrap();
    assert_eq!((&finished["state"], &finished["outcome"]), (&json!("succeeded"), &outcome));
    let cause = host.text("SELECT cause_id FROM event WHERE type = 'core.work.finished'");
    assert_eq!(cause, host.event_id(told).as_str());
    assert_eq!(host.number("SELECT count(*) FROM declaration WHERE applied_at_us IS NULL"), 0);
}

/// T12
#[test]
fn a_failing_work_is_tried_again_with_growing_pauses_and_then_fails_with_the_last_reason() {
    let mut host = Host::new();
    let work = host.create("demo", &[]);
    let mut pauses = Vec::new();
    for attempt in 1..=i64::from(RETRY.attempts) {
        let claimed = host.run();
        assert_eq!((claimed.attempt, claimed.epoch), (attempt, attempt));
        host.complete(&claimed, &failed(Code::ProcessFailed, true));
        if host.state(&work) == "ready" {
            let ready_at = host.number("SELECT ready_at_us FROM work");
            pauses.push((ready_at - host.now.wall.0) / 1000);
            host.now = host.now.plus(ready_at - host.now.wall.0 - 1);
            assert_eq!(host.claim(), None, "not before its time");
            host.pass(1);
        }
    }
    assert_eq!((pauses, host.state(&work).as_str()), (vec![1000, 2000], "failed"));
    let outcome: Value = serde_json::from_str(&host.text("SELECT outcome FROM work")).unwrap();
    assert_eq!((&outcome["code"], &outcome["summary"]), (&json!("process_failed"), &json!("status 9")));
    assert_eq!(host.claim(), None);
}

/// However often the host cannot start it, a Work keeps the attempts that its binding allows.
#[test]
fn a_fault_of_the_host_fails_no_work_and_spends_none_of_its_attempts() {
    let mut host = Host::new();
    let work = host.create("demo", &[]);
    for _ in 0..20 {
        let claimed = host.claim().unwrap();
        let end = SegmentEnd::HostFault { code: Code::Unavailable, message: "the spawner is away".into() };
        host.complete(&claimed, &end);
        assert_eq!(host.state(&work), "ready");
        assert_eq!(host.claim(), None, "not at once");
        host.pass(60 * SECOND);
    }
    assert_eq!(host.number("SELECT failures FROM work"), 0);
    assert_eq!(host.texts("SELECT DISTINCT state || ' ' || code FROM execution"), ["failed unavailable"]);
}

/// T12: outputs and usage of a segment are kept whatever became of it, and recording them again changes nothing.
#[test]
fn usage_and_outputs_are_kept_when_a_segment_waits() {
    use conduit_coordination::artifacts::NewArtifact;
    use conduit_coordination::executions::complete;
    let (mut host, claimed, ..) = segment(Before::Wait);
    let outputs = [NewArtifact {
        name: "stdout".into(),
        media_type: "text/plain".into(),
        digest: "d".repeat(64),
        bytes: 3,
        dropped_bytes: 0,
    }];
    let (fence, now) = (claimed.fence(), host.now);
    host.store
        .fenced(&fence, &conduit_store::lease::Demand::Ownership, now, |tx| {
            complete(tx, &claimed, &SegmentEnd::Succeeded, &outputs, &json!({"cpu_ms": 4}), RETRY, true)
        })
        .unwrap();
    assert_eq!(host.texts("SELECT name FROM artifact"), ["stdout"]);
    assert_eq!(host.text("SELECT usage FROM execution"), r#"{"cpu_ms":4}"#);
    host.pass(SECOND);
    assert_eq!(host.execution_state(&claimed.execution), "parked");
}

/// T12
#[test]
fn a_declaration_that_cannot_be_carried_out_fails_its_work_by_name_instead_of_holding_it() {
    for (kind, code) in [("wait", "invalid_wait"), ("outcome", "internal")] {
        let (mut host, claimed, ..) = segment(Before::Nothing);
        host.declare(&claimed, kind, &json!({}));
        let completed = host.complete(&claimed, &SegmentEnd::Succeeded);
        assert_eq!((completed.state, completed.work_state), ("failed", "failed"));
        assert_eq!(host.text("SELECT code FROM execution"), code);
        assert_eq!(host.number("SELECT count(*) FROM declaration WHERE applied_at_us IS NOT NULL"), 0);
    }
    let (mut host, claimed, ..) = segment(Before::WorkCancelled);
    host.declare(&claimed, "wait", &json!({}));
    assert_eq!(host.complete(&claimed, &SegmentEnd::Stopped).state, "cancelled", "a stop does not need it");
}

/// T12
#[test]
fn a_wait_that_would_look_back_without_end_fails_its_work_by_name() {
    const MANY: &str = "
        WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i <= 100000)
        INSERT INTO event (id, scope_id, type, source, delivery_id, request_digest, root_id, depth, data, accepted_at_us, route)
        SELECT 'many' || i, 'demo', 'demo.many', 'core.manual', 'many' || i, x'', 'many' || i, 0, '{}', 0, 'unmatched' FROM n";
    let (mut host, claimed, ..) = segment(Before::Nothing);
    host.write(|tx, _| Ok(tx.execute("testing", MANY, [])?)).unwrap();
    let predicate = json!({"type": "demo.many", "source": "core.manual", "data": {"/n": 1}});
    host.declare(&claimed, "wait", &json!({"mode": "any", "predicates": [predicate], "watermark": 0}));
    let completed = host.complete(&claimed, &SegmentEnd::Succeeded);
    assert_eq!((completed.work_state, completed.wait), ("failed", None));
    assert_eq!(host.text("SELECT code FROM execution"), "invalid_wait");
    assert_eq!(host.open_predicates(), 0);
}

/// T12
#[test]
fn a_declaration_that_was_overruled_is_told_from_one_that_was_carried_out() {
    for (end, applied) in [(SegmentEnd::Succeeded, 1), (SegmentEnd::Lost { started: true }, 0)] {
        let (mut host, claimed, ..) = segment(Before::Outcome("succeeded"));
        host.complete(&claimed, &end);
        assert_eq!(host.number("SELECT count(*) FROM declaration WHERE applied_at_us IS NOT NULL"), applied);
    }
}

#[test]
fn an_orphaned_execution_holds_its_work_until_it_can_be_said_how_it_ended() {
    let (mut host, claimed, ..) = segment(Before::Nothing);
    host.orphan(&claimed);
    host.orphan(&claimed);
    assert_eq!(
        (host.execution_state(&claimed.execution), host.state(&claimed.work)),
        ("orphaned".into(), "running".into())
    );
    assert!(host.claim().is_none());
    host.cancel_execution(&claimed.execution).unwrap();
    assert_eq!(host.text("SELECT stop_reason FROM execution"), "operator_cancelled");
    let completed = host.complete(&claimed, &SegmentEnd::Stopped);
    assert_eq!((completed.state, completed.work_state), ("cancelled", "blocked"));
}

/// G06
#[test]
fn a_start_gate_keeps_a_work_from_starting_and_nothing_that_it_was_made_for_is_lost() {
    let mut host = Host::new();
    let told = host.say(&Said { key: Some("k"), ..said("demo.start") });
    let claimed = host.claim().unwrap();
    let wait = json!({"mode": "any", "predicates": [{"type": "demo.never", "correlation_key": "k"}]});
    // What came to wake the Work while the gate was asked wakes no gate: it is input of the first segment.
    let wakes = host.say(&Said { key: Some("k"), ..said("demo.wake") });
    let parked = host.try_complete(&claimed, &SegmentEnd::GateParked(serde_json::from_value(wait).unwrap()), true);
    let parked = parked.unwrap();
    assert_eq!((parked.state, parked.work_state, parked.parked), ("cancelled", "waiting", false));
    assert_eq!(host.input(&claimed.work, told), "queued");
    assert_eq!(host.input(&claimed.work, wakes), "queued");
    assert!(!launched(&mut host, &claimed));

    let decided = host.say(&Said { key: Some("k"), ..said("demo.never") });
    assert_eq!(host.state(&claimed.work), "ready");
    let again = host.claim().unwrap();
    assert!(!again.resumed, "nothing was there to be resumed");
    assert_eq!(host.input(&claimed.work, decided), "delivered");
    let refused = host.complete(&again, &SegmentEnd::GateRefused { message: "no".into() });
    assert_eq!((refused.state, refused.work_state), ("cancelled", "blocked"));
    assert_eq!(host.state(&claimed.work), "blocked:gate");
    assert!(host.claim().is_none());

    host.retry(&claimed.work).unwrap();
    let started = host.run();
    assert_eq!(started.work, claimed.work);
    assert!(launched(&mut host, &claimed));
    for seq in [told, wakes, decided] {
        assert_eq!(host.input(&claimed.work, seq), "delivered");
    }
}

fn launched(host: &mut Host, claimed: &Claimed) -> bool {
    host.write(|tx, _| conduit_coordination::executions::was_launched(tx, &claimed.work)).unwrap()
}
