//! The real spawner in a directory of its own, with this test as its service manager.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conduit_api::places::Places;
use conduit_api::{ApiError, ExecutionId};
use conduit_daemon::spawn::Spawn;
use conduit_endpoint::control;
use conduit_endpoint::rundir::RunDir;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal};
use tokio::process::Child;

/// The generous end of every wait.
const END: Duration = Duration::from_secs(20);

pub struct Host {
    pub base: tempfile::TempDir,
    pub places: Places,
    /// What the workers do once they have noted their start, in the words of a shell.
    pub worker_does: &'static str,
    /// Whether this test keeps descriptors, as a service manager does.
    pub keeps: bool,
    pub kept: Vec<(String, OwnedFd)>,
    manager: UnixDatagram,
    child: Option<Child>,
}

impl Host {
    /// A spawner over an empty state directory that is `longer` bytes longer than it has to be.
    pub async fn start_in(longer: usize, worker_does: &'static str, keeps: bool) -> Self {
        let base = tempfile::Builder::new().prefix("oc").tempdir().unwrap();
        let state = base.path().join("s".repeat(1 + longer));
        conduit_store::StateDir::open(&state).unwrap();
        let places = Places { state, runtime: base.path().join("r") };
        let manager = UnixDatagram::bind(base.path().join("n")).unwrap();
        manager.set_read_timeout(Some(END)).unwrap();
        let mut host = Self { base, places, worker_does, keeps, kept: Vec::new(), manager, child: None };
        host.start_again().await;
        host
    }

    pub async fn start(worker_does: &'static str) -> Self {
        Self::start_in(0, worker_does, false).await
    }

    /// Starts the program, with the descriptors that were kept, and returns once it says that it is ready.
    pub async fn start_again(&mut self) {
        assert!(self.child.is_none());
        let mut spawn = Spawn::new(env!("CARGO_BIN_EXE_open-conduit-endpointd"))
            .arg("--state")
            .arg(&self.places.state)
            .arg("--runtime")
            .arg(&self.places.runtime)
            .arg("--worker")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/worker.sh"));
        spawn.variables = [
            ("WORKER_LOG", self.worker_log()),
            ("WORKER_DOES", self.worker_does.into()),
            ("XDG_RUNTIME_DIR", self.base.path().into()),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
        for (name, fd) in &self.kept {
            spawn = spawn.descriptor(name.clone(), fd.try_clone().unwrap());
        }
        spawn.notify = Some(self.base.path().join("n"));
        self.child = Some(spawn.start().unwrap());
        while !self.news().contains("READY=1") {}
    }

    /// What the program tells its manager next; descriptors are kept if this manager keeps any.
    fn news(&mut self) -> String {
        let mut text = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [std::io::IoSliceMut::new(&mut text)];
        let got = rustix::net::recvmsg(&self.manager, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC);
        let bytes = got.expect("the program says something to its manager").bytes;
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None })
            .flatten()
            .collect();
        let news = String::from_utf8(text[..bytes].to_vec()).unwrap();
        let name = news.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default().to_owned();
        if news.contains("FDSTOREREMOVE=1") {
            self.kept.retain(|(kept, _)| *kept != name);
        } else if self.keeps {
            self.kept.extend(fds.into_iter().map(|fd| (name.clone(), fd)));
        }
        news
    }

    /// Takes in what the program has told its manager so far.
    pub fn take_news(&mut self) {
        self.manager.set_nonblocking(true).unwrap();
        let waiting = |manager: &UnixDatagram| {
            let mut byte = [0_u8; 1];
            rustix::net::recv(manager, &mut byte[..], RecvFlags::PEEK).is_ok()
        };
        while waiting(&self.manager) {
            self.news();
        }
        self.manager.set_nonblocking(false).unwrap();
    }

    pub async fn serve(&mut self, n: u128) -> (ExecutionId, PathBuf) {
        let id = id(n);
        RunDir::prepare(&self.places.state, &id).unwrap();
        let socket = control::serve(&self.places, &id).await.unwrap();
        self.take_news();
        (id, socket)
    }

    pub async fn close(&mut self, id: &ExecutionId) -> Result<(), ApiError> {
        control::close(&self.places, id).await?;
        self.take_news();
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("the spawner runs")
    }

    pub async fn kill(&mut self) {
        self.child.take().expect("the spawner runs").kill().await.unwrap();
    }

    /// Asks the program to end, and returns its exit code.
    pub async fn terminate(&mut self) -> Option<i32> {
        signal(self.pid(), Signal::TERM);
        let mut child = self.child.take().expect("the spawner runs");
        tokio::time::timeout(END, child.wait()).await.expect("it ends when asked").unwrap().code()
    }

    pub fn worker_log(&self) -> PathBuf {
        self.base.path().join("workers")
    }

    /// What the workers noted, a line each; the first word is the process.
    pub fn workers(&self) -> Vec<String> {
        let text = fs::read_to_string(self.worker_log()).unwrap_or_default();
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
    }

    /// Waits until `count` workers have been started in all, and returns the last one's process.
    pub async fn worker(&self, count: usize) -> u32 {
        until("a worker is started", || self.workers().len() >= count).await;
        self.workers()[count - 1].split(' ').next().unwrap().parse().unwrap()
    }
}

impl Host {
    /// Kills the workers that a killed spawner left: these know nothing of their parent.
    pub fn kill_workers(&self) {
        for line in self.workers() {
            let pid: u32 = line.split(' ').next().unwrap().parse().unwrap();
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if ["sleep", "worker.sh"].contains(&name.trim()) {
                signal(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.child.as_ref().is_some_and(|child| child.id().is_some()) {
            signal(self.pid(), Signal::TERM); // and it ends its workers
        }
        self.kill_workers();
    }
}

pub fn id(n: u128) -> ExecutionId {
    ExecutionId::from_parts(1, n)
}

pub fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

pub fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Whether the process runs; one that ended and was not reaped does not.
pub fn runs(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits for a named condition, with a generous end.
pub async fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + END;
    while !holds() {
        assert!(Instant::now() < end, "waited too long until {condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
