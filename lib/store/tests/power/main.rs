//! A power cut at any moment takes nothing that anyone was told of.
//!
//! Several connections write, look, copy the log and come and go, on a disk that is watched. For cuts all along what was
//! seen, the files are made anew as the disk may have kept them, opened, and read. A disk that skips one of the
//! store's own syncs has to be caught by the same judge.

mod disk;
mod model;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

use conduit_store::{Result, StateDir, Store, named_params};
use disk::{Honesty, Op};
use model::{Dice, Disk, Fate};
use rusqlite::Connection;

/// Each transaction writes its row into both; the tables are told apart by who has half a transaction.
const TABLES: &str = "
    CREATE TABLE one (row INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT;
    CREATE TABLE two (row INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) STRICT";
const PUT_ONE: &str = "INSERT INTO one (row, payload) VALUES (:row, zeroblob(:bytes))";
const PUT_TWO: &str = "INSERT INTO two (row, bytes) VALUES (:row, :bytes)";
const ROWS: &str = "SELECT row FROM one";

const WRITERS: usize = 3;
const VISITS: usize = 3;
const WRITES: u64 = 12;
/// Power cuts that are tried of all that are possible, each with every fate.
const CUTS: usize = 40;

/// The watch is one for the whole program.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn put(store: &mut Store, row: i64, bytes: u64) -> Result<()> {
    store.write(|tx| {
        tx.execute("testing", PUT_ONE, named_params! { ":row": row, ":bytes": bytes as i64 })?;
        tx.execute("testing", PUT_TWO, named_params! { ":row": row, ":bytes": bytes as i64 })?;
        Ok(())
    })
}

fn rows(store: &mut Store) -> Result<Vec<i64>> {
    store.read(|r| r.all("testing", ROWS, [], |row| row.get(0)))
}

/// One writer's visit: what it does is drawn from `dice`.
fn visit(state: &StateDir, first: i64, mut dice: Dice, all_open: &Barrier) {
    let mut store = Store::open(state).unwrap();
    all_open.wait();
    for at in 0..WRITES {
        let row = first + at as i64;
        put(&mut store, row, dice.below(9_000)).unwrap();
        disk::told([row]);
        match dice.below(6) {
            0 | 1 => disk::told(rows(&mut store).unwrap()),
            2 => {
                // Another program copies the log, which may be begun anew afterwards.
                let other = Connection::open(state.store_file()).unwrap();
                let mode = if dice.below(2) == 0 { "PASSIVE" } else { "TRUNCATE" };
                // Busy is an answer too.
                let _ = other.pragma_query(None, "busy_timeout", |_| Ok(()));
                other.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(())).unwrap();
            }
            3 => {
                let refused = put(&mut store, row, 1);
                assert!(refused.is_err(), "a row is written once");
            }
            _ => {}
        }
    }
}

/// What the disk saw while writers came, wrote together and went, several times.
fn seen(seed: u64, honesty: Honesty) -> Vec<Op> {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("s");
    let state = StateDir::open(&path).unwrap();
    disk::begin(&path, honesty);
    let mut store = Store::open(&state).unwrap();
    TABLES.split(';').for_each(|table| {
        store.write(|tx| tx.execute("testing", table, [])).unwrap();
    });
    drop(store);
    let all_open = Barrier::new(WRITERS);
    for round in 0..VISITS {
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let dice = Dice(seed ^ ((round * WRITERS + writer) as u64) << 32);
                let first = ((round * WRITERS + writer) * 100) as i64;
                let (state, all_open) = (&state, &all_open);
                scope.spawn(move || visit(state, first, dice, all_open));
            }
        });
    }
    disk::end()
}

/// What is wrong with the files of `found`, if anything, for those who were told of `told`.
fn fault(
    found: &std::collections::BTreeMap<&'static str, Vec<u8>>,
    told: &BTreeSet<i64>,
    place: &Path,
) -> Option<String> {
    let folder = tempfile::tempdir_in(place).unwrap();
    for (name, bytes) in found {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let read = || -> rusqlite::Result<Option<String>> {
        let conn = Connection::open(folder.path().join("store.db"))?;
        let health: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        if health != "ok" {
            return Ok(Some(health));
        }
        let tables: i64 =
            conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name IN ('one', 'two')", [], |row| row.get(0))?;
        if tables < 2 {
            return Ok((!told.is_empty()).then(|| "the tables are gone".to_owned()));
        }
        let whole = "SELECT o.row FROM one o JOIN two t ON t.row = o.row AND t.bytes = length(o.payload)";
        let mut whole = conn.prepare(whole)?;
        let whole: BTreeSet<i64> = whole.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let halves: i64 =
            conn.query_row("SELECT (SELECT count(*) FROM one) + (SELECT count(*) FROM two)", [], |row| row.get(0))?;
        if halves != 2 * whole.len() as i64 {
            return Ok(Some("half a transaction is there".into()));
        }
        let gone: Vec<_> = told.difference(&whole).collect();
        Ok((!gone.is_empty()).then(|| format!("rows {gone:?} were told of and are gone")))
    };
    read().unwrap_or_else(|error| Some(error.to_string()))
}

/// Cuts the power all along `ops`; the first fault that is found.
fn judge(ops: &[Op], seed: u64) -> Option<String> {
    let place = tempfile::tempdir().unwrap();
    let mut dice = Dice(seed);
    let mut disk = Disk::default();
    let every = (ops.len() / CUTS).max(1) as u64;
    for (index, op) in ops.iter().enumerate() {
        disk.then(index, op);
        // Where someone has just been told is where it hurts.
        let every = if matches!(op, Op::Told { .. }) { 3 } else { every };
        if dice.below(every) != 0 {
            continue;
        }
        for fate in [Fate::Nothing, Fate::Everything, Fate::Some, Fate::Some] {
            if let Some(fault) = fault(&disk.cut(fate, &mut dice), disk.told(), place.path()) {
                return Some(format!("seed {seed}, cut after operation {index} of {}, {fate:?}: {fault}", ops.len()));
            }
        }
    }
    None
}

/// `CONDUIT_POWER_SEEDS=200` tries so many; one is enough each time.
fn seeds() -> std::ops::Range<u64> {
    1..1 + std::env::var("CONDUIT_POWER_SEEDS").map_or(1, |count| count.parse().unwrap())
}

#[test]
fn a_power_cut_takes_nothing_that_anyone_was_told_of() {
    let _alone = alone();
    for seed in seeds() {
        for honesty in [Honesty::Honest, Honesty::NoSyncOfFolderBySqlite] {
            let ops = seen(seed, honesty);
            let writes = ops.iter().filter(|op| matches!(op, Op::Write { .. })).count();
            let told = ops.iter().filter(|op| matches!(op, Op::Told { .. })).count();
            assert!(told == WRITERS * VISITS * WRITES as usize && writes > 4 * told, "{writes} writes, {told} rows");
            assert_eq!(judge(&ops, seed), None, "{honesty:?}");
        }
    }
}

#[test]
fn a_commit_that_is_told_of_before_its_sync_is_caught() {
    let _alone = alone();
    assert!(judge(&seen(3, Honesty::NoSyncAfterCommit), 3).is_some_and(|fault| fault.contains("gone")));
}

#[test]
fn a_log_whose_name_is_not_synced_is_caught() {
    let _alone = alone();
    assert!(judge(&seen(5, Honesty::NoSyncOfFolder), 5).is_some());
}

#[test]
fn after_a_sync_that_failed_nobody_goes_on_until_the_store_was_read_again_alone() {
    let _alone = alone();
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("s");
    let state = StateDir::open(&path).unwrap();
    disk::begin(&path, Honesty::Honest);
    let (mut store, mut other) = (Store::open(&state).unwrap(), Store::open(&state).unwrap());
    TABLES.split(';').for_each(|table| {
        store.write(|tx| tx.execute("testing", table, [])).unwrap();
    });
    put(&mut store, 1, 10).unwrap();
    disk::fail_next_sync();
    let code = |refused: Result<()>| refused.unwrap_err().code().as_str();
    assert_eq!(code(put(&mut store, 2, 10)), "state_unavailable");
    assert_eq!(code(put(&mut store, 3, 10)), "state_unavailable", "it is not asked of the disk again");
    assert_eq!(code(rows(&mut other).map(drop)), "state_unavailable", "and shown to nobody");
    drop((store, other));
    let mut store = Store::open(&state).unwrap();
    put(&mut store, 3, 10).unwrap();
    let found = rows(&mut store).unwrap();
    assert!(found.contains(&1) && found.contains(&3), "{found:?}");
    disk::end();
}
