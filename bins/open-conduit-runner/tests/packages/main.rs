//! Installed packages with the real runner: the example, and packages that do everything wrong.

mod world;

use std::time::{Duration, Instant};

use conduit_extension::{Failure, GateAnswer, GateCall, Invoked};
use serde_json::json;
use world::{World, locally, until};

/// X01
#[test]
fn the_python_example_counts_waits_refuses_and_judges() {
    locally(async {
        let world = World::new();
        let words = world.example();
        let Ok(Invoked::Output(output)) = words.invoke(&world.call("words.count", json!({"text": "a bee see"}))).await
        else {
            panic!("it counts")
        };
        assert_eq!(output, json!({"words": 3, "longest": "bee"}));
        let waits = words.invoke(&world.call("words.expect", json!({"word": "bee"}))).await;
        let Ok(Invoked::Wait(plan)) = waits else { panic!("{waits:?}") };
        assert_eq!((plan.wait.predicates[0].kind.as_str(), plan.output), ("words.arrived", json!({"expected": "bee"})));
        let refused = words.invoke(&world.call("words.count", json!({"text": " "}))).await;
        assert!(matches!(&refused, Err(Failure::Refused(refusal)) if refusal.code == "no_words"), "{refused:?}");
        let judged = words.gate(&world.question(json!({"text": "harmless"}))).await;
        assert_eq!(judged, Ok(GateAnswer::LetThrough));
        let judged = words.gate(&world.question(json!({"text": "my Password"}))).await;
        assert!(matches!(&judged, Ok(GateAnswer::Refuse(refusal)) if refusal.code == "forbidden_word"), "{judged:?}");
        assert_eq!(world.failing("words"), None);
        assert_eq!(world.unended(), 1, "one process answered it all");
        world.pool.close().await;
        assert_eq!(world.unended(), 0);
    });
}

/// X01
#[test]
fn the_rust_example_sums_emits_and_judges_by_its_setting() {
    locally(async {
        let world = World::new();
        let tally = world.rust_example();
        let sum = tally.invoke(&world.call("tally.sum", json!({"numbers": [1, 2, 39]}))).await;
        assert!(matches!(&sum, Ok(Invoked::Output(output)) if *output == json!({"sum": 42})), "{sum:?}");
        let report = tally.invoke(&world.call("tally.report", json!({"numbers": [1, 2]}))).await;
        let Ok(Invoked::Emission(event)) = report else { panic!("{report:?}") };
        assert_eq!((event.kind.as_str(), json!(event.data)), ("tally.reported", json!({"sum": 3, "count": 2})));
        let refused = tally.invoke(&world.call("tally.sum", json!({"numbers": [i64::MAX, 1]}))).await;
        assert!(matches!(&refused, Err(Failure::Refused(refusal)) if refusal.code == "too_large"), "{refused:?}");
        let question = world.question(json!({"text": "more than ten bytes"}));
        assert_eq!(tally.gate(&question).await, Ok(GateAnswer::LetThrough));
        let judged = tally.gate(&GateCall { settings: json!({"input_bytes_max": 10}), ..question }).await;
        assert!(matches!(&judged, Ok(GateAnswer::Refuse(refusal)) if refusal.code == "input_too_large"), "{judged:?}");
        assert_eq!(world.failing("tally"), None);
        world.pool.close().await;
        assert_eq!(world.unended(), 0);
    });
}

/// X01, K02
#[test]
fn a_package_runs_under_the_limits_of_its_manifest() {
    locally(async {
        let world = World::new();
        let odd = world.package("limits");
        let Ok(Invoked::Output(limits)) = odd.invoke(&world.call("odd.do", json!({}))).await else { panic!("it says") };
        let expected = json!({
            "memory": [96 << 20, 96 << 20], "files": [64, 64], "file": [2 << 20, 2 << 20], "core": [0, 0],
            "no_new_privileges": true,
        });
        assert_eq!(limits, expected);
        world.pool.close().await;
    });
}

/// X01
#[test]
fn a_package_that_takes_memory_or_disk_without_end_is_ended_by_its_limit_and_works_again_after_it() {
    for mode in ["hoard", "scribble"] {
        locally(async {
            let world = World::new();
            let odd = world.package(mode);
            let failed = odd.invoke(&world.call("odd.do", json!({}))).await;
            assert!(matches!(failed, Err(Failure::Failed(_))), "{mode}: {failed:?}");
            until("its end is on record", || world.unended() == 0).await;
            assert!(world.failing("odd").is_some());
            world.mend();
            until("its pause is over", || world.rested()).await;
            let works = odd.invoke(&world.call("odd.do", json!({}))).await;
            assert!(matches!(&works, Ok(Invoked::Output(output)) if output["mode"] == "good"), "{mode}: {works:?}");
            assert_eq!(world.failing("odd"), None);
            world.pool.close().await;
        });
    }
}

/// X01
#[test]
fn many_questions_are_under_way_at_once_and_each_gets_its_own_answer() {
    locally(async {
        let world = World::new();
        let words = world.example();
        let asked: Vec<_> = (1..100_usize)
            .map(|n| {
                let (words, call) = (words.clone(), world.call("words.count", json!({"text": "w ".repeat(n)})));
                tokio::task::spawn_local(async move { (n, words.invoke(&call).await) })
            })
            .collect();
        for answer in asked {
            let (n, answered) = answer.await.unwrap();
            assert!(matches!(answered, Ok(Invoked::Output(output)) if output["words"] == n));
        }
        world.pool.close().await;
    });
}

/// X01
#[test]
fn a_package_that_nobody_asks_anything_ends_and_is_started_again_when_somebody_does() {
    locally(async {
        let world = World::new();
        let good = world.package("good");
        for _ in 0..2 {
            assert!(matches!(good.invoke(&world.call("odd.do", json!({}))).await, Ok(Invoked::Output(_))));
            until("it has ended", || world.unended() == 0).await;
        }
        assert_eq!((world.failing("odd"), world.started()), (None, 2));
    });
}

/// X01, T16: what a package says at `initialize` is what its manifest says, or it is not asked anything.
#[test]
fn a_package_that_lies_about_itself_is_refused_before_it_is_asked_anything() {
    for (mode, told) in [
        ("name", "its name is not"),
        ("version", "its version is not"),
        ("operations", "its list of operations is not"),
        ("gate", "its list of gates is not"),
        ("executors", "its list of executors is not"),
        ("protocol", "it speaks version 7 of the protocol"),
        ("shape", "its answer to `initialize` is none"),
        ("mute", "it did not answer `initialize` in time"),
    ] {
        locally(async {
            let world = World::new();
            let package = world.package(mode);
            let answered = package.invoke(&world.call("odd.do", json!({}))).await;
            assert!(matches!(&answered, Err(Failure::Unavailable(why)) if why.contains(told)), "{mode}: {answered:?}");
            assert!(world.failing("odd").unwrap().contains(told), "{mode}");
            until("its process is gone", || world.unended() == 0).await;
        });
    }
}

/// X01: whatever it does wrong ends its own process, is said in health, and nothing else.
#[test]
fn a_package_that_misbehaves_is_ended_and_told_and_works_again_when_it_can() {
    for (mode, told) in [
        ("crash", "ended or closed its output"),
        ("hang", "neither a question in time nor its cancellation"),
        ("deaf", "neither a question in time nor its cancellation"),
        ("flood", "a line of its output is longer"),
        ("huge", "a line of its output is longer"),
        ("chatter", "a line is no answer"),
        ("unasked", "a question that was not asked"),
        ("nonsense", "its answer is none"),
    ] {
        locally(async {
            let world = World::new();
            let (package, words) = (world.package(mode), world.example());
            let answered = package.invoke(&world.call("odd.do", json!({}))).await;
            assert!(matches!(answered, Err(Failure::Failed(_))), "{mode}: {answered:?}");
            until("health tells it", || world.failing("odd").is_some_and(|why| why.contains(told))).await;
            until("its process is gone", || world.unended() == 0).await;
            let count = words.invoke(&world.call("words.count", json!({"text": "still here"}))).await;
            assert!(matches!(count, Ok(Invoked::Output(_))), "{mode}: another package goes on");
            // The file is what makes it behave; its bytes are not part of the package.
            world.mend();
            until("its pause is over", || world.rested()).await;
            let answered = package.invoke(&world.call("odd.do", json!({}))).await;
            assert!(matches!(answered, Ok(Invoked::Output(_))), "{mode}: {answered:?}");
            assert_eq!(world.failing("odd"), None, "{mode}");
            world.pool.close().await;
        });
    }
}

/// X01, G04
#[test]
fn a_gate_that_answers_nonsense_fails_and_is_ended() {
    locally(async {
        let world = World::new();
        let gate = world.package("nonsense_gate");
        let judged = gate.gate(&world.question(json!({}))).await;
        assert!(matches!(judged, Err(Failure::Failed(_))), "{judged:?}");
        until("its process is gone", || world.unended() == 0).await;
    });
}

/// X01
#[test]
fn a_package_that_keeps_crashing_is_left_alone_longer_and_longer() {
    locally(async {
        let world = World::new();
        let package = world.package("crash");
        for failures in 1..=3 {
            let answered = package.invoke(&world.call("odd.do", json!({}))).await;
            assert!(matches!(answered, Err(Failure::Failed(_))), "{answered:?}");
            until("its process is gone", || world.unended() == 0).await;
            assert_eq!(world.started(), failures);
            // At once it is not started again.
            let answered = package.invoke(&world.call("odd.do", json!({}))).await;
            assert!(
                matches!(&answered, Err(Failure::Unavailable(why)) if why.contains("after a pause")),
                "{answered:?}"
            );
            assert_eq!(world.started(), failures);
            let began = Instant::now();
            until("its pause is over", || began.elapsed() > world::BOUNDS.pause * (1 << failures)).await;
        }
    });
}

/// X01
#[test]
fn changed_bytes_are_not_started() {
    locally(async {
        let world = World::new();
        let package = world.package("good");
        world.change("odd");
        let answered = package.invoke(&world.call("odd.do", json!({}))).await;
        assert!(matches!(&answered, Err(Failure::Unavailable(why)) if why.contains("bytes changed")), "{answered:?}");
        assert!(world.failing("odd").unwrap().contains("bytes changed"));
        assert_eq!(world.started(), 0);
    });
}

/// X01, K10
#[test]
fn what_a_daemon_that_died_left_running_is_ended_by_the_next_one() {
    locally(async {
        let world = World::new();
        let deaf = world.package("outlives");
        assert!(matches!(deaf.invoke(&world.call("odd.do", json!({}))).await, Ok(Invoked::Output(_))));
        assert_eq!(world.unended(), 1);
        let next = world.another_pool();
        tokio::time::timeout(Duration::from_secs(30), next.recover()).await.unwrap();
        assert_eq!(world.unended(), 0);
    });
}
