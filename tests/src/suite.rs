//! One running suite: `open-conduit up` as an operator starts it, in directories that nothing else uses.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use conduit_api::places::Places;
use conduit_client::{Client, Credential};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::processes::{self, Process};
use crate::programs;
use crate::until::{until, until_within};

/// How long `up` may take until it says that it is ready.
const READY: Duration = Duration::from_secs(60);
/// How long a suite may take to stop before its processes are killed.
const STOP: Duration = Duration::from_secs(20);

/// What a suite is started with.
#[derive(Debug)]
pub struct Setup {
    /// Holds everything of the suite; its folder `hold` is for the pipes of [`crate::config::hold`].
    pub home: TempDir,
    pub config: Value,
    /// Where the state is kept, when not in `home`.
    pub state: Option<PathBuf>,
    /// The folder with the programs.
    pub programs: PathBuf,
    /// Added to the environment of `up`.
    pub environment: Vec<(String, String)>,
}

impl Setup {
    /// The programs beside the test, in a new directory; `config` is told which.
    pub fn new(config: impl FnOnce(&Path) -> Value) -> Self {
        let home = directory();
        std::fs::create_dir(home.path().join("hold")).expect("making a directory");
        let config = config(home.path());
        Self { home, config, state: None, programs: programs::folder(), environment: Vec::new() }
    }
}

/// A running suite. Dropping it ends every process of it.
#[derive(Debug)]
pub struct Suite {
    setup: Setup,
    places: Places,
    up: Child,
    /// What `up` wrote to its standard output so far, line by line.
    said: Receiver<String>,
}

impl Suite {
    /// Starts a suite with the configuration that `config` makes for its directory, and waits until it is ready.
    #[track_caller]
    pub fn start(config: impl FnOnce(&Path) -> Value) -> Self {
        Self::start_with(Setup::new(config))
    }

    /// As [`Suite::start`], with everything chosen.
    ///
    /// # Panics
    /// When `up` ends, or is not ready in time; the message holds what it logged.
    #[track_caller]
    pub fn start_with(setup: Setup) -> Self {
        let home = setup.home.path();
        let state = setup.state.clone().unwrap_or_else(|| home.join("s"));
        let places = Places { state, runtime: home.join("r") };
        std::fs::write(home.join("config.json"), setup.config.to_string()).expect("writing the configuration");
        let (up, said) = launch(home, &places, &setup);
        let mut suite = Self { setup, places, up, said };
        suite.wait_ready();
        suite
    }

    #[track_caller]
    fn wait_ready(&mut self) {
        let mut lines = Vec::new();
        let ready = until_within(READY, || {
            lines.extend(self.said.try_iter());
            if lines.iter().any(|line| line.starts_with("open-conduit up: ready")) {
                return Some(Ok(()));
            }
            self.up.try_wait().ok().flatten().map(Err)
        });
        match ready {
            Some(Ok(())) => {}
            Some(Err(status)) => panic!("`open-conduit up` ended ({status}) before it was ready:\n{}", self.log()),
            None => {
                panic!("`open-conduit up` was not ready in {} s; it said {lines:?}\n{}", READY.as_secs(), self.log())
            }
        }
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    pub fn state(&self) -> &Path {
        &self.places.state
    }

    /// A folder that outlives the state directory's contents and goes with the suite.
    pub fn home(&self) -> &Path {
        self.setup.home.path()
    }

    /// The folder with the suite's programs.
    pub fn programs(&self) -> &Path {
        &self.setup.programs
    }

    /// Everything that the suite logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home().join("log")).unwrap_or_default()
    }

    /// A client of the management socket with the owner's credential.
    #[track_caller]
    pub fn client(&self) -> Client {
        let token = self.places.operator_token();
        let credential = until("the owner's credential is on disk", || {
            // The first connection starts the management server, which makes the credential.
            let _ = token.exists() || UnixStream::connect(self.places.management_socket()).is_ok();
            Credential::from_file(&token).ok()
        });
        Client::new(self.places.management_socket(), credential).expect("making a client")
    }

    /// Runs `open-conduit` with `args` against this suite, as an operator does.
    pub fn conduit(&self, args: &[&str]) -> Output {
        Command::new(self.setup.programs.join("open-conduit"))
            .args(args)
            .env(conduit_api::http::env::MANAGEMENT_ENDPOINT, self.places.management_socket())
            .env(conduit_api::http::env::OPERATOR_TOKEN_FILE, self.places.operator_token())
            .stdin(Stdio::null())
            .output()
            .expect("running open-conduit")
    }

    /// The living processes of this suite that run `program`.
    pub fn processes(&self, program: &str) -> Vec<Process> {
        self.everything().into_iter().filter(|process| process.program == program && process.lives()).collect()
    }

    /// Waits until exactly one process runs `program`.
    #[track_caller]
    pub fn process(&self, program: &str) -> Process {
        until(&format!("one {program} runs"), || {
            let found = self.processes(program);
            (found.len() == 1).then(|| found[0].clone())
        })
    }

    /// Kills the one process that runs `program`, and gives back what was killed.
    #[track_caller]
    pub fn kill(&self, program: &str) -> Process {
        let victim = self.process(program);
        assert!(victim.kill(), "{program} was gone before it was killed");
        victim
    }

    /// Waits until another process than `before` runs `program`.
    #[track_caller]
    pub fn replaced(&self, before: &Process) -> Process {
        until(&format!("{} runs again", before.program), || {
            self.processes(&before.program).into_iter().find(|process| process != before)
        })
    }

    /// Asks `up` to stop as `signal` asks, and waits for its end. Executions keep running.
    #[track_caller]
    pub fn stop(&mut self, signal: Signal) -> ExitStatus {
        let pid = i32::try_from(self.up.id()).expect("a pid fits");
        Process::read(pid).expect("`up` runs").signal(signal);
        until("`open-conduit up` ends", || self.up.try_wait().ok().flatten())
    }

    /// Kills `up` itself, and waits for its end.
    #[track_caller]
    pub fn kill_up(&mut self) {
        self.up.kill().expect("killing `open-conduit up`");
        self.up.wait().expect("waiting for `open-conduit up`");
    }

    /// What `up` printed since this was last asked.
    pub fn said(&self) -> Vec<String> {
        self.said.try_iter().collect()
    }

    /// Starts `up` again on the same state, after [`Suite::stop`] or a kill of `up`.
    #[track_caller]
    pub fn start_again(&mut self) {
        let (up, said) = launch(self.home(), &self.places, &self.setup);
        (self.up, self.said) = (up, said);
        self.wait_ready();
    }

    /// Keeps the directories after the suite has ended, and says where they are.
    pub fn keep(&mut self) -> PathBuf {
        self.setup.home.disable_cleanup(true);
        self.home().to_owned()
    }

    /// Every process of this suite: its programs and its workload.
    pub fn everything(&self) -> Vec<Process> {
        let state = processes::naming(self.state());
        let home = processes::naming(self.home()).into_iter().filter(|process| !state.contains(process));
        let home: Vec<Process> = home.collect();
        state.into_iter().chain(home).collect()
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the suite\n{}\n---", self.log());
        }
        if let Ok(pid) = i32::try_from(self.up.id())
            && let Some(up) = Process::read(pid)
            && self.up.try_wait().ok().flatten().is_none()
        {
            up.signal(Signal::SIGTERM);
        }
        until_within(STOP, || self.up.try_wait().ok().flatten());
        let _ = self.up.kill();
        let _ = self.up.wait();
        // Runners outlive `up` by design. A runner that is asked to stop ends its own tree.
        for process in self.processes("open-conduit-runner") {
            process.signal(Signal::SIGTERM);
        }
        until_within(STOP, || self.processes("open-conduit-runner").is_empty().then_some(()));
        for process in self.everything().into_iter().chain(processes::with_environment(self.home())) {
            process.kill();
        }
    }
}

/// A new directory with a path that leaves room for sockets.
fn directory() -> TempDir {
    let base = if std::env::temp_dir().as_os_str().len() <= 32 { std::env::temp_dir() } else { PathBuf::from("/tmp") };
    tempfile::Builder::new().prefix("oc-").tempdir_in(base).expect("making a temporary directory")
}

fn launch(home: &Path, places: &Places, setup: &Setup) -> (Child, Receiver<String>) {
    for folder in [&places.state, &places.runtime] {
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder).expect("making a directory");
    }
    let log = File::options().create(true).append(true).open(home.join("log")).expect("opening the log");
    let mut up = Command::new(setup.programs.join("open-conduit"))
        .arg("up")
        .arg("--state")
        .arg(&places.state)
        .arg("--runtime")
        .arg(&places.runtime)
        .arg("--config")
        .arg(home.join("config.json"))
        // A test that is killed takes its suite along.
        .args(["--parent", &std::process::id().to_string()])
        .envs(setup.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("starting open-conduit up");
    let stdout = up.stdout.take().expect("standard output was piped");
    let (tell, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    (up, said)
}
