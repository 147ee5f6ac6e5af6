//! The real path: one store on a file, the functions that the scheduler moves an execution with, and the toolbelt's two doors.
//!
//! Many histories share a store, one after another; each has a registry, toolbelts and hosts of its own.

mod calls;
mod release;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use conduit_api::{ExecutionId, ScopeId, UnixMicros, WorkId};
use conduit_config::Retry;
use conduit_coordination::events::bounds::Bounds;
use conduit_coordination::events::source;
use conduit_coordination::executions::{self, Claim, Claimed, SegmentEnd};
use conduit_coordination::work::{self, NewWork};
use conduit_store::lease::Demand;
use conduit_store::{Now, StateDir, Store, mint, named_params};
use conduit_toolbelt::hosted::Hosted;
use conduit_toolbelt::{Grants, NewToken, Toolbelt, token};
use rusqlite::Connection;
use serde_json::{Map, json};

use crate::history::{BINDINGS, Generation, Happened, History, LEASE_US, Record, Rows, SCOPES, Step, Tamper, place};
use calls::Running;
use release::{Release, written};

/// Where the boot clock stands when a history begins, and after each reboot.
pub const BOOT_START_US: i64 = 1_000_000_000;
/// A bearer that is an operator's.
const OPERATOR: &str = "an operator's credential";
const BOOTS: [&str; 4] = ["first boot", "second boot", "third boot", "fourth boot"];
/// What ends executions and Works of a history, so that the next one finds none.
const CLEAR: [&str; 4] = [
    "DELETE FROM intent",
    "UPDATE wait SET state = 'cancelled', finished_at_us = 1 WHERE state = 'pending'",
    "UPDATE execution SET state = 'cancelled', finished_at_us = 1, owner = NULL, stop_reason = NULL
      WHERE state IN ('claimed', 'running', 'parked', 'orphaned')",
    "UPDATE work SET state = 'cancelled', blocked_reason = NULL, finished_at_us = 1
      WHERE state IN ('ready', 'running', 'waiting', 'blocked')",
];

/// A store that histories run on.
pub struct World {
    base: tempfile::TempDir,
    state: StateDir,
    store: Store,
    /// Sees whether anybody wrote.
    observer: Connection,
    /// What the last history had, for the next one of the same release.
    kept: Option<Release>,
    /// Histories that ran here.
    ran: usize,
}

/// One history under way.
struct Play<'w> {
    world: &'w mut World,
    release: Release,
    now: Now,
    boot: usize,
    generation: i64,
    schedulers: usize,
    works: Vec<WorkId>,
    /// Works whose rows somebody has tampered with: nobody moves them on from there.
    tampered: Vec<usize>,
    executions: Vec<Execution>,
    tokens: Vec<Bearer>,
    /// Those of the sockets that somebody called through.
    toolbelts: BTreeMap<Option<usize>, Toolbelt>,
    hosts: usize,
    running: Vec<Running>,
    unnamed: usize,
}

struct Execution {
    claimed: Claimed,
    ended: bool,
}

struct Bearer {
    text: String,
    execution: usize,
}

impl World {
    /// A new store, in memory where the machine has a place for that.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let base = tempfile::Builder::new().prefix("oc-").tempdir_in(base).expect("making a directory");
        let state = StateDir::open(&base.path().join("s")).expect("a new state directory");
        let mut store = Store::open(&state).expect("a new store");
        let operator: Result<_, conduit_store::Error> = store.write(|tx| {
            let insert =
                "INSERT INTO operator (id, name, role, digest, created_at_us) VALUES ('o', 'o', 'admin', :digest, 1)";
            tx.execute("adding an operator", insert, named_params! { ":digest": token::digest(OPERATOR) })
        });
        operator.expect("a row of an operator");
        let observer = Connection::open(base.path().join("s/store.db")).expect("a second connection");
        Self { base, state, store, observer, kept: None, ran: 0 }
    }

    /// How many histories ran on this store.
    pub const fn ran(&self) -> usize {
        self.ran
    }

    /// Runs a history, and tells what came of it.
    pub fn run(&mut self, history: &History) -> Record {
        self.ran += 1;
        let release = match self.kept.take() {
            Some(kept) if kept.offered == history.offered => kept,
            _ => Release::open(self, &history.offered),
        };
        let registered = release.registry.registrations();
        let accepted = registered.iter().map(|registration| registration.name.clone()).collect();
        let mut play = Play::new(self, release);
        let happened = history.steps.iter().map(|step| play.step(step)).collect();
        let rows = play.rows();
        let Play { release, .. } = play;
        self.kept = Some(release);
        for sql in CLEAR {
            let cleared: Result<_, conduit_store::Error> = self.store.write(|tx| tx.execute("clearing", sql, []));
            cleared.expect("rows that can be cleared");
        }
        Record { accepted, happened, rows }
    }

    fn state_path(&self) -> PathBuf {
        self.base.path().join("s")
    }

    /// Changes with every commit of anybody.
    fn version(&self) -> i64 {
        self.observer.query_row("PRAGMA data_version", [], |row| row.get(0)).expect("a version")
    }

    fn count(&self, sql: &str, of: &str) -> usize {
        let mut statement = self.observer.prepare_cached(sql).expect("sound SQL");
        let count: i64 = statement.query_row([of], |row| row.get(0)).expect("a count");
        usize::try_from(count).expect("no count is negative")
    }
}

fn scope_id(at: usize) -> ScopeId {
    SCOPES[at].parse().expect("a name of a scope")
}

fn start() -> Now {
    Now { wall: UnixMicros(1_800_000_000_000_000), boot_us: BOOT_START_US, boot_id: BOOTS[0] }
}

impl<'w> Play<'w> {
    fn new(world: &'w mut World, release: Release) -> Self {
        Self {
            world,
            release,
            now: start(),
            boot: 0,
            generation: 0,
            schedulers: 0,
            works: Vec::new(),
            tampered: Vec::new(),
            executions: Vec::new(),
            tokens: Vec::new(),
            toolbelts: BTreeMap::new(),
            hosts: 0,
            running: Vec::new(),
            unnamed: 0,
        }
    }

    fn step(&mut self, step: &Step) -> Happened {
        match step {
            Step::Publish(generation) => self.publish(generation),
            Step::Create { scope, binding } => self.create(*scope, *binding),
            Step::Claim => self.claim(),
            Step::Launch { execution, lives_us } => self.launch(*execution, *lives_us),
            Step::Recover { execution, lives_us } => self.recover(*execution, *lives_us),
            Step::Complete { execution } => self.complete(*execution),
            Step::Cancel { execution } => {
                let Some(at) = place(*execution, self.executions.len()) else { return Happened::Moved(false) };
                let (id, now) = (self.executions[at].claimed.execution.clone(), self.now);
                let cancelled = self.world.store.write(|tx| executions::cancel(tx, &id, "operator:o", now));
                Happened::Moved(cancelled.is_ok())
            }
            Step::Abandon { work } => {
                let Some(at) = place(*work, self.works.len()) else { return Happened::Moved(false) };
                let (id, now) = (self.works[at].clone(), self.now);
                Happened::Moved(self.world.store.write(|tx| work::cancel(tx, &id, "operator:o", now)).is_ok())
            }
            Step::Wake { work } => {
                let Some(at) = place(*work, self.works.len()) else { return Happened::Moved(false) };
                if self.tampered.contains(&at) {
                    return Happened::Moved(false);
                }
                let (id, now) = (self.works[at].clone(), self.now);
                Happened::Moved(self.world.store.write(|tx| work::make_ready(tx, &id, now)).unwrap_or(false))
            }
            Step::Pass { us } => {
                self.now = self.now.plus(*us);
                Happened::Nothing
            }
            Step::Reboot => {
                self.boot += 1;
                self.now = Now { boot_us: BOOT_START_US, boot_id: BOOTS[self.boot % BOOTS.len()], ..self.now.plus(1) };
                self.restart_host();
                Happened::Nothing
            }
            Step::Tamper(tamper) => {
                self.tamper(*tamper);
                Happened::Nothing
            }
            Step::Resolve { execution, operation, request, done } => {
                Happened::Moved(self.resolve(*execution, operation, *request, *done))
            }
            Step::RestartHost => {
                self.restart_host();
                Happened::Nothing
            }
            Step::Call(call) => self.call(call),
            Step::Settle { running, end } => match place(*running, self.running.len()) {
                Some(at) => Happened::Settled(self.settle(at, *end)),
                None => Happened::Nothing,
            },
        }
    }

    fn publish(&mut self, generation: &Generation) -> Happened {
        let bytes = written(generation).to_string();
        let applied = self.release.service.apply(&mut self.world.store, bytes.as_bytes(), None, "operator:o", self.now);
        if let Ok(applied) = &applied {
            self.generation = applied.generation;
        }
        Happened::Published(applied.is_ok())
    }

    fn create(&mut self, scope: usize, binding: usize) -> Happened {
        let (scope, data, now) = (scope_id(scope), Map::new(), self.now);
        let new = NewWork {
            id: mint(now),
            scope: &scope,
            binding: BINDINGS[binding],
            title: None,
            parent: None,
            keys: &[],
            data: &data,
            cause: None,
            input: None,
            source: source::MANUAL,
            actor: Some("operator:o"),
        };
        let bounds = Bounds { depth_max: 1024, per_minute: 1_000_000 };
        let created = self.world.store.write(|tx| work::create(tx, &new, bounds, now)).expect("a new Work");
        self.works.push(created.work);
        Happened::Nothing
    }

    fn claim(&mut self) -> Happened {
        let owner = format!("scheduler {}", self.schedulers);
        let claim = Claim { owner: &owner, generation: self.generation, lease_us: LEASE_US };
        let now = self.now;
        let claimed = self.world.store.write(|tx| executions::claim_next(tx, "", &claim, |_| true, now));
        let claimed = claimed.expect("a look for due Works");
        Happened::Claimed(claimed.map(|claimed| {
            let work = self.works.iter().position(|work| *work == claimed.work).expect("a Work of this history");
            self.executions.push(Execution { claimed, ended: false });
            work
        }))
    }

    fn launch(&mut self, execution: usize, lives_us: i64) -> Happened {
        let Some(at) = place(execution, self.executions.len()) else { return Happened::Moved(false) };
        let (claimed, now) = (self.executions[at].claimed.clone(), self.now);
        let deadline = now.boot_us + lives_us;
        let started: Result<bool, conduit_coordination::Error> =
            self.world
                .store
                .fenced(&claimed.fence(), &Demand::Ownership, now, |tx| executions::started(tx, "att_test", deadline));
        let started = started.unwrap_or(false);
        if started {
            self.issue(at, lives_us);
        }
        Happened::Moved(started)
    }

    fn recover(&mut self, execution: usize, lives_us: Option<i64>) -> Happened {
        let Some(at) = place(execution, self.executions.len()) else { return Happened::Moved(false) };
        if self.executions[at].ended {
            return Happened::Moved(false);
        }
        self.schedulers += 1;
        let owner = format!("scheduler {}", self.schedulers);
        let (id, now) = (self.executions[at].claimed.execution.clone(), self.now);
        let recovered = self.world.store.write(|tx| executions::recover(tx, &id, &owner, LEASE_US, now));
        self.executions[at].claimed = recovered.expect("an execution that is taken over");
        if let Some(lives_us) = lives_us {
            self.issue(at, lives_us);
        }
        Happened::Moved(true)
    }

    /// A token with what the pinned binding grants, as the scheduler issues it.
    fn issue(&mut self, at: usize, lives_us: i64) {
        let claimed = self.executions[at].claimed.clone();
        let Self { world, release: Release { snapshots, .. }, now, .. } = self;
        let World { store, state, .. } = &mut **world;
        let pinned = store.read(|r| snapshots.pinned(r, state, claimed.generation)).expect("a pinned generation");
        let binding = pinned.binding(&claimed.scope, &claimed.binding).expect("a binding");
        let grants = Grants {
            operations: binding.operations.granted().map(str::to_owned).collect(),
            events: binding.events.iter().cloned().collect(),
            delegates: binding.delegates.iter().cloned().collect(),
            budget: binding.budget,
        };
        let new = NewToken { claimed: &claimed, grants: &grants, expires_boot_us: now.boot_us + lives_us };
        let issued = store.fenced(&claimed.fence(), &Demand::Ownership, *now, |tx| token::issue(tx, &new));
        let text = issued.expect("a token").expose().to_owned();
        self.tokens.push(Bearer { text, execution: at });
    }

    fn complete(&mut self, execution: usize) -> Happened {
        let Some(at) = place(execution, self.executions.len()) else { return Happened::Moved(false) };
        let (claimed, now) = (self.executions[at].claimed.clone(), self.now);
        if self.tampered.iter().any(|work| self.works[*work] == claimed.work) {
            return Happened::Moved(false);
        }
        let retry = Retry { attempts: 3, backoff_ms: 0, backoff_max_ms: 0 };
        let completed: Result<_, conduit_coordination::Error> =
            self.world.store.fenced(&claimed.fence(), &Demand::Ownership, now, |tx| {
                executions::complete(tx, &claimed, &SegmentEnd::Succeeded, &[], &json!({}), retry, false)
            });
        self.executions[at].ended |= completed.is_ok();
        Happened::Moved(completed.is_ok())
    }

    fn tamper(&mut self, tamper: Tamper) {
        match tamper {
            Tamper::Unrevoke { token } => {
                if let Some(at) = place(token, self.tokens.len()) {
                    let digest = token::digest(&self.tokens[at].text);
                    let unrevoked: Result<_, conduit_store::Error> = self.world.store.write(|tx| {
                        let sql = "UPDATE token SET revoked_at_us = NULL WHERE digest = :digest";
                        tx.execute("tampering", sql, named_params! { ":digest": digest })
                    });
                    unrevoked.expect("a token's row");
                }
            }
            Tamper::MoveWork { work, scope } => {
                let sql = "UPDATE work SET scope_id = :to WHERE id = :id AND state = 'running'";
                self.tamper_work(work, sql, SCOPES[scope]);
            }
            Tamper::PauseWork { work } => {
                self.tamper_work(work, "UPDATE work SET state = :to WHERE id = :id AND state = 'running'", "waiting");
            }
            Tamper::StealLease { execution } => {
                if let Some(at) = place(execution, self.executions.len()) {
                    let id = self.executions[at].claimed.execution.clone();
                    let sql = "UPDATE execution SET owner = :to WHERE id = :id AND owner IS NOT NULL";
                    self.sql(sql, id.as_str(), "a thief");
                }
            }
        }
    }

    fn tamper_work(&mut self, work: usize, sql: &str, to: &str) {
        if let Some(at) = place(work, self.works.len()) {
            let id = self.works[at].clone();
            if self.sql(sql, id.as_str(), to) > 0 {
                self.tampered.push(at);
            }
        }
    }

    fn sql(&mut self, sql: &str, id: &str, to: &str) -> usize {
        let changed: Result<_, conduit_store::Error> =
            self.world.store.write(|tx| tx.execute("tampering", sql, named_params! { ":id": id, ":to": to }));
        changed.expect("a row that can be tampered with")
    }

    fn restart_host(&mut self) {
        self.hosts += 1;
        self.running.clear();
        let name = format!("host {}.{}", self.world.ran, self.hosts);
        let registry = Rc::clone(&self.release.registry);
        let mut hosted = Hosted::open(&self.world.state_path(), registry, name).expect("a host");
        hosted.settle_left_behind().expect("what was left behind");
        self.release.hosted = hosted;
    }

    fn rows(&self) -> Vec<Rows> {
        let count = |execution: &Execution| {
            let id: &ExecutionId = &execution.claimed.execution;
            Rows {
                events: self.world.count("SELECT count(*) FROM event WHERE source = ?", &source::execution(id)),
                declarations: self.world.count("SELECT count(*) FROM declaration WHERE execution_id = ?", id.as_str()),
                replays: self.world.count("SELECT count(*) FROM replay WHERE execution_id = ?", id.as_str()),
                intents: match execution.ended {
                    true => 0,
                    false => self.world.count("SELECT count(*) FROM intent WHERE execution_id = ?", id.as_str()),
                },
            }
        };
        self.executions.iter().map(count).collect()
    }
}
