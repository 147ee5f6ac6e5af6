//! A directory with stand-ins for the suite's programs, and `up` started in it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use conduit_api::places::Places;
use rustix::process::Pid;
pub use rustix::process::Signal;

use crate::stand_in::{COMMANDS, HOME, REPORTS, RUN_SOCKET};

/// Generous: nothing waits for it unless something is broken.
const END: Duration = Duration::from_secs(30);

pub struct Host {
    home: tempfile::TempDir,
    reports: UnixDatagram,
}

impl Host {
    pub fn new() -> Self {
        let home = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        // `up` looks for the others beside itself, so it has to be there; the others may be links.
        if std::fs::hard_link(&own, bin.join("open-conduit")).is_err() {
            std::fs::copy(&own, bin.join("open-conduit")).unwrap();
        }
        for name in ["open-conduitd", "open-conduit-endpointd", "open-conduit-management"] {
            symlink(&own, bin.join(name)).unwrap();
        }
        let reports = UnixDatagram::bind(home.path().join(REPORTS)).unwrap();
        reports.set_read_timeout(Some(END)).unwrap();
        Self { home, reports }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn places(&self) -> Places {
        Places { state: self.home().join("s"), runtime: self.home().join("r") }
    }

    pub fn run_socket(&self) -> PathBuf {
        self.home().join(RUN_SOCKET)
    }

    /// Tells the stand-ins to behave in a way of their own.
    pub fn mark(&self, name: &str) {
        std::fs::write(self.home().join(name), "").unwrap();
    }

    /// Puts an operator credential where the management server would have made it.
    pub fn operator(&self) {
        let token = self.places().operator_token();
        for directory in [&self.places().state, token.parent().unwrap()] {
            std::fs::create_dir(directory).unwrap();
            std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
        }
        std::fs::write(token, "secret").unwrap();
    }

    pub fn up(&self) -> Up {
        self.up_in(&self.places().runtime)
    }

    pub fn up_in(&self, runtime: &Path) -> Up {
        let mut child = Command::new(self.home().join("bin/open-conduit"))
            .arg("up")
            .arg("--state")
            .arg(self.places().state)
            .arg("--runtime")
            .arg(runtime)
            .env(HOME, self.home())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Up { child, out }
    }

    /// `up`, once it has said that it is ready; what its programs reported until then is read.
    pub fn ready(&self) -> Up {
        let mut up = self.up();
        assert_eq!(up.line(), "open-conduit up: ready");
        for _ in 0..2 {
            let report = self.report();
            assert!(report.contains(" started "), "{report}");
        }
        up
    }

    /// The next thing that a stand-in reported.
    pub fn report(&self) -> String {
        let mut text = [0; 4096];
        let bytes = self.reports.recv(&mut text).expect("a stand-in reports");
        String::from_utf8(text[..bytes].to_vec()).unwrap()
    }

    /// Asks the spawner's stand-in for something.
    pub fn command(&self, what: &str) {
        UnixDatagram::unbound().unwrap().send_to(what.as_bytes(), self.home().join(COMMANDS)).unwrap();
    }

    /// The number of the stand-in `program` that started last.
    pub fn pid(&self, program: &str) -> i32 {
        std::fs::read_to_string(self.home().join(format!("{program}.pid"))).unwrap().parse().unwrap()
    }

    pub fn kill(&self, program: &str) -> i32 {
        let pid = self.pid(program);
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        pid
    }
}

/// A running `up`. Dropping it ends it, and with it everything that it started.
pub struct Up {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Up {
    /// The next line that it printed.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let bytes = self.out.read_line(&mut line).unwrap();
        if bytes == 0 {
            let mut errors = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("`up` ended: {errors}");
        }
        line.trim_end().to_owned()
    }

    /// All that it prints from now to its end.
    pub fn rest(&mut self) -> String {
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        text
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Its exit code and all that it and its programs wrote to standard error.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), errors)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal(Signal::KILL);
            self.child.wait().unwrap();
        }
    }
}
