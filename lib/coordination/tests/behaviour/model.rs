//! Whatever happens in whatever order: what always holds of the rows.

use std::collections::BTreeMap;

use conduit_api::{Code, ExecutionId, WorkId};
use conduit_coordination::Error;
use conduit_coordination::executions::{self, Claimed, SegmentEnd};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Host, SECOND, Said, failed, said};

const KINDS: [&str; 7] =
    ["demo.start", "demo.queue", "demo.inject", "demo.interrupt", "demo.wake", "demo.drop", "demo.answer"];
const KEYS: [Option<&str>; 3] = [Some("a"), Some("b"), None];
const SCOPES: [&str; 3] = ["demo", "calm", "off"];
const OWNERS: [&str; 4] = ["first", "second", "third", "fourth"];

/// One thing that happens. Numbers choose among what there is then; where there is nothing, nothing happens.
#[derive(Debug, Clone)]
enum Step {
    Accept { kind: usize, key: usize, scope: usize },
    AcceptAbout { kind: usize, work: usize },
    Create { key: usize },
    Route,
    Claim,
    Launch(usize),
    DeclareOutcome { segment: usize, good: bool },
    DeclareWait { segment: usize, wait: usize },
    Complete { segment: usize, end: usize, resumes: bool },
    CancelExecution(usize),
    CancelWork(usize),
    Retry(usize),
    Pass(i64),
    TimeOut,
    Recover,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..8usize;
    prop_oneof![
        6 => (0..KINDS.len(), 0..KEYS.len(), 0..SCOPES.len()).prop_map(|(kind, key, scope)| Step::Accept { kind, key, scope }),
        2 => (0..KINDS.len(), n.clone()).prop_map(|(kind, work)| Step::AcceptAbout { kind, work }),
        1 => (0..KEYS.len()).prop_map(|key| Step::Create { key }),
        6 => Just(Step::Route),
        6 => Just(Step::Claim),
        5 => n.clone().prop_map(Step::Launch),
        3 => (n.clone(), any::<bool>()).prop_map(|(segment, good)| Step::DeclareOutcome { segment, good }),
        4 => (n.clone(), 0..4usize).prop_map(|(segment, wait)| Step::DeclareWait { segment, wait }),
        6 => (n.clone(), 0..6usize, any::<bool>()).prop_map(|(segment, end, resumes)| Step::Complete { segment, end, resumes }),
        1 => n.clone().prop_map(Step::CancelExecution),
        1 => n.clone().prop_map(Step::CancelWork),
        2 => n.prop_map(Step::Retry),
        2 => (1..40i64).prop_map(Step::Pass),
        2 => Just(Step::TimeOut),
        1 => Just(Step::Recover),
    ]
}

/// The host, and what the processes that it runs know.
struct World {
    host: Host,
    /// Segments whose process runs or is being started, and whether it was launched.
    segments: BTreeMap<ExecutionId, (Claimed, bool)>,
    schedulers: usize,
    accepted: i64,
}

fn chosen<T: Clone>(from: &[T], n: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[n % from.len()].clone())
}

impl World {
    fn new() -> Self {
        Self { host: Host::new(), segments: BTreeMap::new(), schedulers: 0, accepted: 0 }
    }

    fn works(&mut self) -> Vec<WorkId> {
        self.host.texts("SELECT id FROM work ORDER BY rowid").iter().map(|id| id.parse().unwrap()).collect()
    }

    fn segment(&self, n: usize) -> Option<(Claimed, bool)> {
        chosen(&self.segments.values().cloned().collect::<Vec<_>>(), n)
    }

    fn declared(&mut self, claimed: &Claimed) -> bool {
        let (id, epoch) = (&claimed.execution, claimed.epoch);
        self.host.number(&format!("SELECT count(*) FROM declaration WHERE execution_id = '{id}' AND epoch = {epoch}"))
            > 0
    }

    /// A running segment of a running Work that has declared nothing: the fence of the toolbelt.
    fn speaking(&mut self, n: usize) -> Option<Claimed> {
        let (claimed, launched) = self.segment(n)?;
        let running = self.host.state(&claimed.work) == "running";
        (launched && running && !self.declared(&claimed)).then_some(claimed)
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Accept { kind, key, scope } => {
                self.host.accept(&Said { key: KEYS[key], scope: SCOPES[scope], ..said(KINDS[kind]) });
                self.accepted += 1;
            }
            Step::AcceptAbout { kind, work } => {
                if let Some(work) = chosen(&self.works(), work) {
                    let scope = self.host.text(&format!("SELECT scope_id FROM work WHERE id = '{work}'"));
                    self.host.accept(&Said { work: Some(work), scope: &scope, ..said(KINDS[kind]) });
                    self.accepted += 1;
                }
            }
            Step::Create { key } => {
                let taken = KEYS[key].is_some_and(|key| {
                    self.host.number(&format!(
                        "SELECT count(*) FROM work_key WHERE key = '{key}' AND scope_id = 'demo' AND active = 1"
                    )) > 0
                });
                if !taken {
                    self.host.create("demo", &KEYS[key].into_iter().collect::<Vec<_>>());
                }
            }
            Step::Route => self.host.route(),
            Step::Claim => {
                if let Some(claimed) = self.host.claim() {
                    self.host.issue(&claimed);
                    self.segments.insert(claimed.execution.clone(), (claimed, false));
                }
            }
            Step::Launch(n) => {
                if let Some((claimed, false)) = self.segment(n) {
                    let crossed = self.host.launch(&claimed);
                    self.segments.insert(claimed.execution.clone(), (claimed, crossed));
                }
            }
            Step::DeclareOutcome { segment, good } => {
                if let Some(claimed) = self.speaking(segment) {
                    let status = if good { "succeeded" } else { "failed" };
                    self.host.declare(&claimed, "outcome", &json!({"status": status}));
                }
            }
            Step::DeclareWait { segment, wait } => {
                if let Some(claimed) = self.speaking(segment) {
                    self.host.declare(&claimed, "wait", &a_wait(wait));
                }
            }
            Step::Complete { segment, end, resumes } => {
                if let Some((claimed, launched)) = self.segment(segment) {
                    let end = an_end(end, launched);
                    self.host.try_complete(&claimed, &end, resumes).unwrap();
                    self.segments.remove(&claimed.execution);
                }
            }
            Step::CancelExecution(n) => {
                let live = self.host.texts("SELECT id FROM execution WHERE finished_at_us IS NULL ORDER BY rowid");
                if let Some(id) = chosen(&live, n) {
                    refused_at_most(self.host.cancel_execution(&id.parse().unwrap()));
                }
            }
            Step::CancelWork(n) => {
                if let Some(work) = chosen(&self.works(), n) {
                    refused_at_most(self.host.cancel_work(&work));
                }
            }
            Step::Retry(n) => {
                if let Some(work) = chosen(&self.works(), n) {
                    refused_at_most(self.host.retry(&work));
                }
            }
            Step::Pass(seconds) => self.host.pass(seconds * SECOND),
            Step::TimeOut => {
                self.host.fire();
            }
            Step::Recover => self.recover(),
        }
    }

    /// The scheduler dies; the next one takes over what it left, and what had not been launched is started anew.
    fn recover(&mut self) {
        self.schedulers += 1;
        let owner = OWNERS[self.schedulers % OWNERS.len()];
        self.host.owner = owner;
        let left = self.host.store.read(|r| executions::left_by_others(r, owner)).unwrap().orphans;
        assert_eq!(left.len(), self.segments.len(), "nothing that runs is forgotten");
        for orphan in left {
            let claimed = self
                .host
                .write(|tx, now| executions::recover(tx, &orphan.left.execution, owner, 900 * SECOND, now))
                .unwrap();
            let held = self.segments.get_mut(&orphan.left.execution).unwrap();
            assert_eq!(held.1, orphan.running);
            let old = std::mem::replace(&mut held.0, claimed.clone());
            assert!(self.host.try_complete(&old, &SegmentEnd::Succeeded, false).is_err(), "the old epoch ends nothing");
            let stopping =
                self.host.text(&format!("SELECT stop_reason FROM execution WHERE id = '{}'", claimed.execution));
            if stopping.is_empty() {
                self.host.issue(&claimed);
            }
        }
    }

    /// Queries that find nothing while all is well.
    fn check(&mut self) {
        const NEVER: [(&str, &str); 15] = [
            ("a Work has two live executions", "SELECT work_id FROM execution WHERE finished_at_us IS NULL GROUP BY work_id HAVING count(*) > 1"),
            ("an ended Work has a pending wait", "SELECT w.id FROM work w JOIN wait x ON x.work_id = w.id WHERE w.finished_at_us IS NOT NULL AND x.state = 'pending'"),
            ("an ended Work owns a key", "SELECT w.id FROM work w JOIN work_key k ON k.work_id = w.id WHERE w.finished_at_us IS NOT NULL AND k.active = 1"),
            ("a Work that has not ended lost its key to nobody", "
                SELECT k.work_id FROM work_key k JOIN work w ON w.id = k.work_id WHERE w.finished_at_us IS NULL AND k.active = 0
                   AND NOT EXISTS (SELECT 1 FROM work_key o WHERE o.scope_id = k.scope_id AND o.key = k.key AND o.work_id <> k.work_id)"),
            ("a Work that does not run has a live token", "SELECT w.id FROM work w JOIN token t ON t.work_id = w.id WHERE w.state <> 'running' AND t.revoked_at_us IS NULL"),
            ("an execution has two live tokens, or one of an old epoch", "
                SELECT t.execution_id FROM token t JOIN execution e ON e.id = t.execution_id WHERE t.revoked_at_us IS NULL
                 GROUP BY t.execution_id HAVING count(*) > 1 OR max(t.epoch) <> max(e.epoch)"),
            ("a ready Work has a process", "SELECT w.id FROM work w JOIN execution e ON e.work_id = w.id WHERE w.state = 'ready' AND e.state IN ('claimed', 'running')"),
            ("a running Work has no segment", "SELECT id FROM work w WHERE state = 'running' AND NOT EXISTS (SELECT 1 FROM execution e WHERE e.work_id = w.id AND e.state IN ('claimed', 'running'))"),
            ("a segment runs for a Work that does not, and nobody stops it", "
                SELECT e.id FROM execution e JOIN work w ON w.id = e.work_id
                 WHERE e.state IN ('claimed', 'running') AND w.state <> 'running' AND coalesce(e.stop_reason, '') NOT IN ('operator_cancelled', 'work_cancelled')"),
            ("an execution is parked for a Work that neither waits nor is woken", "SELECT e.id FROM execution e JOIN work w ON w.id = e.work_id WHERE e.state = 'parked' AND w.state NOT IN ('waiting', 'ready')"),
            ("a Work waits for nothing, or another has a pending wait", "
                SELECT w.id FROM work w WHERE (w.state = 'waiting') <> (1 = (SELECT count(*) FROM wait x WHERE x.work_id = w.id AND x.state = 'pending'))"),
            ("a wait that has ended listens", "SELECT p.wait_id FROM wait_predicate p JOIN wait x ON x.id = p.wait_id WHERE p.open = 1 AND x.state <> 'pending'"),
            ("an Event started two Works", "SELECT cause_id FROM event WHERE type = 'core.work.created' AND cause_id IS NOT NULL GROUP BY cause_id HAVING count(*) > 1"),
            ("an input is lost", "
                SELECT seq FROM event e WHERE route IN ('start', 'queue', 'inject', 'interrupt', 'wake')
                   AND NOT EXISTS (SELECT 1 FROM work_input i WHERE i.seq = e.seq) AND NOT EXISTS (SELECT 1 FROM wait_predicate p WHERE p.matched_seq = e.seq)"),
            ("the counts are not those of the rows", "
                SELECT coalesce(a.state, b.state) FROM (SELECT scope_id, state, n FROM work_count WHERE n <> 0) a
                  FULL JOIN (SELECT scope_id, state, count(*) AS n FROM work GROUP BY 1, 2) b ON a.scope_id = b.scope_id AND a.state = b.state
                 WHERE a.n IS NOT b.n"),
        ];
        for (wrong, sql) in NEVER {
            assert_eq!(self.host.texts(sql), [""; 0], "{wrong}");
        }
        let own = self.host.number("SELECT count(*) FROM event WHERE type LIKE 'demo.%'");
        assert_eq!(own, self.accepted, "every accepted Event is there once");
        assert_eq!(
            self.host.number("SELECT count(*) = coalesce(max(seq), 0) FROM event"),
            1,
            "the sequence has no gap"
        );
    }

    /// Lets everything come to its end; nothing may be left over.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.host.route();
            self.host.pass(3600 * SECOND);
            self.host.fire();
            self.host.route();
            let segments: Vec<_> = self.segments.values().cloned().collect();
            if segments.is_empty() {
                let Some(claimed) = self.host.claim() else { break };
                self.host.issue(&claimed);
                self.segments.insert(claimed.execution.clone(), (claimed, false));
                continue;
            }
            for (claimed, launched) in segments {
                let crossed = launched || self.host.launch(&claimed);
                let end = if crossed { SegmentEnd::Succeeded } else { SegmentEnd::Stopped };
                self.host.try_complete(&claimed, &end, false).unwrap();
                self.segments.remove(&claimed.execution);
                self.check();
            }
        }
        let open = "SELECT state FROM work WHERE finished_at_us IS NULL AND state <> 'blocked'
                     AND id NOT IN (SELECT work_id FROM wait WHERE state = 'pending' AND timeout_at_us IS NULL)";
        assert_eq!(self.host.texts(open), [""; 0], "every Work ends, waits without a time, or is held for an operator");
        assert_eq!(self.host.number("SELECT count(*) FROM event WHERE route IS NULL"), 0);
    }
}

fn a_wait(n: usize) -> Value {
    let on = |key: &str| json!({"type": "demo.answer", "correlation_key": key});
    match n {
        0 => json!({"mode": "any", "predicates": [on("a"), on("b")]}),
        1 => json!({"mode": "all", "predicates": [on("a"), on("b")], "timeout_s": 20}),
        2 => json!({"mode": "any", "predicates": [{"type": "demo.answer"}], "timeout_s": 5}),
        _ => json!({"mode": "any", "predicates": [on("a")], "watermark": 0, "timeout_s": 9}),
    }
}

fn an_end(n: usize, launched: bool) -> SegmentEnd {
    match n {
        _ if !launched => {
            [SegmentEnd::Stopped, failed(Code::StoreBusy, true), SegmentEnd::Lost { started: false }][n % 3].clone()
        }
        0 => SegmentEnd::Succeeded,
        1 => failed(Code::ProcessFailed, true),
        2 => failed(Code::ExecutableUnavailable, false),
        3 => SegmentEnd::Stopped,
        4 => SegmentEnd::Lost { started: true },
        _ => SegmentEnd::Lost { started: false },
    }
}

/// A control may be refused by the state of things, and by nothing else.
fn refused_at_most<T: std::fmt::Debug>(done: conduit_coordination::Result<T>) {
    assert!(matches!(done, Ok(_) | Err(Error::IllegalState { .. })), "{done:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// T02, T12, K01, M10: whatever is accepted, claimed, declared, cancelled, lost or taken over, in whatever order.
    #[test]
    fn no_order_of_steps_breaks_what_always_holds(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.check();
        }
        world.settle();
    }
}
