//! The runner: supervises one attempt, and says last, and durably, how it ended.
//!
//! It may be started before its launch, and then waits for its launch token, having only looked. It refuses a bundle that is not the one that was admitted, or that another runner has or had (K01); says who it is
//! before it spawns; gives the process a session and a cleared environment; keeps the first bytes of its output,
//! counts the rest and always drains it; stops the whole tree at the deadline or on SIGTERM; and writes a result only
//! when the kernel says that no descendant is left. It waits in one `poll`, for signals, output and the next deadline.
//!
//! Nothing is synced before the spawn: the commitment is the store's, and what this program writes survives its own
//! death without a sync. After a crash of the machine the attempt is `lost`, whatever its bundle says.
//!
//! If the runner itself is killed, the main process dies with it; the kernel looks for the rest.

mod admit;
mod capture;
mod supervise;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use conduit_api::{AttemptId, Code};
use conduit_store::Clock;

use crate::attempt::ProcessEnd;
use crate::bundle::{self, Bundle, Cause, Reserved, RunnerResult, StartEvidence, StreamResult};
use crate::identity::Plan;
use crate::proc;

/// Exit codes: what a runner that left no result says to whoever waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The result is written.
    Done = 0,
    /// It was not given exactly one bundle.
    Usage = 64,
    /// The bundle is not the one that was admitted, or the launch token is not its token.
    NotAdmitted = 65,
    /// Another runner has, or had, this bundle, or the lock was not handed over.
    NotAlone = 66,
    /// The host failed: a file or a process could not be handled.
    Host = 70,
}

impl Exit {
    const ALL: [Self; 5] = [Self::Done, Self::Usage, Self::NotAdmitted, Self::NotAlone, Self::Host];

    /// What an exit code of a runner means; `None` for one that it does not have.
    pub(crate) fn of(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| i32::from(*exit as u8) == code)
    }
}

/// Bytes that are set aside for a result before its process starts: more than one has.
const RESULT_BYTES: usize = 16 << 10;
/// Pause between two tries to write a result to a full disk.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// An admitted attempt, read from its bundle and verified.
#[derive(Debug)]
struct Job {
    bundle: Bundle,
    attempt: AttemptId,
    operation_digest: String,
    plan: Plan,
    started_at_us: i64,
}

/// How a job ended.
#[derive(Debug)]
struct Ended {
    cause: Cause,
    end: ProcessEnd,
    streams: Vec<StreamResult>,
    killed: u32,
}

/// Runs the program: one argument, the bundle's directory.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "--help" || arg == "-h") {
        println!(
            "open-conduit-runner BUNDLE_DIR\n\nSupervises one attempt and writes how it ended. open-conduitd starts it; by hand it does nothing."
        );
        return ExitCode::SUCCESS;
    }
    let (Some(dir), None) = (args.next(), args.next()) else {
        eprintln!("usage: open-conduit-runner BUNDLE_DIR (started by open-conduitd, never by hand)");
        return ExitCode::from(Exit::Usage as u8);
    };
    match run(&Bundle::at(Path::new(&dir))) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) => {
            eprintln!("open-conduit-runner: {error}");
            ExitCode::from(Exit::Host as u8)
        }
    }
}

fn run(bundle: &Bundle) -> std::io::Result<Exit> {
    // First of all, so that no signal is lost and no orphan escapes.
    let signals = supervise::block_signals()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    if !admit::is_alone(bundle)? {
        return Ok(Exit::NotAlone);
    }
    let Some(job) = admit::verify(bundle)? else { return Ok(Exit::NotAdmitted) };
    // Before anyone hears of this runner: without room for its result no process is started, and that is known to be so.
    let room = Reserved::take(bundle.result(), RESULT_BYTES)?;
    say_who(&job)?;
    let ended = if bundle.stop().exists() {
        not_started(Cause::Stopped, Code::OperatorCancelled, "it was stopped before it started")
    } else if Clock.now().boot_us >= job.plan.deadline_boot_us(Clock.now()) {
        not_started(Cause::TimedOut, Code::DeadlineExceeded, "its deadline had passed before it started")
    } else {
        match admit::ready(&job.plan) {
            Ok(()) => supervise::supervise(&job, &signals)?,
            Err(why) => not_started(Cause::Ended, why.code, &why.message),
        }
    };
    let result = RunnerResult {
        attempt: job.attempt,
        operation_digest: job.operation_digest,
        cause: ended.cause,
        end: ended.end,
        streams: ended.streams,
        killed: ended.killed,
        started_at_us: job.started_at_us,
        finished_at_us: Clock.now().wall.0,
    };
    leave(&room, &serde_json::to_vec(&result)?)?;
    Ok(Exit::Done)
}

/// Writes the result. On a disk that is full all the same it waits for room: nobody else knows how the process ended.
fn leave(room: &Reserved, result: &[u8]) -> std::io::Result<()> {
    loop {
        match room.put(result) {
            Err(error) if is_full(&error) => std::thread::sleep(FULL_PAUSE),
            done => return done,
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn say_who(job: &Job) -> std::io::Result<()> {
    let pid = std::process::id();
    let me = proc::process(pid)?.ok_or_else(|| std::io::Error::other("/proc does not show this process"))?;
    let start = StartEvidence {
        attempt: job.attempt.clone(),
        operation_digest: job.operation_digest.clone(),
        pid,
        start_ticks: me.start_ticks,
        boot_id: Clock.now().boot_id.to_owned(),
        started_at_us: job.started_at_us,
    };
    bundle::put_new(&job.bundle.start(), &serde_json::to_vec(&start)?)
}

/// The ending of a job whose process never existed.
fn not_started(cause: Cause, code: Code, message: &str) -> Ended {
    let end = ProcessEnd::NotStarted { code: code.as_str().to_owned(), message: message.to_owned() };
    Ended { cause, end, streams: Vec::new(), killed: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_stands_in_the_room_that_was_taken_for_it_and_nothing_before() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("result.json");
        let room = Reserved::take(path.clone(), RESULT_BYTES).unwrap();
        assert!(!path.exists(), "a reader finds a whole result or none");
        assert_eq!(base.path().join("result.tmp").metadata().unwrap().len(), RESULT_BYTES as u64);
        leave(&room, b"{}").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"{}");
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }
}
