//! Requests on a real store: one for one call, decided once, and over with their Work.

use std::rc::Rc;

use conduit_api::views::{ApprovalView, Reach};
use conduit_api::{ApprovalId, ScopeId, UnixMicros, Version, WorkId};
use conduit_config::{ConfigService, Registered};
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::source;
use conduit_coordination::executions::{self, Claim, Claimed};
use conduit_coordination::queries::{Filter, Window};
use conduit_coordination::work::{self, NewWork};
use conduit_coordination::{Error, Result};
use conduit_extension::desk::Desk;
use conduit_extension::{Authority, Extension, Failure, GateAnswer, GateCall, Pass, StartCall};
use conduit_extension_human::approvals::{self, Decision};
use conduit_extension_human::{Human, NAME, registration, validate};
use conduit_store::digest::{hex, sha256_parts};
use conduit_store::{Clock, StateDir, Store, mint};
use conduit_toolbelt::registry::{OperationSpec, Registration, Registry};
use serde_json::{Map, Value, json};

const ONCE: Decision = Decision::Approve { reach: Reach::Once, until: None };

struct World {
    _base: tempfile::TempDir,
    state: StateDir,
    store: Store,
    human: Human,
}

fn registry(operations: &[&str]) -> Rc<Registry> {
    let operation = |name: &&str| OperationSpec::new(*name, "Do it", json!({"type": "object"}));
    let repo = Registration {
        always: true,
        operations: operations.iter().map(operation).collect(),
        ..Registration::new("repo", Version::new(1, 0, 0), "A repository")
    };
    let (registry, refused) = Registry::new(vec![repo, registration()]);
    assert_eq!(refused, []);
    Rc::new(registry)
}

impl World {
    /// A world in which `repo.merge` and the start of `deploy` need approval, and chains are `depth` deep.
    fn with(depth: u32) -> Self {
        let configuration = json!({"version": 1, "limits": {"causal_depth_max": depth}, "extensions": {"human": {
            "enabled": true, "config": {
                "rules": [{"operations": ["repo.merge"], "timeout_s": 60}], "starts": [{"bindings": ["deploy"]}],
            },
        }}, "scopes": {"live": {"bindings": {"deploy": {"executor": "shell"}, "other": {"executor": "shell"}}}}});
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let mut store = Store::open(&state).unwrap();
        let file = base.path().join("config.json");
        std::fs::write(&file, configuration.to_string()).unwrap();
        let known = registry(&["repo.merge", "repo.list"]);
        let names = known.catalogue().clone();
        let references = Registered::of(known.catalogue().clone())
            .executor("shell", |_, _| Vec::new())
            .extension_of_document(NAME, move |config, pointer, document| validate(config, pointer, &names, document));
        ConfigService::new(state.clone(), file, Rc::new(references)).start(&mut store, Clock.now()).unwrap();
        let human = human(&state, known);
        Self { _base: base, state, store, human }
    }

    fn new() -> Self {
        Self::with(8)
    }

    fn work(&mut self, binding: &str) -> WorkId {
        let (now, scope, data): (_, ScopeId, _) = (Clock.now(), "live".parse().unwrap(), Map::new());
        let new = NewWork {
            id: mint(now),
            scope: &scope,
            binding,
            title: None,
            parent: None,
            keys: &[],
            data: &data,
            cause: None,
            input: None,
            source: source::MANUAL,
            actor: Some("operator:local"),
        };
        let bounds = Bounds { depth_max: 8, per_minute: 99 };
        self.store.write(|tx| work::create(tx, &new, bounds, now)).unwrap().work
    }

    /// A claimed execution of a new Work.
    fn claim(&mut self) -> Claimed {
        self.work("deploy");
        let claim = Claim { owner: "scheduler_test", generation: 1, lease_us: 1 << 40 };
        let claimed = self.store.write(|tx| executions::claim_next(tx, "", &claim, |_| true, Clock.now()));
        claimed.unwrap().expect("a Work is due")
    }

    fn decide(&mut self, id: &ApprovalId, decision: Decision) -> Result<()> {
        self.store.write(|tx| approvals::decide(tx, id, decision, Some("a note"), "operator:ann", Clock.now()))
    }

    /// Has the call run, as the host does when it commits the intent.
    fn pass(&mut self, call: &GateCall) -> Pass {
        self.store.write(|tx| self.human.pass(call, tx)).unwrap()
    }

    /// Says that the call did nothing, as the host does when it withdraws the intent.
    fn give_back(&mut self, call: &GateCall) {
        self.store.write(|tx| self.human.give_back(call, tx)).unwrap();
    }

    fn state(&mut self, id: &ApprovalId) -> String {
        self.texts(&format!("SELECT state FROM approval WHERE id = '{id}'")).remove(0)
    }

    fn sql(&mut self, sql: &str) -> usize {
        let changed: conduit_store::Result<usize> = self.store.write(|tx| tx.execute("testing", sql, []));
        changed.unwrap()
    }

    fn listed(&mut self) -> Vec<ApprovalView> {
        let window = Window { before: None, limit: 99 };
        let listed: Result<_> =
            self.store.read(|r| approvals::list(r, Filter::default(), window, Clock.now().plus(1_000_000)));
        listed.unwrap().items
    }

    fn texts(&mut self, sql: &str) -> Vec<String> {
        let rows: conduit_store::Result<_> = self.store.read(|r| r.all("testing", sql, [], |row| row.get(0)));
        rows.unwrap()
    }
}

fn human(state: &StateDir, registry: Rc<Registry>) -> Human {
    Human::new(Rc::new(Desk::new(state.clone(), registry, Box::new(|| ()))))
}

/// A call of `repo.merge` with the input `{"n": n}`, as the host puts it before a gate.
fn call(claimed: &Claimed, request: &str, n: i64) -> GateCall {
    let input = json!({"n": n, "token": "hidden"}).as_object().unwrap().clone();
    let text = Value::Object(input.clone()).to_string();
    GateCall {
        operation: "repo.merge".into(),
        request_id: request.into(),
        settings: json!({}),
        call_digest: hex(&sha256_parts("test", &[claimed.work.as_str().as_bytes(), text.as_bytes()])),
        input,
        authority: Authority {
            execution_id: claimed.execution.clone(),
            work_id: claimed.work.clone(),
            scope_id: claimed.scope.clone(),
            binding: claimed.binding.clone(),
            epoch: claimed.epoch,
            generation: claimed.generation,
        },
    }
}

/// The request that `answer` parks on.
#[track_caller]
fn parked(answer: Result<GateAnswer, Failure>) -> ApprovalId {
    match answer {
        Ok(GateAnswer::Park(plan)) => plan.output["approval_id"].as_str().unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn is_illegal(done: &Result<()>) -> bool {
    matches!(done, Err(Error::IllegalState { .. }))
}

/// G03, G07
#[tokio::test]
async fn one_call_makes_one_request_and_an_approval_is_used_up_by_exactly_one_call_of_exactly_that_kind() {
    let mut world = World::new();
    let (mine, other) = (world.claim(), world.claim());
    let list = GateCall { operation: "repo.list".into(), ..call(&mine, "r", 1) };
    assert_eq!(world.human.gate(&list).await, Ok(GateAnswer::LetThrough), "no rule names it");
    let id = parked(world.human.gate(&call(&mine, "r", 1)).await);
    assert_eq!(parked(world.human.gate(&call(&mine, "s", 1)).await), id, "the same call meets the same request");
    let listed = world.listed();
    assert_eq!((listed.len(), listed[0].state.as_str()), (1, "pending"));
    assert_eq!(listed[0].input, json!({"n": 1, "token": "[redacted]"}));
    assert_eq!(world.texts("SELECT delivery_id FROM event WHERE type = 'human.approval.requested'"), [id.as_str()]);

    world.decide(&id, ONCE).unwrap();
    world.decide(&id, ONCE).unwrap();
    assert_eq!(world.texts("SELECT actor FROM event WHERE type = 'human.decided'"), ["operator:ann"]);
    assert_ne!(parked(world.human.gate(&call(&mine, "s", 2)).await), id, "another input");
    assert_ne!(parked(world.human.gate(&call(&other, "s", 1)).await), id, "another Work");
    for request in ["s", "t"] {
        let judged = world.human.gate(&call(&mine, request, 1)).await;
        assert_eq!(judged, Ok(GateAnswer::LetThrough), "nothing is used up by asking");
    }
    assert_eq!(world.pass(&call(&mine, "s", 1)), Pass::Used);
    assert_eq!(world.human.gate(&call(&mine, "s", 1)).await, Ok(GateAnswer::LetThrough), "the same request");
    assert_eq!(world.pass(&call(&mine, "s", 1)), Pass::Free, "which used it up before");
    assert_eq!(world.pass(&call(&mine, "t", 1)), Pass::Over, "what was let through before is not any more");
    assert_ne!(parked(world.human.gate(&call(&mine, "t", 1)).await), id, "another request is another call");
    assert!(is_illegal(&world.decide(&id, ONCE)), "it is used up");
}

/// G07: an approval is one for what was done: a call that did nothing gives it back, and one that may have done it does not.
#[tokio::test]
async fn an_approval_that_is_given_back_lets_the_same_call_through_again_unless_its_work_or_its_call_went_on() {
    let mut world = World::new();
    let claimed = world.claim();
    let id = parked(world.human.gate(&call(&claimed, "r", 1)).await);
    world.decide(&id, ONCE).unwrap();
    for request in ["r", "s"] {
        assert_eq!(world.pass(&call(&claimed, request, 1)), Pass::Used);
        assert_eq!(world.state(&id), "consumed");
        for _ in 0..2 {
            world.give_back(&call(&claimed, request, 1)); // twice changes nothing
            assert_eq!(world.state(&id), "approved");
        }
    }
    // Another request of the same call, or another call, gives nothing back.
    assert_eq!(world.pass(&call(&claimed, "t", 1)), Pass::Used);
    for other in [call(&claimed, "u", 1), call(&claimed, "t", 2)] {
        world.give_back(&other);
    }
    assert_eq!(world.state(&id), "consumed");
    // The same call was made meanwhile, and waits on a request of its own.
    let newer = parked(world.human.gate(&call(&claimed, "v", 1)).await);
    world.give_back(&call(&claimed, "t", 1));
    assert_eq!(world.state(&id), "consumed");
    world.decide(&newer, ONCE).unwrap();
    assert_eq!(world.pass(&call(&claimed, "v", 1)), Pass::Used);
    let cancelled: Result<()> = world.store.write(|tx| work::cancel(tx, &claimed.work, "operator:local", Clock.now()));
    cancelled.unwrap();
    world.give_back(&call(&claimed, "v", 1));
    assert_eq!(world.state(&newer), "consumed", "its Work has ended");
}

/// G07, T17: what became a Wait leaves no answer to replay, so the same request is a new call, and an approval for once is over.
#[tokio::test]
async fn an_approval_of_a_call_that_became_a_wait_lets_not_even_the_same_request_through_again() {
    let mut world = World::new();
    let claimed = world.claim();
    let asked = call(&claimed, "r", 1);
    let id = parked(world.human.gate(&asked).await);
    world.decide(&id, ONCE).unwrap();
    assert_eq!(world.pass(&asked), Pass::Used);
    assert_eq!(world.pass(&asked), Pass::Free, "a crash may have come before the handler");
    world.store.write(|tx| world.human.close(&asked, tx)).unwrap();
    assert_eq!(world.pass(&asked), Pass::Over);
    assert_ne!(parked(world.human.gate(&asked).await), id, "it asks for a word of its own");
}

/// G07: between a gate's yes and the call, an operator may take it back and time may end it.
#[tokio::test]
async fn an_approval_that_ended_before_the_call_could_run_does_not_let_it_run() {
    let mut world = World::new();
    let claimed = world.claim();
    let asked = call(&claimed, "r", 1);
    let id = parked(world.human.gate(&asked).await);
    assert_eq!(world.pass(&asked), Pass::Over, "nobody decided");
    world.decide(&id, ONCE).unwrap();
    world.decide(&id, Decision::Deny).unwrap();
    assert_eq!(world.pass(&asked), Pass::Over, "it was taken back");
    let until = Some(Clock.now().wall.plus(60_000_000));
    world.decide(&id, Decision::Approve { reach: Reach::Until, until }).unwrap();
    assert_eq!((world.pass(&asked), world.pass(&asked)), (Pass::Free, Pass::Free));
    world.sql("UPDATE approval SET until_us = 1");
    assert_eq!(world.pass(&asked), Pass::Over, "its time has passed");
    let unnamed = GateCall { operation: "repo.list".into(), ..asked };
    assert_eq!(world.pass(&unnamed), Pass::Free, "no rule names it");
}

/// M06, G07: kept for 90 days after nothing meets them any more; what stands is kept, however old.
#[tokio::test]
async fn a_request_goes_ninety_days_after_it_was_over_and_what_stands_stays() {
    let mut world = World::new();
    let (used, work, pending, until) = (world.claim(), world.claim(), world.claim(), world.claim());
    let mut ids = Vec::new();
    for claimed in [&used, &work, &pending, &until] {
        ids.push(parked(world.human.gate(&call(claimed, "r", 1)).await));
    }
    world.decide(&ids[0], ONCE).unwrap();
    assert_eq!(world.pass(&call(&used, "r", 1)), Pass::Used);
    world.decide(&ids[1], Decision::Approve { reach: Reach::Work, until: None }).unwrap();
    let later = Some(Clock.now().wall.plus(60_000_000));
    world.decide(&ids[3], Decision::Approve { reach: Reach::Until, until: later }).unwrap();
    let now = Clock.now();
    let sweep = |world: &mut World, after_us: i64| -> usize {
        let swept: Result<usize> = world.store.write(|tx| approvals::sweep(tx, now.plus(after_us)));
        swept.unwrap()
    };
    let due: Result<i64> = world.store.read(|r| approvals::next_due(r, now));
    let due = due.unwrap();
    assert!(due <= now.wall.0 + approvals::KEEP_US && due > now.wall.0, "{due}");
    assert_eq!(sweep(&mut world, approvals::KEEP_US - 60_000_000), 0);
    // The one that was used up at once, then those whose own minute is over.
    assert_eq!(sweep(&mut world, approvals::KEEP_US), 1);
    assert_eq!(sweep(&mut world, approvals::KEEP_US), 0);
    // Broken in the middle, nothing is gone; then all of it.
    world.sql("CREATE TRIGGER broken BEFORE DELETE ON approval WHEN old.state = 'approved' BEGIN SELECT RAISE(ABORT, 'broken'); END");
    let broken: Result<usize> = world.store.write(|tx| approvals::sweep(tx, now.plus(approvals::KEEP_US + 61_000_000)));
    broken.unwrap_err();
    assert_eq!(world.texts("SELECT id FROM approval").len(), 3);
    world.sql("DROP TRIGGER broken");
    assert_eq!(sweep(&mut world, approvals::KEEP_US + 61_000_000), 2);
    assert_eq!(sweep(&mut world, 100 * approvals::KEEP_US), 0);
    assert_eq!(world.texts("SELECT id FROM approval"), [ids[1].as_str()]);
    let cancelled: Result<()> = world.store.write(|tx| work::cancel(tx, &work.work, "operator:local", now));
    cancelled.unwrap();
    assert_eq!(sweep(&mut world, approvals::KEEP_US - 1), 0);
    assert_eq!(sweep(&mut world, approvals::KEEP_US), 1);
    assert_eq!(world.texts("SELECT id FROM approval"), Vec::<String>::new());
}

/// G07
#[tokio::test]
async fn a_decision_can_be_changed_until_the_work_ends_and_a_work_that_is_retried_asks_anew() {
    let mut world = World::new();
    let claimed = world.claim();
    let id = parked(world.human.gate(&call(&claimed, "r", 1)).await);
    world.decide(&id, Decision::Deny).unwrap();
    let Ok(GateAnswer::Refuse(refusal)) = world.human.gate(&call(&claimed, "r", 1)).await else { panic!() };
    assert_eq!(refusal.code, "approval_denied");
    assert!(refusal.message.contains(id.as_str()) && refusal.message.ends_with(": a note"), "{refusal}");
    world.decide(&id, Decision::Approve { reach: Reach::Work, until: None }).unwrap();
    for request in ["r", "s"] {
        assert_eq!(world.human.gate(&call(&claimed, request, 1)).await, Ok(GateAnswer::LetThrough));
    }
    world.decide(&id, Decision::Deny).unwrap();
    let pending = parked(world.human.gate(&call(&claimed, "r", 2)).await);
    let cancelled: Result<()> = world.store.write(|tx| work::cancel(tx, &claimed.work, "operator:local", Clock.now()));
    cancelled.unwrap();
    for id in [&id, &pending] {
        assert!(is_illegal(&world.decide(id, ONCE)));
    }
    let states: Vec<String> = world.listed().into_iter().map(|one| one.state).collect();
    assert_eq!(states, ["expired", "denied"]);
    assert_ne!(parked(world.human.gate(&call(&claimed, "r", 1)).await), id);
}

/// G07
#[tokio::test]
async fn an_approval_until_a_time_needs_one_that_has_not_passed_and_nobody_decides_about_what_is_not_there() {
    let mut world = World::new();
    let claimed = world.claim();
    let id = parked(world.human.gate(&call(&claimed, "r", 1)).await);
    let later = Some(Clock.now().wall.plus(60_000_000));
    for (reach, until) in [(Reach::Until, None), (Reach::Once, later), (Reach::Until, Some(UnixMicros(1)))] {
        let refused = world.decide(&id, Decision::Approve { reach, until });
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{reach:?} {until:?}");
    }
    world.decide(&id, Decision::Approve { reach: Reach::Until, until: later }).unwrap();
    assert_eq!(world.human.gate(&call(&claimed, "r", 1)).await, Ok(GateAnswer::LetThrough));
    let changed: conduit_store::Result<usize> =
        world.store.write(|tx| tx.execute("testing", "UPDATE approval SET until_us = 1", []));
    assert_eq!(changed.unwrap(), 1);
    assert_ne!(parked(world.human.gate(&call(&claimed, "r", 1)).await), id, "its time has passed");
    let unknown = ApprovalId::from_parts(1, 1);
    assert!(matches!(world.decide(&unknown, ONCE), Err(Error::NotFound { .. })));
}

/// G04, G07, T08
#[tokio::test]
async fn the_gate_fails_closed_when_it_cannot_know_its_rules_or_tell_of_a_request() {
    let mut world = World::new();
    let claimed = world.claim();
    let lacking = human(&world.state, registry(&["repo.list"]));
    assert!(matches!(lacking.gate(&call(&claimed, "r", 1)).await, Err(Failure::Failed(_))));
    let odd = GateCall { call_digest: "x".into(), ..call(&claimed, "r", 1) };
    assert!(matches!(world.human.gate(&odd).await, Err(Failure::Failed(_))));
    // A chain that has reached its depth has no room for the Event, and so for no request.
    let mut deep = World::with(1);
    let claimed = deep.claim();
    let child: conduit_store::Result<usize> =
        deep.store.write(|tx| tx.execute("testing", "UPDATE event SET depth = 1 WHERE type = 'core.work.created'", []));
    child.unwrap();
    assert!(matches!(deep.human.gate(&call(&claimed, "r", 1)).await, Err(Failure::Unavailable(_))));
    assert_eq!(deep.listed(), []);
}

/// G06, G07
#[tokio::test]
async fn a_start_is_let_through_by_its_approval_however_often_it_is_tried() {
    let mut world = World::new();
    let work = world.work("deploy");
    let start = |binding: &str| StartCall::new(work.clone(), "live".parse().unwrap(), binding);
    assert_eq!(world.human.start_gate(&start("other")).await, Ok(GateAnswer::LetThrough), "no rule names it");
    let id = parked(world.human.start_gate(&start("deploy")).await);
    assert_eq!(parked(world.human.start_gate(&start("deploy")).await), id);
    world.decide(&id, ONCE).unwrap();
    for _ in 0..2 {
        assert_eq!(world.human.start_gate(&start("deploy")).await, Ok(GateAnswer::LetThrough));
    }
    world.decide(&id, Decision::Deny).unwrap();
    assert!(matches!(world.human.start_gate(&start("deploy")).await, Ok(GateAnswer::Refuse(_))));
    let other = world.work("deploy");
    let other = StartCall::new(other, "live".parse().unwrap(), "deploy");
    assert_ne!(parked(world.human.start_gate(&other).await), id);
}

/// S04, T16
#[test]
fn the_registration_keeps_every_rule() {
    let registration = conduit_extension_human::registration();
    assert_eq!(registration.version, Version::new(0, 1, 0));
    let (_, refused) = conduit_toolbelt::registry::Registry::new(vec![registration]);
    assert_eq!(refused, []);
}
