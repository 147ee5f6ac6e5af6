//! A state directory with a configuration, executions that run in it, and their toolbelts.

use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::toolbelt::CallRequest;
use conduit_api::views::CanIView;
use conduit_api::{ApiError, ExecutionId, ScopeId, Version, WorkId};
use conduit_config::{ConfigService, Playbook, Registered, Retry, SnapshotCache};
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::source;
use conduit_coordination::executions::{self, Claim, Claimed, Completed, SegmentEnd};
use conduit_coordination::work::{self, NewWork};
use conduit_store::lease::Demand;
use conduit_store::{Clock, Now, StateDir, Store, mint};
use conduit_toolbelt::explain::{self, Ground};
use conduit_toolbelt::registry::{OperationSpec, Registration, Registry};
use conduit_toolbelt::{Called, Error, Grants, NewToken, Toolbelt, token};
use rusqlite::Connection;
use rusqlite::types::Value as Shown;
use serde_json::{Map, Value, json};

pub const SECOND: i64 = 1_000_000;
pub const HOUR: i64 = 3600 * SECOND;
/// How long a segment may run, and so how long its token lives.
pub const DEADLINE_US: i64 = 600 * SECOND;
/// A lease outlives every deadline here, so that the two are told apart.
pub const LEASE_US: i64 = 900 * SECOND;
/// Text of a binding's executor that no caller may ever see.
pub const SECRET: &str = "hunter2-in-the-binding";
pub const BUILTINS: [&str; 5] = ["emit", "create_work", "wait", "declare_outcome", "read_context"];

/// The first generation; tests change a copy of it.
pub fn configuration() -> Value {
    json!({"version": 1, "limits": {"causal_depth_max": 4, "causal_per_minute": 6}, "scopes": {
        "demo": {
            "operations": BUILTINS, "events": ["demo"],
            "bindings": {
                "parent": {"executor": "shell", "config": {"env": SECRET}, "operations": BUILTINS, "events": ["demo.survey"], "delegates": ["child"]},
                "child": {"executor": "shell"},
                "foreign": {"executor": "shell"},
            },
        },
        "other": {"operations": BUILTINS, "events": ["demo"], "bindings": {"parent": {"executor": "shell"}}},
    }})
}

pub fn grants() -> Grants {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Grants {
        operations: list(&BUILTINS),
        events: list(&["demo.survey"]),
        delegates: list(&["child"]),
        ..Grants::default()
    }
}

/// The builtins, and an extension `lab` that an operator has to enable.
pub fn registry() -> Registry {
    let mut credential = OperationSpec::new("lab.credential", "Lend a credential", json!({"type": "object"}));
    credential.capabilities = vec!["git.credential".into()];
    let read = OperationSpec::new("lab.read", "Read the laboratory", json!({"type": "object"}));
    let lab = Registration {
        operations: vec![credential, read],
        ..Registration::new("lab", Version::new(1, 0, 0), "A laboratory")
    };
    Registry::new(vec![lab]).0
}

pub struct Host {
    base: tempfile::TempDir,
    pub store: Store,
    pub now: Now,
    service: ConfigService,
}

/// A running segment, its token, and the toolbelt of its socket.
pub struct Speaker {
    pub claimed: Claimed,
    pub token: String,
    pub toolbelt: Toolbelt,
}

impl Host {
    pub fn new() -> Self {
        Self::with(&configuration())
    }

    pub fn with(configuration: &Value) -> Self {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let mut store = Store::open(&state).unwrap();
        let file = base.path().join("config.json");
        std::fs::write(&file, configuration.to_string()).unwrap();
        let references = Registered::of(registry().catalogue().clone())
            .executor_with_playbook(
                "shell",
                |_, _| Vec::new(),
                |config| Some(config.get("playbook")?.as_str()?.to_owned()),
            )
            .playbook(Playbook { name: "survey".into(), operations: vec!["emit".into(), "lab.read".into()] });
        let service = ConfigService::new(state, file, Rc::new(references));
        let now = Clock.now();
        service.start(&mut store, now).unwrap();
        Self { base, store, now, service }
    }

    pub fn state(&self) -> PathBuf {
        self.base.path().join("s")
    }

    pub fn pass(&mut self, us: i64) {
        self.now = self.now.plus(us);
    }

    /// Publishes another generation.
    pub fn publish(&mut self, configuration: &Value) {
        self.service
            .apply(&mut self.store, configuration.to_string().as_bytes(), None, "operator:local", self.now)
            .unwrap();
    }

    /// Creates a ready Work of `parent` in `demo` that owns `keys`.
    pub fn create(&mut self, keys: &[&str]) -> WorkId {
        let (scope, data, now): (ScopeId, _, _) = ("demo".parse().unwrap(), Map::new(), self.now);
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let new = NewWork {
            id: mint(now),
            scope: &scope,
            binding: "parent",
            title: Some("a survey"),
            parent: None,
            keys: &keys,
            data: &data,
            cause: None,
            input: None,
            source: source::MANUAL,
            actor: Some("operator:local"),
        };
        let bounds = Bounds { depth_max: 4, per_minute: 6 };
        self.store.write(|tx| work::create(tx, &new, bounds, now)).unwrap().work
    }

    pub fn claim(&mut self) -> Claimed {
        let claim = Claim { owner: "scheduler_first", generation: 1, lease_us: LEASE_US };
        let now = self.now;
        self.store.write(|tx| executions::claim_next(tx, "", &claim, |_| true, now)).unwrap().expect("a Work is due")
    }

    /// Issues the claim's token, which ends with the deadline.
    pub fn issue(&mut self, claimed: &Claimed, grants: &Grants) -> String {
        let (now, expires_boot_us) = (self.now, self.now.boot_us + DEADLINE_US);
        let issued = self.store.fenced(&claimed.fence(), &Demand::Ownership, now, |tx| {
            token::issue(tx, &NewToken { claimed, grants, expires_boot_us })
        });
        issued.unwrap().expose().to_owned()
    }

    pub fn launch(&mut self, claimed: &Claimed) {
        let (now, deadline) = (self.now, self.now.boot_us + DEADLINE_US);
        let crossed: Result<bool, conduit_coordination::Error> =
            self.store
                .fenced(&claimed.fence(), &Demand::Ownership, now, |tx| executions::started(tx, "att_test", deadline));
        assert!(crossed.unwrap());
    }

    pub fn toolbelt(&self, execution: &ExecutionId) -> Toolbelt {
        Toolbelt::open(&self.state(), execution.clone(), Rc::new(registry())).unwrap()
    }

    /// A running segment of a new Work that owns `keys`.
    pub fn speaker(&mut self, keys: &[&str]) -> Speaker {
        self.create(keys);
        let claimed = self.claim();
        self.go_on(claimed)
    }

    /// A running segment whose token has what its pinned binding grants.
    pub fn granted(&mut self, operations: &[&str]) -> Speaker {
        self.create(&[]);
        let claimed = self.claim();
        let operations = operations.iter().map(|name| (*name).to_owned()).collect();
        let token = self.issue(&claimed, &Grants { operations, ..Grants::default() });
        self.launch(&claimed);
        let toolbelt = self.toolbelt(&claimed.execution);
        Speaker { claimed, token, toolbelt }
    }

    /// A running segment of a new Work, with what [`grants`] gives and `budget`.
    pub fn bounded(&mut self, budget: Value) -> Speaker {
        self.create(&[]);
        let claimed = self.claim();
        let budget = serde_json::from_value(budget).unwrap();
        let token = self.issue(&claimed, &Grants { budget, ..grants() });
        self.launch(&claimed);
        let toolbelt = self.toolbelt(&claimed.execution);
        Speaker { claimed, token, toolbelt }
    }

    /// A segment that was taken over while it ran, with what [`grants`] gives and `budget`.
    pub fn go_on_recovered(&mut self, claimed: Claimed, budget: Value) -> Speaker {
        let budget = serde_json::from_value(budget).unwrap();
        let token = self.issue(&claimed, &Grants { budget, ..grants() });
        let toolbelt = self.toolbelt(&claimed.execution);
        Speaker { claimed, token, toolbelt }
    }

    /// The decision about a call that the execution would make now.
    pub fn can(&mut self, execution: &ExecutionId, operation: &str) -> CanIView {
        let (state, registry, now) = (StateDir::open(&self.state()).unwrap(), registry(), self.now);
        let mut cache = SnapshotCache::new(registry.catalogue().clone());
        self.store
            .read(|r| {
                let snapshot = cache.active(r, &state).unwrap();
                let ground = Ground { snapshot: &snapshot, registry: &registry, operation, now };
                explain::can_execution(r, execution, &ground)
            })
            .unwrap()
            .unwrap()
    }

    /// Issues the token of a claim, launches it and opens its toolbelt.
    pub fn go_on(&mut self, claimed: Claimed) -> Speaker {
        let token = self.issue(&claimed, &grants());
        self.launch(&claimed);
        let toolbelt = self.toolbelt(&claimed.execution);
        Speaker { claimed, token, toolbelt }
    }

    pub fn complete(&mut self, claimed: &Claimed, end: &SegmentEnd, resumes: bool) -> Completed {
        let retry = Retry { attempts: 3, backoff_ms: 0, backoff_max_ms: 0 };
        let completed: Result<_, conduit_coordination::Error> =
            self.store.fenced(&claimed.fence(), &Demand::Ownership, self.now, |tx| {
                executions::complete(tx, claimed, end, &[], &json!({}), retry, resumes)
            });
        completed.unwrap()
    }

    pub fn recover(&mut self, claimed: &Claimed) -> Claimed {
        let now = self.now;
        self.store.write(|tx| executions::recover(tx, &claimed.execution, "scheduler_second", LEASE_US, now)).unwrap()
    }

    /// Changes rows behind the suite's back.
    pub fn sql(&mut self, sql: &str) {
        let changed: Result<usize, Error> = self.store.write(|tx| Ok(tx.execute("testing", sql, [])?));
        assert!(changed.unwrap() > 0, "{sql}");
    }

    /// The first column of the first row, as text.
    pub fn text(&mut self, sql: &str) -> String {
        texts(&self.state().join("store.db"), sql).into_iter().next().unwrap_or_default()
    }

    pub fn number(&mut self, sql: &str) -> i64 {
        self.text(sql).parse().unwrap()
    }

    /// Every row of every table of the store, so that two moments can be compared.
    pub fn rows(&self) -> Vec<(String, String)> {
        let file = self.state().join("store.db");
        let tables = texts(&file, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name");
        tables.into_iter().map(|table| (table.clone(), dump(&file, &table))).collect()
    }

    /// `operation refusal` of every recorded call, oldest first.
    pub fn refusals(&self, speaker: &mut Speaker) -> Vec<String> {
        assert!(speaker.toolbelt.flush_history());
        let records = "SELECT operation || coalesce(' ' || refusal, '') FROM toolbelt_record ORDER BY id";
        texts(&self.state().join("history.db"), records)
    }

    /// `kind operation result rule` of every recorded call, oldest first.
    pub fn history(&self, speaker: &mut Speaker) -> Vec<String> {
        assert!(speaker.toolbelt.flush_history());
        let records = "SELECT kind || ' ' || operation || ' ' || result || coalesce(' ' || rule, '') FROM toolbelt_record ORDER BY id";
        texts(&self.state().join("history.db"), records)
    }
}

fn show(value: Shown) -> String {
    match value {
        Shown::Null => String::new(),
        Shown::Integer(n) => n.to_string(),
        Shown::Text(text) => text,
        other => format!("{other:?}"),
    }
}

fn texts(file: &std::path::Path, sql: &str) -> Vec<String> {
    let conn = Connection::open(file).unwrap();
    let mut statement = conn.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0).map(show)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

fn dump(file: &std::path::Path, table: &str) -> String {
    let conn = Connection::open(file).unwrap();
    let mut statement = conn.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let columns = statement.column_count();
    let rows = statement
        .query_map([], |row| (0..columns).map(|at| row.get(at).map(show)).collect::<Result<Vec<_>, _>>())
        .unwrap();
    let mut rows: Vec<String> = rows.map(|row| row.unwrap().join("|")).collect();
    rows.sort();
    rows.join("\n")
}

pub fn request(operation: &str, input: Value) -> CallRequest {
    serde_json::from_value(json!({"operation": operation, "input": input})).unwrap()
}

pub fn keyed(operation: &str, request_id: &str, input: Value) -> CallRequest {
    CallRequest { request_id: Some(request_id.to_owned()), ..request(operation, input) }
}

pub fn emission() -> Value {
    json!({"type": "demo.survey.seen", "data": {"n": 1}})
}

impl Speaker {
    pub fn call(&mut self, host: &Host, request: &CallRequest) -> Result<Called, ApiError> {
        self.toolbelt.call_at(&self.token, request, None, host.now)
    }

    /// The output of a call that is carried out.
    pub fn output(&mut self, host: &Host, request: &CallRequest) -> Value {
        self.call(host, request).unwrap().response.output
    }

    /// The code of a call that is refused.
    pub fn refusal(&mut self, host: &Host, request: &CallRequest) -> &'static str {
        self.call(host, request).unwrap_err().code.as_str()
    }
}
