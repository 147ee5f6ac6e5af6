//! Runs histories on the real path, holds them against the model, and shrinks what went otherwise.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::history::History;
use crate::model::calls::Tally;
use crate::model::faults::Fault;
use crate::model::{Difference, compare};
use crate::random;
use crate::real::World;

/// Histories that share a store.
const OF_A_STORE: usize = 200;
/// Histories in a row that are of one release.
const OF_A_RELEASE: u64 = 25;
/// Differences after which a run stops looking.
const DIFFERENCES_MAX: usize = 3;
/// Rules that a long run has to have met: what it never saw, it said nothing about.
const RULES: [&str; 17] = [
    "the token is unknown",
    "the token is revoked",
    "the token has expired",
    "the token is of another execution than the socket",
    "the call asserts another scope",
    "the call asserts another Work",
    "the call asserts another execution",
    "the operation is not declared in the scope",
    "the operation is not in the token's allowlist",
    "the configuration does not allow the operation now",
    "the epoch was superseded",
    "another owner holds the lease",
    "the execution is not running",
    "the lease has expired",
    "the Work is not running",
    "the Work is in another scope",
    "the segment has declared",
];
/// How many histories are enough to have met every rule.
const LONG: u64 = 5_000;

/// What a run found.
#[derive(Debug, Default)]
pub struct Found {
    seed: u64,
    histories: u64,
    tally: Tally,
    /// After how many histories each faulty model was told apart.
    told_apart: BTreeMap<&'static str, u64>,
    pub failures: Vec<String>,
    differences: usize,
}

/// The seed of the history at a place: far from its neighbours'.
const fn seed_of(master: u64, at: u64) -> u64 {
    let mixed = (master ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// Compares `histories` histories that `seed` chooses, in as many threads as the machine runs at once.
pub fn run(histories: u64, seed: u64) -> Found {
    let found = Mutex::new(Found { seed, histories, ..Found::default() });
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(histories, seed, &next, &found));
        }
    });
    let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if found.differences == 0 && histories >= LONG {
        found.judge();
    }
    found
}

/// Takes one release after another, with its histories, until none is left.
fn work(histories: u64, seed: u64, next: &AtomicU64, found: &Mutex<Found>) {
    let lock = || found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut world = World::new();
    loop {
        let first = next.fetch_add(OF_A_RELEASE, Ordering::Relaxed);
        let offered = random::offered(seed_of(!seed, first));
        for at in first..histories.min(first + OF_A_RELEASE) {
            if world.ran() >= OF_A_STORE {
                world = World::new();
            }
            let history = random::history(offered.clone(), seed_of(seed, at));
            let open = lock().never_told_apart();
            let one = one(&mut world, &history, open);
            let failure = one.difference.map(|difference| explain(seed, at, &history, &difference));
            let mut found = lock();
            found.add(at, &one.tally, &one.told_apart, failure);
            if found.differences >= DIFFERENCES_MAX {
                return;
            }
        }
        if first >= histories {
            return;
        }
    }
}

/// What one history showed.
struct One {
    tally: Tally,
    difference: Option<Difference>,
    /// The faulty models that it tells apart, of those that were asked about.
    told_apart: Vec<Fault>,
}

fn one(world: &mut World, history: &History, open: Vec<Fault>) -> One {
    let record = world.run(history);
    let mut tally = Tally::default();
    let difference = compare(history, &record, None, &mut tally).err();
    let differs = |fault: &Fault| compare(history, &record, Some(*fault), &mut Tally::default()).is_err();
    One { tally, difference, told_apart: open.into_iter().filter(differs).collect() }
}

fn explain(seed: u64, at: u64, history: &History, difference: &Difference) -> String {
    let (shrunk, why) = shrink(history, difference);
    let steps: Vec<String> = shrunk.steps.iter().map(|step| format!("    {step:?}")).collect();
    let offered: Vec<String> = shrunk.offered.iter().map(|one| format!("    {one:?}")).collect();
    format!(
        "history {at} of seed {seed} differs at step {}: {}\n  registrations:\n{}\n  shrunk to {} steps:\n{}",
        why.step,
        why.why,
        offered.join("\n"),
        shrunk.steps.len(),
        steps.join("\n")
    )
}

/// Takes steps out as long as something still differs: what comes behind the difference, then halves, then single ones.
fn shrink(history: &History, difference: &Difference) -> (History, Difference) {
    let fails = |history: &History| {
        let record = World::new().run(history);
        compare(history, &record, None, &mut Tally::default()).err()
    };
    let mut best =
        History { steps: history.steps[..history.steps.len().min(difference.step + 1)].to_vec(), ..history.clone() };
    let Some(mut why) = fails(&best) else { return (history.clone(), difference.clone()) };
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 {
        let mut from = 1; // a history begins with a configuration
        while from < best.steps.len() {
            let mut steps = best.steps.clone();
            steps.drain(from..(from + size).min(best.steps.len()));
            let candidate = History { steps, ..best.clone() };
            match fails(&candidate) {
                Some(found) => (best, why) = (candidate, found),
                None => from += size,
            }
        }
        size /= 2;
    }
    (best, why)
}

impl Found {
    fn never_told_apart(&self) -> Vec<Fault> {
        Fault::ALL.into_iter().filter(|fault| !self.told_apart.contains_key(fault.name())).collect()
    }

    fn add(&mut self, at: u64, tally: &Tally, told_apart: &[Fault], failure: Option<String>) {
        for fault in told_apart {
            self.told_apart.entry(fault.name()).or_insert(at + 1);
        }
        self.differences += usize::from(failure.is_some());
        self.failures.extend(failure);
        self.tally.calls += tally.calls;
        self.tally.allowed += tally.allowed;
        for (rule, count) in &tally.refused {
            *self.tally.refused.entry(rule.clone()).or_default() += count;
        }
    }

    /// Notes each rule that no call met, and each faulty model that was not told apart.
    fn judge(&mut self) {
        for fault in self.never_told_apart() {
            self.failures.push(format!("the model that has the fault {} is not told apart", fault.name()));
        }
        for rule in RULES.iter().filter(|rule| !self.tally.refused.contains_key(**rule)) {
            self.failures.push(format!("no call was refused because {rule}"));
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused: Vec<String> = self.tally.refused.iter().map(|(rule, count)| format!("{count} {rule}")).collect();
        let slowest = self.told_apart.values().max().unwrap_or(&0);
        write!(
            f,
            "differential: {} histories, {} calls ({} allowed; refused: {}), {} of {} faulty models told apart within \
             {slowest} histories, seed {}, {} differences",
            self.histories,
            self.tally.calls,
            self.tally.allowed,
            refused.join(", "),
            self.told_apart.len(),
            Fault::ALL.len(),
            self.seed,
            self.differences
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T19, T05, T06, T07, T14, T16, S01, S03
    #[test]
    fn the_toolbelt_decides_as_its_model_on_random_histories_and_no_faulty_model_does() {
        let mut found = run(1_000, 1);
        found.judge();
        assert!(found.failures.is_empty(), "{}", found.failures.join("\n"));
    }
}
