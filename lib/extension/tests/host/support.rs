//! A state directory, executions that run in it, extensions that do as a test says, and the hosts that carry them.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::host::HostCall;
use conduit_api::toolbelt::{CallRequest, CallResponse};
use conduit_api::{ApiError, Version};
use conduit_config::{Budget, ConfigService, Registered, Snapshot, SnapshotCache};
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::source;
use conduit_coordination::executions::{self, Claim, Claimed};
use conduit_coordination::work::{self, NewWork};
use conduit_extension::desk::Fault;
use conduit_extension::host::ExtensionHost;
use conduit_extension::{Answer, Extension, Failure, GateAnswer, GateCall, Invocation, Invoked, Pass, StartCall};
use conduit_store::digest::hex;
use conduit_store::lease::Demand;
use conduit_store::{Clock, StateDir, Store, Write, mint, named_params};
use conduit_toolbelt::hosted::Hosted;
use conduit_toolbelt::registry::{OperationKind, OperationSpec, Registration, Registry};
use conduit_toolbelt::{Error, Grants, NewToken, token};
use serde_json::{Map, Value, json};

pub const LONG_US: i64 = 3_600_000_000;
/// Everything that an execution here is granted.
pub const OPERATIONS: [&str; 9] =
    ["emit", "wait", "declare_outcome", "read_context", "lab.do", "lab.once", "lab.look", "lab.wait", "lab.emit"];

/// `lab` with one operation of each kind; it may wait for `lab.*`.
pub fn lab() -> Registration {
    let operation = |name: &str, kind| {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false});
        OperationSpec::new(name, "Do something", schema).kind(kind)
    };
    let once = OperationSpec { idempotent: false, ..operation("lab.once", OperationKind::Handler) };
    Registration {
        operations: vec![
            operation("lab.do", OperationKind::Handler),
            once,
            operation("lab.look", OperationKind::Read),
            operation("lab.wait", OperationKind::Wait),
            operation("lab.emit", OperationKind::Emission),
        ],
        wait_families: vec!["lab".into()],
        ..Registration::new("lab", Version::new(1, 0, 0), "A laboratory")
    }
}

/// A registration with a gate and nothing else.
pub fn gate(name: &str) -> Registration {
    Registration {
        gate: true,
        wait_families: vec![name.to_owned()],
        ..Registration::new(name, Version::new(1, 0, 0), "A gate")
    }
}

type Handler = Rc<dyn Fn(Invocation) -> Answer<'static, Result<Invoked, Failure>>>;
type StartJudge = Rc<dyn Fn(StartCall) -> Answer<'static, Result<GateAnswer, Failure>>>;
type Judge = Rc<dyn Fn(GateCall) -> Answer<'static, Result<GateAnswer, Failure>>>;

/// An extension that does as a test says, and remembers what it was asked.
pub struct Scripted {
    registration: Registration,
    handler: RefCell<Handler>,
    judge: RefCell<Judge>,
    start: RefCell<StartJudge>,
    pub invoked: RefCell<Vec<Invocation>>,
    pub gated: RefCell<Vec<GateCall>>,
    /// What it says of each call that is about to run, in turn; in the end that it stands.
    pub passes: RefCell<Vec<Pass>>,
}

impl Scripted {
    /// It answers `null` and lets everything through, until it is told otherwise.
    pub fn new(registration: Registration) -> Rc<Self> {
        Rc::new(Self {
            registration,
            handler: RefCell::new(Rc::new(|_| Box::pin(async { Ok(Invoked::Output(Value::Null)) }))),
            judge: RefCell::new(Rc::new(|_| Box::pin(async { Ok(GateAnswer::LetThrough) }))),
            start: RefCell::new(Rc::new(|_| Box::pin(async { Ok(GateAnswer::LetThrough) }))),
            invoked: RefCell::default(),
            gated: RefCell::default(),
            passes: RefCell::default(),
        })
    }

    pub fn does<F: Future<Output = Result<Invoked, Failure>> + 'static>(
        &self,
        handler: impl Fn(Invocation) -> F + 'static,
    ) {
        *self.handler.borrow_mut() = Rc::new(move |call| Box::pin(handler(call)));
    }

    pub fn judges<F: Future<Output = Result<GateAnswer, Failure>> + 'static>(
        &self,
        judge: impl Fn(GateCall) -> F + 'static,
    ) {
        *self.judge.borrow_mut() = Rc::new(move |call| Box::pin(judge(call)));
    }

    pub fn starts<F: Future<Output = Result<GateAnswer, Failure>> + 'static>(
        &self,
        judge: impl Fn(StartCall) -> F + 'static,
    ) {
        *self.start.borrow_mut() = Rc::new(move |call| Box::pin(judge(call)));
    }
}

impl Extension for Scripted {
    fn registration(&self) -> Registration {
        self.registration.clone()
    }

    fn invoke<'a>(&'a self, call: &'a Invocation) -> Answer<'a, Result<Invoked, Failure>> {
        self.invoked.borrow_mut().push(call.clone());
        let handler = Rc::clone(&self.handler.borrow());
        handler(call.clone())
    }

    fn gate<'a>(&'a self, call: &'a GateCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        self.gated.borrow_mut().push(call.clone());
        let judge = Rc::clone(&self.judge.borrow());
        judge(call.clone())
    }

    /// A pass that is used up is a row, so that what becomes of it is the transaction's.
    fn pass(&self, call: &GateCall, tx: &Write<'_>) -> Result<Pass, Fault> {
        let mut passes = self.passes.borrow_mut();
        let pass = if passes.is_empty() { Pass::Free } else { passes.remove(0) };
        if pass == Pass::Used {
            let params = named_params! { ":id": format!("{} {}", self.registration.name, call.request_id) };
            tx.execute("testing", "INSERT INTO pass (id) VALUES (:id)", params)?;
        }
        Ok(pass)
    }

    fn give_back(&self, call: &GateCall, tx: &Write<'_>) -> Result<(), Fault> {
        let params = named_params! { ":id": format!("{} {}", self.registration.name, call.request_id) };
        tx.execute("testing", "DELETE FROM pass WHERE id = :id", params)?;
        Ok(())
    }

    fn start_gate<'a>(&'a self, call: &'a StartCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        let judge = Rc::clone(&self.start.borrow());
        judge(call.clone())
    }
}

/// The state directory, and what every host of it is given.
pub struct World {
    base: tempfile::TempDir,
    pub store: Store,
    service: ConfigService,
    pub extensions: Vec<Rc<Scripted>>,
    configuration: Value,
    /// What tokens that are issued from now on pin.
    budget: Budget,
}

/// A running segment and its token.
pub struct Speaker {
    pub claimed: Claimed,
    pub token: String,
}

impl World {
    /// A world with these extensions, all of them enabled whose registration is accepted.
    pub fn with(extensions: &[Rc<Scripted>]) -> Self {
        let accepted = registry(extensions);
        let names = accepted.registrations().iter().map(|registration| registration.name.clone());
        let enabled: Map<String, Value> = names.map(|name| (name, json!({"enabled": true}))).collect();
        let configuration = json!({"version": 1, "extensions": enabled, "scopes": {"demo": {
            "operations": OPERATIONS, "events": ["lab"],
            "bindings": {"worker": {"executor": "shell", "operations": OPERATIONS, "events": ["lab"]}},
        }}});
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let mut store = Store::open(&state).unwrap();
        let file = base.path().join("config.json");
        std::fs::write(&file, configuration.to_string()).unwrap();
        let extensions = extensions.to_vec();
        let catalogue = accepted.catalogue().clone();
        let references = Registered::of(catalogue).executor("shell", |_, _| Vec::new());
        let service = ConfigService::new(state, file, Rc::new(references));
        service.start(&mut store, Clock.now()).unwrap();
        Self { base, store, service, extensions, configuration, budget: Budget::default() }
    }

    /// A world with `lab`, and its host.
    pub fn lab() -> (Self, Rc<Scripted>, Rc<ExtensionHost>) {
        let lab = Scripted::new(lab());
        let world = Self::with(&[Rc::clone(&lab)]);
        let host = world.host("first");
        (world, lab, host)
    }

    pub fn state(&self) -> PathBuf {
        self.base.path().join("s")
    }

    /// Another instance of the host.
    pub fn host(&self, instance: &str) -> Rc<ExtensionHost> {
        let toolbelt = Hosted::open(&self.state(), Rc::new(registry(&self.extensions)), instance.to_owned()).unwrap();
        let extensions = self.extensions.iter().map(|e| Rc::clone(e) as Rc<dyn Extension>).collect();
        Rc::new(ExtensionHost::new(toolbelt, extensions, Box::new(|| ())))
    }

    /// The configuration that is active.
    pub fn snapshot(&mut self) -> Rc<Snapshot> {
        let state = StateDir::open(&self.state()).unwrap();
        let mut cache = SnapshotCache::new(registry(&self.extensions).catalogue().clone());
        self.store.read(|r| cache.active(r, &state)).unwrap()
    }

    /// Publishes the configuration as `change` leaves it.
    pub fn publish(&mut self, change: impl FnOnce(&mut Value)) {
        change(&mut self.configuration);
        let bytes = self.configuration.to_string();
        self.service.apply(&mut self.store, bytes.as_bytes(), None, "operator:local", Clock.now()).unwrap();
    }

    /// A running segment of a new Work.
    pub fn speaker(&mut self) -> Speaker {
        let (now, scope, data) = (Clock.now(), "demo".parse().unwrap(), Map::new());
        let new = NewWork {
            id: mint(now),
            scope: &scope,
            binding: "worker",
            title: None,
            parent: None,
            keys: &[],
            data: &data,
            cause: None,
            input: None,
            source: source::MANUAL,
            actor: Some("operator:local"),
        };
        let bounds = Bounds { depth_max: 4, per_minute: 60 };
        self.store.write(|tx| work::create(tx, &new, bounds, now)).unwrap();
        let claim = Claim { owner: "scheduler_first", generation: 1, lease_us: LONG_US };
        let claimed = self.store.write(|tx| executions::claim_next(tx, "", &claim, |_| true, now)).unwrap();
        self.go_on(claimed.expect("a Work is due"))
    }

    /// A running segment of a new Work that may use up what `budget` says.
    pub fn bounded(&mut self, budget: Value) -> Speaker {
        self.budget = serde_json::from_value(budget).unwrap();
        self.speaker()
    }

    /// Issues the token of a claim and launches it.
    fn go_on(&mut self, claimed: Claimed) -> Speaker {
        let now = Clock.now();
        let started: Result<bool, conduit_coordination::Error> =
            self.store.fenced(&claimed.fence(), &Demand::Ownership, now, |tx| {
                executions::started(tx, "att_test", now.boot_us + LONG_US)
            });
        assert!(started.unwrap());
        self.issue(claimed)
    }

    fn issue(&mut self, claimed: Claimed) -> Speaker {
        let now = Clock.now();
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let grants = Grants {
            operations: list(&OPERATIONS),
            events: list(&["lab"]),
            delegates: Vec::new(),
            budget: self.budget,
        };
        let expires_boot_us = now.boot_us + LONG_US;
        let issued = self.store.fenced(&claimed.fence(), &Demand::Ownership, now, |tx| {
            token::issue(tx, &NewToken { claimed: &claimed, grants: &grants, expires_boot_us })
        });
        let token = issued.unwrap().expose().to_owned();
        Speaker { claimed, token }
    }

    /// Takes the execution over, as a scheduler that starts does: the first token has lost its authority to the second.
    pub fn supersede(&mut self, speaker: &Speaker) -> Speaker {
        let (execution, now) = (speaker.claimed.execution.clone(), Clock.now());
        let claimed =
            self.store.write(|tx| executions::recover(tx, &execution, "scheduler_second", LONG_US, now)).unwrap();
        self.issue(claimed)
    }

    /// Changes rows behind the suite's back, over a connection of its own.
    pub fn sql(&mut self, sql: &str) -> usize {
        let changed: Result<usize, Error> = self.store.write(|tx| Ok(tx.execute("testing", sql, [])?));
        changed.unwrap()
    }

    /// The first column of every row, as text.
    pub fn texts(&self, file: &str, sql: &str) -> Vec<String> {
        let conn = rusqlite::Connection::open(self.state().join(file)).unwrap();
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, Option<String>>(0)).unwrap();
        rows.map(|row| row.unwrap().unwrap_or_default()).collect()
    }

    pub fn count(&self, table: &str) -> usize {
        self.texts("store.db", &format!("SELECT '' FROM {table}")).len()
    }

    /// The states of all intents.
    pub fn intents(&self) -> Vec<String> {
        self.texts("store.db", "SELECT state FROM intent")
    }

    /// `kind operation result gate` of every recorded call, oldest first.
    pub fn history(&self, host: &ExtensionHost) -> Vec<String> {
        assert!(host.flush_history());
        self.texts(
            "history.db",
            "SELECT kind || ' ' || operation || ' ' || result || coalesce(' ' || gate, '') FROM toolbelt_record ORDER BY id",
        )
    }
}

/// What is registered of these extensions.
pub fn registry(extensions: &[Rc<Scripted>]) -> Registry {
    Registry::new(extensions.iter().map(|e| e.registration.clone()).collect()).0
}

impl Speaker {
    pub fn request(&self, operation: &str, request_id: &str, input: Value) -> HostCall {
        let request: CallRequest =
            serde_json::from_value(json!({"operation": operation, "request_id": request_id, "input": input})).unwrap();
        HostCall {
            bearer_digest: hex(&token::digest(&self.token)),
            execution_id: self.claimed.execution.clone(),
            request,
        }
    }

    /// Calls with the input `{"n": n}`.
    pub async fn call(
        &self,
        host: &Rc<ExtensionHost>,
        operation: &str,
        id: &str,
        n: i64,
    ) -> Result<CallResponse, ApiError> {
        host.call(self.request(operation, id, json!({"n": n}))).await
    }

    /// The code of a call that is refused.
    pub async fn refusal(&self, host: &Rc<ExtensionHost>, operation: &str, id: &str, n: i64) -> String {
        self.call(host, operation, id, n).await.unwrap_err().code_text().to_owned()
    }
}

/// Runs a test where tasks of one thread can be spawned.
pub async fn locally(test: impl Future<Output = ()>) {
    tokio::task::LocalSet::new().run_until(test).await;
}

/// A gate in front of whatever a test wants to hold: who passes says so, and waits for leave.
#[derive(Default)]
pub struct Barrier {
    reached: tokio::sync::Notify,
    leave: tokio::sync::Notify,
}

impl Barrier {
    pub async fn pass(&self) {
        self.reached.notify_one();
        self.leave.notified().await;
    }
    pub async fn reached(&self) {
        self.reached.notified().await;
    }
    pub fn open(&self) {
        self.leave.notify_one();
    }
}
