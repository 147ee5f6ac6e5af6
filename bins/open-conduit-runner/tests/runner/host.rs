//! A kernel on a real store, with the real runner, in a temporary directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conduit_api::AttemptId;
use conduit_kernel::{
    Adoption, BaseEnvironment, Conclusion, Ending, Error, Kernel, Launched, Limits, OperationRequest, Prepared,
    Settings, Staged,
};
use conduit_store::{Clock, StateDir, Store, Write, named_params};
use rustix::process::Rlimit;

/// How long a condition may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Host {
    pub base: tempfile::TempDir,
    pub store: Store,
    pub kernel: Kernel,
}

impl Host {
    pub fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let (store, kernel) = daemon(base.path());
        Self { base, store, kernel }
    }

    /// The daemon dies, and another one starts on the same state.
    pub fn restart(&mut self) {
        (self.store, self.kernel) = daemon(self.base.path());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    pub fn bundle(&self, attempt: &AttemptId) -> PathBuf {
        self.path("state/attempts").join(attempt.as_str())
    }

    /// A request to run `script` in a shell, with a request ID of its own.
    pub fn shell(&self, id: &str, script: &str) -> OperationRequest {
        OperationRequest {
            principal: "test".into(),
            client_request_id: id.into(),
            executable: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            cwd: self.base.path().to_owned(),
            env: BTreeMap::new(),
            limits: Limits {
                timeout_ms: 60_000,
                output_bytes_max: None,
                stop_grace_ms: None,
                resources: conduit_kernel::Resources::default(),
            },
            workspace_digest: None,
            channel: false,
        }
    }

    pub fn admit(&mut self, request: &OperationRequest) -> AttemptId {
        self.store.write(|tx| self.kernel.admit(tx, request, Clock.now())).unwrap().attempt
    }

    pub fn dispatch(&mut self, attempt: &AttemptId) -> Staged {
        let staged = self.kernel.stage(&mut self.store, attempt).unwrap();
        self.store.write(|tx| self.kernel.dispatch(tx, &staged, Clock.now())).unwrap();
        staged
    }

    /// Admission and boundary of a prepared operation in one commit, as a caller in a hurry does it.
    pub fn admit_prepared(&mut self, prepared: &Prepared, staged: &Staged) {
        let both = |tx: &Write<'_>| {
            self.kernel.admit_prepared(tx, prepared, Clock.now())?;
            self.kernel.dispatch(tx, staged, Clock.now())
        };
        self.store.write(both).unwrap();
    }

    /// Admits, dispatches and launches `request`.
    pub fn launch(&mut self, request: &OperationRequest) -> Launched {
        let attempt = self.admit(request);
        let staged = self.dispatch(&attempt);
        let launched = self.kernel.launch(staged).unwrap();
        self.store.write(|tx| self.kernel.record_running(tx, &attempt, &launched, Clock.now())).unwrap();
        launched
    }

    pub async fn settle(&mut self, attempt: &AttemptId) -> Ending {
        self.kernel.settle(attempt).await.unwrap()
    }

    pub fn conclude(&mut self, attempt: &AttemptId, ending: &Ending) -> Conclusion {
        self.store.write(|tx| self.kernel.conclude(tx, attempt, ending, Clock.now())).unwrap()
    }

    /// Waits for a runner, and concludes its attempt.
    pub async fn finish(&mut self, launched: &Launched) -> Conclusion {
        within("the runner ends", launched.exited()).await.unwrap();
        let ending = self.settle(&launched.attempt).await;
        self.conclude(&launched.attempt, &ending)
    }

    pub async fn run(&mut self, request: &OperationRequest) -> Conclusion {
        let launched = self.launch(request);
        self.finish(&launched).await
    }

    pub fn adopt(&mut self, attempt: &AttemptId) -> Adoption {
        self.store.read(|read| self.kernel.adopt(read, attempt)).unwrap()
    }

    /// What a daemon does about an attempt that it finds: whatever adoption says, until it is concluded.
    pub async fn recover(&mut self, attempt: &AttemptId) -> Conclusion {
        loop {
            match self.adopt(attempt) {
                Adoption::NotDispatched => {
                    let staged = self.dispatch(attempt);
                    drop(self.kernel.launch(staged).unwrap());
                }
                Adoption::Alive(launched) => return self.finish(&launched).await,
                Adoption::Over => {
                    let ending = self.settle(attempt).await;
                    return self.conclude(attempt, &ending);
                }
                Adoption::Concluded(conclusion) => return conclusion,
            }
        }
    }

    /// The state, reason and reservation that are on record.
    pub fn record(&mut self, attempt: &AttemptId) -> (String, String, String) {
        const SQL: &str = "SELECT a.state, a.reason, r.state FROM attempt a JOIN reservation r ON r.attempt_id = a.id
                            WHERE a.id = :id";
        let row = |row: &conduit_store::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        self.store
            .read(|read| read.one("testing", SQL, named_params! { ":id": attempt.as_str() }, row))
            .map_err(Error::from)
            .unwrap()
    }

    pub fn text(&self, path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// The process that a script named in the file `name`.
    pub async fn pid(&self, name: &str) -> u32 {
        let path = self.path(name);
        until("a process names itself", || self.text(&path).strip_suffix('\n').and_then(|text| text.parse().ok())).await
    }
}

/// What a runner and its process may open.
pub const FILES: Rlimit = Rlimit { current: Some(77), maximum: Some(88) };

fn daemon(base: &Path) -> (Store, Kernel) {
    let state = StateDir::open(&base.join("state")).unwrap();
    let settings = Settings {
        attempts: base.join("state/attempts"),
        runner: env!("CARGO_BIN_EXE_open-conduit-runner").into(),
        base: BaseEnvironment::of_home(base),
        files: Some(FILES),
    };
    (Store::open(&state).unwrap(), Kernel::new(settings).unwrap())
}

/// The value of `look`, once it has one.
pub async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long until {what}"))
}

/// Whether `pid` names a process that has not ended.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
