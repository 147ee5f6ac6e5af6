//! Operations that only look: nothing is committed for them, and they are decided like all others.

use std::cell::Cell;
use std::rc::Rc;

use conduit_extension::{Failure, GateAnswer, Invoked, OperationError};
use serde_json::json;

use crate::support::{Scripted, World, gate, lab, locally};

/// T14
#[tokio::test]
async fn a_read_looks_again_each_time_and_leaves_no_row() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let looked = Rc::new(Cell::new(0));
        lab.does(move |_| {
            looked.set(looked.get() + 1);
            let times = looked.get();
            async move { Ok(Invoked::Output(json!(times))) }
        });
        for times in 1..=2 {
            let answer = speaker.call(&host, "lab.look", "r", 1).await.unwrap();
            assert_eq!((answer.output, answer.replayed), (json!(times), false));
        }
        assert_eq!((world.count("intent"), world.count("replay")), (0, 0));
        lab.does(|_| async { Err(Failure::Failed("it fell over".into())) });
        assert_eq!(speaker.refusal(&host, "lab.look", "r", 1).await, "extension_unavailable");
        lab.does(|_| async { Err(OperationError::new("too_dark", "nothing can be seen").into()) });
        assert_eq!(speaker.refusal(&host, "lab.look", "r", 1).await, "too_dark");
        assert_eq!((world.count("intent"), world.count("replay")), (0, 0));
        let ok = "toolbelt.called lab.look ok";
        let history = world.history(&host);
        assert_eq!(history[..2], [ok, ok]);
        assert_eq!(history.len(), 4);
    })
    .await;
}

/// T05
#[tokio::test]
async fn a_read_is_refused_without_authority_like_any_other_operation() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let next = world.supersede(&speaker);
        assert_eq!(speaker.refusal(&host, "lab.look", "r", 1).await, "forbidden");
        world.publish(|configuration| configuration["extensions"]["lab"]["enabled"] = json!(false));
        assert_eq!(next.refusal(&host, "lab.look", "r", 1).await, "forbidden");
        assert_eq!(lab.invoked.borrow().len(), 0);
    })
    .await;
}

/// G01, G03
#[tokio::test]
async fn a_read_that_a_gate_judges_is_decided_and_kept_like_any_other_operation() {
    locally(async {
        let (lab, judge) = (Scripted::new(lab()), Scripted::new(gate("judge")));
        let mut world = World::with(&[Rc::clone(&lab), Rc::clone(&judge)]);
        let (host, speaker) = (world.host("first"), world.speaker());
        judge.judges(|_| async { Ok(GateAnswer::Refuse(OperationError::new("not_now", "no"))) });
        assert_eq!(speaker.refusal(&host, "lab.look", "r", 1).await, "not_now");
        assert_eq!(lab.invoked.borrow().len(), 0);
        judge.judges(|_| async { Ok(GateAnswer::LetThrough) });
        assert!(!speaker.call(&host, "lab.look", "r", 1).await.unwrap().replayed);
        assert!(speaker.call(&host, "lab.look", "r", 1).await.unwrap().replayed);
        assert_eq!((lab.invoked.borrow().len(), judge.gated.borrow().len()), (1, 2));
    })
    .await;
}
