//! A package's process, from its verified bytes to its recorded end: an attempt of the kernel's, like every process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::{AttemptId, EventId};
use conduit_kernel::{
    Adoption, Conclusion, Ending, Kernel, Launched, Limits, OperationRequest, Settings, StopReason, Stopping,
};
use conduit_store::{Clock, StateDir, Store, mint};
use conduit_toolbelt::packages::{self, Installed};
use tokio::sync::watch;

use super::manifest::Manifest;
use super::{install, protocol, tree};

/// What kernel attempts of packages are called: this, and the package's name.
const PRINCIPAL: &str = "package:";
/// Longest life of one process.
const LIFE_MS: u64 = 7 * 24 * 3600 * 1000;
/// Bytes of its standard error that are kept until it ends, and of these, how many the log gets.
const STDERR_BYTES_MAX: u64 = 64 << 10;
const STDERR_LOGGED: u64 = 2048;
/// From SIGTERM to SIGKILL.
const STOP_GRACE_MS: u64 = 2000;

/// Starts processes of packages, and knows how they ended.
#[derive(Debug)]
pub struct Processes {
    kernel: Kernel,
    store: RefCell<Store>,
    state: PathBuf,
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Process {
    processes: Rc<Processes>,
    launched: Rc<Launched>,
    over: watch::Receiver<bool>,
}

impl Processes {
    /// With a kernel and a connection to the store of their own. Errors: those of opening either.
    pub fn open(state: &StateDir, settings: Settings) -> Result<Self, conduit_kernel::Error> {
        let (store, kernel) = (Store::open(state)?, Kernel::new(settings)?);
        Ok(Self { kernel, store: RefCell::new(store), state: state.path().to_owned() })
    }

    /// The row of the package `name`.
    pub(super) fn installed(&self, name: &str) -> Result<Option<Installed>, conduit_store::Error> {
        self.store.borrow_mut().read(|r| packages::find(r, name))
    }

    /// Puts on record that a package cannot be used, or, without a reason, that it can.
    pub(super) fn note(&self, package: &Installed, failure: Option<&str>) {
        let noted = self.store.borrow_mut().write(|tx| match failure {
            Some(why) => packages::failing(tx, &package.name, &package.digest, why, Clock.now()),
            None => packages::recovered(tx, &package.name),
        });
        if let Err(error) = noted {
            let error: conduit_store::Error = error;
            tracing::error!(package = package.name, %error, "health does not show how a package fares");
        }
    }

    /// Verifies the package's bytes and starts its program; the channel is its standard input and output.
    ///
    /// Error: why it was not started, for health. Runs inside a `LocalSet`.
    pub(super) async fn start(
        self: &Rc<Self>,
        package: &Installed,
    ) -> Result<(Process, std::os::unix::net::UnixStream), String> {
        let dir = install::place(&self.state, &package.name, &package.digest);
        let looked = {
            let dir = dir.clone();
            tokio::task::spawn_blocking(move || tree::digest(&dir)).await
        };
        match looked {
            Ok(Ok(digest)) if digest == package.digest => {}
            Ok(Ok(_)) => return Err("its bytes changed since it was installed; install it again".into()),
            Ok(Err(fault)) => return Err(format!("its bytes changed since it was installed: {fault}")),
            Err(error) => return Err(format!("its bytes could not be looked at: {error}")),
        }
        let manifest = Manifest::read(package.manifest.as_bytes()).map_err(|refused| refused.message)?;
        let request = OperationRequest {
            principal: format!("{PRINCIPAL}{}", package.name),
            client_request_id: mint::<EventId>(Clock.now()).to_string(),
            executable: dir.join(&manifest.program.path),
            args: manifest.program.args,
            cwd: dir,
            // What is written beside the sources would change the package.
            env: BTreeMap::from([("PYTHONDONTWRITEBYTECODE".into(), "1".into())]),
            limits: Limits {
                timeout_ms: LIFE_MS,
                output_bytes_max: Some(STDERR_BYTES_MAX),
                stop_grace_ms: Some(STOP_GRACE_MS),
                resources: manifest.limits.resources(),
            },
            workspace_digest: None,
            channel: true,
        };
        let mut launched = self.launch(&request).map_err(|error| error.to_string())?;
        let channel = launched.take_channel().ok_or("it has no channel")?;
        let launched = Rc::new(launched);
        let (over, ended) = watch::channel(false);
        let (processes, watched, name) = (Rc::clone(self), Rc::clone(&launched), package.name.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = watched.exited().await {
                tracing::error!(package = name, %error, "the end of a package's process cannot be waited for");
            }
            processes.conclude(&watched.attempt, &name).await;
            let _ = over.send(true); // nobody may be waiting
        });
        Ok((Process { processes: Rc::clone(self), launched, over: ended }, channel))
    }

    fn launch(&self, request: &OperationRequest) -> Result<Launched, conduit_kernel::Error> {
        let prepared = self.kernel.prepare(request, Clock.now())?;
        let mut staged = self.kernel.stage_prepared(&prepared)?;
        self.kernel.start(&mut staged)?;
        self.store.borrow_mut().write(|tx| {
            self.kernel.admit_prepared(tx, &prepared, Clock.now())?;
            self.kernel.dispatch(tx, &staged, Clock.now())
        })?;
        let launched = self.kernel.launch(staged)?;
        let attempt = &launched.attempt;
        let recorded =
            self.store.borrow_mut().write(|tx| self.kernel.record_running(tx, attempt, &launched, Clock.now()));
        if let Err(error) = recorded {
            // It runs, and its bundle says who it is.
            tracing::warn!(%attempt, %error, "who a package's process is is not on record");
        }
        Ok(launched)
    }

    /// Puts the end of an attempt on record, and throws away what it left.
    async fn conclude(&self, attempt: &AttemptId, package: &str) {
        let concluded = async {
            loop {
                let ending: Ending = self.kernel.settle(attempt).await?;
                let done =
                    self.store.borrow_mut().write(|tx| self.kernel.conclude(tx, attempt, &ending, Clock.now()))?;
                if done.terminal.is_some() {
                    return Ok::<Conclusion, conduit_kernel::Error>(done);
                }
                ending.survivors_gone().await?;
            }
        };
        match concluded.await {
            Ok(done) => {
                let said = stderr(&done);
                tracing::info!(package, %attempt, state = done.state.as_str(), said, "a package's process ended");
                if let Err(error) = self.kernel.forget_bundle(attempt) {
                    tracing::warn!(package, %attempt, %error, "what a package's process left stays until the next start");
                }
            }
            Err(error) => tracing::error!(package, %attempt, %error, "the end of a package's process is not on record"),
        }
    }

    /// Ends what an earlier daemon started: its channel ended with that daemon.
    pub async fn recover(&self) {
        let left = match self.store.borrow_mut().read(|r| self.kernel.unresolved_of(r, PRINCIPAL)) {
            Ok(left) => left,
            Err(error) => return tracing::error!(%error, "processes of packages that an earlier daemon left stay"),
        };
        for attempt in left {
            let adopted = self.store.borrow_mut().read(|r| self.kernel.adopt(r, &attempt));
            match adopted {
                Ok(Adoption::Alive(launched)) => self.stop(&launched).await,
                Ok(Adoption::Over) => {}
                Ok(Adoption::NotDispatched | Adoption::Concluded(_)) => continue,
                Err(error) => {
                    tracing::error!(%attempt, %error, "what became of a package's process cannot be read");
                    continue;
                }
            }
            self.conclude(&attempt, "an earlier daemon's").await;
        }
    }

    async fn stop(&self, launched: &Launched) {
        let attempt = &launched.attempt;
        let asked =
            self.store.borrow_mut().write(|tx| self.kernel.record_stop(tx, attempt, StopReason::Cancel, Clock.now()));
        match asked {
            Ok(Stopping::Ended(_) | Stopping::Withdrawn) => return,
            Ok(Stopping::Asked) => {}
            Err(error) => tracing::error!(%attempt, %error, "that a package's process is stopped is not on record"),
        }
        if let Err(error) = self.kernel.stop(launched).await {
            tracing::error!(%attempt, %error, "a package's process cannot be stopped");
        }
    }
}

impl Process {
    /// Ends the whole tree of the process, and returns when its end is on record.
    pub async fn stop(&self) {
        self.processes.stop(&self.launched).await;
        self.ended().await;
    }

    /// Completes when the end of the process is on record.
    pub async fn ended(&self) {
        // The sender goes only after it has sent, so a closed channel means the same.
        let _ = self.over.clone().wait_for(|over| *over).await;
    }
}

/// The start of what it said on its standard error, on one line.
fn stderr(done: &Conclusion) -> String {
    let file =
        done.outputs.iter().find(|output| output.name == "stderr").map(|output| std::fs::File::open(&output.path));
    let mut bytes = Vec::new();
    match file {
        Some(Ok(file)) => match file.take(STDERR_LOGGED).read_to_end(&mut bytes) {
            Ok(_) => protocol::on_one_line(&String::from_utf8_lossy(&bytes)),
            Err(error) => format!("(its standard error cannot be read: {error})"),
        },
        Some(Err(error)) => format!("(its standard error cannot be read: {error})"),
        None => String::new(),
    }
}
