//! A store with two running executions, and the real worker of the first on a socket that this test passes.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use conduit_api::places::Places;
use conduit_api::toolbelt::operation::BUILTINS;
use conduit_api::{ExecutionId, ScopeId, WorkId};
use conduit_client::{AsyncClient, Call, Credential, Method};
use conduit_config::{ConfigService, Registered};
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::executions::{self, Claim, Claimed};
use conduit_coordination::work::{self, NewWork};
use conduit_daemon::activation;
use conduit_daemon::spawn::Spawn;
use conduit_store::lease::Demand;
use conduit_store::{Clock, StateDir, Store, mint};
use conduit_toolbelt::token::{self, Grants, NewToken};
use rustix::process::{Pid, Signal};
use serde_json::{Map, Value, json};
use tokio::process::Child;

const HOUR_US: i64 = 3_600_000_000;
const CONFIG: &[u8] = br#"{"version":1,"scopes":{"demo":{"concurrency":8,
  "operations":["emit","create_work","wait","declare_outcome","read_context"],"events":["demo"],
  "bindings":{"b":{"executor":"shell","config":{},"events":["demo"],"delegates":[],"deadline_s":3600,
    "operations":["emit","create_work","wait","declare_outcome","read_context"]}},
  "routes":[{"match":{"type":"demo.wanted"},"effect":"start","binding":"b"}]}}}"#;

/// A running execution and its token.
pub struct Held {
    pub id: ExecutionId,
    pub token: String,
    claimed: Claimed,
}

pub struct Host {
    pub base: tempfile::TempDir,
    pub places: Places,
    pub store: Store,
    /// Whose socket the worker serves.
    pub own: Held,
    pub other: Held,
    pub listener: UnixListener,
    child: Option<Child>,
}

impl Host {
    /// A store, two executions, and a socket; no worker yet.
    pub fn new() -> Self {
        let base = tempfile::Builder::new().prefix("oc").tempdir().unwrap();
        let places = Places { state: base.path().join("s"), runtime: base.path().join("r") };
        std::fs::DirBuilder::new().mode(0o700).create(&places.runtime).unwrap();
        let state = StateDir::open(&places.state).unwrap();
        std::fs::write(places.config_file(), CONFIG).unwrap();
        let mut store = Store::open(&state).unwrap();
        let registry = Rc::new(Registered::builtins().executor("shell", |_, _| Vec::new()));
        ConfigService::new(state, places.config_file(), registry).start(&mut store, Clock.now()).unwrap();
        let (own, other) = (hold(&mut store), hold(&mut store));
        let listener = activation::bind_stream(&places.runtime.join("t")).unwrap();
        Self { base, places, store, own, other, listener, child: None }
    }

    /// A worker that ends after `idle_s` seconds without a connection.
    pub fn start_idle(&mut self, idle_s: u64) {
        let socket = OwnedFd::from(self.listener.try_clone().unwrap());
        let mut spawn = Spawn::new(env!("CARGO_BIN_EXE_open-conduit-endpoint"))
            .arg("--state")
            .arg(&self.places.state)
            .arg("--runtime")
            .arg(&self.places.runtime)
            .arg("--execution")
            .arg(self.own.id.as_str())
            .arg("--parent")
            .arg(std::process::id().to_string())
            .arg("--idle-s")
            .arg(idle_s.to_string())
            .descriptor("toolbelt", socket);
        spawn.variables.push(("OPEN_CONDUIT_LOG".into(), "trace".into()));
        self.child = Some(spawn.start().unwrap());
    }

    pub fn start() -> Self {
        let mut host = Self::new();
        host.start_idle(600);
        host
    }

    pub fn socket(&self) -> PathBuf {
        self.places.runtime.join("t")
    }

    /// A client that shows `credential`, if any, on the socket.
    pub fn client(&self, credential: Option<&str>) -> AsyncClient {
        let credential = credential.map_or_else(Credential::none, |text| {
            let path = self.base.path().join("credential");
            std::fs::write(&path, text).unwrap();
            Credential::from_file(path).unwrap()
        });
        AsyncClient::new(self.socket(), credential)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("the worker runs")
    }

    pub fn terminate(&self) {
        rustix::process::kill_process(Pid::from_raw(self.pid().cast_signed()).unwrap(), Signal::TERM).unwrap();
    }

    /// Waits for the worker's end; its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("the worker runs");
        let wait = tokio::time::timeout(Duration::from_secs(20), child.wait());
        wait.await.expect("the worker ends").unwrap().code()
    }

    /// What a query of one number says in the database file `name`.
    pub fn count(&self, name: &str, sql: &str) -> i64 {
        count(&self.places.state.join(name), sql)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.start_kill().unwrap();
        }
    }
}

fn count(path: &Path, sql: &str) -> i64 {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Creates a Work, claims it, issues its token, and marks it as running.
fn hold(store: &mut Store) -> Held {
    let now = Clock.now();
    let scope: ScopeId = "demo".parse().unwrap();
    let bounds = Bounds { depth_max: 32, per_minute: 10_000 };
    let owner = "test";
    let claimed = store.write(|tx| {
        let new = NewWork {
            id: mint::<WorkId>(now),
            scope: &scope,
            binding: "b",
            title: None,
            parent: None,
            keys: &[],
            data: &Map::new(),
            cause: None,
            input: None,
            source: "core.manual",
            actor: Some("test"),
        };
        work::create(tx, &new, bounds, now)?;
        executions::claim_next(tx, "", &Claim { owner, generation: 1, lease_us: HOUR_US }, |_| true, now)
    });
    let claimed = claimed.unwrap().expect("a Work is ready");
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let grants = Grants {
        operations: strings(&BUILTINS),
        events: strings(&["demo"]),
        delegates: Vec::new(),
        ..Grants::default()
    };
    let new = NewToken { claimed: &claimed, grants: &grants, expires_boot_us: now.boot_us + HOUR_US };
    let token = store.fenced(&claimed.fence(), &Demand::Ownership, now, |tx| {
        let token = token::issue(tx, &new)?;
        executions::started(tx, "att_test", now.boot_us + HOUR_US)?;
        Ok::<_, conduit_toolbelt::Error>(token.expose().to_owned())
    });
    Held { id: claimed.execution.clone(), token: token.unwrap(), claimed }
}

impl Host {
    /// Issues a new token for the worker's execution, as a recovery does; the old one is superseded.
    pub fn rotate(&mut self) -> String {
        let now = Clock.now();
        let recovered = self.store.write(|tx| executions::recover(tx, &self.own.id, "test-2", HOUR_US, now)).unwrap();
        self.own.claimed = recovered;
        let grants = Grants { operations: vec!["read_context".into()], ..Grants::default() };
        let new = NewToken { claimed: &self.own.claimed, grants: &grants, expires_boot_us: now.boot_us + HOUR_US };
        let issued = self.store.fenced(&self.own.claimed.fence(), &Demand::Ownership, now, |tx| {
            token::issue(tx, &new).map(|token| token.expose().to_owned())
        });
        issued.unwrap()
    }
}

/// The request for one toolbelt call.
pub fn call(body: &Value) -> Call {
    Call::new(Method::Post, "/v1/toolbelt/call").unwrap().json(body).unwrap()
}

pub fn read_context() -> Call {
    call(&json!({"operation": "read_context"}))
}
