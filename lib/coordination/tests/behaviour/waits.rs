//! Waits: what ends them, in whatever order things arrive.

use crate::support::{Host, SECOND, Said, said};
use conduit_api::UnixMicros;
use conduit_api::WorkId;
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::{self, NewEvent, source};
use conduit_coordination::executions::{Claimed, SegmentEnd};
use serde_json::{Value, json};

fn any(predicates: Value) -> Value {
    json!({"mode": "any", "predicates": predicates})
}
fn all(predicates: Value) -> Value {
    json!({"mode": "all", "predicates": predicates})
}
fn on(key: &str) -> Value {
    json!({"type": "demo.answer", "correlation_key": key})
}
fn answer(key: &str) -> Said<'_> {
    Said { key: Some(key), ..said("demo.answer") }
}

/// A running segment of a Work that owns the key `own`, with its first input seen.
fn running() -> (Host, Claimed) {
    let mut host = Host::new();
    host.create("demo", &["own"]);
    let claimed = host.run();
    (host, claimed)
}

fn waiting_for(wait: &Value) -> (Host, Claimed) {
    let (mut host, claimed) = running();
    let completed = host.wait(&claimed, wait, false);
    assert_eq!((completed.state, completed.work_state), ("succeeded", "waiting"));
    (host, claimed)
}

/// T12
#[test]
fn an_any_of_wait_ends_with_its_first_match_and_its_losers_are_closed() {
    let (mut host, claimed) = waiting_for(&any(json!([on("a"), on("b"), on("c")])));
    assert_eq!(host.open_predicates(), 3);
    let first = host.say(&answer("b"));
    assert_eq!((host.state(&claimed.work).as_str(), host.waits(&claimed.work)), ("ready", vec!["matched".to_owned()]));
    assert_eq!((host.routed(first).as_str(), host.open_predicates()), ("wake", 0));
    let late = host.say(&answer("a"));
    assert_eq!((host.input(&claimed.work, first).as_str(), host.input(&claimed.work, late).as_str()), ("queued", ""));
    assert_eq!(host.texts("SELECT matched_seq FROM wait_predicate WHERE matched_seq IS NOT NULL"), [first.to_string()]);
}

/// T12
#[test]
fn an_all_of_wait_ends_when_each_predicate_has_its_match() {
    let (mut host, claimed) = waiting_for(&all(json!([on("a"), on("b")])));
    let b = host.say(&answer("b"));
    let again = host.say(&answer("b"));
    assert_eq!(host.state(&claimed.work), "waiting");
    assert_eq!(host.input(&claimed.work, b), "", "a part of a match wakes nobody");
    let a = host.say(&answer("a"));
    assert_eq!(host.state(&claimed.work), "ready");
    let inputs = [b, again, a].map(|seq| host.input(&claimed.work, seq));
    assert_eq!(inputs, ["queued", "", "queued"]);
}

/// T12
#[test]
fn one_event_can_be_what_several_works_wait_for() {
    let mut host = Host::new();
    let works: Vec<WorkId> = (0..3).map(|_| host.create("demo", &[])).collect();
    for _ in &works {
        let claimed = host.run();
        host.wait(&claimed, &any(json!([on("shared")])), false);
    }
    host.say(&answer("shared"));
    for work in &works {
        assert_eq!(host.state(work), "ready");
    }
}

/// T12: what arrives and what is registered may come in any order, and so may routing.
#[test]
fn the_order_of_arrival_registration_and_routing_does_not_change_the_end() {
    for (arrives_before, routed_before) in [(true, true), (true, false), (false, false)] {
        let (mut host, claimed) = running();
        let mut seq = 0;
        if arrives_before {
            seq = host.accept(&answer("k"));
        }
        if routed_before {
            host.route();
        }
        host.wait(&claimed, &any(json!([on("k")])), false);
        if !arrives_before {
            seq = host.accept(&answer("k"));
        }
        host.route();
        assert_eq!(host.state(&claimed.work), "ready", "{arrives_before} {routed_before}");
        assert_eq!((host.input(&claimed.work, seq).as_str(), host.open_predicates()), ("queued", 0));
        let next = host.run();
        assert_eq!(next.work, claimed.work);
        assert_eq!(host.claim(), None, "it was woken once");
    }
}

/// T12
#[test]
fn by_default_a_wait_hears_what_came_after_the_input_that_its_segment_began_with() {
    let mut host = Host::new();
    let old = host.say(&answer("k"));
    host.create("demo", &[]);
    let claimed = host.run();
    host.wait(&claimed, &any(json!([on("k")])), false);
    assert_eq!(host.state(&claimed.work), "waiting", "{old} was there before the Work");
    host.say(&answer("k"));
    assert_eq!(host.state(&claimed.work), "ready");
}

/// T12: nothing between the segment's begin and an injected Event is skipped.
#[test]
fn an_injected_input_does_not_move_the_watermark_past_what_came_before_it() {
    let (mut host, claimed) = running();
    let child_done = host.say(&answer("child"));
    let injected = host.say(&Said { key: Some("own"), ..said("demo.inject") });
    assert!(child_done < injected);
    assert_eq!(host.input(&claimed.work, injected), "delivered");
    host.wait(&claimed, &any(json!([on("child")])), false);
    assert_eq!(host.state(&claimed.work), "ready");
    assert_eq!(host.input(&claimed.work, injected), "acknowledged");
}

/// T12
#[test]
fn an_explicit_watermark_looks_further_back_or_less_far() {
    let mut host = Host::new();
    host.say(&answer("k"));
    host.create("demo", &[]);
    let claimed = host.run();
    let from_the_start = json!({"mode": "any", "predicates": [on("k")], "watermark": 0});
    host.wait(&claimed, &from_the_start, false);
    assert_eq!(host.state(&claimed.work), "ready");

    let (mut host, claimed) = running();
    let seen = host.accept(&answer("k"));
    let wait = json!({"mode": "any", "predicates": [on("k")], "watermark": seen});
    host.wait(&claimed, &wait, false);
    host.route(); // the Event was accepted before the watermark, and routed only now
    assert_eq!(host.state(&claimed.work), "waiting");
    host.say(&answer("k"));
    assert_eq!(host.state(&claimed.work), "ready");
}

/// T12: a wait that matches what the Work knows already does not send it back to the beginning of time.
#[test]
fn a_segment_that_is_told_of_nothing_new_keeps_its_place_in_the_sequence() {
    let mut host = Host::new();
    host.create("demo", &[]);
    let first = host.run();
    host.wait(&first, &any(json!([on("k")])), false);
    let seq = host.say(&answer("k"));
    let second = host.run();
    host.wait(&second, &json!({"mode": "any", "predicates": [on("k")], "watermark": 0}), false);
    assert_eq!(host.state(&first.work), "ready");
    let third = host.run();
    assert_eq!(host.number(&format!("SELECT acknowledged FROM execution WHERE id = '{}'", third.execution)), seq);
    host.wait(&third, &any(json!([on("k")])), false);
    assert_eq!(host.state(&first.work), "waiting", "the same answer does not wake it again and again");
}

/// T12
#[test]
fn a_wait_for_a_type_alone_hears_the_works_own_keys_before_and_after() {
    let own_type = any(json!([{"type": "demo.answer"}]));
    for early in [true, false] {
        let (mut host, claimed) = running();
        if early {
            host.say(&answer("foreign"));
            host.say(&answer("own"));
        }
        host.wait(&claimed, &own_type, false);
        if !early {
            host.say(&answer("foreign"));
            assert_eq!(host.state(&claimed.work), "waiting");
            host.say(&said("demo.answer"));
            assert_eq!(host.state(&claimed.work), "waiting", "an Event without a key is nobody's");
            host.say(&answer("own"));
        }
        assert_eq!(host.state(&claimed.work), "ready", "early: {early}");
    }
}

/// T12
#[test]
fn a_wait_never_hears_another_scope() {
    let (mut host, claimed) = waiting_for(&any(json!([on("k")])));
    host.say(&Said { scope: "calm", ..answer("k") });
    assert_eq!(host.state(&claimed.work), "waiting");
}

/// T12
#[test]
fn data_and_source_narrow_what_a_predicate_matches() {
    let wanted = json!({"type": "demo.answer", "source": "core.manual", "data": {"/ok": true}});
    let (mut host, claimed) = waiting_for(&any(json!([wanted])));
    host.say(&Said { data: json!({"ok": false}), ..said("demo.answer") });
    assert_eq!(host.state(&claimed.work), "waiting");
    host.say(&Said { data: json!({"ok": true}), ..said("demo.answer") });
    assert_eq!(host.state(&claimed.work), "ready");
}

/// T12
#[test]
fn a_wait_times_out_at_its_instant_and_the_work_goes_on_with_the_news() {
    let mut wait = any(json!([on("k")]));
    wait["timeout_s"] = json!(60);
    let (mut host, claimed) = waiting_for(&wait);
    host.pass(60 * SECOND - 1);
    assert_eq!((host.fire(), host.state(&claimed.work).as_str()), (0, "waiting"));
    host.pass(1);
    assert_eq!(host.fire(), 1);
    assert_eq!(host.fire(), 0, "once");
    host.route();
    assert_eq!(
        (host.state(&claimed.work).as_str(), host.waits(&claimed.work)),
        ("ready", vec!["timed_out".to_owned()])
    );
    assert_eq!(host.open_predicates(), 0);
    let told = host.number("SELECT seq FROM event WHERE type = 'core.wait.timed_out'");
    host.run();
    assert_eq!(host.input(&claimed.work, told), "delivered");
    let late = host.say(&answer("k"));
    assert_eq!(host.input(&claimed.work, late), "", "a wait that timed out hears nothing more");
}

/// T12
#[test]
fn a_match_ends_the_timeout_with_the_wait() {
    let mut wait = any(json!([on("k")]));
    wait["timeout_s"] = json!(60);
    let (mut host, claimed) = waiting_for(&wait);
    host.say(&answer("k"));
    host.pass(61 * SECOND);
    assert_eq!(host.fire(), 0);
    assert_eq!(host.waits(&claimed.work), ["matched"]);
}

/// T12: a wait has to survive a boot, so its timeout is wall time; a step back delays it and never loses it.
#[test]
fn a_stepped_clock_moves_a_timeout_and_never_loses_it() {
    let mut wait = any(json!([on("k")]));
    wait["timeout_s"] = json!(60);
    let (mut host, claimed) = waiting_for(&wait);
    host.now.wall = UnixMicros(host.now.wall.0 - 3600 * SECOND);
    host.pass(60 * SECOND);
    assert_eq!(host.fire(), 0);
    host.now.wall = UnixMicros(host.now.wall.0 + 3600 * SECOND);
    assert_eq!(host.fire(), 1);
    assert_eq!(host.state(&claimed.work), "ready");
}

/// T12
#[test]
fn a_parked_execution_goes_on_as_itself_and_one_that_cannot_resume_begins_anew() {
    for resumes in [true, false] {
        let (mut host, first) = running();
        let completed = host.wait(&first, &any(json!([on("k")])), resumes);
        assert_eq!((completed.parked, completed.state), (resumes, if resumes { "parked" } else { "succeeded" }));
        host.say(&answer("k"));
        let next = host.run();
        assert_eq!((next.execution == first.execution, next.resumed), (resumes, resumes));
        assert!(next.epoch > first.epoch);
        assert_eq!((next.segment, next.attempt), if resumes { (2, 1) } else { (1, 2) });
        host.complete(&next, &SegmentEnd::Succeeded);
        assert_eq!(host.state(&first.work), "succeeded");
    }
}

/// T12, M10
#[test]
fn cancelling_a_waiting_work_ends_its_wait_and_its_parked_execution() {
    let (mut host, claimed) = running();
    host.wait(&claimed, &any(json!([on("k")])), true);
    host.cancel_work(&claimed.work).unwrap();
    host.route();
    assert_eq!(host.waits(&claimed.work), ["cancelled"]);
    assert_eq!((host.execution_state(&claimed.execution).as_str(), host.open_predicates()), ("cancelled", 0));
    let late = host.say(&answer("k"));
    assert_eq!((host.state(&claimed.work).as_str(), host.input(&claimed.work, late).as_str()), ("cancelled", ""));
}

/// T12: a child that ends wakes the parent that waits for it, whether it ends before or after.
#[test]
fn children_that_have_finished_wake_their_parent_in_either_order() {
    for early in [true, false] {
        let mut host = Host::new();
        host.create("demo", &[]);
        let parent = host.run();
        let children = [host.create("demo", &[]), host.create("demo", &[])];
        let wait = all(children
            .iter()
            .map(|child| json!({"type": "core.work.finished", "work_id": child, "data": {"/state": "succeeded"}}))
            .collect());
        if !early {
            host.wait(&parent, &wait, false);
        }
        for _ in &children {
            let child = host.run();
            host.complete(&child, &SegmentEnd::Succeeded);
            host.route();
        }
        if early {
            host.wait(&parent, &wait, false);
        }
        assert_eq!(
            (host.state(&parent.work).as_str(), host.waits(&parent.work)),
            ("ready", vec!["matched".to_owned()])
        );
        host.run();
        let told = "SELECT count(*) FROM work_input i JOIN event e ON e.seq = i.seq WHERE e.type = 'core.work.finished' AND i.state = 'delivered'";
        assert_eq!(host.number(told), 2);
    }
}

/// What is to wake or interrupt a Work does so whether it comes just before or just after the wait is registered.
#[test]
fn a_wake_or_an_interruption_is_not_lost_to_a_wait_that_is_being_declared() {
    for effect in ["demo.wake", "demo.interrupt"] {
        for early in [true, false] {
            let (mut host, claimed) = running();
            let call = Said { key: Some("own"), ..said(effect) };
            let seq = if early { host.say(&call) } else { 0 };
            host.wait(&claimed, &any(json!([on("k")])), true);
            let seq = if early { seq } else { host.say(&call) };
            assert_eq!(
                (host.state(&claimed.work).as_str(), host.waits(&claimed.work)),
                ("ready", vec!["woken".to_owned()]),
                "{effect} {early}"
            );
            assert_eq!((host.input(&claimed.work, seq).as_str(), host.open_predicates()), ("queued", 0));
        }
    }
}

/// T12
#[test]
fn a_wait_for_what_an_execution_emits_looks_back_at_it() {
    let mut host = Host::new();
    host.create("demo", &[]);
    let emitter = host.run();
    let (scope, data) = (crate::support::scope("demo"), serde_json::Map::new());
    let from = source::execution(&emitter.execution);
    let event = NewEvent {
        work: Some(&emitter.work),
        execution: Some(&emitter.execution),
        ..NewEvent::new(&scope, "demo.told", &from, "1", &data)
    };
    host.write(|tx, now| events::accept(tx, &event, Bounds { depth_max: 9, per_minute: 9 }, now)).unwrap();
    host.route();

    let waits =
        |kind: &str, of: &str| json!({"mode": "any", "predicates": [{"type": kind, "source": of}], "watermark": 0});
    let unknown = source::execution(&conduit_api::ExecutionId::from_parts(9, 9));
    for (kind, of, state) in [
        ("demo.told", from.as_str(), "ready"),
        ("demo.other", from.as_str(), "waiting"),
        ("demo.told", &unknown, "waiting"),
    ] {
        let work = host.create("demo", &[]);
        let running = host.run();
        host.wait(&running, &waits(kind, of), false);
        assert_eq!(host.state(&work), state, "{kind} of {of}");
        if state == "ready" {
            host.run();
        }
    }
}
