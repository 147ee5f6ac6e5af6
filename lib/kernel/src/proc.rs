//! Processes as `/proc` shows them: who is who, who descends from whom, and who outlived a runner.
//!
//! A pid alone names nobody: everything here pairs it with the start time, and signals go through a pidfd that was
//! compared with that pair after it was opened.

use std::collections::HashSet;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::time::Instant;

use conduit_api::AttemptId;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::bundle::TargetEvidence;
use crate::identity::MARKER;
use crate::launcher::Unit;
use crate::limits::SURVIVOR_WAIT;
use crate::linux;

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: u32,
    pub parent: u32,
    pub session: u32,
    pub start_ticks: u64,
    /// It has ended and waits to be reaped.
    pub dead: bool,
}

/// The process `pid`; `None` when there is none.
pub(crate) fn process(pid: u32) -> Result<Option<Process>> {
    match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse(pid, &stat).map(Some).ok_or_else(|| Error::from(ErrorKind::InvalidData)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Reads `proc_pid_stat(5)`. The command name may hold anything, so fields are counted from its last parenthesis.
fn parse(pid: u32, stat: &[u8]) -> Option<Process> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(&stat[close + 1..]).ok()?.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Process {
        pid,
        parent: field(4)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
        // A leader that ended before its threads is a zombie too, but its process lives.
        dead: matches!(field(3)?, "Z" | "X") && field(20)?.parse::<u32>().ok()? <= 1,
    })
}

/// Every process that lives now.
fn living() -> Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        match process(pid) {
            Ok(Some(process)) if !process.dead => all.push(process),
            Ok(_) => {}
            // Where `/proc` hides other users' processes; ours are never among them.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Every living descendant of the processes `of`, without them.
pub(crate) fn descendants(of: &[u32]) -> Result<Vec<Process>> {
    Ok(closure(&living()?, of))
}

fn closure(all: &[Process], of: &[u32]) -> Vec<Process> {
    let mut known: HashSet<u32> = of.iter().copied().collect();
    let mut found = Vec::new();
    loop {
        let before = found.len();
        for process in all {
            if known.contains(&process.parent) && known.insert(process.pid) {
                found.push(*process);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// A handle on exactly this process; `None` when it has ended.
pub(crate) fn open(pid: u32, start_ticks: u64) -> Result<Option<OwnedFd>> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // Compared after opening: from here on the handle cannot come to mean another process.
    Ok(process(pid)?.filter(|now| now.start_ticks == start_ticks && !now.dead).map(|_| pidfd))
}

/// Sends `signal` through a handle. A process that has ended is no fault; one that took another user's rights is none
/// either: it lives on, and is counted as living.
pub(crate) fn signal(pidfd: &OwnedFd, signal: Signal) -> Result<()> {
    match pidfd_send_signal(pidfd, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH | rustix::io::Errno::PERM) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Signals each of `processes` that still lives; returns how many that were.
pub(crate) fn signal_each(processes: &[Process], how: Signal) -> Result<u32> {
    let mut reached = 0;
    for process in processes {
        if let Some(pidfd) = open(process.pid, process.start_ticks)? {
            signal(&pidfd, how)?;
            reached += 1;
        }
    }
    Ok(reached)
}

/// A handle on the runner that `unit` names; `None` when it has ended, or belongs to another boot.
pub(crate) fn open_unit(unit: &Unit, boot_id: &str) -> Result<Option<OwnedFd>> {
    if unit.boot_id == boot_id { open(unit.pid, unit.start_ticks) } else { Ok(None) }
}

/// Completes when the process behind `pidfd` has ended.
pub(crate) async fn ended(pidfd: &OwnedFd) -> Result<()> {
    // A handle of its own for each waiter: one descriptor can be registered once.
    let waiter = linux::readable(pidfd.try_clone()?)?;
    waiter.readable().await.map(drop)
}

/// The control groups of a process.
pub(crate) fn cgroup(pid: u32) -> Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup"))
}

/// Processes of an attempt that live although its runner has ended.
#[derive(Debug, Default)]
pub(crate) struct Survivors {
    alive: Vec<(u32, OwnedFd)>,
}

impl Survivors {
    pub fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }
    pub fn pids(&self) -> Vec<u32> {
        self.alive.iter().map(|(pid, _)| *pid).collect()
    }
    /// Completes when each of them has ended.
    pub async fn gone(&self) -> Result<()> {
        for (_, pidfd) in &self.alive {
            ended(pidfd).await?;
        }
        Ok(())
    }
}

/// Kills what outlived the runner of `attempt`, and returns what still lives after [`SURVIVOR_WAIT`].
///
/// A survivor carries the attempt's marker in its environment, or is in the session and the control groups of its
/// main process, or descends from one that does. A process that left all of these is beyond this launcher.
pub(crate) async fn lay_to_rest(attempt: &AttemptId, target: Option<&TargetEvidence>) -> Result<Survivors> {
    let deadline = Instant::now() + SURVIVOR_WAIT;
    let mut empty_looks = 0;
    loop {
        let found = survivors(attempt, target)?;
        let mut alive = Vec::new();
        for process in &found {
            if let Some(pidfd) = open(process.pid, process.start_ticks)? {
                signal(&pidfd, Signal::KILL)?;
                alive.push((process.pid, pidfd));
            }
        }
        let alive = Survivors { alive };
        if alive.is_empty() {
            // A fork can slip past one look at a directory that changes; what it left is there at the second.
            empty_looks += 1;
            if empty_looks == 2 {
                return Ok(alive);
            }
            continue;
        }
        empty_looks = 0;
        match tokio::time::timeout_at(deadline.into(), alive.gone()).await {
            Ok(ended) => ended?,
            Err(_) => return Ok(alive),
        }
    }
}

fn survivors(attempt: &AttemptId, target: Option<&TargetEvidence>) -> Result<Vec<Process>> {
    let all = living()?;
    let marker = format!("{MARKER}={attempt}");
    let mut found: Vec<Process> = Vec::new();
    for process in &all {
        if is_marked(process.pid, marker.as_bytes())? || in_session(process, target)? {
            found.push(*process);
        }
    }
    let roots: Vec<u32> = found.iter().map(|process| process.pid).collect();
    found.extend(closure(&all, &roots));
    Ok(found)
}

/// Whether the environment that `pid` was started with holds `marker`. What may not be read is another user's.
fn is_marked(pid: u32, marker: &[u8]) -> Result<bool> {
    match std::fs::read(format!("/proc/{pid}/environ")) {
        Ok(environ) => Ok(environ.split(|byte| *byte == 0).any(|entry| entry == marker)),
        Err(error) if is_gone(&error) || error.kind() == ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

fn in_session(process: &Process, target: Option<&TargetEvidence>) -> Result<bool> {
    let Some(target) = target else { return Ok(false) };
    if process.session != target.session || process.start_ticks < target.start_ticks {
        return Ok(false);
    }
    // The number of an old session can come back: its control groups hardly do.
    match cgroup(process.pid) {
        Ok(cgroup) => Ok(cgroup == target.cgroup),
        Err(error) if is_gone(&error) || error.kind() == ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = b"7 (a) b) R (c) S 1 7 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let expected = Process { pid: 7, parent: 1, session: 5, start_ticks: 4242, dead: false };
        assert_eq!(parse(7, stat), Some(expected));
        assert_eq!(parse(7, b"7 (x) S 1"), None);
    }

    #[test]
    fn a_zombie_whose_threads_run_is_not_dead() {
        let dead = |threads: u32| {
            let stat = format!("7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 9 0 0");
            parse(7, stat.as_bytes()).unwrap().dead
        };
        assert!(dead(1));
        assert!(!dead(2));
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let process = |pid, parent| Process { pid, parent, session: 1, start_ticks: 0, dead: false };
        let all = [process(9, 8), process(8, 7), process(7, 2), process(5, 1)];
        let found: HashSet<u32> = closure(&all, &[2]).iter().map(|p| p.pid).collect();
        assert_eq!(found, HashSet::from([7, 8, 9]));
    }

    #[test]
    fn a_pid_with_another_start_time_is_another_process() {
        let me = process(std::process::id()).unwrap().unwrap();
        assert!(open(me.pid, me.start_ticks).unwrap().is_some());
        assert!(open(me.pid, me.start_ticks + 1).unwrap().is_none());
    }
}
