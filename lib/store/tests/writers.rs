//! How many commits a second many processes reach through the store, beside as many bare ones that sync every commit under
//! the write lock. `cargo test --release -p conduit-store --test writers -- --ignored --nocapture` prints the ratios.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conduit_store::{StateDir, Store, named_params};
use rusqlite::Connection;

const ROLE: &str = "CONDUIT_STORE_WRITER";
const PLACE: &str = "CONDUIT_STORE_PLACE";
const TURN: Duration = Duration::from_millis(700);
const TURNS: u32 = 4;
const TABLE: &str = "CREATE TABLE IF NOT EXISTS row (id INTEGER PRIMARY KEY, payload TEXT NOT NULL) STRICT";
const PUT: &str = "INSERT INTO row (payload) VALUES (:payload)";
const PAYLOAD: &str = "one row of about as many bytes as a small event has, so that a page takes some of them";

fn bare(path: &Path) -> Connection {
    let mut conn = Connection::open(path).unwrap();
    let busy = |tries| {
        std::thread::sleep(Duration::from_micros(if tries < 20 { 50 } else { 200 }));
        true
    };
    conn.busy_handler(Some(busy)).unwrap();
    conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())).unwrap();
    conn.pragma_update(None, "synchronous", "FULL").unwrap();
    conn
}

/// One writing process; the test below starts it.
#[test]
#[ignore = "a part of the measurement below, which starts it"]
fn part() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let state = StateDir::open(Path::new(&std::env::var(PLACE).unwrap())).unwrap();
    let mut conn = bare(&state.path().join("bare.db"));
    let mut store = Store::open(&state).unwrap();
    let mut commit = || {
        if role == "store" {
            store.write(|tx| tx.execute("measuring", PUT, named_params! { ":payload": PAYLOAD })).unwrap();
        } else {
            let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
            tx.prepare_cached(PUT).unwrap().execute(named_params! { ":payload": PAYLOAD }).unwrap();
            tx.commit().unwrap();
        }
    };
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let end = Instant::now() + TURN;
    let mut commits = 0;
    while Instant::now() < end {
        commit();
        commits += 1;
    }
    println!("commits {commits}");
}

fn start(role: &str, place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["part", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(PLACE, place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Commits per second of `count` processes.
fn rate(role: &str, place: &Path, count: usize) -> f64 {
    let mut parts: Vec<Child> = (0..count).map(|_| start(role, place)).collect();
    let mut outs: Vec<_> = parts.iter_mut().map(|p| BufReader::new(p.stdout.take().unwrap()).lines()).collect();
    for out in &mut outs {
        assert!(out.any(|line| line.unwrap().ends_with("ready")));
    }
    let mut ins: Vec<_> = parts.iter_mut().map(|p| p.stdin.take().unwrap()).collect();
    for stdin in &mut ins {
        stdin.write_all(b"go\n").unwrap();
    }
    let commits = |line: String| line.strip_prefix("commits ").and_then(|n| n.parse::<u32>().ok());
    let total: u32 = outs.iter_mut().map(|out| out.find_map(|line| commits(line.unwrap())).unwrap()).sum();
    for part in &mut parts {
        part.wait().unwrap();
    }
    f64::from(total) / TURN.as_secs_f64()
}

#[test]
#[ignore = "a measurement, for a release build on a quiet machine"]
fn many_writers_beside_bare_ones() {
    let base = tempfile::tempdir().unwrap();
    let state = StateDir::open(&base.path().join("s")).unwrap();
    let _store = Store::open(&state).unwrap();
    Connection::open(state.store_file()).unwrap().execute_batch(TABLE).unwrap();
    let held = bare(&state.path().join("bare.db"));
    held.execute_batch(TABLE).unwrap();
    // Both logs reach their length first: a file that grows is another thing to sync.
    for role in ["bare", "store"] {
        rate(role, state.path(), 32);
    }
    let mut alone = 0.0;
    for count in [1, 2, 8, 32] {
        let (mut ours, mut theirs) = (0.0, 0.0);
        for _ in 0..TURNS {
            theirs += rate("bare", state.path(), count) / f64::from(TURNS);
            ours += rate("store", state.path(), count) / f64::from(TURNS);
        }
        alone = if count == 1 { ours } else { alone };
        let log = std::fs::metadata(state.path().join("store.db-wal")).unwrap().len() >> 20;
        println!(
            "{count:2} writers: {ours:6.0} /s, bare {theirs:6.0} /s, ratio {:.2}; beside one {:.2}; log {log} MiB",
            ours / theirs,
            ours / alone
        );
    }
}
