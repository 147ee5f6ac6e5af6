//! What a gate's yes uses up: taken in the commit of the intent, given back in the one that withdraws it (G07).

use std::rc::Rc;

use conduit_extension::host::ExtensionHost;
use conduit_extension::{Failure, GateAnswer, Invoked, OperationError, Pass};
use serde_json::json;

use crate::support::{Scripted, Speaker, World, gate, lab, locally};

struct Passed {
    world: World,
    host: Rc<ExtensionHost>,
    speaker: Speaker,
    lab: Rc<Scripted>,
    first: Rc<Scripted>,
    second: Rc<Scripted>,
}

/// `lab` behind the gates `arch` and `zone`, in a store with a row for each pass that was used up.
fn passed() -> Passed {
    let (lab, first, second) = (Scripted::new(lab()), Scripted::new(gate("arch")), Scripted::new(gate("zone")));
    let mut world = World::with(&[Rc::clone(&lab), Rc::clone(&first), Rc::clone(&second)]);
    world.sql("CREATE TABLE pass (id TEXT PRIMARY KEY) STRICT");
    let (host, speaker) = (world.host("first"), world.speaker());
    Passed { world, host, speaker, lab, first, second }
}

/// G07
#[tokio::test]
async fn a_call_that_was_made_uses_a_pass_up_and_its_replay_needs_none() {
    locally(async {
        let Passed { world, host, speaker, lab: _, first, .. } = passed();
        *first.passes.borrow_mut() = vec![Pass::Used];
        speaker.call(&host, "lab.once", "r", 1).await.unwrap();
        assert!(speaker.call(&host, "lab.once", "r", 1).await.unwrap().replayed);
        assert_eq!((world.count("pass"), first.gated.borrow().len()), (1, 1));
    })
    .await;
}

/// G03, G07
#[tokio::test]
async fn the_refusal_of_a_later_gate_uses_nothing_up() {
    locally(async {
        let Passed { world, host, speaker, lab, first, second } = passed();
        *first.passes.borrow_mut() = vec![Pass::Used];
        second.judges(|_| async { Ok(GateAnswer::Refuse(OperationError::new("no", "never"))) });
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "no");
        assert_eq!((world.count("pass"), world.count("intent"), first.passes.borrow().len()), (0, 0, 1));
        assert!(lab.invoked.borrow().is_empty());
    })
    .await;
}

/// G07: what did nothing gives back; what may have done something does not.
#[tokio::test]
async fn a_handler_that_did_nothing_gives_the_pass_back_and_one_that_may_have_done_something_keeps_it() {
    locally(async {
        type Ends = fn() -> Result<Invoked, Failure>;
        let refused: Ends = || Err(Failure::Refused(OperationError::new("not_so", "in this way")));
        let ends: [(&str, Ends, &str, usize); 6] = [
            ("lab.do", refused, "not_so", 0),
            ("lab.once", refused, "not_so", 0),
            ("lab.once", || Err(Failure::Unavailable("it is not there".into())), "extension_unavailable", 0),
            ("lab.do", || Err(Failure::Failed("it crashed".into())), "extension_unavailable", 1),
            ("lab.once", || Err(Failure::Failed("it crashed".into())), "in_doubt", 1),
            // A translated emission of a family that it may not emit is refused by the host.
            (
                "lab.emit",
                || Ok(Invoked::Emission(serde_json::from_value(json!({"type": "other.x"})).unwrap())),
                "event_not_allowed",
                0,
            ),
        ];
        for (at, (operation, end, code, left)) in ends.into_iter().enumerate() {
            let Passed { world, host, speaker, lab, first, .. } = passed();
            *first.passes.borrow_mut() = vec![Pass::Used];
            lab.does(move |_| async move { end() });
            assert_eq!(speaker.refusal(&host, operation, "r", 1).await, code, "{at}");
            assert_eq!(world.count("pass"), left, "{at}");
        }
    })
    .await;
}

/// G07: taken together or not at all, and asked anew when the yes did not last.
#[tokio::test]
async fn gates_are_asked_anew_when_a_yes_did_not_last_and_nothing_of_the_first_try_stays() {
    locally(async {
        let Passed { world, host, speaker, lab, first, second } = passed();
        *first.passes.borrow_mut() = vec![Pass::Used, Pass::Used];
        *second.passes.borrow_mut() = vec![Pass::Over, Pass::Used];
        speaker.call(&host, "lab.do", "r", 1).await.unwrap();
        let used = world.texts("store.db", "SELECT id FROM pass ORDER BY id");
        assert_eq!(used, ["arch r", "zone r"]);
        assert_eq!((first.gated.borrow().len(), second.gated.borrow().len(), lab.invoked.borrow().len()), (2, 2, 1));
        // One whose yes never lasts does not decide.
        *second.passes.borrow_mut() = vec![Pass::Over; 9];
        assert_eq!(speaker.refusal(&host, "lab.do", "s", 1).await, "gate_failed");
        assert_eq!((world.count("pass"), world.count("intent"), lab.invoked.borrow().len()), (2, 0, 1));
    })
    .await;
}

/// G07, T05: who lost its authority meanwhile uses nothing up.
#[tokio::test]
async fn a_caller_that_lost_its_authority_at_the_gates_uses_nothing_up() {
    locally(async {
        let Passed { mut world, host, speaker, lab, first, second } = passed();
        *first.passes.borrow_mut() = vec![Pass::Used];
        let state = world.state();
        second.judges(move |_| {
            let conn = rusqlite::Connection::open(state.join("store.db")).unwrap();
            conn.execute_batch("UPDATE execution SET epoch = epoch + 1").unwrap();
            async { Ok(GateAnswer::LetThrough) }
        });
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "forbidden");
        assert_eq!((world.count("pass"), world.count("intent"), lab.invoked.borrow().len()), (0, 0, 0));
        world.sql("UPDATE execution SET epoch = epoch - 1");
    })
    .await;
}
