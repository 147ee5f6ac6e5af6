//! A store with a configuration, and short words for what the suite's programs do with it.

use conduit_api::{EventId, ExecutionId, ScopeId, UnixMicros, WorkId};
use conduit_config::{Registered, Retry, Snapshot, parse};
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::{self, Accepted, NewEvent, source};
use conduit_coordination::executions::{self, Claim, Claimed, Completed, SegmentEnd};
use conduit_coordination::work::{self, NewWork};
use conduit_coordination::{Error, Result, routing, waits};
use conduit_store::lease::Demand;
use conduit_store::{Fenced, Now, StateDir, Store, Write, mint, named_params};
use rusqlite::types::Value as Shown;
use serde_json::{Map, Value, json};

pub const START: Now = Now { wall: UnixMicros(1_700_000_000_000_000), boot_us: 50_000_000_000, boot_id: "boot" };
pub const SECOND: i64 = 1_000_000;
pub const RETRY: Retry = Retry { attempts: 3, backoff_ms: 1000, backoff_max_ms: 60_000 };
const LEASE_US: i64 = 900 * SECOND;

/// One scope with a route for each effect, two more that only start Work, and one that is disabled.
fn configuration() -> Value {
    let binding = json!({"b": {"executor": "shell"}});
    let mut routes: Vec<Value> = ["queue", "inject", "interrupt", "wake", "drop"]
        .iter()
        .map(|effect| json!({"match": {"type": format!("demo.{effect}")}, "effect": effect}))
        .collect();
    routes.push(json!({"match": {"type": "demo.start"}, "effect": "start", "binding": "b"}));
    let starts = json!([{"match": {"type": "demo.start"}, "effect": "start", "binding": "b"}]);
    json!({"version": 1, "limits": {"causal_depth_max": 40}, "scopes": {
        "demo": {"events": ["demo"], "bindings": binding, "routes": routes},
        "busy": {"events": ["demo"], "bindings": binding, "routes": starts},
        "calm": {"events": ["demo"], "bindings": binding, "routes": starts},
        "off": {"enabled": false, "events": ["demo"], "bindings": binding, "routes": starts},
    }})
}

/// Something that is said to the suite.
#[derive(Debug, Clone)]
pub struct Said<'s> {
    pub scope: &'s str,
    pub kind: &'s str,
    pub key: Option<&'s str>,
    pub work: Option<WorkId>,
    pub execution: Option<ExecutionId>,
    pub cause: Option<EventId>,
    pub data: Value,
}

pub fn said(kind: &str) -> Said<'_> {
    Said { scope: "demo", kind, key: None, work: None, execution: None, cause: None, data: json!({}) }
}

pub struct Host {
    _base: tempfile::TempDir,
    pub store: Store,
    pub snapshot: Snapshot,
    pub now: Now,
    pub owner: &'static str,
    /// The scope whose turn came last.
    pub turn_of: String,
    deliveries: u32,
}

impl Host {
    pub fn new() -> Self {
        // A store file in memory where the machine has such a place: these tests are about rows, not about disks.
        let memory = std::path::Path::new("/dev/shm");
        let base = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let store = Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap();
        let registry = Registered::builtins().executor("shell", |_, _| Vec::new());
        let checked = parse(configuration().to_string().as_bytes(), &registry).unwrap();
        let snapshot = Snapshot::new(1, checked);
        Self { _base: base, store, snapshot, now: START, owner: "first", turn_of: String::new(), deliveries: 0 }
    }

    /// Makes the configuration the active one in the store.
    pub fn publish(&mut self) {
        const PUBLISH: &str = "
            INSERT INTO generation (number, config_hash, snapshot, published_at_us, published_by) VALUES (:number, '', '{}', 0, 'test')";
        let number = self.snapshot.generation;
        self.write(|tx, _| Ok(tx.execute("testing", PUBLISH, named_params! { ":number": number })?)).unwrap();
    }

    pub fn pass(&mut self, us: i64) {
        self.now = self.now.plus(us);
    }

    /// Changes the store at the present time.
    pub fn write<T>(&mut self, change: impl FnOnce(&Write<'_>, Now) -> Result<T>) -> Result<T> {
        let now = self.now;
        self.store.write(|tx| change(tx, now))
    }

    fn fenced<T>(&mut self, claimed: &Claimed, change: impl FnOnce(&Fenced<'_>) -> Result<T>) -> Result<T> {
        self.store.fenced(&claimed.fence(), &Demand::Ownership, self.now, change)
    }

    pub fn try_accept(&mut self, said: &Said<'_>) -> Result<Accepted> {
        self.deliveries += 1;
        let (scope, delivery) = (scope(said.scope), self.deliveries.to_string());
        let data: Map<String, Value> = serde_json::from_value(said.data.clone()).unwrap();
        let bounds = Bounds::of(&self.snapshot);
        let event = NewEvent {
            correlation_key: said.key,
            work: said.work.as_ref(),
            execution: said.execution.as_ref(),
            cause: said.cause.as_ref(),
            ..NewEvent::new(&scope, said.kind, source::MANUAL, &delivery, &data)
        };
        self.write(|tx, now| events::accept(tx, &event, bounds, now))
    }

    /// Accepts an Event and returns its sequence; routing comes later.
    pub fn accept(&mut self, said: &Said<'_>) -> i64 {
        self.try_accept(said).unwrap().sequence
    }

    /// Routes everything that is pending.
    pub fn route(&mut self) {
        let now = self.now;
        while self.store.read(routing::pending).unwrap() {
            let Self { store, snapshot, .. } = self;
            store.write(|tx| routing::route_batch(tx, snapshot, 3, now)).unwrap();
        }
    }

    /// Accepts an Event and routes it; returns its sequence.
    pub fn say(&mut self, said: &Said<'_>) -> i64 {
        let seq = self.accept(said);
        self.route();
        seq
    }

    /// A ready Work that owns `keys`.
    pub fn create(&mut self, in_scope: &str, keys: &[&str]) -> WorkId {
        let (scope, data) = (scope(in_scope), Map::new());
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let new = NewWork {
            id: mint(self.now),
            scope: &scope,
            binding: "b",
            title: None,
            parent: None,
            keys: &keys,
            data: &data,
            cause: None,
            input: None,
            source: source::MANUAL,
            actor: Some("operator:local"),
        };
        let bounds = Bounds::of(&self.snapshot);
        let created = self.write(|tx, now| work::create(tx, &new, bounds, now)).unwrap();
        self.route();
        created.work
    }

    pub fn claim_where(&mut self, may: impl FnMut(&ScopeId) -> bool) -> Option<Claimed> {
        let claim = Claim { owner: self.owner, generation: 1, lease_us: LEASE_US };
        let (after, now) = (self.turn_of.clone(), self.now);
        let claimed = self.store.write(|tx| executions::claim_next(tx, &after, &claim, may, now)).unwrap()?;
        self.turn_of = claimed.scope.as_str().to_owned();
        Some(claimed)
    }

    pub fn claim(&mut self) -> Option<Claimed> {
        self.claim_where(|_| true)
    }

    /// Takes the segment over its launch boundary; `false` when it may not cross.
    pub fn launch(&mut self, claimed: &Claimed) -> bool {
        let deadline = self.now.boot_us + 600 * SECOND;
        self.fenced(claimed, |tx| executions::started(tx, "att_test", deadline)).unwrap()
    }

    /// A token of the claim, as the toolbelt's issuer leaves it in the store: the only live one of its execution.
    pub fn issue(&mut self, claimed: &Claimed) {
        const LOWER: &str =
            "UPDATE token SET revoked_at_us = 0 WHERE execution_id = :execution AND revoked_at_us IS NULL";
        const TOKEN: &str = "
            INSERT INTO token (digest, id, execution_id, work_id, scope_id, epoch, owner, binding, generation, grants, boot_id,
                               expires_boot_us, issued_at_us, expires_at_us)
            VALUES (randomblob(32), hex(randomblob(8)), :execution, :work, :scope, :epoch, :owner, 'b', 1, '{}', 'boot', 0, 0, 0)";
        self.write(|tx, _| {
            tx.execute("testing", LOWER, named_params! { ":execution": claimed.execution.as_str() })?;
            Ok(tx.execute("testing", TOKEN, named_params! {
                ":execution": claimed.execution.as_str(), ":work": claimed.work.as_str(), ":scope": claimed.scope.as_str(),
                ":epoch": claimed.epoch, ":owner": claimed.owner,
            })?)
        })
        .unwrap();
    }

    /// Claims and starts: a running segment with a token.
    pub fn run(&mut self) -> Claimed {
        let claimed = self.claim().expect("a Work is due");
        self.issue(&claimed);
        assert!(self.launch(&claimed));
        claimed
    }

    /// What the process of the segment declares.
    pub fn declare(&mut self, claimed: &Claimed, kind: &str, body: &Value) {
        const DECLARE: &str = "
            INSERT INTO declaration (execution_id, epoch, kind, body, declared_at_us) VALUES (:execution, :epoch, :kind, :body, 0)";
        self.write(|tx, _| {
            Ok(tx.execute("testing", DECLARE, named_params! {
                ":execution": claimed.execution.as_str(), ":epoch": claimed.epoch, ":kind": kind, ":body": body.to_string(),
            })?)
        })
        .unwrap();
    }

    pub fn try_complete(&mut self, claimed: &Claimed, end: &SegmentEnd, resumes: bool) -> Result<Completed> {
        self.fenced(claimed, |tx| executions::complete(tx, claimed, end, &[], &json!({}), RETRY, resumes))
    }

    /// The runner of the segment has gone, and something that it started lives on.
    pub fn orphan(&mut self, claimed: &Claimed) {
        self.fenced(claimed, executions::orphaned).unwrap();
    }

    pub fn complete(&mut self, claimed: &Claimed, end: &SegmentEnd) -> Completed {
        self.try_complete(claimed, end, false).unwrap()
    }

    /// Declares a wait and ends the segment; `resumes` parks it.
    pub fn wait(&mut self, claimed: &Claimed, wait: &Value, resumes: bool) -> Completed {
        self.declare(claimed, "wait", wait);
        self.try_complete(claimed, &SegmentEnd::Succeeded, resumes).unwrap()
    }

    /// Fires the timeouts that are due.
    pub fn fire(&mut self) -> usize {
        self.write(|tx, now| waits::fire_due(tx, 100, now)).unwrap()
    }

    pub fn cancel_work(&mut self, work: &WorkId) -> Result<()> {
        self.write(|tx, now| work::cancel(tx, work, "operator:local", now))
    }

    pub fn retry(&mut self, work: &WorkId) -> Result<()> {
        self.write(|tx, now| work::retry(tx, work, "operator:local", now))
    }

    pub fn cancel_execution(&mut self, execution: &ExecutionId) -> Result<WorkId> {
        self.write(|tx, now| executions::cancel(tx, execution, "operator:local", now))
    }

    /// The first column of the first row, as text.
    pub fn text(&mut self, sql: &str) -> String {
        self.texts(sql).into_iter().next().unwrap_or_default()
    }

    /// The first column of every row, as text.
    pub fn texts(&mut self, sql: &str) -> Vec<String> {
        let shown = |row: &conduit_store::Row<'_>| {
            Ok(match row.get(0)? {
                Shown::Null => String::new(),
                Shown::Integer(n) => n.to_string(),
                Shown::Text(text) => text,
                other => format!("{other:?}"),
            })
        };
        self.store.read(|r| r.all("testing", sql, [], shown)).unwrap()
    }

    pub fn number(&mut self, sql: &str) -> i64 {
        self.text(sql).parse().unwrap()
    }

    /// The state of a Work, with the reason when it is blocked.
    pub fn state(&mut self, work: &WorkId) -> String {
        self.text(&format!("SELECT state || coalesce(':' || blocked_reason, '') FROM work WHERE id = '{work}'"))
    }

    pub fn execution_state(&mut self, execution: &ExecutionId) -> String {
        self.text(&format!("SELECT state FROM execution WHERE id = '{execution}'"))
    }

    /// What routing made of an Event; empty while it is pending.
    pub fn routed(&mut self, seq: i64) -> String {
        self.text(&format!("SELECT route FROM event WHERE seq = {seq}"))
    }

    /// The state of an Event as input of a Work; empty when it is none.
    pub fn input(&mut self, work: &WorkId, seq: i64) -> String {
        self.text(&format!("SELECT state FROM work_input WHERE work_id = '{work}' AND seq = {seq}"))
    }

    /// The states of every wait of a Work, oldest first.
    pub fn waits(&mut self, work: &WorkId) -> Vec<String> {
        self.texts(&format!("SELECT state FROM wait WHERE work_id = '{work}' ORDER BY rowid"))
    }

    /// Predicates that still listen.
    pub fn open_predicates(&mut self) -> i64 {
        self.number("SELECT count(*) FROM wait_predicate WHERE open = 1")
    }

    pub fn live_tokens(&mut self, work: &WorkId) -> i64 {
        self.number(&format!("SELECT count(*) FROM token WHERE work_id = '{work}' AND revoked_at_us IS NULL"))
    }

    /// The Work that an Event started.
    pub fn started_by(&mut self, seq: i64) -> WorkId {
        self.text(&format!("SELECT work_id FROM work_input WHERE seq = {seq}")).parse().unwrap()
    }

    pub fn event_id(&mut self, seq: i64) -> EventId {
        self.text(&format!("SELECT id FROM event WHERE seq = {seq}")).parse().unwrap()
    }
}

pub fn scope(name: &str) -> ScopeId {
    name.parse().unwrap()
}

pub fn failed(code: conduit_api::Code, retryable: bool) -> SegmentEnd {
    SegmentEnd::Failed { code, message: "status 9".into(), retryable }
}

pub fn is_illegal(result: &Result<impl std::fmt::Debug>) -> bool {
    matches!(result, Err(Error::IllegalState { .. }))
}
