//! What extensions' operations cost an execution whose binding bounds it.

use conduit_extension::{Failure, Invoked, OperationError};
use serde_json::json;

use crate::support::{World, locally};

/// Design 9.9: before a handler runs its input is paid for, what only looks costs nothing, and a replay costs nothing again.
#[tokio::test]
async fn an_operation_is_paid_for_before_its_handler_runs_and_once() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.bounded(json!({"bytes": 14}));
        let call = |id: &str, n: i64| speaker.request("lab.do", id, json!({"n": n}));
        host.call(call("a", 1)).await.unwrap(); // {"n":1} has 7 bytes
        host.call(speaker.request("lab.look", "x", json!({"n": 1}))).await.unwrap();
        assert!(host.call(call("a", 1)).await.unwrap().replayed);
        host.call(call("b", 2)).await.unwrap();
        assert_eq!(host.call(call("c", 3)).await.unwrap_err().code_text(), "budget_exceeded");
        assert!(world.intents().is_empty());
        assert_eq!(lab.invoked.borrow().len(), 3);
        assert_eq!(world.texts("store.db", "SELECT CAST(bytes AS TEXT) FROM spent"), ["14"]);
        let last = world.history(&host).pop().unwrap();
        assert_eq!(last, "toolbelt.rejected lab.do budget_exceeded");
    })
    .await;
}

/// Design 9.9: what was not done is given back, and what may have been done is charged once however often it runs.
#[tokio::test]
async fn a_request_that_came_to_nothing_costs_nothing_and_one_that_runs_again_costs_once() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.bounded(json!({"bytes": 7}));
        lab.does(|_| async { Err(OperationError::new("not_now", "later").into()) });
        for id in ["a", "b", "c"] {
            assert_eq!(speaker.refusal(&host, "lab.do", id, 1).await, "not_now");
        }
        lab.does(|_| std::future::pending());
        let (call, first) = (speaker.request("lab.do", "d", json!({"n": 1})), std::rc::Rc::clone(&host));
        tokio::task::spawn_local(async move { first.call(call).await });
        while world.intents().is_empty() {
            tokio::task::yield_now().await;
        }
        lab.does(|_| async { Ok(Invoked::Output(json!("done"))) });
        let next = world.host("second");
        assert_eq!(speaker.call(&next, "lab.do", "d", 1).await.unwrap().output, json!("done"));
        assert_eq!(world.texts("store.db", "SELECT CAST(bytes AS TEXT) FROM spent"), ["7"]);
    })
    .await;
}

/// T17
#[tokio::test]
async fn a_translated_emission_counts_like_one_of_its_own() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.bounded(json!({"emissions": 1, "on_exceeded": "hold"}));
        let event = || serde_json::from_value(json!({"type": "lab.seen"})).unwrap();
        lab.does(move |_| async move { Ok(Invoked::Emission(event())) });
        host.call(speaker.request("lab.emit", "a", json!({}))).await.unwrap();
        assert!(host.call(speaker.request("lab.emit", "a", json!({}))).await.unwrap().replayed);
        let refused = host.call(speaker.request("lab.emit", "b", json!({}))).await.unwrap_err();
        assert_eq!(refused.code_text(), "budget_exceeded");
        assert!(world.intents().is_empty());
        assert_eq!(world.texts("store.db", "SELECT blocked_reason FROM work"), ["budget_exceeded"]);
        assert_eq!(world.texts("store.db", "SELECT type FROM event WHERE type LIKE 'lab.%'"), ["lab.seen"]);
        lab.does(|_| async { Err::<Invoked, Failure>(OperationError::new("x", "y").into()) });
        assert_eq!(speaker.refusal(&host, "lab.do", "c", 1).await, "forbidden", "its authority is gone");
    })
    .await;
}
