//! The same request again: before, while and after its handler runs, and after the host has died in between.

use std::rc::Rc;

use conduit_extension::{Failure, Invoked};
use serde_json::json;

use crate::support::{Barrier, World, locally};

/// T14
#[tokio::test]
async fn a_committed_result_is_replayed_and_a_changed_request_is_a_conflict_whatever_its_input() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|call| async move { Ok(Invoked::Output(call.input["n"].clone())) });
        assert_eq!(speaker.call(&host, "lab.once", "r", 1).await.unwrap().output, json!(1));
        for instance in [Rc::clone(&host), world.host("second")] {
            let again = speaker.call(&instance, "lab.once", "r", 1).await.unwrap();
            assert!(again.replayed && again.output == json!(1));
            assert_eq!(speaker.refusal(&instance, "lab.once", "r", 2).await, "request_conflict");
            let nonsense = speaker.request("lab.once", "r", json!({"stray": true}));
            assert_eq!(instance.call(nonsense).await.unwrap_err().code_text(), "request_conflict");
        }
        // Another operation and another execution are other requests.
        assert!(!speaker.call(&host, "lab.do", "r", 3).await.unwrap().replayed);
        let other = world.speaker();
        assert!(!other.call(&host, "lab.once", "r", 4).await.unwrap().replayed);
        assert_eq!(lab.invoked.borrow().len(), 3);
    })
    .await;
}

/// T14: also when the caller that came first has hung up.
#[tokio::test]
async fn concurrent_duplicates_attach_and_the_handler_runs_once() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let barrier = Rc::new(Barrier::default());
        let held = Rc::clone(&barrier);
        lab.does(move |_| {
            let held = Rc::clone(&held);
            async move {
                held.pass().await;
                Ok(Invoked::Output(json!("once")))
            }
        });
        let first = {
            let (host, call) = (Rc::clone(&host), speaker.request("lab.once", "r", json!({"n": 1})));
            tokio::task::spawn_local(async move { host.call(call).await })
        };
        barrier.reached().await;
        assert_eq!(world.intents(), ["running"], "the intent is on record before the handler runs");
        first.abort();
        let duplicates =
            async { tokio::join!(speaker.call(&host, "lab.once", "r", 1), speaker.call(&host, "lab.once", "r", 1)) };
        let meanwhile = async {
            assert_eq!(speaker.refusal(&host, "lab.once", "r", 2).await, "request_conflict");
            barrier.open();
        };
        let ((one, two), ()) = tokio::join!(duplicates, meanwhile);
        for answer in [one.unwrap(), two.unwrap()] {
            assert!(answer.replayed && answer.output == json!("once"));
        }
        assert_eq!(lab.invoked.borrow().len(), 1);
        assert!(world.intents().is_empty());
    })
    .await;
}

/// T14, T06: that the first caller lost its authority says nothing of the second's, whose segment came after it.
#[tokio::test]
async fn a_duplicate_of_a_caller_that_loses_its_authority_is_decided_by_its_own() {
    locally(async {
        let lab = crate::support::Scripted::new(crate::support::lab());
        let door = crate::support::Scripted::new(crate::support::gate("door"));
        let mut world = World::with(&[Rc::clone(&lab), Rc::clone(&door)]);
        let host = world.host("first");
        let speaker = world.speaker();
        let barrier = Rc::new(Barrier::default());
        let held = Rc::clone(&barrier);
        door.judges(move |call| {
            let held = Rc::clone(&held);
            async move {
                if call.authority.epoch == 1 {
                    held.pass().await;
                }
                Ok(conduit_extension::GateAnswer::LetThrough)
            }
        });
        let meanwhile = async {
            barrier.reached().await;
            let next = world.supersede(&speaker);
            let call = next.call(&host, "lab.do", "r", 1);
            let open = async {
                tokio::task::yield_now().await;
                barrier.open();
            };
            tokio::join!(call, open).0
        };
        let (refused, answered) = tokio::join!(speaker.call(&host, "lab.do", "r", 1), meanwhile);
        assert_eq!(refused.unwrap_err().code_text(), "forbidden");
        answered.unwrap();
        assert_eq!(lab.invoked.borrow().len(), 1);
    })
    .await;
}

/// T14: the window between an effect and its commit, for a host that dies in it and for one whose task does.
#[tokio::test]
async fn after_a_host_died_in_the_window_an_idempotent_request_runs_again_and_another_is_in_doubt() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let barrier = Rc::new(Barrier::default());
        let held = Rc::clone(&barrier);
        lab.does(move |_| {
            let held = Rc::clone(&held);
            async move {
                held.pass().await;
                Ok(Invoked::Output(json!("first")))
            }
        });
        for operation in ["lab.do", "lab.once"] {
            let (host, call) = (Rc::clone(&host), speaker.request(operation, "r", json!({"n": 1})));
            tokio::task::spawn_local(async move { host.call(call).await });
            barrier.reached().await;
        }
        let second = world.host("second");
        lab.does(|_| async { Ok(Invoked::Output(json!("second"))) });
        for operation in ["lab.do", "lab.once"] {
            assert_eq!(speaker.refusal(&second, operation, "r", 2).await, "request_conflict");
        }
        let again = speaker.call(&second, "lab.do", "r", 1).await.unwrap();
        assert!(!again.replayed && again.output == json!("second"));
        for instance in [&second, &second, &world.host("third")] {
            assert_eq!(speaker.refusal(instance, "lab.once", "r", 1).await, "in_doubt");
            assert_eq!(speaker.refusal(instance, "lab.once", "r", 2).await, "request_conflict");
        }
        assert_eq!(world.intents(), ["in_doubt"]);
        let ids: Vec<_> =
            lab.invoked.borrow().iter().map(|call| (call.operation.clone(), call.request_id.clone())).collect();
        let expected = ["lab.do", "lab.once", "lab.do"].map(|operation| (operation.to_owned(), "r".to_owned()));
        assert_eq!(ids, expected, "it runs again under the same request ID, and what may not does not");
    })
    .await;
}

/// T14: 5xx is never the end of a request, and of one that may not run twice it is a doubt.
#[tokio::test]
async fn a_failure_is_not_finalized_and_a_failure_of_what_runs_once_is_in_doubt() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|_| async { Err(Failure::Failed("it crashed".into())) });
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "extension_unavailable");
        assert_eq!(speaker.refusal(&host, "lab.once", "r", 1).await, "in_doubt");
        lab.does(|_| async { Err(Failure::Unavailable("it is being restarted".into())) });
        assert_eq!(speaker.refusal(&host, "lab.once", "never-asked", 1).await, "extension_unavailable");
        lab.does(|_| async { Ok(Invoked::Output(json!("at last"))) });
        assert_eq!(speaker.call(&host, "lab.do", "r", 1).await.unwrap().output, json!("at last"));
        assert_eq!(speaker.call(&host, "lab.once", "never-asked", 1).await.unwrap().output, json!("at last"));
        assert_eq!(speaker.refusal(&host, "lab.once", "r", 1).await, "in_doubt");
        assert_eq!(world.intents(), ["in_doubt"]);
    })
    .await;
}

/// T14: a result that the store did not take leaves the request as a host that died would have, and nobody is told that nothing
/// was done.
#[tokio::test]
async fn a_result_that_cannot_be_recorded_leaves_no_request_that_hangs_until_the_next_start() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|_| async { Ok(Invoked::Output(json!("done"))) });
        world.sql("CREATE TRIGGER full BEFORE INSERT ON replay BEGIN SELECT RAISE(ABORT, 'full'); END");
        assert_eq!(speaker.refusal(&host, "lab.once", "r", 1).await, "in_doubt");
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "extension_unavailable");
        assert_eq!(
            world.texts("store.db", "SELECT operation || ' ' || state FROM intent ORDER BY 1"),
            ["lab.do running", "lab.once in_doubt"]
        );
        world.sql("DROP TRIGGER full");
        assert_eq!(speaker.refusal(&host, "lab.once", "r", 1).await, "in_doubt", "and it is not run again");
        assert_eq!(speaker.call(&host, "lab.do", "r", 1).await.unwrap().output, json!("done"));
        let ran = |operation: &str| lab.invoked.borrow().iter().filter(|call| call.operation == operation).count();
        assert_eq!((ran("lab.once"), ran("lab.do")), (1, 2));
    })
    .await;
}

/// T05, T14: the fence comes before the look-up, so that a result is nobody's who has no authority.
#[tokio::test]
async fn a_committed_result_is_not_shown_after_authority_has_ended() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        speaker.call(&host, "lab.do", "r", 1).await.unwrap();
        world.sql("INSERT INTO declaration (execution_id, epoch, kind, body, declared_at_us) SELECT id, 1, 'outcome', '{\"status\":\"succeeded\"}', 0 FROM execution");
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "authority_released");
        world.supersede(&speaker);
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "forbidden");
        assert_eq!(lab.invoked.borrow().len(), 1);
    })
    .await;
}
