//! The measures: each beside its floor, in turns.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conduit_tests::suite::Setup;
use conduit_tests::{Execution, Suite, config, processes, until};
use serde_json::json;

use crate::cpu::OneCpu;
use crate::exchange::Connection;
use crate::floors::{self, Bare, PAYLOAD, Part};
use crate::table::{Samples, Table, Target, rate, time};
use crate::{Effort, Result};

pub const CALL: &str = "/v1/toolbelt/call";
/// Most callers at once; each has an execution of its own.
const CALLERS_MAX: usize = 64;
/// What an idle suite may hold in memory, in KiB.
const IDLE_KIB: f64 = 30.0 * 1024.0;
/// What a stripped `os` may weigh, in bytes.
const OS_BYTES: f64 = 3.0 * 1024.0 * 1024.0;
/// Calls of one kind in a row: a caller that asks again and again. Not one by one: a journal makes a commit wait when another
/// process synced just before, and a program that was not at work for a while has to be read into the caches first.
pub const BLOCK: usize = 100;
/// How long an idle suite is watched for wake-ups.
const IDLE_WATCH: Duration = Duration::from_secs(5);

pub fn all(bin_dir: Option<&PathBuf>, effort: Effort, table: &mut Table) -> Result<()> {
    let own = std::env::current_exe()?;
    let mut setup = Setup::new(|home| {
        let own = own.to_string_lossy();
        let stamp = [own.as_ref(), "stamp", &home.join("hold").to_string_lossy()].map(str::to_owned);
        let stamp: Vec<&str> = stamp.iter().map(String::as_str).collect();
        config::one_scope(json!({"hold": config::hold(home), "stamp": config::binding(&stamp)}), json!([]))
    });
    if let Some(folder) = bin_dir {
        setup.programs.clone_from(folder);
    }
    let suite = Suite::start_with(setup);
    idle(&suite, table);
    let mut floor = Floor::start(&suite)?;
    let held: Vec<Execution<'_>> = (0..CALLERS_MAX).map(|_| suite.hold("hold")).collect();
    latencies(&suite, &held[0], &mut floor, effort, table)?;
    rates(&held, &floor, effort, table)?;
    processes_compared(&suite, &held[0], effort, table)?;
    ready_to_running(&suite, effort, table)?;
    drop(held);
    Ok(())
}

/// What everything is compared with, kept for the whole run.
struct Floor {
    echo: Part,
    socket: PathBuf,
    database: PathBuf,
    bare: Bare,
}

impl Floor {
    fn start(suite: &Suite) -> Result<Self> {
        // On the file system of the state directory: the disk is part of the floor.
        let (socket, database) = (suite.home().join("echo.sock"), suite.home().join("bare.db"));
        let echo = Part::start(&["echo".as_ref(), socket.as_os_str()])?;
        let bare = Bare::open(&database)?;
        Ok(Self { echo, socket, database, bare })
    }
}

/// Memory and wake-ups of a suite that has nothing to do.
fn idle(suite: &Suite, table: &mut Table) {
    let suite_of = || -> Vec<processes::Process> {
        suite.everything().into_iter().filter(|process| process.program.starts_with("open-conduit")).collect()
    };
    let all = suite_of();
    let memory: Vec<processes::Memory> = all.iter().map(|process| processes::memory(process.pid)).collect();
    let (rss, pss) = (memory.iter().map(|m| m.rss).sum::<u64>(), memory.iter().map(|m| m.pss).sum::<u64>());
    let names: Vec<&str> = all.iter().map(|process| process.program.as_str()).collect();
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let label = format!("idle suite, resident ({})", names.join(", "));
    table.compare(&label, mib(rss), "30 MiB".into(), rss as f64 / IDLE_KIB, Target::AtMost(1.0));
    table.compare("idle suite, shared pages by share", mib(pss), "30 MiB".into(), pss as f64 / IDLE_KIB, Target::None);

    let switches = || -> u64 { all.iter().map(|process| processes::voluntary_switches(process.pid)).sum() };
    let before = switches();
    std::thread::sleep(IDLE_WATCH);
    let woken = (switches() - before) as f64 / IDLE_WATCH.as_secs_f64();
    table.compare("idle suite, wake-ups", format!("{woken:.1} /s"), "1 /s".into(), woken, Target::AtMost(1.0));
}

pub fn read_context() -> String {
    json!({"operation": "read_context"}).to_string()
}

fn emit(request_id: &str) -> String {
    let input = json!({"type": "test.bench", "data": {"payload": PAYLOAD}});
    json!({"operation": "emit", "request_id": request_id, "input": input}).to_string()
}

/// Runs `work` on one thread, where local tasks may be spawned.
pub fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// Whether a file still grows, asked again and again by someone who makes it grow.
struct Grown {
    file: PathBuf,
    bytes: u64,
    /// Times in a row that it had not grown.
    calm: u32,
    asked: u32,
}

impl Grown {
    /// Times in a row after which a file counts as grown up.
    const CALM: u32 = 500;
    const ASKED_MAX: u32 = 20_000;

    fn of(file: &Path) -> Self {
        Self { file: file.to_owned(), bytes: 0, calm: 0, asked: 0 }
    }

    fn still(&mut self) -> bool {
        let bytes = std::fs::metadata(&self.file).map_or(0, |meta| meta.len());
        self.calm = if bytes > self.bytes { 0 } else { self.calm + 1 };
        self.bytes = self.bytes.max(bytes);
        self.asked += 1;
        self.calm < Self::CALM && self.asked < Self::ASKED_MAX
    }
}

/// One caller on a kept connection: echo, commit, read_context and emit take turns, everyone on one CPU.
fn latencies(
    suite: &Suite,
    execution: &Execution<'_>,
    floor: &mut Floor,
    effort: Effort,
    table: &mut Table,
) -> Result<()> {
    let [mut echo, mut commit, mut read, mut emitted] = [const { Vec::new() }; 4].map(|_: Vec<()>| Samples::default());
    on_one_thread(async {
        let mut bare = Connection::open(&floor.socket, None).await?;
        let mut toolbelt = Connection::open(&execution.socket(), Some(&execution.token())).await?;
        // A log that still grows costs the file system more at each commit than one that is written over, which is what
        // a suite has that runs for longer than a moment.
        let mut grown = Grown::of(&suite.state().join("store.db-wal"));
        let mut warming = 0;
        while grown.still() {
            warming += 1;
            toolbelt.post(CALL, emit(&format!("warming-{warming}"))).await?;
        }
        let cpu = OneCpu::take()?;
        cpu.join(floor.echo.pid()?)?;
        cpu.join(suite.process("open-conduit-endpoint").pid)?;
        let mut grown = Grown::of(&floor.database.with_extension("db-wal"));
        while grown.still() {
            floor.bare.commit()?;
        }
        for turn in 0..=effort.turns {
            let mut sampled = [(); 4].map(|()| Vec::new());
            for block in 0..effort.samples.div_ceil(BLOCK) {
                let ids = (0..BLOCK).map(|i| format!("serial-{turn}-{block}-{i}"));
                let ids: Vec<String> = ids.collect();
                let [echoed, looked, committed, told] = &mut sampled;
                for id in &ids {
                    echoed.push(bare.post("/", emit(id)).await?);
                }
                for _ in &ids {
                    looked.push(toolbelt.post(CALL, read_context()).await?);
                }
                for _ in &ids {
                    committed.push(floor.bare.commit()?);
                }
                for id in &ids {
                    told.push(toolbelt.post(CALL, emit(id)).await?);
                }
            }
            // The first turn warms caches on both sides.
            if turn > 0 {
                for (samples, sampled) in [&mut echo, &mut read, &mut commit, &mut emitted].into_iter().zip(sampled) {
                    sampled.into_iter().for_each(|sample| samples.add(sample));
                }
            }
        }
        Ok(())
    })?;
    table.floor("echo: hyper over a Unix socket", echo.shown());
    table.floor("commit: SQLite, one row, FULL", commit.shown());
    let ratio = |over: Duration, under: Duration| over.as_secs_f64() / under.as_secs_f64();
    table.compare(
        "read_context",
        read.shown(),
        format!("echo {}", time(echo.p50())),
        ratio(read.p50(), echo.p50()),
        Target::AtMost(2.0),
    );
    let both = echo.p50() + commit.p50();
    table.compare(
        "emit, one caller",
        emitted.shown(),
        format!("echo + commit {}", time(both)),
        ratio(emitted.p50(), both),
        Target::AtMost(1.5),
    );
    Ok(())
}

/// What `callers` executions emit per second together, each on its own connection to its own worker.
fn emitted_per_second(callers: &[Execution<'_>], length: Duration, name: &str) -> Result<f64> {
    on_one_thread(async {
        let mut tasks = tokio::task::JoinSet::new();
        let (start, _) = tokio::sync::broadcast::channel::<Instant>(1);
        for (at, caller) in callers.iter().enumerate() {
            let (socket, token, name) = (caller.socket(), caller.token(), format!("{name}-{at}"));
            let mut connection = Connection::open(&socket, Some(&token)).await?;
            connection.post(CALL, read_context()).await?;
            let mut started = start.subscribe();
            tasks.spawn_local(async move {
                let end = started.recv().await.map_err(|e| e.to_string())?;
                let mut emitted = 0u64;
                while Instant::now() < end {
                    let body = emit(&format!("{name}-{emitted}"));
                    connection.post(CALL, body).await.map_err(|e| e.to_string())?;
                    emitted += 1;
                }
                Ok::<u64, String>(emitted)
            });
        }
        let begun = Instant::now();
        start.send(begun + length).map_err(|e| e.to_string())?;
        let mut emitted = 0;
        while let Some(ended) = tasks.join_next().await {
            emitted += ended??;
        }
        Ok(emitted as f64 / begun.elapsed().as_secs_f64())
    })
}

/// Many callers beside as many bare writers.
fn rates(held: &[Execution<'_>], floor: &Floor, effort: Effort, table: &mut Table) -> Result<()> {
    const CROWDS: [usize; 4] = [1, 8, 32, CALLERS_MAX];
    let turns = (effort.turns / 2).max(1);
    let (mut bare, mut suite) = ([0.0; CROWDS.len()], [0.0; CROWDS.len()]);
    for turn in 0..turns {
        for (at, crowd) in CROWDS.into_iter().enumerate() {
            bare[at] += floors::writers(&floor.database, crowd, effort.rate)? / turns as f64;
            let name = format!("crowd-{crowd}-{turn}");
            suite[at] += emitted_per_second(&held[..crowd], effort.rate, &name)? / turns as f64;
        }
    }
    for (at, crowd) in CROWDS.into_iter().enumerate() {
        let label = format!("bare writers, {crowd}");
        table.floor(&label, rate(bare[at]));
    }
    let serial = suite[0];
    for (at, crowd) in CROWDS.into_iter().enumerate() {
        let target = if crowd == 8 { Target::AtLeast(0.8) } else { Target::None };
        table.compare(
            &format!("emit, {crowd} callers on as many executions"),
            rate(suite[at]),
            format!("{crowd} writers {}", rate(bare[at])),
            suite[at] / bare[at],
            target,
        );
        if crowd >= 32 {
            let label = format!("emit, {crowd} callers beside one");
            let target = if crowd == 32 { Target::AtLeast(1.0) } else { Target::None };
            table.compare(&label, rate(suite[at]), format!("one caller {}", rate(serial)), suite[at] / serial, target);
        }
    }
    Ok(())
}

/// `os emit` beside the same call by `curl`, and what `os` weighs.
fn processes_compared(suite: &Suite, execution: &Execution<'_>, effort: Effort, table: &mut Table) -> Result<()> {
    let os = suite.programs().join("os");
    let header = suite.home().join("header");
    std::fs::write(&header, format!("authorization: Bearer {}\ncontent-type: application/json\n", execution.token()))?;
    let header = format!("@{}", header.display());
    let (socket, token) = (execution.socket(), execution.token_file());
    let curl = Path::new("/usr/bin/curl");
    let data = json!({"payload": PAYLOAD}).to_string();
    let [mut by_os, mut by_curl, mut bare] = [(); 3].map(|()| Samples::default());
    for turn in 0..=effort.turns {
        for i in 0..effort.spawns {
            let body = emit(&format!("curl-{turn}-{i}"));
            let args: [&OsStr; 10] = [
                "--silent".as_ref(),
                "--fail".as_ref(),
                "--unix-socket".as_ref(),
                socket.as_os_str(),
                "--header".as_ref(),
                header.as_ref(),
                "--data".as_ref(),
                body.as_ref(),
                "--no-progress-meter".as_ref(),
                "http://localhost/v1/toolbelt/call".as_ref(),
            ];
            let environment = [("OS_ENDPOINT", socket.as_path()), ("OS_TOKEN_FILE", token.as_path())];
            let sampled = [
                floors::spawn(&os, &["emit".as_ref(), "test.bench".as_ref(), data.as_ref()], &environment)?,
                floors::spawn(curl, &args, &[])?,
                floors::spawn(Path::new("/bin/true"), &[], &[])?,
            ];
            if turn > 0 {
                for (samples, sample) in [&mut by_os, &mut by_curl, &mut bare].into_iter().zip(sampled) {
                    samples.add(sample);
                }
            }
        }
    }
    table.floor("spawn: /bin/true, to its end", bare.shown());
    let ratio = by_os.p50().as_secs_f64() / by_curl.p50().as_secs_f64();
    table.compare(
        "os emit, as a process",
        by_os.shown(),
        format!("curl {}", time(by_curl.p50())),
        ratio,
        Target::AtMost(1.0),
    );
    let bytes = std::fs::metadata(&os)?.len() as f64;
    let mib = |bytes: f64| format!("{:.2} MiB", bytes / 1024.0 / 1024.0);
    table.compare("os, as built", mib(bytes), mib(OS_BYTES), bytes / OS_BYTES, Target::AtMost(1.0));
    Ok(())
}

/// From the commit that makes a Work ready to the first instruction of its process, beside a bare start of the same program.
fn ready_to_running(suite: &Suite, effort: Effort, table: &mut Table) -> Result<()> {
    let folder = suite.home().join("hold");
    let own = std::env::current_exe()?;
    let stamped = |name: &str| {
        until(&format!("{name} has begun to run"), || {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.parse::<i64>().ok()
        })
    };
    let between = |from: i64, to: i64| Duration::from_micros(u64::try_from(to - from).unwrap_or(0));
    let [mut bare, mut started] = [(); 2].map(|()| Samples::default());
    for turn in 0..=effort.turns {
        for _ in 0..effort.spawns {
            let begun = floors::wall_us()?;
            floors::spawn(&own, &["stamp".as_ref(), folder.as_os_str()], &[])?;
            let start = between(begun, stamped("bare"));
            let work = suite.work("stamp", json!({}));
            let ready = suite.work_view(&work).created_at.0;
            let ran = between(ready, stamped(work.as_str()));
            let ended = suite.ended(&work);
            if ended.state != "succeeded" {
                return Err(format!("{work} ended {}", ended.state).into());
            }
            if turn > 0 {
                bare.add(start);
                started.add(ran);
            }
        }
    }
    table.floor("spawn: this program, to its first instruction", bare.shown());
    table.compare(
        "ready Work to running process",
        started.shown(),
        format!("bare start {}", time(bare.p50())),
        started.p50().as_secs_f64() / bare.p50().as_secs_f64(),
        Target::AtMost(3.0),
    );
    Ok(())
}
