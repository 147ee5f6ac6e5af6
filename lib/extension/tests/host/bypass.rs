//! Break-glass at the host: while it holds no gate is asked, and each call's record says so.

use std::rc::Rc;

use conduit_api::{BypassId, ScopeId};
use conduit_coordination::bypasses::{self, NewBypass};
use conduit_extension::host::StartGated;
use conduit_extension::{Failure, GateAnswer, Invoked, OperationError, StartCall, WaitPlan};
use conduit_store::{Clock, Now, StateDir, Store, mint};
use serde_json::json;

use crate::support::{Scripted, World, gate, lab, locally};

fn closed() -> (World, Rc<Scripted>) {
    let (lab, guard) = (Scripted::new(lab()), Scripted::new(gate("guard")));
    lab.does(|_| async { Ok(Invoked::Output(json!("ran"))) });
    guard.judges(|_| async { Err(Failure::Failed("it is broken".into())) });
    (World::with(&[lab, Rc::clone(&guard)]), guard)
}

fn bypass(world: &World, scope: Option<&ScopeId>, seconds: u64, now: Now) -> conduit_coordination::Result<()> {
    let mut store = Store::open(&StateDir::open(&world.state()).unwrap()).unwrap();
    let id: BypassId = mint(now);
    let new = NewBypass { id, scope, seconds, reason: "a broken gate", actor: "operator:local" };
    let scopes: Vec<ScopeId> = vec!["one".parse().unwrap(), "two".parse().unwrap()];
    store.write(|tx| bypasses::begin(tx, &new, &scopes, now))
}

fn restore(world: &World) -> usize {
    let mut store = Store::open(&StateDir::open(&world.state()).unwrap()).unwrap();
    let scopes: Vec<ScopeId> = vec!["one".parse().unwrap(), "two".parse().unwrap()];
    let restored: conduit_coordination::Result<usize> =
        store.write(|tx| bypasses::restore(tx, "operator:other", &scopes, Clock.now()));
    restored.unwrap()
}

/// G04, G05, M06
#[tokio::test]
async fn while_gates_are_bypassed_none_is_asked_and_the_record_of_each_call_says_break_glass() {
    locally(async {
        let (mut world, guard) = closed();
        let host = world.host("first");
        let speaker = world.speaker();
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "gate_failed");
        bypass(&world, None, 3600, Clock.now()).unwrap();
        let asked = guard.gated.borrow().len();
        assert_eq!(speaker.call(&host, "lab.do", "r", 1).await.unwrap().output, json!("ran"));
        assert_eq!(guard.gated.borrow().len(), asked);
        assert_eq!(restore(&world), 1);
        assert_eq!(restore(&world), 0, "nothing is left to restore");
        assert_eq!(speaker.refusal(&host, "lab.do", "s", 1).await, "gate_failed");
        assert_eq!(
            world.history(&host),
            [
                "toolbelt.rejected lab.do gate_refused guard",
                "toolbelt.called lab.do ok break_glass",
                "toolbelt.rejected lab.do gate_refused guard",
            ]
        );
        let told = "SELECT type || ' ' || scope_id || ' ' || source || ' ' || actor FROM event
                     WHERE source = 'core.action' ORDER BY seq";
        assert_eq!(
            world.texts("store.db", told),
            [
                "core.gates.bypassed one core.action operator:local",
                "core.gates.bypassed two core.action operator:local",
                "core.gates.restored one core.action operator:other",
                "core.gates.restored two core.action operator:other",
            ]
        );
    })
    .await;
}

/// G04
#[tokio::test]
async fn a_bypass_ends_by_itself_with_its_boot_and_holds_in_its_scope_alone() {
    locally(async {
        let (mut world, _) = closed();
        let host = world.host("first");
        let speaker = world.speaker();
        let now = Clock.now();
        let an_hour_ago = Now { boot_us: now.boot_us - 3_600_000_001, ..now };
        bypass(&world, None, 3600, an_hour_ago).unwrap();
        bypass(&world, None, 60, Now { boot_id: "another", ..now }).unwrap();
        bypass(&world, Some(&"elsewhere".parse().unwrap()), 60, now).unwrap();
        assert_eq!(speaker.refusal(&host, "lab.do", "r", 1).await, "gate_failed");
        for odd in [0, 3601, u64::MAX] {
            assert_eq!(bypass(&world, None, odd, now).unwrap_err().code().as_str(), "invalid_request", "{odd}");
        }
        bypass(&world, Some(&speaker.claimed.scope.clone()), 60, now).unwrap();
        speaker.call(&host, "lab.do", "r", 1).await.unwrap();
    })
    .await;
}

fn start() -> StartCall {
    StartCall::new(mint(Clock.now()), "one".parse().unwrap(), "b")
}

/// G06
#[tokio::test]
async fn start_gates_are_asked_in_the_order_of_names_and_whatever_is_no_answer_refuses() {
    locally(async {
        let starting = |name: &str| {
            let registration = conduit_toolbelt::registry::Registration { start_gate: true, ..gate(name) };
            Scripted::new(registration)
        };
        let (first, second) = (starting("arch"), starting("zone"));
        let mut world = World::with(&[Rc::clone(&second), Scripted::new(lab()), Rc::clone(&first)]);
        let host = world.host("first");
        let snapshot = world.snapshot();
        let call = start();
        assert!(host.has_start_gates(&snapshot, &"one".parse().unwrap()));
        for gate in [&first, &second] {
            gate.starts(|_| async { Ok(GateAnswer::LetThrough) });
        }
        assert_eq!(host.ask_to_start(&call, &snapshot).await, StartGated::Through);
        let wait = serde_json::from_value(json!({"mode": "any", "predicates": [{"type": "zone.decided"}]})).unwrap();
        let plan = WaitPlan { wait, output: json!(null) };
        let given = plan.clone();
        second.starts(move |_| {
            let plan = given.clone();
            async { Ok(GateAnswer::Park(plan)) }
        });
        let parked = StartGated::Parked { gate: "zone".into(), wait: plan.wait.clone() };
        assert_eq!(host.ask_to_start(&call, &snapshot).await, parked);
        first.starts(|_| async { Ok(GateAnswer::Refuse(OperationError::new("not_today", "it is Sunday"))) });
        let StartGated::Refused { gate, message } = host.ask_to_start(&call, &snapshot).await else { panic!() };
        assert_eq!((gate.as_str(), message.as_str()), ("arch", "the gate `arch` refuses: not_today: it is Sunday"));
        first.starts(|_| async { panic!("a gate that panics") });
        let StartGated::Refused { message, .. } = host.ask_to_start(&call, &snapshot).await else { panic!() };
        assert!(message.starts_with("gate_failed"), "{message}");
        // A Wait for Events that are not its own.
        first.starts(move |_| {
            let plan = plan.clone();
            async { Ok(GateAnswer::Park(plan)) }
        });
        let StartGated::Refused { message, .. } = host.ask_to_start(&call, &snapshot).await else { panic!() };
        assert!(message.starts_with("gate_failed"), "{message}");
        bypass(&world, None, 60, Clock.now()).unwrap();
        assert_eq!(host.ask_to_start(&call, &snapshot).await, StartGated::Bypassed);
    })
    .await;
}

/// G06
#[tokio::test(start_paused = true)]
async fn a_start_gate_that_hangs_refuses_at_the_deadline() {
    locally(async {
        let registration = conduit_toolbelt::registry::Registration { start_gate: true, ..gate("arch") };
        let slow = Scripted::new(registration);
        slow.starts(|_| std::future::pending());
        let mut world = World::with(&[Scripted::new(lab()), slow]);
        let host = world.host("first");
        let snapshot = world.snapshot();
        let begun = tokio::time::Instant::now();
        let StartGated::Refused { message, .. } = host.ask_to_start(&start(), &snapshot).await else { panic!() };
        assert!(message.starts_with("gate_failed"), "{message}");
        assert_eq!(begun.elapsed().as_secs(), conduit_extension::host::GATES_TIME_MAX.as_secs());
    })
    .await;
}
