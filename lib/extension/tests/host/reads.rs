//! Operations that only look: nothing is committed for them, and they are decided like all others.

use std::cell::Cell;
use std::rc::Rc;

use conduit_api::ApiError;
use conduit_api::toolbelt::CallResponse;
use conduit_extension::{Failure, GateAnswer, Invoked, OperationError};
use conduit_toolbelt::Toolbelt;
use conduit_toolbelt::reader::{Reader, Readers};
use serde_json::{Value, json};

use crate::support::{Scripted, Speaker, World, gate, lab, locally, registry};

/// The toolbelt of the speaker's socket, which can read `lab.look` and `lab.do` by itself.
fn worker(world: &World, speaker: &Speaker) -> Toolbelt {
    let registry = Rc::new(registry(&world.extensions));
    let toolbelt = Toolbelt::open(&world.state(), speaker.claimed.execution.clone(), registry).unwrap();
    let shown: Reader = |look| Ok(json!({"work": look.token.work, "n": look.input.get("n")}));
    toolbelt.with_readers(Readers::new([("lab.look", shown), ("lab.do", shown)]))
}

fn read(
    worker: &mut Toolbelt,
    speaker: &Speaker,
    operation: &str,
    input: Value,
) -> Result<Option<CallResponse>, ApiError> {
    worker.read(&speaker.token, &speaker.request(operation, "r", input).request, None)
}

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

/// T05, T06, G01
#[tokio::test]
async fn a_worker_reads_by_itself_what_no_gate_judges_and_decides_as_the_host_does() {
    let (lab, judge) = (Scripted::new(lab()), Scripted::new(gate("judge")));
    let mut world = World::with(&[lab, judge]);
    world.publish(|configuration| configuration["extensions"]["judge"]["enabled"] = json!(false));
    let speaker = world.speaker();
    let mut worker = worker(&world, &speaker);
    let mut code = |speaker: &Speaker, operation: &str, input: Value| {
        let done = read(&mut worker, speaker, operation, input);
        done.map(|read| read.map(|response| response.output)).map_err(|error| error.code_text().to_owned())
    };
    let work = json!(speaker.claimed.work);
    assert_eq!(code(&speaker, "lab.look", json!({"n": 7})), Ok(Some(json!({"work": work, "n": 7}))));
    assert_eq!(code(&speaker, "lab.look", json!({"n": "seven"})), Err("invalid_request".into()));
    assert_eq!(code(&speaker, "lab.do", json!({})), Ok(None), "it is no read, whoever says that it can be read");
    assert_eq!(code(&speaker, "lab.once", json!({})), Ok(None));

    world.publish(|configuration| configuration["extensions"]["judge"]["enabled"] = json!(true));
    assert_eq!(code(&speaker, "lab.look", json!({})), Ok(None), "a gate judges it");
    world.publish(|configuration| configuration["extensions"]["judge"]["enabled"] = json!(false));
    assert!(code(&speaker, "lab.look", json!({})).is_ok_and(|read| read.is_some()));

    let other = world.speaker();
    assert_eq!(code(&other, "lab.look", json!({})), Err("forbidden".into()), "it came through another's socket");
    let next = world.supersede(&speaker);
    assert_eq!(code(&speaker, "lab.look", json!({})), Err("forbidden".into()));
    assert!(code(&next, "lab.look", json!({})).is_ok_and(|read| read.is_some()));
    world.publish(|configuration| configuration["extensions"]["lab"]["enabled"] = json!(false));
    assert_eq!(code(&next, "lab.look", json!({})), Err("forbidden".into()));

    worker.finish_history();
    let told = world.texts("history.db", "SELECT kind || ' ' || result FROM toolbelt_record ORDER BY id");
    let (called, rejected) = ("toolbelt.called ok", "toolbelt.rejected forbidden");
    let expected = [called, "toolbelt.rejected invalid_request", called, rejected, rejected, called, rejected];
    assert_eq!(told, expected, "what is left to the host is on the host's record");
}
