//! What a new host does about the requests that an earlier one left behind, before anybody asks for them (T14, T15).

use std::rc::Rc;

use conduit_extension::Invoked;
use conduit_extension::host::ExtensionHost;
use conduit_store::{Clock, Now};
use conduit_toolbelt::sweep;
use serde_json::json;

use crate::support::{Speaker, World, locally};

const INTENTS: &str = "SELECT request_id || ' ' || state FROM intent ORDER BY request_id";

/// A world in which the first host died while it ran each of `requests`, and its next host.
async fn left(requests: &[(&str, &str)]) -> (World, Speaker, Rc<ExtensionHost>) {
    let (mut world, lab, host) = World::lab();
    let speaker = world.speaker();
    lab.does(|_| async { std::future::pending().await });
    for (operation, id) in requests {
        let (host, call) = (Rc::clone(&host), speaker.request(operation, id, json!({"n": 1})));
        tokio::task::spawn_local(async move { host.call(call).await });
        while !world.texts("store.db", INTENTS).iter().any(|intent| intent.starts_with(id)) {
            tokio::task::yield_now().await;
        }
    }
    lab.does(|_| async { Ok(Invoked::Output(json!("again"))) });
    let next = world.host("second");
    (world, speaker, next)
}

fn end(world: &mut World, now: Now) {
    world.sql(&format!("UPDATE execution SET state = 'failed', finished_at_us = {}", now.wall.0));
}

/// T14: whoever asks for it again, or nobody.
#[tokio::test]
async fn what_may_not_run_twice_is_in_doubt_from_the_next_start_on_and_what_may_can_be_asked_for_again() {
    locally(async {
        let (world, speaker, host) = left(&[("lab.do", "again"), ("lab.once", "once")]).await;
        for step in 0..3 {
            let settled = host.settle_left_behind().unwrap();
            assert_eq!((settled.doubted, settled.dropped), (usize::from(step == 0), 0), "{step}");
            assert_eq!(world.texts("store.db", INTENTS), ["again running", "once in_doubt"], "{step}");
        }
        assert_eq!(
            speaker.refusal(&host, "lab.do", "again", 2).await,
            "request_conflict",
            "it is still known by its body"
        );
        assert_eq!(speaker.call(&host, "lab.do", "again", 1).await.unwrap().output, json!("again"));
        assert_eq!(speaker.refusal(&host, "lab.once", "once", 1).await, "in_doubt");
        assert_eq!(host.settle_left_behind().unwrap().doubted, 0);
    })
    .await;
}

/// T14, T15
#[tokio::test]
async fn of_an_execution_that_has_ended_a_doubt_is_told_and_what_could_run_again_is_dropped() {
    locally(async {
        let (mut world, _, host) = left(&[("lab.do", "again"), ("lab.once", "once")]).await;
        end(&mut world, Clock.now());
        let settled = host.settle_left_behind().unwrap();
        assert_eq!((settled.doubted, settled.dropped), (1, 1));
        assert_eq!(world.texts("store.db", INTENTS), ["once in_doubt"]);
        assert_eq!(host.settle_left_behind().unwrap().dropped, 0);
    })
    .await;
}

/// T14: all of it or nothing, and whole at the next try.
#[tokio::test]
async fn a_settling_that_breaks_at_any_point_changes_nothing_and_is_done_by_the_next_start() {
    locally(async {
        for point in ["UPDATE ON intent", "DELETE ON intent"] {
            let (mut world, _, host) = left(&[("lab.do", "again"), ("lab.once", "once")]).await;
            end(&mut world, Clock.now());
            world.sql(&format!("CREATE TRIGGER broken BEFORE {point} BEGIN SELECT RAISE(ABORT, 'broken'); END"));
            host.settle_left_behind().unwrap_err();
            assert_eq!(world.texts("store.db", INTENTS), ["again running", "once running"], "{point}");
            world.sql("DROP TRIGGER broken");
            let third = world.host("third");
            assert_eq!(third.settle_left_behind().unwrap().doubted, 1, "{point}");
            assert_eq!(world.texts("store.db", INTENTS), ["once in_doubt"], "{point}");
        }
    })
    .await;
}

/// T14: a host's own requests are under way, and its start comes before them.
#[tokio::test]
async fn what_this_very_host_runs_is_none_of_what_was_left_behind() {
    locally(async {
        let (world, _, _) = left(&[("lab.once", "once")]).await;
        let same = world.host("first");
        assert_eq!(same.settle_left_behind().unwrap().doubted, 0);
        assert_eq!(world.texts("store.db", INTENTS), ["once running"]);
    })
    .await;
}

/// T15: what is left of an execution goes a day after its end, and a doubt after thirty.
#[tokio::test]
async fn intents_of_an_execution_that_has_ended_are_swept_and_those_of_a_living_one_are_not() {
    locally(async {
        let (mut world, _, host) = left(&[("lab.do", "again"), ("lab.once", "once")]).await;
        host.settle_left_behind().unwrap();
        let now = Clock.now();
        let sweep = |world: &mut World, after_us: i64| {
            world.store.write(|tx| sweep::sweep(tx, now.plus(after_us))).unwrap();
            world.texts("store.db", INTENTS)
        };
        let both = ["again running", "once in_doubt"];
        world.sql("DELETE FROM token");
        assert_eq!(sweep(&mut world, 100 * sweep::DOUBT_KEEP_US), both, "its execution lives");
        end(&mut world, now);
        let due = world.store.read(|r| sweep::next_due(r, now.plus(1))).unwrap();
        assert_eq!(due, now.wall.0 + sweep::KEEP_US);
        assert_eq!(sweep(&mut world, sweep::KEEP_US - 1), both);
        world.sql("CREATE TRIGGER broken BEFORE DELETE ON intent BEGIN SELECT RAISE(ABORT, 'broken'); END");
        world.store.write(|tx| sweep::sweep(tx, now.plus(sweep::KEEP_US))).unwrap_err();
        world.sql("DROP TRIGGER broken");
        for _ in 0..2 {
            assert_eq!(sweep(&mut world, sweep::KEEP_US), ["once in_doubt"]);
        }
        assert_eq!(sweep(&mut world, sweep::DOUBT_KEEP_US - 1), ["once in_doubt"]);
        for _ in 0..2 {
            assert_eq!(sweep(&mut world, sweep::DOUBT_KEEP_US), Vec::<String>::new());
        }
    })
    .await;
}
