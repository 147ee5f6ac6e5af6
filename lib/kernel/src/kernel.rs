//! The kernel as its callers see it: one method for each step of an attempt.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use conduit_api::{AttemptId, JobId};
use conduit_store::digest::{hex, sha256_parts};
use conduit_store::{Clock, Now, Read, Store, Write, failpoint, mint};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::attempt::store::{self, NewOperation, Record};
use crate::attempt::{AttemptState, Event, Evidence, Reason, Resolution, StopReason, Terminal, resolve};
use crate::bundle::{self, Bundle, Manifest, OutputFact};
use crate::error::{Error, Result, bundling};
use crate::evidence;
use crate::executable::{Executable, Executables};
use crate::identity::{self, BaseEnvironment, OperationRequest, Plan};
use crate::launcher::process::ProcessLauncher;
use crate::launcher::{Launched, Launcher};
use crate::limits::{RUNNER_STOP_MARGIN, STOP_GRACE_MS_DEFAULT, STRAGGLER_GRACE};
use crate::proc::{self, Survivors};

/// Where the kernel keeps bundles, and what it starts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `<state>/attempts`.
    pub attempts: PathBuf,
    /// The runner's binary.
    pub runner: PathBuf,
    pub base: BaseEnvironment,
}

/// The kernel. It holds no transaction and no attempt: everything it knows is in the store and in bundles.
#[derive(Debug)]
pub struct Kernel {
    settings: Settings,
    executables: Executables,
    runner_digest: String,
    launcher: Box<dyn Launcher>,
}

/// The operation is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    pub job: JobId,
    pub attempt: AttemptId,
    /// Whether it was on record before.
    pub replayed: bool,
}

/// A complete bundle, locked: no runner has it, and no other can.
#[derive(Debug)]
pub struct Staged {
    pub attempt: AttemptId,
    pub(crate) bundle: Bundle,
    pub(crate) lock: File,
    pub(crate) token: String,
    pub(crate) stop_grace: Duration,
}

/// What became of an attempt while no daemon watched it.
#[derive(Debug)]
pub enum Adoption {
    /// It never crossed the boundary: stage, dispatch and launch it.
    NotDispatched,
    /// A runner lives: await [`Launched::exited`], then [`Kernel::settle`].
    Alive(Launched),
    /// No runner lives: [`Kernel::settle`] it, then [`Kernel::conclude`].
    Over,
    /// It was concluded before.
    Concluded(Conclusion),
}

/// What is left of an attempt whose runner has ended.
#[derive(Debug)]
pub struct Ending {
    pub(crate) evidence: Evidence,
    pub(crate) outputs: Vec<OutputFact>,
    pub(crate) survivors: Survivors,
}

/// What an attempt was concluded as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    pub state: AttemptState,
    pub reason: Reason,
    /// `None` while it is orphaned: await [`Ending::survivors_gone`], then settle and conclude again.
    pub terminal: Option<Terminal>,
    pub outputs: Vec<OutputFact>,
}

/// What became of a request to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopping {
    /// The intent is on record: after the commit, [`Kernel::stop`] the runner.
    Asked,
    /// It had not been dispatched, so it has ended.
    Withdrawn,
    /// It had ended before.
    Ended(Terminal),
}

impl Kernel {
    /// Error: `executable_unavailable` when the runner's binary cannot be run.
    pub fn new(settings: Settings) -> Result<Self> {
        let executables = Executables::default();
        let runner = executables.identify(&settings.runner)?;
        let launcher = Box::new(ProcessLauncher::new(runner.canonical));
        Ok(Self { settings, executables, runner_digest: runner.digest, launcher })
    }

    /// The launcher that is in use.
    pub fn launcher(&self) -> &'static str {
        self.launcher.name()
    }

    /// Resolves and hashes an executable, and remembers it, so that a later [`Kernel::admit`] does not hash inside
    /// its transaction. Error: `executable_unavailable`.
    pub fn identify(&self, path: &Path) -> Result<Executable> {
        self.executables.identify(path)
    }

    /// Puts an operation on record, or finds the one that is (K01, K02).
    ///
    /// The look-up comes before every check of the world: the same request is the same job for ever, also when its
    /// executable has gone. Errors: `invalid_request`, `idempotency_conflict`, `executable_unavailable`,
    /// `working_directory_unavailable`; none leaves anything behind.
    pub fn admit(&self, tx: &Write<'_>, request: &OperationRequest, now: Now) -> Result<Admission> {
        let request_bytes = identity::canonical(request)?;
        let request_digest = identity::request_digest(&request_bytes);
        if let Some((job, known, attempt)) = store::find(tx, &request.principal, &request.client_request_id)? {
            if known != request_digest {
                return Err(Error::Conflict { job });
            }
            return Ok(Admission { job, attempt, replayed: true });
        }
        request.check()?;
        check_directory(&request.cwd)?;
        let executable = self.executables.identify(&request.executable)?;
        let plan = Plan::freeze(request, executable, &self.settings.base, self.runner_digest.clone());
        let plan_bytes = identity::canonical(&plan)?;
        let plan_digest = identity::plan_digest(&plan_bytes);
        let (principal, id) = (request.principal.as_bytes(), request.client_request_id.as_bytes());
        let job = JobId::from_digest(&sha256_parts("open-conduit job v1", &[principal, id]));
        let attempt: AttemptId = mint(now);
        let operation = identity::operation_digest(&request_digest, &plan_digest);
        let utf8 =
            |bytes| String::from_utf8(bytes).map_err(|_| Error::InvalidRequest { why: "a path is not UTF-8".into() });
        let new = NewOperation {
            job: &job,
            attempt: &attempt,
            principal: &request.principal,
            client_request_id: &request.client_request_id,
            request_digest,
            plan_digest,
            token_digest: identity::token_digest(&identity::launch_token(&attempt, &operation)),
            request: &utf8(request_bytes)?,
            plan: &utf8(plan_bytes)?,
        };
        store::put(tx, &new, now)?;
        failpoint!("kernel.admitted");
        Ok(Admission { job, attempt, replayed: false })
    }

    /// Builds the bundle of an admitted attempt, from the store alone, and takes its lock.
    ///
    /// May be done again after a crash: what is there is replaced. Nothing is synced: a bundle that a crash of the
    /// machine took with it ends its attempt as `lost`, and before the boundary it is built anew. Errors:
    /// `illegal_state` when a runner has, or had, the bundle (K01); `storage_full`.
    pub fn stage(&self, store: &mut Store, attempt: &AttemptId) -> Result<Staged> {
        let (record, request, plan) = store.read(|read| {
            let (request, plan) = store::documents(read, attempt)?;
            Ok::<_, Error>((store::load(read, attempt)?, request, plan))
        })?;
        if record.state != AttemptState::Admitted {
            return Err(Error::AlreadyLaunched { attempt: attempt.clone() });
        }
        failpoint!("kernel.staging");
        let bundle = self.bundle(attempt);
        match DirBuilder::new().mode(0o700).create(bundle.dir()) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(bundling(attempt, "making its directory")(error)),
        }
        let lock = take_lock(&bundle, attempt)?;
        if bundle.start().exists() || bundle.result().exists() {
            return Err(Error::AlreadyLaunched { attempt: attempt.clone() });
        }
        let operation = record.operation_digest();
        let token = identity::launch_token(attempt, &operation);
        let manifest = Manifest {
            version: 1,
            attempt: attempt.clone(),
            request_digest: hex(&record.request_digest),
            plan_digest: hex(&record.plan_digest),
            operation_digest: hex(&operation),
            token_digest: hex(&identity::token_digest(&token)),
        };
        let manifest = identity::canonical(&manifest)?;
        let files = [
            (bundle.request(), request.as_bytes()),
            (bundle.plan(), plan.as_bytes()),
            (bundle.manifest(), manifest.as_slice()),
        ];
        for (path, bytes) in files {
            bundle::put(&path, bytes).map_err(bundling(attempt, "writing it"))?;
        }
        failpoint!("kernel.staged");
        Ok(Staged { attempt: attempt.clone(), bundle, lock, token, stop_grace: stop_grace(&plan) })
    }

    /// Crosses the boundary: from the commit of `tx` on, a runner may exist, and no second one ever will (K01).
    /// Error: `illegal_state` when the attempt is not `admitted`.
    pub fn dispatch(&self, tx: &Write<'_>, staged: &Staged, now: Now) -> Result<()> {
        let record = store::load(tx, &staged.attempt)?;
        let event = Event::Dispatched { boot_id: now.boot_id.to_owned() };
        store::transition(tx, record, event, Reason::Dispatched, &[], now)?;
        failpoint!("kernel.dispatching");
        Ok(())
    }

    /// Starts the runner. To be called once the dispatch is committed, and only then.
    ///
    /// Error: `internal`, which is no proof that nothing started: [`Kernel::adopt`] says what is.
    pub fn launch(&self, staged: Staged) -> Result<Launched> {
        failpoint!("kernel.dispatched");
        self.launcher.launch(staged)
    }

    /// Puts the runner's identity on record. Doing so twice is doing so once; a runner that has not said who it is
    /// is left out, as its bundle will tell.
    pub fn record_running(&self, tx: &Write<'_>, attempt: &AttemptId, launched: &Launched, now: Now) -> Result<()> {
        let Some(unit) = launched.unit() else { return Ok(()) };
        let record = store::load(tx, attempt)?;
        let known = match &record.state {
            AttemptState::Running { unit } => Some(unit),
            AttemptState::Stopping { unit, .. } => unit.as_ref(),
            _ => None,
        };
        if known == Some(unit) {
            return Ok(());
        }
        let reason = if launched.is_adopted() { Reason::Adopted } else { Reason::Launched };
        store::transition(tx, record, Event::Started { unit: unit.clone() }, reason, &[], now)?;
        Ok(())
    }

    /// Says from evidence what became of an attempt that no one watched. Must run within a tokio runtime.
    pub fn adopt(&self, read: &Read<'_>, attempt: &AttemptId) -> Result<Adoption> {
        let record = store::load(read, attempt)?;
        let recorded = match &record.state {
            AttemptState::Admitted => return Ok(Adoption::NotDispatched),
            AttemptState::Running { unit } => Some(unit),
            AttemptState::Stopping { unit, .. } => unit.as_ref(),
            AttemptState::Dispatching { .. } | AttemptState::Orphaned { .. } | AttemptState::Ended { .. } => None,
        };
        let (bundle, boot_id) = (self.bundle(attempt), Clock.now().boot_id);
        let looking = bundling(attempt, "looking for its runner");
        let evidence = evidence::gather(&bundle, attempt, recorded, boot_id).map_err(looking)?;
        match resolve(&record.state, &evidence, boot_id) {
            Resolution::Dispatch => Ok(Adoption::NotDispatched),
            Resolution::Leave => Ok(Adoption::Concluded(self.conclusion(record))),
            Resolution::Finish { .. } | Resolution::Orphan => Ok(Adoption::Over),
            Resolution::Adopt(unit) => {
                let (_, plan) = store::documents(read, attempt)?;
                let launched = self.watch(attempt, unit, stop_grace(&plan), boot_id);
                Ok(launched.map_err(bundling(attempt, "watching its runner"))?.map_or(Adoption::Over, Adoption::Alive))
            }
        }
    }

    fn watch(
        &self,
        attempt: &AttemptId,
        unit: Option<crate::launcher::Unit>,
        stop_grace: Duration,
        boot_id: &str,
    ) -> std::io::Result<Option<Launched>> {
        let bundle = self.bundle(attempt);
        let Some(unit) = unit else {
            return Launched::by_lock(attempt.clone(), bundle, stop_grace).map(Some);
        };
        let pidfd = proc::open_unit(&unit, boot_id)?;
        Ok(pidfd.map(|pidfd| Launched::adopted(attempt.clone(), bundle, stop_grace, (unit, pidfd))))
    }

    /// Gathers what is left of an attempt whose runner has ended; what outlived it without a result is killed.
    ///
    /// Changes no row, so that it can be done outside a transaction, and again. Error: `illegal_state` while the
    /// runner lives.
    pub async fn settle(&self, attempt: &AttemptId) -> Result<Ending> {
        failpoint!("kernel.settling");
        let (bundle, boot_id) = (self.bundle(attempt), Clock.now().boot_id);
        let gathered = evidence::gather(&bundle, attempt, None, boot_id).map_err(bundling(attempt, "reading it"))?;
        let mut ending = Ending {
            outputs: evidence::outputs(&bundle, &gathered),
            evidence: gathered,
            survivors: Survivors::default(),
        };
        match &ending.evidence {
            Evidence::Alive(_) => {
                let (state, event) = ("running", "ended");
                return Err(Error::IllegalTransition { attempt: attempt.clone(), state, event });
            }
            // A result says that the tree is gone.
            Evidence::Ended(_) => return Ok(ending),
            Evidence::Absent { .. } | Evidence::Invalid | Evidence::Surviving => {}
        }
        let target = match evidence::started(&bundle) {
            // Numbers of another boot mean nothing in this one.
            Ok(Some(unit)) if unit.boot_id == boot_id => bundle::read(&bundle.target()).unwrap_or_else(|error| {
                tracing::warn!(%attempt, %error, "the record of the main process cannot be read; going by the marker");
                None
            }),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%attempt, %error, "the start evidence cannot be read; going by the marker");
                None
            }
        };
        let survivors = proc::lay_to_rest(attempt, target.as_ref()).await;
        ending.survivors = survivors.map_err(|source| Error::Process { doing: "looking for survivors", source })?;
        if !ending.survivors.is_empty() {
            tracing::warn!(%attempt, pids = ?ending.survivors.pids(), "processes outlive their runner and their SIGKILL");
            ending.evidence = Evidence::Surviving;
        }
        Ok(ending)
    }

    /// Puts the ending on record: state, reservation, outputs and event in one transaction. Doing so twice is doing so
    /// once. A result wins over an earlier `lost` (K10).
    pub fn conclude(&self, tx: &Write<'_>, attempt: &AttemptId, ending: &Ending, now: Now) -> Result<Conclusion> {
        let record = store::load(tx, attempt)?;
        let foreign = match &ending.evidence {
            Evidence::Ended(result) => result.operation_digest != hex(&record.operation_digest()),
            _ => false,
        };
        let (evidence, outputs) =
            if foreign { (&Evidence::Invalid, [].as_slice()) } else { (&ending.evidence, ending.outputs.as_slice()) };
        let record = match resolve(&record.state, evidence, now.boot_id) {
            Resolution::Leave => record,
            Resolution::Finish { terminal, reason } => {
                store::transition(tx, record, Event::Ended { terminal }, reason, outputs, now)?
            }
            Resolution::Orphan if matches!(record.state, AttemptState::Orphaned { .. }) => record,
            Resolution::Orphan => store::transition(tx, record, Event::Survived, Reason::Survivors, &[], now)?,
            Resolution::Dispatch | Resolution::Adopt(_) => {
                let (state, event) = (record.state.as_str(), "ended");
                return Err(Error::IllegalTransition { attempt: attempt.clone(), state, event });
            }
        };
        failpoint!("kernel.concluding");
        Ok(self.conclusion(record))
    }

    /// Puts the intent to stop on record. The first reason stays.
    pub fn record_stop(&self, tx: &Write<'_>, attempt: &AttemptId, reason: StopReason, now: Now) -> Result<Stopping> {
        let record = store::load(tx, attempt)?;
        match &record.state {
            AttemptState::Ended { terminal } => return Ok(Stopping::Ended(terminal.clone())),
            AttemptState::Stopping { .. } | AttemptState::Orphaned { intent: Some(_), .. } => {
                return Ok(Stopping::Asked);
            }
            AttemptState::Admitted
            | AttemptState::Dispatching { .. }
            | AttemptState::Running { .. }
            | AttemptState::Orphaned { intent: None, .. } => {}
        }
        let withdrawn = record.state == AttemptState::Admitted;
        let why = if withdrawn { Reason::Withdrawn } else { Reason::StopAsked };
        store::transition(tx, record, Event::StopAsked { reason }, why, &[], now)?;
        Ok(if withdrawn { Stopping::Withdrawn } else { Stopping::Asked })
    }

    /// Stops a runner, and with it its process tree: SIGTERM, then SIGKILL when its grace is over. Completes when it
    /// has ended; [`Kernel::settle`] then says how. To be called once the intent is committed. May be dropped and
    /// called again.
    pub async fn stop(&self, launched: &Launched) -> Result<()> {
        failpoint!("kernel.stop_recorded");
        let attempt = &launched.attempt;
        // A runner that has not said who it is cannot be signalled; it looks for this file after it has said so.
        bundle::put(&launched.bundle.stop(), b"").map_err(bundling(attempt, "asking its runner to stop"))?;
        self.signal(launched, Signal::TERM)?;
        let patience = launched.stop_grace + STRAGGLER_GRACE + RUNNER_STOP_MARGIN;
        if let Ok(exited) = tokio::time::timeout(patience, launched.exited()).await {
            return exited;
        }
        tracing::warn!(%attempt, "the runner did not stop in time; killing it");
        self.signal(launched, Signal::KILL)?;
        launched.exited().await
    }

    fn signal(&self, launched: &Launched, signal: Signal) -> Result<()> {
        let failed = |source| Error::Process { doing: "signalling a runner", source };
        match launched.handle(Clock.now().boot_id).map_err(failed)? {
            Some(pidfd) => proc::signal(&pidfd, signal).map_err(failed),
            None => Ok(()),
        }
    }

    /// Removes the bundle of a concluded attempt, once its outputs are kept elsewhere. Doing so twice is doing so once.
    pub fn forget_bundle(&self, attempt: &AttemptId) -> Result<()> {
        failpoint!("kernel.concluded");
        match std::fs::remove_dir_all(self.bundle(attempt).dir()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(bundling(attempt, "removing it")(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Attempts that have not ended, by ID, at most `max` after `after`: what a restarted daemon asks [`Kernel::adopt`] about.
    pub fn unresolved(&self, read: &Read<'_>, after: Option<&AttemptId>, max: usize) -> Result<Vec<AttemptId>> {
        store::unresolved(read, after, max)
    }

    fn bundle(&self, attempt: &AttemptId) -> Bundle {
        Bundle::of(&self.settings.attempts, attempt)
    }

    fn conclusion(&self, record: Record) -> Conclusion {
        let bundle = self.bundle(&record.id);
        let terminal = match &record.state {
            AttemptState::Ended { terminal } => Some(terminal.clone()),
            _ => None,
        };
        let mut outputs = record.outputs;
        for output in &mut outputs {
            output.path = bundle.output(&output.name);
        }
        Conclusion { state: record.state, reason: record.reason, terminal, outputs }
    }
}

impl Ending {
    /// What the process wrote, as far as its result vouches for it.
    pub fn outputs(&self) -> &[OutputFact] {
        &self.outputs
    }

    /// Completes when the processes that kept the attempt orphaned have ended; settle and conclude it again then.
    pub async fn survivors_gone(&self) -> Result<()> {
        self.survivors.gone().await.map_err(|source| Error::Process { doing: "waiting for survivors", source })
    }

    /// Processes of the attempt that could not be killed.
    pub fn survivors(&self) -> Vec<u32> {
        self.survivors.pids()
    }
}

/// Takes the bundle's lock for this open file, which the runner will share. Error: `illegal_state` when a runner has it.
///
/// A plain descriptor, because a guard that unlocks when it is dropped would unlock the runner's lock too.
fn take_lock(bundle: &Bundle, attempt: &AttemptId) -> Result<File> {
    let opening = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(bundle.lock());
    let lock = opening.map_err(bundling(attempt, "opening its lock"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::AlreadyLaunched { attempt: attempt.clone() }),
        Err(errno) => Err(bundling(attempt, "locking it")(errno.into())),
    }
}

fn check_directory(path: &Path) -> Result<()> {
    let unavailable = |why: String| Error::WorkingDirectoryUnavailable { path: path.to_owned(), why };
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(unavailable("it is not a directory".into())),
        Err(error) => Err(unavailable(error.kind().to_string())),
    }
}

/// The grace that a plan gives; the usual one when the plan cannot be read, which the runner will refuse anyway.
fn stop_grace(plan: &str) -> Duration {
    let ms = serde_json::from_str::<Plan>(plan).map_or(STOP_GRACE_MS_DEFAULT, |plan| plan.stop_grace_ms);
    Duration::from_millis(ms)
}
