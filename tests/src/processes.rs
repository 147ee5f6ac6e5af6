//! Processes as `/proc` shows them: which belong to one suite, what they are, and what memory they hold.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::until::until_within;

/// One process of a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// When it started, in clock ticks since boot: with the pid it names the process for good.
    pub start: u64,
    /// File name of its program.
    pub program: String,
    pub args: Vec<String>,
}

impl Process {
    /// Reads the process `pid`; `None` when there is none, or none that may be read.
    pub fn read(pid: i32) -> Option<Self> {
        let start = start_time(pid)?;
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let args: Vec<String> = bytes
            .split(|b| *b == 0)
            .filter(|arg| !arg.is_empty())
            .map(|arg| String::from_utf8_lossy(arg).into_owned())
            .collect();
        let program = Path::new(args.first()?).file_name()?.to_string_lossy().into_owned();
        Some(Self { pid, start, program, args })
    }

    /// Whether it still runs. A zombie does not run.
    pub fn lives(&self) -> bool {
        start_time(self.pid) == Some(self.start) && state(self.pid) != Some('Z')
    }

    /// Sends `signal`, unless the process is gone and its number may be someone else's.
    pub fn signal(&self, signal: Signal) -> bool {
        self.lives() && !matches!(kill(Pid::from_raw(self.pid), signal), Err(Errno::ESRCH))
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&self) -> bool {
        let sent = self.signal(Signal::SIGKILL);
        until_within(Duration::from_secs(10), || (!self.lives()).then_some(()));
        sent
    }
}

/// Every process whose command line names something in `folder`, which one suite has for itself alone.
pub fn naming(folder: &Path) -> Vec<Process> {
    let folder = folder.to_string_lossy().into_owned();
    everyone().filter(|process| process.args.iter().any(|arg| arg.contains(&folder))).collect()
}

/// Every process whose environment names something in `folder`: the workload of a suite.
pub fn with_environment(folder: &Path) -> Vec<Process> {
    let folder = folder.to_string_lossy().into_owned().into_bytes();
    let names = |pid: i32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|bytes| bytes.windows(folder.len()).any(|window| window == folder.as_slice()))
    };
    everyone().filter(|process| names(process.pid)).collect()
}

fn everyone() -> impl Iterator<Item = Process> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |pid| *pid != own)
        .filter_map(Process::read)
}

/// Memory of one process, in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub rss: u64,
    /// Shared pages counted by their share.
    pub pss: u64,
}

/// What `pid` holds now; zero when it cannot be read.
pub fn memory(pid: i32) -> Memory {
    let field = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Memory { rss: field("Rss:"), pss: field("Pss:") }
}

/// Times that the process was put aside because it waited, so far: what an idle process does not do.
pub fn voluntary_switches(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

/// The fields of `/proc/pid/stat` after the program's name, which may hold spaces and brackets.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn state(pid: i32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

fn start_time(pid: i32) -> Option<u64> {
    stat(pid)?.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::until::until;

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = until("its arguments can be read", || Process::read(child.id().try_into().unwrap()));
        assert!(process.lives() && memory(process.pid).rss > 0);
        let someone_else = Process { start: process.start + 1, ..process.clone() };
        assert!(!someone_else.signal(Signal::SIGKILL), "another process with this number is left alone");
        assert!(process.kill());
        assert!(!process.lives());
        child.wait().unwrap();
    }
}
