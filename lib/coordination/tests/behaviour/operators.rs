//! What operators do to a Work and to an execution, and what that leaves of the rest (M10).

use crate::support::{Host, Said, is_illegal, said};
use conduit_coordination::executions::{self, SegmentEnd, StopReason};
use serde_json::json;

/// M10
#[test]
fn cancelling_a_running_work_takes_its_authority_at_once_and_its_process_later() {
    let mut host = Host::new();
    let work = host.create("demo", &["k"]);
    let running = host.run();
    host.cancel_work(&work).unwrap();
    assert_eq!((host.state(&work).as_str(), host.live_tokens(&work)), ("cancelled", 0));
    assert_eq!(host.execution_state(&running.execution), "running", "its process may live still");
    let asked = host.store.read(executions::stop_requested).unwrap();
    assert_eq!(asked, [(running.execution.clone(), StopReason::WorkCancelled)]);
    assert!(is_illegal(&host.retry(&work)), "not beside a process that may live");
    assert!(is_illegal(&host.cancel_work(&work)), "once");
    host.complete(&running, &SegmentEnd::Stopped);
    assert_eq!(host.state(&work), "cancelled");
    assert!(host.store.read(executions::stop_requested).unwrap().is_empty());
}

/// M10
#[test]
fn a_cancelled_execution_holds_its_work_until_a_retry_which_forgives_its_failures() {
    let mut host = Host::new();
    let work = host.create("demo", &["k"]);
    let running = host.run();
    host.cancel_execution(&running.execution).unwrap();
    assert_eq!((host.state(&work).as_str(), host.live_tokens(&work)), ("blocked:operator_cancelled", 0));
    assert!(is_illegal(&host.cancel_execution(&running.execution)), "it is being stopped");
    assert!(is_illegal(&host.retry(&work)), "its process may live still");
    assert_eq!(host.claim(), None);
    host.complete(&running, &SegmentEnd::Stopped);
    assert_eq!(host.claim(), None, "only an operator lets it go on");
    host.retry(&work).unwrap();
    let again = host.run();
    assert_eq!((again.work, again.attempt, again.resumed), (work, 2, false));
    assert_eq!(host.number("SELECT failures FROM work"), 0);
}

/// M10
#[test]
fn a_cancelled_parked_execution_ends_at_once_and_so_does_its_wait() {
    let mut host = Host::new();
    let work = host.create("demo", &[]);
    let running = host.run();
    host.wait(&running, &json!({"mode": "any", "predicates": [{"type": "demo.never"}]}), true);
    host.cancel_execution(&running.execution).unwrap();
    assert_eq!(host.execution_state(&running.execution), "cancelled");
    assert_eq!(
        (host.state(&work).as_str(), host.waits(&work)),
        ("blocked:operator_cancelled", vec!["cancelled".to_owned()])
    );
    host.retry(&work).unwrap();
    let again = host.run();
    assert_ne!(again.execution, running.execution);
}

/// M10
#[test]
fn an_operators_word_outranks_an_interruption_that_is_under_way() {
    for whole_work in [true, false] {
        let mut host = Host::new();
        let work = host.create("demo", &["k"]);
        let running = host.run();
        host.say(&Said { key: Some("k"), ..said("demo.interrupt") });
        if whole_work {
            host.cancel_work(&work).unwrap();
        } else {
            host.cancel_execution(&running.execution).unwrap();
        }
        let state = if whole_work { "cancelled" } else { "blocked:operator_cancelled" };
        host.complete(&running, &SegmentEnd::Stopped);
        assert_eq!((host.state(&work).as_str(), host.claim()), (state, None));
    }
}

/// M10, K01
#[test]
fn what_is_cancelled_between_claim_and_launch_never_gets_a_process() {
    for whole_work in [true, false] {
        let mut host = Host::new();
        let work = host.create("demo", &[]);
        let claimed = host.claim().unwrap();
        if whole_work {
            host.cancel_work(&work).unwrap();
        } else {
            host.cancel_execution(&claimed.execution).unwrap();
        }
        assert!(!host.launch(&claimed));
        host.complete(&claimed, &SegmentEnd::Stopped);
        let state = if whole_work { "cancelled" } else { "blocked:operator_cancelled" };
        assert_eq!(host.state(&work), state);
        assert_eq!(host.execution_state(&claimed.execution), "cancelled");
    }
}

/// M06, M10
#[test]
fn every_control_is_told_as_an_event_with_its_operator() {
    let mut host = Host::new();
    let work = host.create("demo", &[]);
    let running = host.run();
    host.cancel_execution(&running.execution).unwrap();
    host.complete(&running, &SegmentEnd::Stopped);
    host.retry(&work).unwrap();
    host.cancel_work(&work).unwrap();
    let told = "SELECT type || ' ' || source || ' ' || actor FROM event WHERE actor IS NOT NULL ORDER BY seq";
    let expected = ["work.created", "execution.cancelled", "work.retried", "work.finished"];
    assert_eq!(host.texts(told), expected.map(|kind| format!("core.{kind} core.manual operator:local")));
    assert_eq!(host.number("SELECT count(*) FROM event WHERE work_id IS NULL"), 0);
}

#[test]
fn a_work_that_was_retried_ends_again_and_both_endings_are_told() {
    let mut host = Host::new();
    let work = host.create("demo", &["k"]);
    host.cancel_work(&work).unwrap();
    assert_eq!(host.number("SELECT active FROM work_key"), 0);
    host.retry(&work).unwrap();
    assert_eq!(host.number("SELECT active FROM work_key"), 1, "it has its key again");
    let running = host.run();
    host.complete(&running, &SegmentEnd::Succeeded);
    assert_eq!(host.number("SELECT count(*) FROM event WHERE type = 'core.work.finished'"), 2);
    assert!(is_illegal(&host.retry(&work)), "what succeeded is not retried");
}

#[test]
fn a_retried_work_does_not_take_its_key_from_the_one_that_has_it_now() {
    let mut host = Host::new();
    let old = host.create("demo", &["k"]);
    host.cancel_work(&old).unwrap();
    let new = host.create("demo", &["k"]);
    host.retry(&old).unwrap();
    assert_eq!(host.texts("SELECT work_id FROM work_key WHERE active = 1"), [new.as_str().to_owned()]);
}

/// K01, K10
#[test]
fn only_an_operator_says_that_an_ambiguous_attempt_may_be_repeated() {
    let mut host = Host::new();
    let work = host.create("demo", &[]);
    let running = host.run();
    host.complete(&running, &SegmentEnd::Lost { started: true });
    host.pass(86_400 * crate::support::SECOND);
    assert_eq!((host.claim(), host.state(&work).as_str()), (None, "blocked:ambiguous_dispatch"));
    host.retry(&work).unwrap();
    assert_eq!(host.run().work, work);
}
