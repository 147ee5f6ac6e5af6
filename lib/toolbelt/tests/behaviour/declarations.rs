//! `wait` and `declare_outcome`: one row, authority gone, and nothing else until the segment ends.

use conduit_coordination::executions::SegmentEnd;
use serde_json::json;

use crate::support::{Host, SECOND, emission, request};

fn outcome() -> conduit_api::toolbelt::CallRequest {
    request("declare_outcome", json!({"status": "succeeded", "summary": "done", "data": {"n": 3}}))
}
fn wait() -> conduit_api::toolbelt::CallRequest {
    request("wait", json!({"mode": "all", "predicates": [{"type": "demo.x", "correlation_key": "k"}], "timeout_s": 60}))
}

/// T11
#[test]
fn declaring_writes_one_row_and_changes_nothing_else() {
    for call in [wait(), outcome()] {
        let mut host = Host::new();
        let mut speaker = host.speaker(&["k"]);
        let before = host.rows();
        let called = speaker.call(&host, &call).unwrap();
        assert!(!called.ring, "the scheduler has nothing to do before the process has ended");
        let after = host.rows();
        let changed: Vec<_> =
            before.iter().zip(&after).filter(|(old, new)| old != new).map(|(old, _)| old.0.as_str()).collect();
        assert_eq!(changed, ["declaration"]);
        assert_eq!(host.number("SELECT count(*) FROM declaration"), 1);
        let row = "SELECT execution_id || ' ' || epoch || ' ' || coalesce(applied_at_us, 'unapplied') FROM declaration";
        assert_eq!(host.text(row), format!("{} 1 unapplied", speaker.claimed.execution));
    }
}

/// T11, T14
#[test]
fn a_second_declaration_finds_authority_released_whatever_it_is() {
    for (first, second) in [(wait(), wait()), (wait(), outcome()), (outcome(), outcome()), (outcome(), wait())] {
        let mut host = Host::new();
        let mut speaker = host.speaker(&[]);
        let (mut first, mut second) = (first, second);
        first.request_id = Some("same".into());
        second.request_id = Some("same".into());
        speaker.output(&host, &first);
        assert_eq!(speaker.refusal(&host, &second), "authority_released");
        assert_eq!(host.number("SELECT count(*) FROM declaration"), 1);
        assert_eq!(host.number("SELECT count(*) FROM replay"), 0, "no record that could be replayed");
    }
}

/// T11, T12
#[test]
fn a_declared_wait_is_registered_with_its_timer_when_the_segment_has_ended() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["k"]);
    speaker.output(&host, &wait());
    host.pass(5 * SECOND);
    assert_eq!(host.number("SELECT count(*) FROM wait"), 0);
    let completed = host.complete(&speaker.claimed, &SegmentEnd::Succeeded, true);
    assert_eq!((completed.state, completed.work_state, completed.parked), ("parked", "waiting", true));
    let row = "SELECT mode || ' ' || state || ' ' || watermark || ' ' || (timeout_at_us - created_at_us) FROM wait";
    assert_eq!(host.text(row), format!("all pending 1 {}", 60 * SECOND));
    assert_eq!(host.number("SELECT applied_at_us FROM declaration"), host.now.wall.0);
    assert_eq!(speaker.refusal(&host, &request("emit", emission())), "forbidden", "its token went with the segment");
}

/// T12
#[test]
fn a_declared_outcome_survives_a_recovery_and_is_the_works_own() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.output(&host, &outcome());
    let recovered = host.recover(&speaker.claimed);
    let token = host.issue(&recovered, &crate::support::grants());
    speaker.token = token;
    assert_eq!(
        speaker.refusal(&host, &request("read_context", json!({}))),
        "authority_released",
        "so does its release"
    );
    let end =
        SegmentEnd::Failed { code: conduit_api::Code::ProcessFailed, message: "status 1".into(), retryable: true };
    assert_eq!(host.complete(&recovered, &end, false).work_state, "succeeded");
    assert_eq!(host.text("SELECT outcome FROM work"), r#"{"data":{"n":3},"status":"succeeded","summary":"done"}"#);
}

/// T11: each epoch declares for itself.
#[test]
fn the_segment_after_a_wait_may_declare_again() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["k"]);
    speaker.output(&host, &wait());
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, true);
    host.pass(60 * SECOND);
    let now = host.now;
    host.store.write(|tx| conduit_coordination::waits::fire_due(tx, 10, now)).unwrap();
    let claimed = host.claim();
    let mut speaker = host.go_on(claimed);
    speaker.output(&host, &outcome());
    assert_eq!(host.complete(&speaker.claimed, &SegmentEnd::Succeeded, true).work_state, "succeeded");
    assert_eq!(host.number("SELECT count(*) FROM declaration WHERE applied_at_us IS NOT NULL"), 2);
}
