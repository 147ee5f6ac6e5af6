//! Operations that translate to a Wait or to an Event (T17).

use std::rc::Rc;

use conduit_api::toolbelt::EmitInput;
use conduit_extension::{Invoked, WaitPlan};
use serde_json::{Value, json};

use crate::support::{Barrier, World, locally};

fn plan(kind: &str) -> WaitPlan {
    let wait = serde_json::from_value(json!({"mode": "any", "predicates": [{"type": kind}]})).unwrap();
    WaitPlan { wait, output: json!({"ticket": 7}) }
}

fn event(event: Value) -> EmitInput {
    serde_json::from_value(event).unwrap()
}

/// T17, T11
#[tokio::test]
async fn a_translated_wait_is_declared_like_one_of_the_callers_own() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|_| async { Ok(Invoked::Wait(plan("lab.ready"))) });
        let response = speaker.call(&host, "lab.wait", "r", 1).await.unwrap();
        assert_eq!(response.output, json!({"ticket": 7}));
        assert_eq!(response.declared, Some(plan("lab.ready").wait));
        let declared = world.texts("store.db", "SELECT kind || ' ' || body FROM declaration");
        assert_eq!(declared.len(), 1);
        assert!(declared[0].starts_with("wait ") && declared[0].contains("lab.ready"), "{declared:?}");
        assert_eq!(speaker.refusal(&host, "lab.wait", "r", 1).await, "authority_released");
        assert_eq!(lab.invoked.borrow().len(), 1);
        assert!(world.intents().is_empty());
    })
    .await;
}

/// T07, T17: what a handler takes its time over is decided by the configuration that is active when it is done.
#[tokio::test]
async fn what_a_generation_revokes_while_a_handler_runs_is_neither_declared_nor_emitted() {
    locally(async {
        for (operation, narrowed) in [("lab.wait", "enabled"), ("lab.emit", "enabled"), ("lab.emit", "events")] {
            let (mut world, lab, host) = World::lab();
            let speaker = world.speaker();
            let barrier = Rc::new(Barrier::default());
            let waits = Rc::clone(&barrier);
            lab.does(move |call| {
                let waits = Rc::clone(&waits);
                async move {
                    waits.pass().await;
                    if call.operation == "lab.wait" {
                        return Ok(Invoked::Wait(plan("lab.ready")));
                    }
                    Ok(Invoked::Emission(event(json!({"type": "lab.seen"}))))
                }
            });
            let revoked = async {
                barrier.reached().await;
                world.publish(|config| match narrowed {
                    "enabled" => config["scopes"]["demo"]["enabled"] = json!(false),
                    _ => {
                        config["scopes"]["demo"]["events"] = json!([]);
                        config["scopes"]["demo"]["bindings"]["worker"]["events"] = json!([]);
                    }
                });
                barrier.open();
            };
            let (answer, ()) = tokio::join!(speaker.call(&host, operation, "r", 1), revoked);
            let code = if narrowed == "enabled" { "forbidden" } else { "event_not_allowed" };
            assert_eq!(answer.unwrap_err().code_text(), code, "{operation} {narrowed}");
            let rows = ["declaration", "replay", "intent"].map(|table| world.count(table));
            assert_eq!(rows, [0, 0, 0], "{operation} {narrowed}");
            assert!(world.texts("store.db", "SELECT type FROM event WHERE type = 'lab.seen'").is_empty());
        }
    })
    .await;
}

/// T17, G03: what it may not wait for, and what is no Wait.
#[tokio::test]
async fn a_plan_outside_the_extensions_wait_families_or_of_the_wrong_kind_declares_nothing() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let empty = WaitPlan {
            wait: serde_json::from_value(json!({"mode": "any", "predicates": []})).unwrap(),
            ..plan("lab.x")
        };
        let answers = [
            (Invoked::Wait(plan("other.ready")), "extension_unavailable"),
            (Invoked::Wait(plan("core.manual")), "extension_unavailable"),
            (Invoked::Wait(empty), "extension_unavailable"),
            (Invoked::Output(json!(1)), "extension_unavailable"),
            (Invoked::Emission(event(json!({"type": "lab.seen"}))), "extension_unavailable"),
        ];
        for (answer, code) in answers {
            let shown = format!("{answer:?}");
            lab.does(move |_| {
                let answer = answer.clone();
                async { Ok(answer) }
            });
            assert_eq!(speaker.refusal(&host, "lab.wait", "r", 1).await, code, "{shown}");
            assert_eq!(
                (world.count("declaration"), world.count("replay"), world.count("intent")),
                (0, 0, 0),
                "{shown}"
            );
        }
        speaker.call(&host, "lab.do", "r", 1).await.unwrap_err(); // the last answer is wrong there too, and authority is kept
    })
    .await;
}

/// T17, T14: under the longest request ID too.
#[tokio::test]
async fn a_translated_emission_is_accepted_once_and_its_answer_replayed_without_asking_again() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|call| async move {
            Ok(Invoked::Emission(event(json!({"type": "lab.seen", "data": {"n": call.input["n"]}}))))
        });
        let id = "r".repeat(conduit_api::limits::REQUEST_ID_BYTES_MAX);
        let first = speaker.call(&host, "lab.emit", &id, 1).await.unwrap();
        for instance in [Rc::clone(&host), world.host("second")] {
            let again = speaker.call(&instance, "lab.emit", &id, 1).await.unwrap();
            assert!(again.replayed && again.output == first.output);
            assert_eq!(speaker.refusal(&instance, "lab.emit", &id, 2).await, "request_conflict");
        }
        assert_eq!(lab.invoked.borrow().len(), 1);
        let own = format!("execution_id = '{}'", speaker.claimed.execution);
        let attributed = world
            .texts("store.db", &format!("SELECT type || ' ' || data || (cause_id IS NOT NULL) FROM event WHERE {own}"));
        assert_eq!(attributed, ["lab.seen {\"n\":1}1"]);
    })
    .await;
}

/// T17, T08
#[tokio::test]
async fn a_translated_emission_passes_the_checks_of_emit() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let refused = [
            (json!({"type": "other.seen"}), "event_not_allowed"),
            (json!({"type": "core.manual"}), "event_not_allowed"),
            (json!({"type": "lab.seen", "source": "core"}), "forged_attribution"),
            (json!({"type": "lab.seen", "correlation_key": "somebody's"}), "key_not_owned"),
        ];
        for (input, code) in refused {
            lab.does(move |_| {
                let input = event(input.clone());
                async { Ok(Invoked::Emission(input)) }
            });
            assert_eq!(speaker.refusal(&host, "lab.emit", "r", 1).await, code);
        }
        world.publish(|config| config["limits"] = json!({"causal_depth_max": 4, "causal_per_minute": 2}));
        lab.does(|_| async { Ok(Invoked::Emission(event(json!({"type": "lab.seen"})))) });
        assert_eq!((world.count("event"), world.count("replay"), world.count("intent")), (1, 0, 0));
        speaker.call(&host, "lab.emit", "r", 1).await.unwrap();
        speaker.call(&host, "lab.emit", "s", 1).await.unwrap();
        assert_eq!(speaker.refusal(&host, "lab.emit", "t", 1).await, "causal_rate_exceeded");
    })
    .await;
}

/// T17, T05
#[tokio::test]
async fn nothing_is_declared_or_emitted_for_a_caller_who_has_lost_its_authority_meanwhile() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        for operation in ["lab.wait", "lab.emit"] {
            let speaker = world.speaker();
            let barrier = Rc::new(Barrier::default());
            let held = Rc::clone(&barrier);
            lab.does(move |call| {
                let held = Rc::clone(&held);
                async move {
                    held.pass().await;
                    match call.operation.as_str() {
                        "lab.wait" => Ok(Invoked::Wait(plan("lab.ready"))),
                        _ => Ok(Invoked::Emission(event(json!({"type": "lab.seen"})))),
                    }
                }
            });
            let events = world.count("event");
            let meanwhile = async {
                barrier.reached().await;
                world.supersede(&speaker);
                barrier.open();
            };
            let (refused, ()) = tokio::join!(speaker.call(&host, operation, "r", 1), meanwhile);
            assert_eq!(refused.unwrap_err().code_text(), "forbidden");
            assert_eq!((world.count("declaration"), world.count("event"), world.count("intent")), (0, events, 0));
        }
    })
    .await;
}
