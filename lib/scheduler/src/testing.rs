//! A scheduler's world on a real state directory, without the other programs, for the tests beside it.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::ScopeId;
use conduit_api::places::Places;
use conduit_config::ConfigService;
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::{self, NewEvent, source};
use conduit_coordination::executions::{self, Claimed};
use conduit_coordination::routing;
use conduit_kernel::{BaseEnvironment, Kernel, Limits, OperationRequest, Settings};
use conduit_store::{Clock, StateDir, Store};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, Semaphore};

use crate::executors::Executors;
use crate::host::{CLOSING_MAX, Host};

/// A world, and the directory that it stands in.
pub struct World {
    base: tempfile::TempDir,
    pub host: Rc<Host>,
    deliveries: RefCell<u32>,
}

/// Two scopes with two places each, in a host with three; `demo.start` starts Work in either.
pub fn configuration() -> Value {
    let scope = json!({
        "concurrency": 2, "events": ["demo"],
        "bindings": {"b": {"executor": "shell", "config": {"command": ["/bin/true"]}}},
        "routes": [{"match": {"type": "demo.start"}, "effect": "start", "binding": "b"}],
    });
    json!({"version": 1, "limits": {"executions": 3}, "scopes": {"busy": scope, "calm": scope}})
}

impl World {
    pub fn new() -> Self {
        Self::with_runner("/bin/true")
    }

    /// A world whose runners are `runner`, given the directory of its bundle.
    pub fn with_runner(runner: impl Into<PathBuf>) -> Self {
        let base = tempfile::tempdir().unwrap();
        let places = Places { state: base.path().join("s"), runtime: base.path().join("r") };
        let state = StateDir::open(&places.state).unwrap();
        let store = Store::open(&state).unwrap();
        let environment = BaseEnvironment::of_home(base.path());
        let settings =
            Settings { attempts: places.attempts(), runner: runner.into(), base: environment.clone(), files: None };
        let host = Rc::new(Host {
            places,
            known: RefCell::new(conduit_toolbelt::Live::new(state.clone(), Rc::new(conduit_release::registry()))),
            state,
            store: RefCell::new(store),
            kernel: Kernel::new(settings).unwrap(),
            executors: Executors::of_this_release(&environment),
            owner: "scheduler_test".into(),
            programs: PathBuf::from("/bin"),
            live: RefCell::new(BTreeMap::new()),
            turn_of: RefCell::new(String::new()),
            wake: Notify::new(),
            launched: Notify::new(),
            closing: Semaphore::new(CLOSING_MAX),
            extensions: OnceCell::new(),
        });
        let world = Self { base, host, deliveries: RefCell::new(0) };
        std::fs::write(world.config_file(), configuration().to_string()).unwrap();
        world.service().start(&mut world.host.store.borrow_mut(), Clock.now()).unwrap();
        world
    }

    fn config_file(&self) -> PathBuf {
        self.base.path().join("config.json")
    }

    fn service(&self) -> ConfigService {
        let references = conduit_release::references(&conduit_release::registry());
        ConfigService::new(self.host.state.clone(), self.config_file(), Rc::new(references))
    }

    pub fn publish(&self, configuration: &Value) {
        let mut store = self.host.store.borrow_mut();
        let bytes = configuration.to_string();
        self.service().apply(&mut store, bytes.as_bytes(), None, "operator:local", Clock.now()).unwrap();
    }

    /// Accepts `count` Events that start Work in `scope`.
    pub fn ask_for(&self, scope: &str, count: u32) {
        let (scope, data): (ScopeId, _) = (scope.parse().unwrap(), Map::new());
        let ask = |tx: &conduit_store::Write<'_>| {
            for _ in 0..count {
                let delivery = self.deliveries.replace_with(|n| *n + 1).to_string();
                let event = NewEvent::new(&scope, "demo.start", source::MANUAL, &delivery, &data);
                events::accept(tx, &event, Bounds { depth_max: 9, per_minute: 999 }, Clock.now())?;
            }
            Ok::<_, conduit_coordination::Error>(())
        };
        self.host.store.borrow_mut().write(ask).unwrap();
    }

    /// The claim of a Work of the scope `calm`.
    pub fn claimed(&self) -> Claimed {
        self.ask_for("calm", 1);
        let mut store = self.host.store.borrow_mut();
        let snapshot = store.read(|r| self.host.active(r)).unwrap();
        let claim = self.host.claim(&snapshot);
        let claimed = |tx: &conduit_store::Write<'_>| {
            routing::route_batch(tx, &snapshot, 9, Clock.now())?;
            executions::claim_next(tx, "", &claim, |_| true, Clock.now())
        };
        store.write(claimed).unwrap().unwrap()
    }

    /// Changes rows behind the suite's back.
    pub fn sql(&self, sql: &str) {
        let changed: conduit_store::Result<usize> =
            self.host.store.borrow_mut().write(|tx| tx.execute("testing", sql, []));
        assert!(changed.unwrap() > 0, "{sql}");
    }

    pub fn number(&self, sql: &str) -> i64 {
        let read: conduit_store::Result<i64> =
            self.host.store.borrow_mut().read(|r| r.one("testing", sql, [], |row| row.get(0)));
        read.unwrap()
    }

    /// How many segments are followed, in each scope.
    pub fn followed(&self) -> (usize, usize) {
        let of = |scope: &str| self.host.live_in(&scope.parse().unwrap());
        (of("busy"), of("calm"))
    }

    /// Ends the segments of a scope as far as the scheduler's book-keeping goes.
    pub fn forget(&self, scope: &str) {
        self.host.live.borrow_mut().retain(|_, live| live.scope.as_str() != scope);
    }
}

/// An operation that runs `/bin/true`.
pub fn operation() -> OperationRequest {
    OperationRequest {
        principal: "test".into(),
        client_request_id: "1".into(),
        executable: "/bin/true".into(),
        args: Vec::new(),
        cwd: "/".into(),
        env: BTreeMap::new(),
        limits: Limits {
            timeout_ms: 60_000,
            output_bytes_max: None,
            stop_grace_ms: None,
            resources: conduit_kernel::Resources::default(),
        },
        workspace_digest: None,
        channel: false,
    }
}
