//! The chain of gates: its order, its three answers, and that everything else refuses.

use std::rc::Rc;

use conduit_api::Code;
use conduit_coordination::bypasses::{self, NewBypass};
use conduit_extension::{Failure, GateAnswer, Invoked, OperationError, WaitPlan};
use conduit_store::mint;
use serde_json::json;

use crate::support::{Barrier, Scripted, World, gate, lab, locally};

struct Chain {
    world: World,
    lab: Rc<Scripted>,
    first: Rc<Scripted>,
    second: Rc<Scripted>,
}

/// `lab`, which has a gate of its own, between the gates `arch` and `zone`.
fn chain() -> Chain {
    let lab = Scripted::new(conduit_toolbelt::registry::Registration { gate: true, ..lab() });
    let (first, second) = (Scripted::new(gate("arch")), Scripted::new(gate("zone")));
    let world = World::with(&[Rc::clone(&second), Rc::clone(&lab), Rc::clone(&first)]);
    Chain { world, lab, first, second }
}

fn plan(kind: &str) -> WaitPlan {
    let wait = serde_json::from_value(json!({"mode": "any", "predicates": [{"type": kind}]})).unwrap();
    WaitPlan { wait, output: json!({"approval": 3}) }
}

/// G02, G03: never about their own, and never about a builtin.
#[tokio::test]
async fn gates_are_asked_in_the_order_of_names_before_another_registrations_operation() {
    locally(async {
        let Chain { mut world, lab, first, second } = chain();
        let host = world.host("first");
        let speaker = world.speaker();
        let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
        for (name, extension) in [("arch", &first), ("zone", &second)] {
            let seen = Rc::clone(&seen);
            extension.judges(move |_| {
                seen.borrow_mut().push(name);
                async { Ok(GateAnswer::LetThrough) }
            });
        }
        let ran = Rc::clone(&seen);
        lab.does(move |_| {
            ran.borrow_mut().push("lab");
            async { Ok(Invoked::Output(json!(1))) }
        });
        speaker.call(&host, "lab.do", "r", 1).await.unwrap();
        assert_eq!(*seen.borrow(), ["arch", "zone", "lab"]);
        assert!(lab.gated.borrow().is_empty(), "its own gate is not asked about its own operation");
        assert!(speaker.call(&host, "lab.do", "r", 1).await.unwrap().replayed);
        assert_eq!(seen.borrow().len(), 3, "a replay passes no gate: the call was made");

        // The digest names the exact call, whatever its request ID.
        speaker.call(&host, "lab.do", "another", 1).await.unwrap();
        speaker.call(&host, "lab.do", "third", 2).await.unwrap();
        let digests: Vec<String> = first.gated.borrow().iter().map(|call| call.call_digest.clone()).collect();
        assert_eq!(digests[0], digests[1]);
        assert_ne!(digests[1], digests[2]);
        assert_eq!(first.gated.borrow()[0].authority.execution_id, speaker.claimed.execution);
    })
    .await;
}

/// G03, G05
#[tokio::test]
async fn a_gate_that_parks_declares_its_wait_and_the_operation_does_not_run() {
    locally(async {
        let Chain { mut world, lab, first, second } = chain();
        let host = world.host("first");
        let speaker = world.speaker();
        first.judges(|_| async { Ok(GateAnswer::Park(plan("arch.decided"))) });
        let parked = speaker.call(&host, "lab.once", "r", 1).await.unwrap();
        assert_eq!((parked.output, parked.declared), (json!({"approval": 3}), Some(plan("arch.decided").wait)));
        assert_eq!(speaker.refusal(&host, "lab.once", "r", 1).await, "authority_released");
        assert!(lab.invoked.borrow().is_empty() && second.gated.borrow().is_empty());
        assert_eq!((world.count("declaration"), world.count("replay"), world.count("intent")), (1, 0, 0));
        assert_eq!(
            world.history(&host),
            ["toolbelt.called lab.once ok arch", "toolbelt.rejected lab.once authority_released"]
        );
        // The caller goes on and calls again: the same request, now let through.
        world.sql("DELETE FROM declaration");
        let next = world.supersede(&speaker);
        first.judges(|_| async { Ok(GateAnswer::LetThrough) });
        assert!(!next.call(&host, "lab.once", "r", 1).await.unwrap().replayed);
        assert_eq!(lab.invoked.borrow().len(), 1);
    })
    .await;
}

/// G03, G05
#[tokio::test]
async fn a_gate_that_refuses_is_heard_verbatim_and_named_in_the_record_alone() {
    locally(async {
        let Chain { mut world, lab, first: _, second } = chain();
        let host = world.host("first");
        let speaker = world.speaker();
        second.judges(|_| async { Ok(GateAnswer::Refuse(OperationError::new("not_today", "come back on Monday"))) });
        let refused = speaker.call(&host, "lab.do", "r", 1).await.unwrap_err();
        assert_eq!(
            (refused.code.status(), refused.code_text(), refused.message.as_str()),
            (422, "not_today", "come back on Monday")
        );
        assert!(lab.invoked.borrow().is_empty() && world.intents().is_empty());
        second.judges(|_| async { Ok(GateAnswer::LetThrough) });
        speaker.call(&host, "lab.do", "r", 1).await.unwrap();
        assert_eq!(world.history(&host), ["toolbelt.rejected lab.do gate_refused zone", "toolbelt.called lab.do ok"]);
    })
    .await;
}

/// G04: fail closed; G03: a gate waits for Events of its own families alone.
#[tokio::test(start_paused = true)]
async fn whatever_is_not_one_of_the_three_answers_refuses() {
    locally(async {
        let Chain { mut world, lab, first, second } = chain();
        let host = world.host("first");
        let speaker = world.speaker();
        let wrongs: [fn(&Scripted); 7] = [
            |gate| gate.judges(|_| async { panic!("the gate dies") }),
            |gate| gate.judges(|_| std::future::pending()),
            |gate| gate.judges(|_| async { Err(Failure::Failed("it crashed".into())) }),
            |gate| gate.judges(|_| async { Err(Failure::Unavailable("it is not there".into())) }),
            |gate| gate.judges(|_| async { Ok(GateAnswer::Refuse(OperationError::new("NO", "is no code"))) }),
            |gate| gate.judges(|_| async { Ok(GateAnswer::Park(plan("lab.ready"))) }),
            |gate| {
                gate.judges(|_| async {
                    let mut empty = plan("zone.ready");
                    empty.wait.predicates.clear();
                    Ok(GateAnswer::Park(empty))
                });
            },
        ];
        for (at, wrong) in wrongs.iter().enumerate() {
            wrong(&second);
            let refused = speaker.call(&host, "lab.do", "r", 1).await.unwrap_err();
            assert_eq!(refused.code, Code::GateFailed, "{at}");
            assert_eq!((world.count("declaration"), world.count("intent")), (0, 0), "{at}");
        }
        assert!(lab.invoked.borrow().is_empty());
        assert!(world.history(&host).iter().all(|record| record == "toolbelt.rejected lab.do gate_refused zone"));

        // One deadline over them all: two that take most of it are too slow together.
        for slow in [&first, &second] {
            slow.judges(|_| async {
                tokio::time::sleep(conduit_extension::host::GATES_TIME_MAX * 3 / 4).await;
                Ok(GateAnswer::LetThrough)
            });
        }
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "gate_failed");
        assert!(lab.invoked.borrow().is_empty());
    })
    .await;
}

/// G04: one deadline over the chain, however many gates there are: their sum never exceeds it.
#[tokio::test(start_paused = true)]
async fn a_chain_of_gates_takes_no_longer_than_one_deadline() {
    locally(async {
        let lab = Scripted::new(lab());
        let gates: Vec<Rc<Scripted>> = ["g1", "g2", "g3", "g4", "g5"].map(|name| Scripted::new(gate(name))).into();
        let mut all = vec![Rc::clone(&lab)];
        all.extend(gates.iter().cloned());
        let mut world = World::with(&all);
        let (host, speaker) = (world.host("first"), world.speaker());
        let total = conduit_extension::host::GATES_TIME_MAX;
        let took = async |share: u32| {
            for gate in &gates {
                gate.judges(move |_| async move {
                    tokio::time::sleep(total * share / 100).await;
                    Ok(GateAnswer::LetThrough)
                });
            }
            let begun = tokio::time::Instant::now();
            let answer = speaker.call(&host, "lab.do", &format!("r{share}"), 1).await;
            (begun.elapsed(), answer.map_err(|error| error.code))
        };
        for (share, asked) in [(30, 4), (99, 2), (200, 1)] {
            gates.iter().for_each(|gate| gate.gated.borrow_mut().clear());
            let (elapsed, answer) = took(share).await;
            assert_eq!(answer.unwrap_err(), Code::GateFailed, "{share}");
            assert!(elapsed >= total && elapsed < total + std::time::Duration::from_millis(50), "{share}: {elapsed:?}");
            assert_eq!(gates.iter().filter(|gate| !gate.gated.borrow().is_empty()).count(), asked, "{share}");
        }
        assert!(lab.invoked.borrow().is_empty());
        assert!(took(19).await.1.is_ok(), "together they are quick enough");
    })
    .await;
}

/// G01: a gate of an extension that is not active in the generation is none.
#[tokio::test]
async fn a_gate_is_asked_only_while_its_extension_is_active() {
    locally(async {
        let Chain { mut world, lab, first, second: _ } = chain();
        let host = world.host("first");
        let speaker = world.speaker();
        first.judges(|_| async { Ok(GateAnswer::Refuse(OperationError::new("no", "never"))) });
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "no");
        world.publish(|config| config["extensions"]["arch"] = json!({"enabled": false}));
        speaker.call(&host, "lab.do", "r", 1).await.unwrap();
        assert_eq!((lab.invoked.borrow().len(), first.gated.borrow().len()), (1, 1));
    })
    .await;
}

/// G01, T07: a generation that brings a gate in while others take their time is obeyed: the call is judged anew.
#[tokio::test]
async fn a_gate_that_comes_in_while_others_are_asked_is_not_passed_by() {
    locally(async {
        let Chain { mut world, lab, first, second } = chain();
        world.publish(|config| config["extensions"]["zone"] = json!({"enabled": false}));
        let (host, speaker, barrier) = (world.host("first"), world.speaker(), Rc::new(Barrier::default()));
        let held = Rc::clone(&barrier);
        first.judges(move |_| {
            let held = Rc::clone(&held);
            async move {
                held.pass().await;
                Ok(GateAnswer::LetThrough)
            }
        });
        second.judges(|_| async { Ok(GateAnswer::Refuse(OperationError::new("no", "never"))) });
        let called = {
            let (host, call) = (Rc::clone(&host), speaker.request("lab.do", "r", json!({})));
            tokio::task::spawn_local(async move { host.call(call).await })
        };
        barrier.reached().await;
        world.publish(|config| config["extensions"]["zone"] = json!({"enabled": true}));
        first.judges(|_| async { Ok(GateAnswer::LetThrough) });
        barrier.open();
        assert_eq!(called.await.unwrap().unwrap_err().code, Code::GateFailed);
        assert!(lab.invoked.borrow().is_empty() && world.intents().is_empty());
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "no");
    })
    .await;
}

/// G05: who attaches to a refused request is recorded like it.
#[tokio::test]
async fn a_duplicate_of_a_refused_request_is_recorded_with_the_gate_too() {
    locally(async {
        let Chain { mut world, lab: _, first, second: _ } = chain();
        let host = world.host("first");
        let speaker = world.speaker();
        first.judges(|_| async {
            tokio::task::yield_now().await;
            Ok(GateAnswer::Refuse(OperationError::new("no", "never")))
        });
        let (one, two) = tokio::join!(speaker.call(&host, "lab.do", "r", 1), speaker.call(&host, "lab.do", "r", 1));
        assert_eq!(one.unwrap_err(), two.unwrap_err());
        assert_eq!(first.gated.borrow().len(), 1);
        assert_eq!(world.history(&host), ["toolbelt.rejected lab.do gate_refused arch"; 2]);
    })
    .await;
}

/// Design §9.7: a bypassed call is like any other, also to those that come while it runs.
#[tokio::test]
async fn a_call_past_bypassed_gates_holds_nobody_up_and_its_record_says_so() {
    locally(async {
        let Chain { mut world, lab, first, second: _ } = chain();
        let host = world.host("first");
        let speaker = world.speaker();
        let now = conduit_store::Clock.now();
        let bypass = NewBypass { id: mint(now), scope: None, seconds: 60, reason: "a fire", actor: "operator:local" };
        let begun: Result<(), conduit_coordination::Error> =
            world.store.write(|tx| bypasses::begin(tx, &bypass, [], now));
        begun.unwrap();
        let barrier = Rc::new(Barrier::default());
        let held = Rc::clone(&barrier);
        lab.does(move |call| {
            let held = Rc::clone(&held);
            async move {
                if call.request_id == "slow" {
                    held.pass().await;
                }
                Ok(Invoked::Output(json!(1)))
            }
        });
        let meanwhile = async {
            barrier.reached().await;
            let quick = speaker.call(&host, "lab.do", "quick", 1).await;
            barrier.open();
            quick
        };
        let (slow, quick) = tokio::join!(speaker.call(&host, "lab.do", "slow", 1), meanwhile);
        assert!(slow.is_ok() && quick.is_ok() && first.gated.borrow().is_empty());
        assert_eq!(world.history(&host), ["toolbelt.called lab.do ok break_glass"; 2]);
    })
    .await;
}
