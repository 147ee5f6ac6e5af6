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
use conduit_extension::{Authority, Extension, Failure, GateAnswer, GateCall, StartCall};
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
            .extension_of_scopes(NAME, move |config, pointer, scopes| validate(config, pointer, &names, scopes));
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
    assert_eq!(world.human.gate(&call(&mine, "s", 1)).await, Ok(GateAnswer::LetThrough));
    assert_eq!(world.human.gate(&call(&mine, "s", 1)).await, Ok(GateAnswer::LetThrough), "the same request");
    assert_ne!(parked(world.human.gate(&call(&mine, "t", 1)).await), id, "another request is another call");
    assert!(is_illegal(&world.decide(&id, ONCE)), "it is used up");
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
