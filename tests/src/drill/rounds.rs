//! One round after another: keep the Works going, kill one process, look whether everything still holds.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use conduit_api::views::{EmitReply, EmitRequest, WorkReply};
use conduit_client::{Client, ClientError};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::invariants::Invariants;
use super::{Tally, WORKS};
use crate::suite::Suite;
use crate::until::until_within;

/// Every daemon that the drill kills.
const VICTIMS: [&str; 4] =
    ["open-conduitd", "open-conduit-management", "open-conduit-endpointd", "open-conduit-endpoint"];
/// Programs that commit to the store, and so can be killed at its failpoints.
const COMMITTERS: [&str; 3] = ["open-conduitd", "open-conduit-management", "open-conduit-endpoint"];
/// How long something that must come true may take.
const END: Duration = Duration::from_secs(90);
/// How long a failpoint may wait for a process to pass it.
const FAILPOINT_END: Duration = Duration::from_secs(10);
/// How long a run directory, or a token, may disagree with the store.
const SETTLE_END: Duration = Duration::from_secs(20);
/// Rounds for each failpoint after which all of them must have been met: two of five rounds are a failpoint's.
const TURNS_FOR_ALL: u32 = 8;
/// Latest moment of a kill in its round.
const MOMENT_MAX_MS: u64 = 250;

/// What one round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kill {
    Process(&'static str),
    Failpoint { name: &'static str, program: &'static str },
}

#[derive(Debug)]
pub struct Rounds {
    random: StdRng,
    books: Invariants,
    client: Client,
    failpoints: PathBuf,
    /// Acknowledged Events that start a Work.
    starts: u64,
    /// The same, without those that start a `linger`.
    parents: u64,
    keys: u64,
    seed: u64,
    /// Failpoints that wait for their turn.
    deck: Vec<Kill>,
    /// Failpoints at which a program was killed.
    reached: BTreeSet<(&'static str, &'static str)>,
    pub tally: Tally,
}

impl Rounds {
    pub fn new(suite: &Suite, seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            client: suite.client(),
            books: super::invariants(suite),
            failpoints: suite.home().join("failpoints"),
            starts: 0,
            parents: 0,
            keys: 0,
            seed,
            deck: Vec::new(),
            reached: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// One round: at most one kill. Everything that is wrong after it.
    pub fn round(&mut self, suite: &Suite) -> Vec<String> {
        self.tally.rounds += 1;
        let mut wrong = self.keep_going();
        let kill = self.draw();
        match kill {
            Kill::Process(program) => self.kill(suite, program),
            Kill::Failpoint { name, program } => wrong.extend(self.arm(suite, name, program)),
        }
        let runs = until_within(END, || {
            ["open-conduitd", "open-conduit-endpointd"].iter().all(|p| suite.processes(p).len() == 1).then_some(())
        });
        if runs.is_none() {
            wrong.push(format!("{} s after {kill:?} a daemon is not running", END.as_secs()));
        }
        wrong.extend(self.settle_ambiguous());
        wrong.extend(self.books.violations());
        wrong.extend(self.lasting());
        self.count();
        wrong
    }

    /// Emits Events that start Works until enough are unfinished.
    fn keep_going(&mut self) -> Vec<String> {
        // A Work that its Event has not started yet is unfinished too.
        let ended = self.books.started_works() - self.books.unfinished();
        let wanted = (WORKS as u64).saturating_sub(self.parents - ended);
        for _ in 0..wanted {
            let kind = if self.random.random_range(0..2) == 0 { "test.start.parent" } else { "test.start.resuming" };
            if let Err(why) = self.start(kind) {
                return vec![why];
            }
            self.parents += 1;
        }
        Vec::new()
    }

    /// Emits an Event as the operator, under one key until it is acknowledged.
    fn start(&mut self, kind: &str) -> Result<(), String> {
        self.keys += 1;
        let key = format!("drill-{}-{}", self.seed, self.keys);
        let request: EmitRequest =
            serde_json::from_value(json!({"scope_id": "test", "type": kind, "data": {"key": key}}))
                .map_err(|e| e.to_string())?;
        let reply: EmitReply =
            insist("emitting as the operator", || self.client.post_keyed("/v1/events", &request, &key))?;
        if reply.event.kind != kind {
            return Err(format!("the answer to {key} is of another event: {}", reply.event.kind));
        }
        self.starts += 1;
        Ok(())
    }

    /// Processes are drawn at random. Failpoints are drawn from a shuffled deck, so that each has its turn.
    fn draw(&mut self) -> Kill {
        if self.random.random_range(0..5) < 3 {
            return Kill::Process(VICTIMS[self.random.random_range(0..VICTIMS.len())]);
        }
        if self.deck.is_empty() {
            self.deck = every_failpoint();
            self.deck.shuffle(&mut self.random);
        }
        self.deck.pop().unwrap_or(Kill::Process(VICTIMS[0]))
    }

    fn kill(&mut self, suite: &Suite, program: &str) {
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..=MOMENT_MAX_MS)));
        let running = suite.processes(program);
        // A server that exits when idle may not be there; then the round killed nothing.
        if running.is_empty() {
            self.tally.not_reached += 1;
            return;
        }
        if running[self.random.random_range(0..running.len())].kill() {
            self.tally.kills += 1;
        }
    }

    /// Arms a failpoint, gives the program a reason to pass it, and waits until it has.
    fn arm(&mut self, suite: &Suite, name: &'static str, program: &'static str) -> Vec<String> {
        let mut stops = None;
        if name == "kernel.stop_recorded" {
            if let Err(why) = self.start("test.start.linger") {
                return vec![why];
            }
            stops = until_within(END, || self.books.lingering());
            if stops.is_none() {
                return vec!["no linger began to run".into()];
            }
        }
        let file = self.failpoints.join(name);
        let part = self.failpoints.join(".part");
        if let Err(e) = std::fs::write(&part, program).and_then(|()| std::fs::rename(&part, &file)) {
            return vec![format!("arming {name}: {e}")];
        }
        let mut wrong = Vec::new();
        if let Some(work) = &stops
            && let Err(why) = self.control(work, "cancel")
        {
            wrong.push(why);
        }
        if program == "open-conduit-management"
            && let Err(why) = self.start("test.start.parent")
        {
            wrong.push(why);
        } else if program == "open-conduit-management" {
            self.parents += 1;
        }
        if until_within(FAILPOINT_END, || (!file.exists()).then_some(())).is_some() {
            self.tally.kills += 1;
            self.tally.at_failpoints += 1;
            self.reached.insert((name, program));
        } else if std::fs::remove_file(&file).is_ok() {
            self.tally.not_reached += 1;
            eprintln!("drill: nobody passed {name} in {program}; {} processes", suite.processes(program).len());
        }
        wrong
    }

    /// Asks for a control on a Work. That it is past it is as good: an answer may have been lost.
    fn control(&mut self, work: &str, verb: &str) -> Result<(), String> {
        self.keys += 1;
        let key = format!("drill-{}-{}", self.seed, self.keys);
        let target = format!("/v1/work/{work}/{verb}");
        let reply: Result<Option<WorkReply>, String> =
            insist(verb, || match self.client.post_keyed(&target, &json!({}), &key) {
                Err(ClientError::Refused { body, .. }) if body.code == "illegal_state" => Ok(None),
                other => other.map(Some),
            });
        reply.map(drop)
    }

    /// What nobody can prove is for the operator: here the journal proves it, so the Work goes on.
    fn settle_ambiguous(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for work in self.books.ambiguous() {
            self.tally.ambiguous += 1;
            wrong.extend(self.control(&work, "retry").err());
        }
        wrong
    }

    /// What did not settle while it was watched: a disagreement counts only while it lasts, as executions come and go.
    fn lasting(&self) -> Vec<String> {
        let mut wrong = self.books.unsettled();
        until_within(SETTLE_END, || {
            let now = self.books.unsettled();
            wrong.retain(|what| now.contains(what));
            wrong.is_empty().then_some(())
        });
        wrong
    }

    /// Failpoints at which nobody was killed, though every one had several turns.
    pub fn never_reached(&self) -> Vec<String> {
        let all = every_failpoint();
        if self.tally.rounds < TURNS_FOR_ALL * u32::try_from(all.len()).unwrap_or(u32::MAX) {
            return Vec::new();
        }
        let missed = all.into_iter().filter_map(|kill| match kill {
            Kill::Failpoint { name, program } if !self.reached.contains(&(name, program)) => {
                Some(format!("in {} rounds nobody was killed at {name} in {program}", self.tally.rounds))
            }
            Kill::Failpoint { .. } | Kill::Process(_) => None,
        });
        missed.collect()
    }

    /// Stops the whole suite with executions running, and starts it again.
    pub fn restart(&mut self, suite: &mut Suite) -> Vec<String> {
        let mut wrong = self.keep_going();
        let status = suite.stop(Signal::SIGTERM);
        if !status.success() {
            wrong.push(format!("`open-conduit up` ended with {status} when it was asked to stop"));
        }
        suite.start_again();
        wrong
    }

    /// Lets everything come to its end, and closes the books.
    pub fn close(&mut self, suite: &Suite) -> Vec<String> {
        let mut wrong = Vec::new();
        let ended = until_within(END, || {
            wrong.extend(self.settle_ambiguous());
            (self.books.all_ended() || !wrong.is_empty()).then_some(())
        });
        if ended.is_none() {
            wrong.push(format!("{} s after the last kill not everything has ended", END.as_secs()));
        }
        wrong.extend(self.books.violations_at_rest(self.starts));
        wrong.extend(self.lasting());
        let quiet = until_within(END, || suite.processes("open-conduit-runner").is_empty().then_some(()));
        if quiet.is_none() {
            wrong.push("a runner lives, and no execution does".into());
        }
        self.count();
        wrong
    }

    fn count(&mut self) {
        self.tally.old_tokens_refused = self.books.old_tokens_refused;
        self.tally.works = self.books.number("SELECT count(*) FROM work");
        self.tally.events = self.books.number("SELECT count(*) FROM event");
        self.tally.attempts = self.books.number("SELECT count(*) FROM attempt");
    }
}

/// Every failpoint of the store, in each program that commits, and every one of the kernel, which the scheduler passes.
fn every_failpoint() -> Vec<Kill> {
    let of_store = |name: &&str| name.starts_with("store.");
    let all = conduit_store::failpoint::ALL;
    let store = all.iter().filter(|name| of_store(name)).flat_map(|name| COMMITTERS.map(|program| (*name, program)));
    let kernel = all.iter().filter(|name| !of_store(name)).map(|name| (*name, COMMITTERS[0]));
    store.chain(kernel).map(|(name, program)| Kill::Failpoint { name, program }).collect()
}

/// Asks until there is an answer or a refusal that will not change.
fn insist<T>(what: &str, mut ask: impl FnMut() -> Result<T, ClientError>) -> Result<T, String> {
    let mut last = String::new();
    let answered = until_within(END, || match ask() {
        Ok(answer) => Some(Ok(answer)),
        Err(error) if error.may_retry() => {
            last = error.to_string();
            None
        }
        Err(error) => Some(Err(format!("{what}: {}: {error}", error.code()))),
    });
    answered.unwrap_or_else(|| Err(format!("{what}: no answer in {} s: {last}", END.as_secs())))
}
