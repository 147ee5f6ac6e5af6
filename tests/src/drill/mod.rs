//! The kill drill: fifty Works run while the suite's daemons are killed at random moments and at every failpoint.
//!
//! Nothing accepted may be lost, nobody may keep what was taken from him, and nothing physical may happen twice.
//! [`workload`] is what the executions do, and what they swear to in a [`journal`] outside the state directory;
//! [`rounds`] kills; [`invariants`] compares the journal with the store.

pub mod invariants;
pub mod journal;
pub mod rounds;
pub mod workload;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config;
use crate::suite::{Setup, Suite};
use invariants::Invariants;
use rounds::Rounds;

/// Works that are kept unfinished while the drill runs.
pub const WORKS: usize = 50;
/// Rounds after which everything is let come to its end, and the books are closed.
const ROUNDS_BETWEEN_CLOSINGS: u32 = 50;

/// What a drill did.
#[derive(Debug, Default)]
pub struct Tally {
    pub rounds: u32,
    pub kills: u32,
    pub at_failpoints: u32,
    pub not_reached: u32,
    pub works: u64,
    pub events: u64,
    pub attempts: u64,
    pub old_tokens_refused: u64,
    pub ambiguous: u64,
}

/// Runs the drill with the programs in `bin_dir`; the tally, and every violation in words.
///
/// The suite's directory is kept when something was violated.
pub fn run(bin_dir: Option<PathBuf>, rounds: u32, seed: u64) -> (Tally, Vec<String>) {
    let mut setup = Setup::new(configuration);
    if let Some(folder) = bin_dir {
        setup.programs = folder;
    }
    for folder in ["journal", "failpoints"] {
        std::fs::create_dir(setup.home.path().join(folder)).expect("making a directory");
    }
    let failpoints = setup.home.path().join("failpoints").to_string_lossy().into_owned();
    setup.environment.push(("OPEN_CONDUIT_FAILPOINTS".to_owned(), failpoints));
    let mut suite = Suite::start_with(setup);
    let begun = Instant::now();
    let mut drill = Rounds::new(&suite, seed);
    let mut violations = Vec::new();
    for round in 1..=rounds {
        violations.extend(drill.round(&suite));
        if violations.is_empty() && (round % ROUNDS_BETWEEN_CLOSINGS == 0 || round == rounds) {
            if round != rounds {
                // Between closings the whole suite stops once, with executions running, and starts again.
                violations.extend(drill.restart(&mut suite));
            }
            violations.extend(drill.close(&suite));
            report(&drill.tally, begun.elapsed());
        }
        if !violations.is_empty() {
            break;
        }
    }
    if violations.is_empty() {
        violations.extend(drill.never_reached());
    }
    if !violations.is_empty() {
        eprintln!("drill: the suite's directory is kept: {}", suite.keep().display());
    }
    (drill.tally, violations)
}

fn report(tally: &Tally, took: Duration) {
    eprintln!(
        "drill: {} rounds in {} s: {} kills, {} of them at failpoints; {} works, {} events",
        tally.rounds,
        took.as_secs(),
        tally.kills,
        tally.at_failpoints,
        tally.works,
        tally.events
    );
}

/// A scope in which a Work with children can be started by an Event; each process is this program.
fn configuration(home: &Path) -> Value {
    let own = std::env::current_exe().expect("a process can name its own program");
    let (own, journal) = (own.to_string_lossy(), home.join("journal").to_string_lossy().into_owned());
    let role = |role: &str, delegates: Value| {
        let mut binding = config::binding(&[&own, "work", role, &journal]);
        binding["delegates"] = delegates;
        binding["retry"] = json!({"attempts": 10, "backoff_ms": 50, "backoff_max_ms": 500});
        binding
    };
    let bindings = json!({
        "parent": role("parent", json!(["child"])),
        "resuming": config::resuming(role("parent", json!(["child"]))),
        "child": role("child", json!([])),
        "linger": role("linger", json!([])),
    });
    let starts = |binding: &str| json!({"match": {"type": format!("test.start.{binding}")}, "effect": "start", "binding": binding});
    let mut config = config::one_scope(bindings, json!([starts("parent"), starts("resuming"), starts("linger")]));
    config["limits"]["executions"] = json!(16);
    config
}

/// The books of a drill, for its rounds.
fn invariants(suite: &Suite) -> Invariants {
    Invariants::open(suite.state(), &suite.home().join("journal"))
}
