//! Starting a program of the suite with descriptors, by the protocol of `sd_listen_fds(3)`.
//!
//! For the suite's own programs only: a process on behalf of somebody is started by the kernel crate.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;

use command_fds::{CommandFdExt, FdMapping};

use crate::activation::{FIRST_FD, LISTEN_FDNAMES, LISTEN_FDS, LISTEN_PID, LISTEN_PIDFDID};
use crate::notify::NOTIFY_SOCKET;

/// A program to start, with this process's environment but for what was meant for this process alone. Standard input
/// is empty; output and errors go where this process's go.
#[derive(Debug)]
pub struct Spawn {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub variables: Vec<(OsString, OsString)>,
    /// Passed in this order, from descriptor 3 on, under these names.
    pub descriptors: Vec<(String, OwnedFd)>,
    /// Where the child says that it is ready.
    pub notify: Option<PathBuf>,
}

impl Spawn {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), variables: Vec::new(), descriptors: Vec::new(), notify: None }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub fn descriptor(mut self, name: impl Into<String>, fd: OwnedFd) -> Self {
        self.descriptors.push((name.into(), fd));
        self
    }

    /// Starts it in a process group of its own, so that a signal from the terminal reaches only this process.
    pub fn start(self) -> io::Result<tokio::process::Child> {
        tokio::process::Command::from(self.command()?).spawn()
    }

    fn command(self) -> io::Result<std::process::Command> {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).process_group(0);
        for name in [LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID, LISTEN_PIDFDID, NOTIFY_SOCKET] {
            command.env_remove(name);
        }
        command.envs(self.variables);
        if let Some(path) = &self.notify {
            command.env(NOTIFY_SOCKET, path);
        }
        if !self.descriptors.is_empty() {
            let names: Vec<&str> = self.descriptors.iter().map(|(name, _)| name.as_str()).collect();
            command.env(LISTEN_FDS, names.len().to_string()).env(LISTEN_FDNAMES, names.join(":"));
            let mappings = (FIRST_FD..)
                .zip(self.descriptors)
                .map(|(child_fd, (_, parent_fd))| FdMapping { parent_fd, child_fd })
                .collect();
            command.fd_mappings(mappings).map_err(io::Error::other)?;
        }
        Ok(command)
    }
}
