//! From the spawn until the process tree is proven gone.
//!
//! Time is time since boot, which a suspended machine spends too, as the token and the scheduler count it.

use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use conduit_api::Code;
use conduit_store::Clock;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{WaitOptions, wait};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::attempt::ProcessEnd;
use crate::bundle::{self, Cause, TargetEvidence};
use crate::identity::MARKER;
use crate::limits::STRAGGLER_GRACE;
use crate::linux;
use crate::proc;
use crate::runner::capture::Capture;
use crate::runner::{Ended, Job, not_started};

const BUFFER_BYTES: usize = 64 << 10;

/// What the tree is allowed to do, and until when, in microseconds since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The main process runs, until its deadline.
    Running { deadline: i64 },
    /// The main process has ended by itself; what it left may end by itself too.
    Lingering { until: i64 },
    /// SIGTERM was sent.
    Terminating { until: i64 },
    /// SIGKILL is sent to whatever is found.
    Killing,
}

impl Phase {
    const fn end(self) -> Option<i64> {
        match self {
            Self::Running { deadline: until } | Self::Lingering { until } | Self::Terminating { until } => Some(until),
            Self::Killing => None,
        }
    }
}

/// Takes over the signals that matter: SIGTERM asks to stop, SIGCHLD says that a child ended, and what a terminal
/// sends is held back for good.
pub(super) fn block_signals() -> Result<SignalFd> {
    let mut heard = SigSet::empty();
    heard.add(Signal::SIGTERM);
    heard.add(Signal::SIGCHLD);
    let mut blocked = heard;
    blocked.add(Signal::SIGHUP);
    blocked.add(Signal::SIGINT);
    blocked.add(Signal::SIGQUIT);
    blocked.thread_block()?;
    Ok(SignalFd::with_flags(&heard, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

struct Tree {
    main: u32,
    /// How the main process ended, and why the runner ended it.
    end: Option<ProcessEnd>,
    cause: Cause,
    phase: Phase,
    grace: Duration,
    gone: bool,
    killed: u32,
}

/// Spawns the job's process and returns when nothing of it is left.
pub(super) fn supervise(job: &Job, signals: &SignalFd) -> Result<Ended> {
    let plan = &job.plan;
    let mut command = Command::new(&plan.executable.canonical);
    command
        .arg0(&plan.executable.invoked)
        .args(&plan.args)
        .current_dir(&plan.cwd)
        .env_clear()
        .envs(&plan.env)
        .env(MARKER, job.attempt.as_str())
        .stderr(Stdio::piped());
    if plan.channel {
        let channel = std::io::stdin().as_fd().try_clone_to_owned()?;
        command.stdout(Stdio::from(channel.try_clone()?)).stdin(Stdio::from(channel));
    } else {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    }
    linux::detach(&mut command);
    linux::bound(&mut command, plan.resources);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let executable = plan.executable.canonical.display();
            let message = format!("the executable {executable} cannot be run: {}", crate::error::in_words(&error));
            return Ok(not_started(Cause::Ended, Code::ExecutableUnavailable, &message));
        }
    };
    if plan.channel {
        // The tree alone holds it: whoever has the other end sees it end with the tree.
        drop(command);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    }
    let deadline = plan.deadline_boot_us(Clock.now());
    let main = child.id();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    if let Err(error) = say_what(job, main) {
        // It only helps the kernel to find survivors, which the marker does too.
        eprintln!("open-conduit-runner: the main process could not be recorded: {error}");
    }
    let mut tree = Tree {
        main,
        end: None,
        cause: Cause::Ended,
        phase: Phase::Running { deadline },
        grace: Duration::from_millis(plan.stop_grace_ms),
        gone: false,
        killed: 0,
    };
    let missing = || std::io::Error::other("a pipe of the process is missing");
    let out = match stdout {
        Some(stdout) => Capture::new(&job.bundle, "stdout", stdout, plan.output_bytes_max)?,
        None if plan.channel => Capture::of_nothing(&job.bundle, "stdout"),
        None => return Err(missing()),
    };
    let err = Capture::new(&job.bundle, "stderr", stderr.ok_or_else(missing)?, plan.output_bytes_max)?;
    let streams = follow(&mut tree, signals, out, err)?;
    let end = tree.end.ok_or_else(|| std::io::Error::other("the main process was never reaped"))?;
    Ok(Ended { cause: tree.cause, end, streams, killed: tree.killed })
}

fn say_what(job: &Job, main: u32) -> Result<()> {
    // It is not reaped yet, so it is there, as a zombie at least.
    let seen = proc::process(main)?.ok_or_else(|| std::io::Error::other("/proc does not show the process"))?;
    let target = TargetEvidence {
        pid: main,
        start_ticks: seen.start_ticks,
        session: main,
        cgroup: proc::cgroup(main)?,
        spawned_at_us: Clock.now().wall.0,
    };
    bundle::put_new(&job.bundle.target(), &serde_json::to_vec(&target)?)
}

fn follow(
    tree: &mut Tree,
    signals: &SignalFd,
    mut out: Capture<ChildStdout>,
    mut err: Capture<ChildStderr>,
) -> Result<Vec<bundle::StreamResult>> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let alarm = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    loop {
        let mut asked = false;
        while let Some(signal) = signals.read_signal()? {
            asked |= signal.ssi_signo == Signal::SIGTERM as u32;
        }
        // Reaping goes first: a process that had ended was not stopped, whatever was asked a moment later.
        tree.reap()?;
        if tree.gone {
            break;
        }
        tree.advance(asked, Clock.now().boot_us)?;
        set(&alarm, tree.phase.end())?;
        let ready = {
            let sources = [Some(signals.as_fd()), Some(alarm.as_fd()), out.source(), err.source()];
            let waited = sources.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let mut waited: Vec<_> = waited.collect();
            match poll(&mut waited, None) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => 0,
                Err(errno) => return Err(errno.into()),
            }
        };
        if ready > 0 {
            out.turn(&mut buffer)?;
            err.turn(&mut buffer)?;
        }
    }
    out.rest(&mut buffer)?;
    err.rest(&mut buffer)?;
    Ok([out.finish()?, err.finish()?].into_iter().flatten().collect())
}

impl Tree {
    /// Reaps whatever has ended. No child left means no descendant left: this process is their subreaper.
    fn reap(&mut self) -> Result<()> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if u32::try_from(pid.as_raw_nonzero().get()) == Ok(self.main) => {
                    self.end = Some(end_of(ExitStatus::from_raw(status.as_raw())));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(rustix::io::Errno::CHILD) => {
                    self.gone = true;
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Moves to the phase that is due at `now`, and does what belongs to it. `asked`: SIGTERM arrived.
    fn advance(&mut self, asked: bool, now: i64) -> Result<()> {
        let over = self.phase.end().is_some_and(|end| now >= end);
        match self.phase {
            Phase::Running { .. } if self.end.is_some() => {
                self.phase =
                    if asked { Phase::Killing } else { Phase::Lingering { until: now + micros(STRAGGLER_GRACE) } };
            }
            Phase::Running { .. } if asked || over => {
                self.cause = if asked { Cause::Stopped } else { Cause::TimedOut };
                self.phase = Phase::Terminating { until: now + micros(self.grace) };
                proc::signal_each(&proc::descendants(&[std::process::id()])?, rustix::process::Signal::TERM)?;
            }
            Phase::Lingering { .. } if asked || over => self.phase = Phase::Killing,
            Phase::Terminating { .. } if over => self.phase = Phase::Killing,
            Phase::Running { .. } | Phase::Lingering { .. } | Phase::Terminating { .. } | Phase::Killing => {}
        }
        if self.phase == Phase::Killing {
            // Each death wakes the loop, so what was forked meanwhile is found by the next look.
            let found = proc::descendants(&[std::process::id()])?;
            let reached = proc::signal_each(&found, rustix::process::Signal::KILL)?;
            self.killed = self.killed.max(reached);
        }
        Ok(())
    }
}

/// Sets the alarm to an instant since boot, or to none; what it said before is forgotten.
fn set(alarm: &OwnedFd, at_us: Option<i64>) -> Result<()> {
    // Zero would switch it off.
    let at_us = at_us.map_or(0, |at| at.max(1));
    let it_value = Timespec { tv_sec: at_us / 1_000_000, tv_nsec: at_us % 1_000_000 * 1_000 };
    let once = Itimerspec { it_interval: Timespec::default(), it_value };
    timerfd_settime(alarm, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn end_of(status: ExitStatus) -> ProcessEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessEnd::Exited { code },
        (None, signal) => ProcessEnd::Signalled { signal: signal.unwrap_or(0) },
    }
}
