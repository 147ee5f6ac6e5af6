//! What an Event leads to: six effects, each in each state that a Work can be in.

use crate::support::{Host, SECOND, failed, said};
use conduit_api::{Code, WorkId};
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::{self, Delivery, NewEvent, source};
use conduit_coordination::executions::SegmentEnd;
use conduit_coordination::routing;
use serde_json::json;

const EFFECTS: [&str; 6] = ["start", "queue", "inject", "interrupt", "wake", "drop"];

/// A Work that owns the key `k` and stands in `state`.
fn standing(host: &mut Host, state: &str) -> WorkId {
    let work = host.create("demo", &["k"]);
    if state == "ready" {
        return work;
    }
    let running = host.run();
    match state {
        "running" => {}
        "waiting" => {
            host.wait(&running, &json!({"mode": "any", "predicates": [{"type": "demo.never"}]}), false);
        }
        "parked" => {
            host.wait(&running, &json!({"mode": "any", "predicates": [{"type": "demo.never"}]}), true);
        }
        "blocked" => {
            host.complete(&running, &SegmentEnd::Lost { started: true });
        }
        "succeeded" => {
            host.complete(&running, &SegmentEnd::Succeeded);
        }
        "failed" => {
            host.complete(&running, &failed(Code::ExecutableUnavailable, false));
        }
        _ => host.cancel_work(&work).unwrap(),
    }
    host.route();
    work
}

/// What one effect makes of a Work in one state: how the Event is routed, the Work's state after, and its input's.
fn outcome(state: &str, effect: &str) -> (String, String, String) {
    let mut host = Host::new();
    let work = standing(&mut host, state);
    let kind = format!("demo.{effect}");
    // An ended Work owns no key any more; an operator can name it still.
    let ended = ["succeeded", "failed", "cancelled"].contains(&state);
    let about = (ended || effect == "wake").then(|| work.clone());
    let seq = host.say(&crate::support::Said { key: Some("k"), work: about, ..said(&kind) });
    (host.routed(seq), host.state(&work), host.input(&work, seq))
}

#[test]
fn every_effect_does_what_it_says_in_every_state_of_a_work() {
    let rows = [
        // state      effect       the Event    the Work                     its input
        ("ready", "start", "queue", "ready", "queued"),
        ("ready", "queue", "queue", "ready", "queued"),
        ("ready", "inject", "inject", "ready", "queued"),
        ("ready", "interrupt", "interrupt", "ready", "queued"),
        ("ready", "wake", "wake", "ready", "queued"),
        ("running", "start", "queue", "running", "queued"),
        ("running", "queue", "queue", "running", "queued"),
        ("running", "inject", "inject", "running", "delivered"),
        ("running", "interrupt", "interrupt", "running", "queued"),
        ("running", "wake", "wake", "running", "queued"),
        ("waiting", "start", "queue", "waiting", "queued"),
        ("waiting", "queue", "queue", "waiting", "queued"),
        ("waiting", "inject", "inject", "waiting", "queued"),
        ("waiting", "interrupt", "interrupt", "ready", "queued"),
        ("waiting", "wake", "wake", "ready", "queued"),
        ("parked", "queue", "queue", "waiting", "queued"),
        ("parked", "inject", "inject", "waiting", "queued"),
        ("parked", "interrupt", "interrupt", "ready", "queued"),
        ("parked", "wake", "wake", "ready", "queued"),
        ("blocked", "start", "queue", "blocked:ambiguous_dispatch", "queued"),
        ("blocked", "queue", "queue", "blocked:ambiguous_dispatch", "queued"),
        ("blocked", "inject", "inject", "blocked:ambiguous_dispatch", "queued"),
        ("blocked", "interrupt", "interrupt", "blocked:ambiguous_dispatch", "queued"),
        ("blocked", "wake", "wake", "blocked:ambiguous_dispatch", "queued"),
    ];
    for (state, effect, routed, after, input) in rows {
        let found = outcome(state, effect);
        assert_eq!(found, (routed.into(), after.into(), input.into()), "{effect} on a {state} Work");
    }
    for state in ["ready", "running", "waiting", "parked", "blocked", "succeeded", "failed", "cancelled"] {
        assert_eq!(outcome(state, "drop").0, "drop", "{state}");
        assert_eq!(outcome(state, "drop").2, "", "what is dropped is no input of a {state} Work");
    }
}

#[test]
fn an_ended_work_hears_nothing_more_and_its_key_is_free_for_the_next() {
    for state in ["succeeded", "failed", "cancelled"] {
        for effect in ["queue", "inject", "interrupt", "wake"] {
            assert_eq!(
                outcome(state, effect),
                ("unmatched".into(), state.into(), String::new()),
                "{effect} on {state}"
            );
        }
        let mut host = Host::new();
        let old = standing(&mut host, state);
        let seq = host.say(&crate::support::Said { key: Some("k"), ..said("demo.start") });
        assert_eq!(host.routed(seq), "start");
        let new = host.started_by(seq);
        assert_ne!(new, old);
        assert_eq!(host.text("SELECT work_id FROM work_key WHERE key = 'k' AND active = 1"), new.as_str());
    }
}

#[test]
fn without_a_work_to_go_to_only_a_start_does_anything() {
    for effect in EFFECTS {
        let mut host = Host::new();
        let seq = host.say(&crate::support::Said { key: Some("k"), ..said(&format!("demo.{effect}")) });
        let expected = if matches!(effect, "start" | "drop") { effect } else { "unmatched" };
        assert_eq!(host.routed(seq), expected);
        assert_eq!(host.number("SELECT count(*) FROM work"), i64::from(effect == "start"));
    }
}

#[test]
fn a_second_start_on_an_owned_key_queues_so_that_one_key_has_one_work() {
    let mut host = Host::new();
    let first = host.say(&crate::support::Said { key: Some("k"), ..said("demo.start") });
    let second = host.say(&crate::support::Said { key: Some("k"), ..said("demo.start") });
    let work = host.started_by(first);
    assert_eq!((host.routed(second).as_str(), host.input(&work, second).as_str()), ("queue", "queued"));
    let running = host.run();
    assert_eq!(running.work, work);
    assert_eq!((host.input(&work, first).as_str(), host.input(&work, second).as_str()), ("delivered", "delivered"));
    assert_eq!(host.number("SELECT acknowledged FROM execution"), second);
}

#[test]
fn an_event_of_a_disabled_scope_is_kept_and_starts_nothing() {
    let mut host = Host::new();
    let seq = host.say(&crate::support::Said { scope: "off", ..said("demo.start") });
    assert_eq!(host.routed(seq), "unmatched");
    assert_eq!(host.number("SELECT count(*) FROM work"), 0);
}

/// T08
#[test]
fn a_chain_at_its_depth_starts_nothing_more_and_does_not_stop_routing() {
    let mut host = Host::new();
    host.snapshot.config.limits.causal_depth_max = 0;
    let bounded = host.say(&said("demo.start"));
    host.snapshot.config.limits.causal_depth_max = 40;
    let free = host.say(&said("demo.start"));
    assert_eq!((host.routed(bounded).as_str(), host.routed(free).as_str()), ("unmatched", "start"));
}

#[test]
fn routing_an_event_twice_is_routing_it_once() {
    let mut host = Host::new();
    host.say(&said("demo.start"));
    let before = host.number("SELECT count(*) FROM work");
    host.route();
    assert_eq!(host.number("SELECT count(*) FROM work"), before);
    assert_eq!(host.number("SELECT count(*) FROM event WHERE route IS NULL"), 0);
}

#[test]
fn what_no_segment_has_seen_when_its_work_ends_is_routed_again() {
    let mut host = Host::new();
    host.create("demo", &["k"]);
    let running = host.run();
    let late = host.say(&crate::support::Said { key: Some("k"), ..said("demo.start") });
    assert_eq!(host.routed(late), "queue");
    host.complete(&running, &SegmentEnd::Succeeded);
    assert_eq!(host.routed(late), "", "it is pending again");
    host.route();
    assert_eq!(host.routed(late), "start");
    let next = host.started_by(late);
    assert_ne!(next, running.work);
    assert_eq!(host.state(&next), "ready");
}

#[test]
fn cancelling_a_work_that_never_ran_does_not_start_it_again() {
    let mut host = Host::new();
    let seq = host.say(&crate::support::Said { key: Some("k"), ..said("demo.start") });
    let work = host.started_by(seq);
    host.cancel_work(&work).unwrap();
    host.route();
    assert_eq!(host.texts("SELECT state FROM work"), ["cancelled"]);
    assert_eq!(host.routed(seq), "start");
    // And when it is retried after all, it still has what it was made for.
    host.retry(&work).unwrap();
    host.route();
    let running = host.run();
    assert_eq!((running.work.clone(), host.input(&work, seq).as_str()), (work, "delivered"));
}

#[test]
fn an_interrupted_segment_is_told_again_of_everything_and_of_what_interrupted_it() {
    let mut host = Host::new();
    let first = host.say(&crate::support::Said { key: Some("k"), ..said("demo.start") });
    let running = host.run();
    let interrupting = host.say(&crate::support::Said { key: Some("k"), ..said("demo.interrupt") });
    assert_eq!(host.text("SELECT stop_reason FROM execution"), "interrupted");
    host.pass(SECOND);
    let completed = host.complete(&running, &SegmentEnd::Stopped);
    assert_eq!((completed.state, completed.work_state), ("cancelled", "ready"));
    assert_eq!(host.number("SELECT failures FROM work"), 0);
    let again = host.run();
    for seq in [first, interrupting] {
        assert_eq!(host.input(&again.work, seq), "delivered");
    }
}

/// What one Work waited for and another was given: the end of the first is not the Event's end.
#[test]
fn an_event_that_another_work_was_given_does_not_happen_again_when_the_one_that_waited_for_it_ends() {
    for effect in ["start", "queue", "inject", "interrupt"] {
        let mut host = Host::new();
        let waiting = host.create("demo", &[]);
        let running = host.run();
        let kind = format!("demo.{effect}");
        host.wait(&running, &json!({"mode": "any", "predicates": [{"type": kind, "correlation_key": "k"}]}), false);
        let owner = host.create("demo", &["k"]);
        host.pass(SECOND);
        let seq = host.say(&crate::support::Said { key: Some("k"), ..said(&kind) });
        let routed = host.routed(seq);
        assert_eq!(
            (host.input(&waiting, seq), host.input(&owner, seq)),
            ("queued".into(), "queued".into()),
            "{effect}"
        );
        let told = host.run();
        assert_eq!(told.work, owner);
        host.complete(&told, &SegmentEnd::Succeeded);
        host.cancel_work(&waiting).unwrap();
        host.route();
        assert_eq!(host.routed(seq), routed, "{effect}");
        assert_eq!(host.number("SELECT count(*) FROM work"), 2, "{effect} started no third Work");
    }
}

#[test]
fn an_event_that_ended_a_wait_says_so_whatever_becomes_of_the_work_that_waited() {
    let mut host = Host::new();
    let work = host.create("demo", &["k"]);
    let running = host.run();
    host.wait(&running, &json!({"mode": "any", "predicates": [{"type": "demo.answer"}]}), false);
    let seq = host.say(&crate::support::Said { key: Some("k"), ..said("demo.answer") });
    host.cancel_work(&work).unwrap();
    host.route();
    assert_eq!(host.routed(seq), "wake");
}

/// T08
#[test]
fn what_an_emitter_was_told_is_accepted_starts_its_work_however_fast_the_chain_is() {
    let mut host = Host::new();
    host.snapshot.config.limits.causal_per_minute = 10;
    let root = host.accept(&said("demo.root"));
    let root = host.event_id(root);
    let emit =
        |host: &mut Host| host.try_accept(&crate::support::Said { cause: Some(root.clone()), ..said("demo.start") });
    for _ in 0..8 {
        emit(&mut host).unwrap();
    }
    host.route();
    assert_eq!(host.number("SELECT count(*) FROM work"), 8);
    // And what was made of them leaves the emitter its rate.
    for _ in 8..10 {
        emit(&mut host).unwrap();
    }
    assert!(matches!(emit(&mut host), Err(conduit_coordination::Error::CausalRateExceeded { .. })));
}

/// T12
#[test]
fn what_is_injected_into_a_segment_that_can_hear_nothing_more_is_not_lost() {
    let mut host = Host::new();
    let work = host.create("demo", &["k"]);
    let inject = crate::support::Said { key: Some("k"), ..said("demo.inject") };
    let running = host.run();
    let heard = host.say(&inject);
    host.declare(&running, "outcome", &json!({"status": "succeeded"}));
    let unheard = host.say(&inject);
    assert_eq!((host.input(&work, heard), host.input(&work, unheard)), ("delivered".into(), "queued".into()));
    host.complete(&running, &SegmentEnd::Succeeded);
    assert_eq!((host.routed(heard).as_str(), host.routed(unheard).as_str()), ("inject", ""), "it goes back to routing");

    let work = host.create("demo", &["k"]);
    let running = host.run();
    host.say(&crate::support::Said { key: Some("k"), ..said("demo.interrupt") });
    let unheard = host.say(&inject);
    assert_eq!(host.input(&work, unheard), "queued", "nor is a segment told that is being stopped");
    host.complete(&running, &SegmentEnd::Stopped);
}

/// Accepts an Event as a call does that settles it at once if nobody wants it; how it is routed then.
fn settled(host: &mut Host, kind: &str, delivery: &str) -> String {
    let (scope, data) = (crate::support::scope("demo"), serde_json::Map::new());
    let event = NewEvent::new(&scope, kind, source::MANUAL, delivery, &data);
    let snapshot = host.snapshot.clone();
    let seq = host
        .write(|tx, now| {
            let route = routing::unwanted(tx, &snapshot, &event)?;
            let Delivery::Unknown(delivery) = events::look_up(tx, &event)? else { panic!("{kind} is new") };
            Ok(delivery.accept(tx, Bounds::of(&snapshot), route, now)?.sequence)
        })
        .unwrap();
    host.text(&format!("SELECT coalesce(route, 'pending') FROM event WHERE seq = {seq}"))
}

/// T12
#[test]
fn an_event_that_nobody_wants_is_settled_where_it_is_accepted_and_any_other_has_its_turn() {
    let mut host = Host::new();
    assert_eq!(settled(&mut host, "demo.told", "0"), "pending", "routes count as they are now, and none are active");
    host.publish();
    assert_eq!(settled(&mut host, "demo.told", "1"), "unmatched");
    assert_eq!(settled(&mut host, "demo.drop", "2"), "drop");
    for effect in ["start", "queue", "inject", "interrupt", "wake"] {
        assert_eq!(settled(&mut host, &format!("demo.{effect}"), effect), "pending");
    }
    host.route();

    let waits = json!({"mode": "any", "predicates": [{"type": "demo.told", "source": "core.manual"}]});
    let work = host.create("demo", &[]);
    let running = host.run();
    assert_eq!(settled(&mut host, "demo.told", "3"), "unmatched", "nothing waits for it yet");
    host.wait(&running, &waits, false);
    assert_eq!(host.state(&work), "ready", "a wait looks back at what was settled");

    let running = host.run();
    let later = json!({"mode": "any", "predicates": [{"type": "demo.later", "source": "core.manual"}]});
    host.wait(&running, &later, false);
    assert_eq!(settled(&mut host, "demo.later", "4"), "pending", "a wait is open for its type");
    host.route();
    assert_eq!(host.state(&work), "ready");
}
