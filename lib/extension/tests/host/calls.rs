//! One call: what a handler is given, and what becomes of whatever it answers.

use std::rc::Rc;

use conduit_api::Code;
use conduit_extension::{Failure, Invoked, OperationError};
use conduit_store::{StateDir, Store};
use serde_json::json;

use crate::support::{Barrier, World, locally};

/// T13: while the handler runs, anybody can write, so no transaction is open around it.
#[tokio::test]
async fn a_handler_is_given_validated_authority_and_never_the_token_and_runs_outside_any_transaction() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let state = world.state();
        lab.does(move |call| {
            let mut store = Store::open(&StateDir::open(&state).unwrap()).unwrap();
            let written: Result<usize, conduit_store::Error> =
                store.write(|tx| tx.execute("testing", "UPDATE work SET title = 'while it runs'", []));
            assert_eq!(written.unwrap(), 1);
            async move { Ok(Invoked::Output(json!({"n": call.input["n"]}))) }
        });
        let response = speaker.call(&host, "lab.do", "r", 7).await.unwrap();
        assert_eq!((response.output, response.replayed), (json!({"n": 7}), false));
        let invoked = lab.invoked.borrow();
        let call = &invoked[0];
        assert_eq!((call.operation.as_str(), call.request_id.as_str()), ("lab.do", "r"));
        assert_eq!(call.authority.execution_id, speaker.claimed.execution);
        assert_eq!(call.authority.work_id, speaker.claimed.work);
        assert_eq!(
            (call.authority.binding.as_str(), call.authority.epoch, call.authority.generation),
            ("worker", 1, 1)
        );
        let shown = format!("{call:?} {}", serde_json::to_string(call).unwrap());
        let digest = speaker.request("lab.do", "r", json!({})).bearer_digest;
        assert!(!shown.contains(&speaker.token) && !shown.contains(&digest), "{shown}");
    })
    .await;
}

/// T13
#[tokio::test]
async fn an_operations_own_error_reaches_the_caller_verbatim_and_authority_is_kept() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|_| async { Err(OperationError::new("out_of_gas", "fill it up").into()) });
        for operation in ["lab.do", "lab.once"] {
            let refused = speaker.call(&host, operation, "r", 1).await.unwrap_err();
            assert_eq!(
                (refused.code.status(), refused.code_text(), refused.message.as_str()),
                (422, "out_of_gas", "fill it up")
            );
        }
        assert!(world.intents().is_empty(), "nothing was done");
        lab.does(|_| async { Ok(Invoked::Output(json!(1))) });
        assert_eq!(speaker.call(&host, "lab.once", "r", 1).await.unwrap().output, json!(1), "the request is open");
        assert_eq!(
            world.history(&host),
            [
                "toolbelt.rejected lab.do out_of_gas",
                "toolbelt.rejected lab.once out_of_gas",
                "toolbelt.called lab.once ok"
            ]
        );
    })
    .await;
}

/// T13, T14: a crash, a hang, a flood and a malformed answer; the host lives, nothing is recorded as done.
#[tokio::test(start_paused = true)]
async fn whatever_a_handler_does_wrong_is_contained_and_what_may_run_again_may() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let wrongs: [fn(&crate::support::Scripted); 6] = [
            |lab| lab.does(|_| async { panic!("the handler dies") }),
            |lab| lab.does(|_| std::future::pending()),
            |lab| lab.does(|_| async { Ok(Invoked::Output(json!("x".repeat(10 << 20)))) }),
            |lab| lab.does(|_| async { Err(OperationError::new("No Code", "it is none").into()) }),
            |lab| lab.does(|_| async { Err(Failure::Failed("it says so".into())) }),
            |lab| {
                lab.does(|_| async {
                    Ok(Invoked::Emission(serde_json::from_value(json!({"type": "lab.seen"})).unwrap()))
                });
            },
        ];
        for (at, wrong) in wrongs.iter().enumerate() {
            wrong(&lab);
            let refused = speaker.call(&host, "lab.do", "r", 1).await.unwrap_err();
            assert_eq!(refused.code, Code::ExtensionUnavailable, "{at}");
            assert!(!refused.message.contains("dies"), "the caller learns nothing of the inside");
            assert_eq!((world.count("replay"), world.count("intent"), world.count("event")), (0, 0, 1), "{at}");
        }
        for (at, wrong) in wrongs.iter().enumerate() {
            wrong(&lab);
            let id = format!("once-{at}");
            assert_eq!(speaker.refusal(&host, "lab.once", &id, 1).await, "in_doubt", "{at}: it may have been done");
        }
        lab.does(|_| async { Ok(Invoked::Output(json!("done"))) });
        assert_eq!(speaker.call(&host, "lab.do", "r", 1).await.unwrap().output, json!("done"));
    })
    .await;
}

/// T05, T06: a token of another execution, a superseded one and a forged one are told the same, and no handler hears of them.
#[tokio::test]
async fn no_handler_hears_of_a_caller_who_may_not_call() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let (first, other) = (world.speaker(), world.speaker());
        let mut stolen = first.request("lab.do", "r", json!({}));
        stolen.execution_id = other.claimed.execution.clone();
        let mut forged = first.request("lab.do", "r", json!({}));
        forged.bearer_digest = "ab".repeat(32);
        let mut misspelt = forged.clone();
        misspelt.bearer_digest = "no digest".into();
        let unknown = first.request("lab.nothing", "r", json!({}));
        let builtin = first.request("emit", "r", json!({"type": "lab.seen"}));
        let superseded = first.request("lab.do", "r", json!({}));
        world.supersede(&first);
        for call in [stolen, forged, misspelt, unknown, builtin, superseded] {
            let refused = host.call(call).await.unwrap_err();
            assert_eq!(refused, conduit_api::ApiError::forbidden());
        }
        world.publish(|config| config["extensions"]["lab"] = json!({"enabled": false}));
        assert_eq!(other.refusal(&host, "lab.do", "r", 1).await, "forbidden");
        assert!(lab.invoked.borrow().is_empty());
        assert!(world.intents().is_empty());
    })
    .await;
}

/// M07: a place and a remedy, never a value.
#[tokio::test]
async fn an_input_that_breaks_the_schema_is_told_where_and_never_what() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let refused = host.call(speaker.request("lab.do", "r", json!({"n": "hunter2"}))).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest);
        assert_eq!(refused.diagnostics.len(), 1);
        assert!(format!("{refused:?}").contains("/n") && !format!("{refused:?}").contains("hunter2"), "{refused:?}");
        assert!(lab.invoked.borrow().is_empty());
    })
    .await;
}

/// T13: the check before the handler is made again when gates and the store have taken their time.
#[tokio::test]
async fn authority_that_is_lost_before_the_handler_keeps_it_from_running() {
    for lose in 0..3 {
        locally(async {
            let (lab, door) = (
                crate::support::Scripted::new(crate::support::lab()),
                crate::support::Scripted::new(crate::support::gate("door")),
            );
            let mut world = World::with(&[Rc::clone(&lab), Rc::clone(&door)]);
            let host = world.host("first");
            let speaker = world.speaker();
            let barrier = Rc::new(Barrier::default());
            let held = Rc::clone(&barrier);
            door.judges(move |_| {
                let held = Rc::clone(&held);
                async move {
                    held.pass().await;
                    Ok(conduit_extension::GateAnswer::LetThrough)
                }
            });
            let call = speaker.call(&host, "lab.do", "r", 1);
            let meanwhile = async {
                barrier.reached().await;
                match lose {
                    0 => drop(world.supersede(&speaker)),
                    1 => drop(world.sql("UPDATE token SET revoked_at_us = 1")),
                    _ => world.publish(|config| config["scopes"]["demo"]["enabled"] = json!(false)),
                }
                barrier.open();
            };
            let (refused, ()) = tokio::join!(call, meanwhile);
            assert_eq!(refused.unwrap_err(), conduit_api::ApiError::forbidden(), "{lose}");
            assert!(lab.invoked.borrow().is_empty() && world.intents().is_empty(), "{lose}");
        })
        .await;
    }
}

/// T14: the effect is there, so its result is recorded even when the caller has lost its authority meanwhile.
#[tokio::test]
async fn authority_that_is_lost_while_the_handler_runs_does_not_lose_the_result() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let barrier = Rc::new(Barrier::default());
        let held = Rc::clone(&barrier);
        lab.does(move |_| {
            let held = Rc::clone(&held);
            async move {
                held.pass().await;
                Ok(Invoked::Output(json!("done")))
            }
        });
        let call = speaker.call(&host, "lab.once", "r", 1);
        let meanwhile = async {
            barrier.reached().await;
            let next = world.supersede(&speaker);
            barrier.open();
            next
        };
        let (answer, next) = tokio::join!(call, meanwhile);
        assert_eq!(answer.unwrap().output, json!("done"));
        let again = next.call(&host, "lab.once", "r", 1).await.unwrap();
        assert!(again.replayed && again.output == json!("done"));
        assert_eq!(lab.invoked.borrow().len(), 1);
        assert_eq!(speaker.refusal(&host, "lab.once", "r", 1).await, "forbidden");
    })
    .await;
}
