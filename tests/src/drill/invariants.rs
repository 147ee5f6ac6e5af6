//! What must hold whatever was killed: the store is compared with what executions swore to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};

use super::journal::{Fact, Reader};

/// The books: the store, opened to be read only, and the journal.
#[derive(Debug)]
pub struct Invariants {
    store: Connection,
    runs: PathBuf,
    started: Reader,
    emitted: Reader,
    created: Reader,
    rotated: Reader,
    refused: Reader,
    /// Segments whose process has begun, with the process.
    segments: BTreeMap<(String, String), String>,
    /// Acknowledged emissions.
    pub events: u64,
    pub old_tokens_refused: u64,
}

/// Queries that find nothing at any moment; what one finds is a violation.
const NEVER: [(&str, &str); 3] = [
    (
        "an attempt crossed the launch boundary twice",
        "SELECT attempt_id FROM attempt_event WHERE state = 'dispatching' GROUP BY attempt_id HAVING count(*) > 1",
    ),
    (
        "a Work has two executions whose process may live",
        "SELECT work_id FROM execution WHERE state IN ('claimed', 'running', 'parked', 'orphaned')
          GROUP BY work_id HAVING count(*) > 1",
    ),
    ("a Work failed", "SELECT id || ' ' || coalesce(outcome, '') FROM work WHERE state = 'failed'"),
];

/// Queries that may find something while a step is under way, and nothing that lasts. A token of a lower epoch is
/// refused from the moment of the new epoch, whether it is marked as revoked already or not.
const NOT_FOR_LONG: [(&str, &str); 1] = [(
    "a token of a lower epoch is still marked as live",
    "SELECT t.execution_id FROM token t JOIN execution e ON e.id = t.execution_id
      WHERE t.revoked_at_us IS NULL AND t.epoch < e.epoch",
)];

/// Queries that find nothing once every Work has ended.
const NEVER_AT_REST: [(&str, &str); 8] = [
    ("a Work has not ended", "SELECT id || ' ' || state FROM work WHERE state NOT IN ('succeeded', 'cancelled')"),
    (
        "an execution of an ended Work lives",
        "SELECT id || ' ' || state FROM execution WHERE state IN ('claimed', 'running', 'parked', 'orphaned')",
    ),
    ("an Event was not routed", "SELECT id FROM event WHERE route IS NULL"),
    ("an attempt is unresolved", "SELECT id || ' ' || state FROM attempt WHERE finished_at_us IS NULL"),
    ("a reservation is held", "SELECT attempt_id || ' ' || state FROM reservation WHERE state <> 'released'"),
    ("a wait is pending", "SELECT id FROM wait WHERE state = 'pending'"),
    (
        "a declaration was not applied",
        "SELECT d.execution_id FROM declaration d JOIN execution e ON e.id = d.execution_id
      WHERE d.applied_at_us IS NULL AND e.state NOT IN ('cancelled', 'lost')",
    ),
    (
        "one emission became several Events",
        "SELECT json_extract(data, '$.marker') AS marker FROM event
          WHERE source LIKE 'execution:%' AND marker IS NOT NULL GROUP BY marker HAVING count(*) > 1",
    ),
];

impl Invariants {
    pub fn open(state: &Path, journal: &Path) -> Self {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let store = Connection::open_with_flags(state.join("store.db"), flags).expect("opening the store to read it");
        store.busy_timeout(Duration::from_secs(10)).expect("setting up the connection");
        let reader = |fact| Reader::new(journal, fact);
        Self {
            store,
            runs: state.join("runs"),
            started: reader(Fact::Started),
            emitted: reader(Fact::Emitted),
            created: reader(Fact::Created),
            rotated: reader(Fact::Rotated),
            refused: reader(Fact::Refused),
            segments: BTreeMap::new(),
            events: 0,
            old_tokens_refused: 0,
        }
    }

    /// Everything that is wrong now, with executions running.
    pub fn violations(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        // The journal first: what it says now, the store has had before.
        for line in self.started.more() {
            let mut words = line.split(' ').map(str::to_owned);
            let (Some(execution), Some(segment)) = (words.next(), words.next()) else { continue };
            let process = words.collect::<Vec<_>>().join(" ");
            if let Some(before) = self.segments.insert((execution.clone(), segment.clone()), process.clone()) {
                found.push(format!("segment {segment} of {execution} began twice: {before}, then {process}"));
            }
        }
        for event in self.emitted.more() {
            self.events += 1;
            match self.count("SELECT count(*) FROM event WHERE id = ?1", &event) {
                1 => {}
                n => found.push(format!("the acknowledged event {event} is in the store {n} times")),
            }
        }
        for work in self.created.more() {
            if self.count("SELECT count(*) FROM work WHERE id = ?1", &work) != 1 {
                found.push(format!("the acknowledged {work} is not in the store"));
            }
        }
        for line in self.rotated.more() {
            match line.split_once(' ') {
                Some((_, "forbidden")) => self.old_tokens_refused += 1,
                // The daemons were away; nothing was learned.
                Some((_, "unavailable")) => {}
                _ => found.push(format!("a superseded token was not refused as any unknown one: {line}")),
            }
        }
        found.extend(self.refused.more().into_iter().map(|line| format!("an execution was refused for good: {line}")));
        found.extend(self.found(&NEVER));
        found
    }

    /// Everything that is wrong once every Work has ended. `starts`: acknowledged Events that start a Work.
    pub fn violations_at_rest(&mut self, starts: u64) -> Vec<String> {
        let mut found = self.violations();
        found.extend(self.found(&NEVER_AT_REST));
        let begun = self.number("SELECT count(*) FROM work WHERE binding IN ('parent', 'resuming', 'linger')");
        if begun != starts {
            found.push(format!("{starts} acknowledged Events start a Work each, and there are {begun} Works"));
        }
        let sound: String = self.store.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap_or_default();
        if sound != "ok" {
            found.push(format!("the store is damaged: {sound}"));
        }
        found
    }

    /// What may be so for a moment: run directories without a live execution, live executions without one, and more.
    pub fn unsettled(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.runs).into_iter().flatten().flatten();
        let named: BTreeSet<String> = entries
            .map(|entry| std::fs::read_to_string(entry.path().join("execution")).unwrap_or_default().trim().to_owned())
            .collect();
        let live = self.column("SELECT id FROM execution WHERE state IN ('claimed', 'running', 'parked', 'orphaned')");
        let complete = self.column("SELECT id FROM execution WHERE state IN ('running', 'parked')");
        let stale = named.iter().filter(|id| !live.contains(id)).map(|id| format!("a run directory of {id} stayed"));
        let missing = complete.iter().filter(|id| !named.contains(*id)).map(|id| format!("{id} has no run directory"));
        stale.chain(missing).chain(self.found(&NOT_FOR_LONG)).collect()
    }

    /// Works whose dispatch nobody can prove; an operator decides about them.
    pub fn ambiguous(&self) -> Vec<String> {
        self.column("SELECT id FROM work WHERE state = 'blocked' AND blocked_reason = 'ambiguous_dispatch'")
    }

    /// Works started by Events that have not ended.
    pub fn unfinished(&self) -> u64 {
        self.number(
            "SELECT count(*) FROM work WHERE binding IN ('parent', 'resuming') AND state NOT IN ('succeeded', 'cancelled')",
        )
    }

    pub fn started_works(&self) -> u64 {
        self.number("SELECT count(*) FROM work WHERE binding IN ('parent', 'resuming')")
    }

    pub fn all_ended(&self) -> bool {
        self.number("SELECT count(*) FROM work WHERE state NOT IN ('succeeded', 'cancelled', 'failed')") == 0
            && self.number("SELECT count(*) FROM event WHERE route IS NULL") == 0
            && self.number("SELECT count(*) FROM attempt WHERE finished_at_us IS NULL") == 0
            && self.number("SELECT count(*) FROM execution WHERE finished_at_us IS NULL") == 0
    }

    /// The `linger` Work whose process runs, if one does.
    pub fn lingering(&self) -> Option<String> {
        self.column("SELECT work_id FROM execution WHERE binding = 'linger' AND state = 'running'").pop()
    }

    pub fn number(&self, sql: &str) -> u64 {
        let number: i64 = self.store.query_row(sql, [], |row| row.get(0)).expect("reading the store");
        u64::try_from(number).unwrap_or(0)
    }

    fn count(&self, sql: &str, id: &str) -> i64 {
        let mut statement = self.store.prepare_cached(sql).expect("reading the store");
        statement.query_row(params![id], |row| row.get(0)).expect("reading the store")
    }

    fn column(&self, sql: &str) -> Vec<String> {
        let mut statement = self.store.prepare_cached(sql).expect("reading the store");
        let rows = statement.query_map([], |row| row.get(0)).expect("reading the store");
        rows.collect::<rusqlite::Result<_>>().expect("reading the store")
    }

    fn found(&self, queries: &[(&str, &str)]) -> Vec<String> {
        let describe = |(what, sql): &(&str, &str)| -> Vec<String> {
            self.column(sql).into_iter().map(|row| format!("{what}: {row}")).collect()
        };
        queries.iter().flat_map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::note;
    use super::*;

    /// A store of this release with nothing in it, and an empty journal.
    fn books() -> (tempfile::TempDir, Invariants) {
        let base = tempfile::tempdir().unwrap();
        let state = conduit_store::StateDir::open(&base.path().join("s")).unwrap();
        drop(conduit_store::Store::open(&state).unwrap());
        std::fs::create_dir_all(base.path().join("s/runs")).unwrap();
        let books = Invariants::open(&base.path().join("s"), base.path());
        (base, books)
    }

    #[test]
    fn books_that_agree_have_no_violation() {
        let (base, mut books) = books();
        note(base.path(), Fact::Started, "exe_a 1 1 100").unwrap();
        note(base.path(), Fact::Started, "exe_a 2 1 101").unwrap();
        note(base.path(), Fact::Rotated, "exe_a forbidden").unwrap();
        assert_eq!(books.violations_at_rest(0), Vec::<String>::new());
        assert_eq!(books.unsettled(), Vec::<String>::new());
        assert_eq!(books.old_tokens_refused, 1);
    }

    /// The drill is worth nothing if it would not notice.
    #[test]
    fn each_broken_promise_is_noticed() {
        let (base, mut books) = books();
        note(base.path(), Fact::Started, "exe_a 1 1 100").unwrap();
        note(base.path(), Fact::Started, "exe_a 1 1 101").unwrap();
        note(base.path(), Fact::Emitted, "evt_lost").unwrap();
        note(base.path(), Fact::Created, "wrk_lost").unwrap();
        note(base.path(), Fact::Rotated, "exe_a accepted").unwrap();
        note(base.path(), Fact::Refused, "exe_a segment 1: forbidden").unwrap();
        let other = Connection::open(base.path().join("s/store.db")).unwrap();
        other
            .execute_batch(
                "PRAGMA foreign_keys = OFF;
                 INSERT INTO attempt_event VALUES ('att_a', 1, 'dispatching', 'x', 0), ('att_a', 2, 'dispatching', 'x', 0);
                 INSERT INTO reservation VALUES ('att_a', 'active', 0);
                 INSERT INTO execution (id, work_id, scope_id, binding, generation, attempt, epoch, segment, state,
                                        cause_event_id, created_at_us, finished_at_us)
                     VALUES ('exe_a', 'wrk_a', 'test', 'b', 1, 1, 1, 1, 'succeeded', 'evt_a', 0, 0);
                 INSERT INTO declaration VALUES ('exe_a', 1, 'outcome', '{}', 0, NULL);",
            )
            .unwrap();
        std::fs::create_dir(base.path().join("s/runs/0123456789abcdef")).unwrap();
        let found = books.violations_at_rest(3).join("\n");
        for words in [
            "segment 1 of exe_a began twice",
            "evt_lost is in the store 0 times",
            "wrk_lost is not in the store",
            "a superseded token was not refused",
            "refused for good",
            "att_a",
            "a reservation is held",
            "a declaration was not applied",
            "3 acknowledged Events start a Work each, and there are 0 Works",
        ] {
            assert!(found.contains(words), "`{words}` is missing in\n{found}");
        }
        assert!(!books.unsettled().is_empty(), "a run directory without an execution");
    }
}
