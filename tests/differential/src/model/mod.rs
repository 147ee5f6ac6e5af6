//! The reference model of the decision about a call: the requirements in plain Rust, without SQL and without a line of the
//! toolbelt's own checks.
//!
//! It is told what it cannot decide (which Work a claim took, whether an operator's command was in time) and says all the
//! rest by itself: what is accepted, what each call is answered, by which rule it is refused, whether anything is written.

pub mod calls;
pub mod faults;
pub mod grants;
pub mod registrations;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Generation, Happened, History, LEASE_US, Record, Rows, Step, Tamper, place};
use crate::model::faults::Fault;
use crate::model::grants::{Known, Reading};
use calls::Pending;

/// What went otherwise than the model says.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The place of the step.
    pub step: usize,
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkState {
    Running,
    Other,
}

#[derive(Debug)]
struct Work {
    scope: usize,
    binding: usize,
    state: WorkState,
    epoch: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Claimed,
    Running,
    Ended,
}

#[derive(Debug)]
struct Execution {
    work: usize,
    /// That of the Work when it was claimed.
    scope: usize,
    state: State,
    epoch: i64,
    owner: Option<usize>,
    lease_boot: u32,
    lease_end: i64,
    pinned: Generation,
    stopped: bool,
    /// Whether the segment has declared; a recovery carries it along.
    declared: bool,
    rows: rows::Kept,
}

#[derive(Debug)]
struct Token {
    execution: usize,
    scope: usize,
    work: usize,
    epoch: i64,
    owner: usize,
    operations: BTreeSet<String>,
    events: bool,
    delegates: Vec<usize>,
    boot: u32,
    expires: i64,
    revoked: bool,
}

/// Who took a lease that nobody gave.
const THIEF: usize = usize::MAX;

#[derive(Debug)]
pub struct Model {
    fault: Option<Fault>,
    known: Known,
    active: Generation,
    /// What each scope grants in it.
    ceilings: Vec<BTreeSet<String>>,
    boot: u32,
    now: i64,
    schedulers: usize,
    /// The instance of the extension host.
    host: usize,
    works: Vec<Work>,
    executions: Vec<Execution>,
    tokens: Vec<Token>,
    pending: Vec<Pending>,
    /// How many requests had no ID of the caller's.
    unnamed: usize,
}

impl Model {
    fn new(history: &History, fault: Option<Fault>) -> Self {
        let accepted = match fault {
            Some(Fault::AcceptsSquatting) => history.offered.clone(),
            _ => registrations::accepted(&history.offered),
        };
        Self {
            fault,
            known: Known::of(&accepted),
            active: Generation { extensions: BTreeMap::new(), scopes: Vec::new() },
            ceilings: Vec::new(),
            boot: 0,
            now: crate::real::BOOT_START_US,
            schedulers: 0,
            host: 0,
            works: Vec::new(),
            executions: Vec::new(),
            tokens: Vec::new(),
            pending: Vec::new(),
            unnamed: 0,
        }
    }

    fn reading(&self) -> Reading {
        if self.fault == Some(Fault::IgnoresDenials) { Reading::WithoutDenials } else { Reading::Sound }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Takes a step whose outcome is `happened`. Error: what the model says instead.
    fn step(&mut self, step: &Step, happened: &Happened, tally: &mut calls::Tally) -> Result<(), String> {
        match (step, happened) {
            (Step::Publish(generation), Happened::Published(published)) => {
                let sound = self.known.accepts(generation);
                agree("publishing", &sound, published)?;
                if sound {
                    let granted = |scope: usize| self.known.of_scope(generation, scope, self.reading());
                    self.ceilings = (0..generation.scopes.len()).map(granted).collect();
                    self.active = generation.clone();
                }
            }
            (Step::Create { scope, binding }, Happened::Nothing) => self.create(*scope, *binding),
            (Step::Claim, Happened::Claimed(work)) => {
                if let Some(work) = *work {
                    self.claim(work);
                }
            }
            (Step::Launch { execution, lives_us }, Happened::Moved(moved)) => {
                let launched = self.launch(*execution, *lives_us);
                agree("a launch", &launched, moved)?;
            }
            (Step::Recover { execution, lives_us }, Happened::Moved(moved)) => {
                let recovered = self.recover(*execution, *lives_us);
                agree("a recovery", &recovered, moved)?;
            }
            (Step::Complete { execution }, Happened::Moved(true)) => self.complete(*execution),
            (Step::Cancel { execution }, Happened::Moved(true)) => {
                if let Some(at) = place(*execution, self.executions.len()) {
                    self.stop(self.executions[at].work);
                }
            }
            (Step::Abandon { work }, Happened::Moved(true)) => {
                if let Some(work) = place(*work, self.works.len()) {
                    self.stop(work);
                }
            }
            (
                Step::Complete { .. } | Step::Cancel { .. } | Step::Abandon { .. } | Step::Wake { .. },
                Happened::Moved(_),
            ) => {}
            (Step::Pass { us }, Happened::Nothing) => self.now += us,
            (Step::Reboot, Happened::Nothing) => {
                self.boot += 1;
                self.now = crate::real::BOOT_START_US;
                self.restart_host();
            }
            (Step::Tamper(tamper), Happened::Nothing) => self.tamper(*tamper),
            (Step::Resolve { execution, operation, request, done }, Happened::Moved(moved)) => {
                let resolved = self.resolve(*execution, operation, *request, *done);
                agree("an operator's word", &resolved, moved)?;
            }
            (Step::RestartHost, Happened::Nothing) => self.restart_host(),
            (Step::Call(call), Happened::Called { answer, wrote, between }) => {
                self.call(call, answer, *wrote, between.as_deref(), tally)?;
            }
            (Step::Settle { running, end }, Happened::Settled(answer)) => {
                let said = self.settle(*running, *end);
                if !said.agrees(answer) {
                    return Err(format!("the end of a handler: the model says {said:?}, and it was {answer:?}"));
                }
            }
            (Step::Settle { .. }, Happened::Nothing) if self.pending.is_empty() => {}
            (step, happened) => return Err(format!("{step:?} came to {happened:?}, of which the model knows nothing")),
        }
        Ok(())
    }

    fn create(&mut self, scope: usize, binding: usize) {
        self.works.push(Work { scope, binding, state: WorkState::Other, epoch: 0 });
    }

    fn claim(&mut self, at: usize) {
        let work = &mut self.works[at];
        work.epoch += 1;
        work.state = WorkState::Running;
        self.executions.push(Execution {
            work: at,
            scope: work.scope,
            state: State::Claimed,
            epoch: work.epoch,
            owner: Some(self.schedulers),
            lease_boot: self.boot,
            lease_end: self.now + LEASE_US,
            pinned: self.active.clone(),
            stopped: false,
            declared: false,
            rows: rows::Kept::default(),
        });
    }

    fn launch(&mut self, execution: usize, lives_us: i64) -> bool {
        let Some(at) = place(execution, self.executions.len()) else { return false };
        let execution = &mut self.executions[at];
        let may = execution.state == State::Claimed && !execution.stopped && execution.owner != Some(THIEF);
        if may {
            execution.state = State::Running;
            self.issue(at, lives_us);
        }
        may
    }

    fn recover(&mut self, execution: usize, lives_us: Option<i64>) -> bool {
        let Some(at) = place(execution, self.executions.len()) else { return false };
        if self.executions[at].state == State::Ended {
            return false;
        }
        self.schedulers += 1;
        let execution = &mut self.executions[at];
        let work = &mut self.works[execution.work];
        work.epoch = work.epoch.max(execution.epoch) + 1;
        execution.epoch = work.epoch;
        execution.owner = Some(self.schedulers);
        (execution.lease_boot, execution.lease_end) = (self.boot, self.now + LEASE_US);
        self.revoke(|token| token.execution == at);
        if let Some(lives_us) = lives_us {
            self.issue(at, lives_us);
        }
        true
    }

    fn issue(&mut self, at: usize, lives_us: i64) {
        self.revoke(|token| token.execution == at);
        let execution = &self.executions[at];
        let binding = self.works[execution.work].binding;
        let scope = &execution.pinned.scopes[execution.scope];
        self.tokens.push(Token {
            execution: at,
            scope: execution.scope,
            work: execution.work,
            epoch: execution.epoch,
            owner: execution.owner.unwrap_or(THIEF),
            operations: self.known.of_binding(&execution.pinned, execution.scope, binding, self.reading()),
            events: scope.bindings[binding].events,
            delegates: scope.bindings[binding].delegates.clone(),
            boot: self.boot,
            expires: self.now + lives_us,
            revoked: execution.stopped,
        });
    }

    fn revoke(&mut self, of: impl Fn(&Token) -> bool) {
        self.tokens.iter_mut().filter(|token| of(token)).for_each(|token| token.revoked = true);
    }

    fn complete(&mut self, execution: usize) {
        let Some(at) = place(execution, self.executions.len()) else { return };
        let execution = &mut self.executions[at];
        execution.state = State::Ended;
        execution.owner = None;
        self.works[execution.work].state = WorkState::Other;
        self.revoke(|token| token.execution == at);
    }

    /// An operator ends whatever speaks for the Work.
    fn stop(&mut self, work: usize) {
        self.works[work].state = WorkState::Other;
        for execution in self.executions.iter_mut().filter(|one| one.work == work && one.state != State::Ended) {
            execution.stopped = true;
        }
        self.revoke(|token| token.work == work);
    }

    fn tamper(&mut self, tamper: Tamper) {
        match tamper {
            Tamper::Unrevoke { token } => {
                if let Some(token) = place(token, self.tokens.len()) {
                    self.tokens[token].revoked = false;
                }
            }
            Tamper::MoveWork { work, scope } => {
                if let Some(work) = place(work, self.works.len())
                    && self.works[work].state == WorkState::Running
                {
                    self.works[work].scope = scope;
                }
            }
            Tamper::PauseWork { work } => {
                if let Some(work) = place(work, self.works.len())
                    && self.works[work].state == WorkState::Running
                {
                    self.works[work].state = WorkState::Other;
                }
            }
            Tamper::StealLease { execution } => {
                if let Some(at) = place(execution, self.executions.len())
                    && self.executions[at].owner.is_some()
                {
                    self.executions[at].owner = Some(THIEF);
                }
            }
        }
    }

    /// What the host that ended had begun and may not be done again is in doubt from here on.
    fn restart_host(&mut self) {
        self.host += 1;
        self.pending.clear();
        let may_run_again = |operation: &str| self.known.operations.get(operation).is_some_and(|(_, it)| it.idempotent);
        for execution in &mut self.executions {
            for ((operation, _), intent) in &mut execution.rows.intents {
                intent.in_doubt |= !may_run_again(operation);
            }
        }
    }

    fn rows(&self) -> Vec<Rows> {
        self.executions.iter().map(|execution| execution.rows.count(execution.state != State::Ended)).collect()
    }
}

fn agree<T: PartialEq + std::fmt::Debug>(what: &str, said: &T, was: &T) -> Result<(), String> {
    if said == was { Ok(()) } else { Err(format!("{what}: the model says {said:?}, and it was {was:?}")) }
}

/// Holds `record` against what the model, with or without a fault, says of `history`; what the calls came to goes to `tally`.
pub fn compare(
    history: &History,
    record: &Record,
    fault: Option<Fault>,
    tally: &mut calls::Tally,
) -> Result<(), Difference> {
    let mut model = Model::new(history, fault);
    let names: Vec<String> = model.known.extensions.keys().cloned().collect();
    let accepted = agree("what is registered", &names, &record.accepted);
    accepted.map_err(|why| Difference { step: 0, why })?;
    for (at, (step, happened)) in history.steps.iter().zip(&record.happened).enumerate() {
        model.step(step, happened, tally).map_err(|why| Difference { step: at, why: format!("{step:?}: {why}") })?;
    }
    let end = history.steps.len();
    agree("what the executions left", &model.rows(), &record.rows).map_err(|why| Difference { step: end, why })
}
