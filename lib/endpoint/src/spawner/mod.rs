//! The spawner, `open-conduit-endpointd`: owns the socket of every execution, accepts on none of them, and starts the
//! worker of an execution when somebody connects to its socket.
//!
//! Run directories are its truth, the control socket its only caller. It knows nothing of the store, so that it has
//! few reasons to restart; where a service manager keeps the sockets, a restart is not even seen.

mod kept;
mod orders;
mod place;
mod program;
mod restarts;
mod table;
mod unsafe_async_fd;
mod watch;
mod workers;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code, ExecutionId};
use conduit_daemon::activation;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub use orders::Orders;
pub use place::ShortPlaces;
pub use program::main;
pub use workers::{Program, SOCKET};

use crate::rundir::{self, RunDir, failed, unavailable};
use kept::Names;
use place::key_of;
use restarts::{End, Restarts};
use table::{Endpoint, Table};
use watch::Watch;

/// Longest wait for workers to end when this process does.
const STOP_TIME_MAX: Duration = Duration::from_secs(9);

/// All endpoints of one state directory.
#[derive(Debug)]
pub struct Spawner {
    state: PathBuf,
    program: Program,
    short: ShortPlaces,
    watch: Watch,
    table: RefCell<Table>,
    names: RefCell<Names>,
    /// Workers whose end was not seen yet.
    workers: Cell<usize>,
    worker_ended: Notify,
}

impl Spawner {
    /// Error: `internal` when the system has no epoll instance to give.
    pub fn new(program: Program, short: ShortPlaces) -> Result<Self, ApiError> {
        Ok(Self {
            state: program.places.state.clone(),
            program,
            short,
            watch: Watch::new()
                .map_err(|e| ApiError::new(Code::Internal, format!("sockets cannot be watched: {e}")))?,
            table: RefCell::default(),
            names: RefCell::default(),
            workers: Cell::new(0),
            worker_ended: Notify::new(),
        })
    }

    /// Serves every run directory that stands: on the socket that the service manager kept (`inherited`), or on one
    /// bound anew. What cannot be served is logged and left; the scheduler asks for it again. Kept sockets without
    /// a run directory are dropped.
    ///
    /// Error: `state_unavailable` when the run directories cannot be listed.
    pub fn restore(&self, inherited: Vec<(String, OwnedFd)>) -> Result<(), ApiError> {
        let listing = rundir::list(&self.state)?;
        let by_key: HashMap<u64, &RunDir> =
            listing.runs.iter().filter_map(|run| Some((key_of(run.path())?, run))).collect();
        for (name, fd) in inherited {
            if let Err(why) = self.adopt(&name, fd, &by_key) {
                tracing::info!(name, why, "a kept socket is not used any more");
                kept::forget(&name);
            }
        }
        for run in &listing.runs {
            if let Err(error) = self.serve(run.execution()) {
                tracing::error!(execution_id = run.execution().as_str(), code = %error.code, "{}", error.message);
            }
        }
        Ok(())
    }

    /// Takes over a kept socket if it still stands where the socket of a run directory stands.
    fn adopt(&self, name: &str, fd: OwnedFd, runs: &HashMap<u64, &RunDir>) -> Result<(), &'static str> {
        let listener = activation::as_listener(name, fd).map_err(|_| "it is not a listening socket")?;
        let address = listener.local_addr().map_err(|_| "it has no address")?;
        let socket = address.as_pathname().ok_or("it has no path")?;
        let key = socket.parent().and_then(key_of).ok_or("it is not in a run directory")?;
        let run = runs.get(&key).ok_or("its run directory is gone")?;
        let known = self.short.candidates(run.path()).is_ok_and(|all| all.iter().any(|path| path == socket));
        if !known || !stands(socket) {
            return Err("its path is gone");
        }
        if self.table.borrow().get(key).is_some() {
            return Err("another one has its path");
        }
        let name = self.names.borrow_mut().inherited(name).ok_or("its name is not one of ours")?;
        let socket = socket.to_owned();
        self.enter(key, run.execution(), listener, socket, name).map_err(|_| "it cannot be watched")
    }

    /// Serves the endpoint of `execution`, and returns the path of its socket, which takes connections. Done twice,
    /// it changes nothing.
    ///
    /// Errors: `endpoint_unavailable` when the run directory names another execution (E01), when no path is short enough or
    /// a directory is not ours alone (E07); `state_unavailable` when the run directory is missing or the system refuses.
    pub fn serve(&self, execution: &ExecutionId) -> Result<PathBuf, ApiError> {
        let run = RunDir::open(&self.state, execution)?;
        let key = key_of(run.path()).ok_or_else(|| unavailable(run.path(), &"it has no key"))?;
        let served = self.table.borrow().get(key).map(|endpoint| endpoint.socket.clone());
        match served {
            Some(socket) if stands(&socket) => return Ok(socket),
            // Somebody removed the file. The old socket leaves the manager's keeping before the new one enters it.
            Some(_) => self.drop_endpoint(key),
            None => {}
        }
        let socket = self.short.make(run.path())?;
        let listener = activation::bind_stream(&socket)?;
        let name = self.names.borrow_mut().keep(&listener);
        self.enter(key, execution, listener, socket.clone(), name)?;
        Ok(socket)
    }

    fn enter(
        &self,
        key: u64,
        execution: &ExecutionId,
        listener: UnixListener,
        socket: PathBuf,
        kept_as: kept::Name,
    ) -> Result<(), ApiError> {
        if let Err(error) = self.watch.add(&listener, key) {
            self.names.borrow_mut().give_back(&kept_as);
            return Err(failed(&socket, &error));
        }
        let mut table = self.table.borrow_mut();
        let serial = table.next_serial();
        let endpoint = Endpoint {
            execution: execution.clone(),
            listener,
            socket,
            kept_as,
            restarts: Restarts::default(),
            serial,
            worker: None,
        };
        table.insert(key, endpoint);
        Ok(())
    }

    /// Closes the endpoint of `execution`: its socket is gone, its worker is told to end. Done twice, or for one that
    /// was never served, it removes what an earlier process left.
    ///
    /// Error: `state_unavailable` when the socket cannot be removed.
    pub fn close(&self, execution: &ExecutionId) -> Result<(), ApiError> {
        let run = self.state.join("runs").join(rundir::key(execution));
        let Some(key) = key_of(&run) else { return Ok(()) };
        // The path goes first: whoever connects from here on is told at once that nobody is there.
        self.short.clear(&run)?;
        self.drop_endpoint(key);
        Ok(())
    }

    /// Lets go of an endpoint, wherever it is held. Its file stays.
    fn drop_endpoint(&self, key: u64) {
        let Some(endpoint) = self.table.borrow_mut().remove(key) else { return };
        if let Err(error) = self.watch.remove(&endpoint.listener) {
            tracing::warn!(%error, execution_id = endpoint.execution.as_str(), "a socket is still watched");
        }
        self.names.borrow_mut().give_back(&endpoint.kept_as);
    }

    /// Which executions have an endpoint.
    pub fn executions(&self) -> Vec<ExecutionId> {
        self.table.borrow().executions()
    }

    /// Starts a worker for every socket that somebody connects to, for ever.
    ///
    /// Error: `internal` when the sockets cannot be watched any more.
    pub async fn run(self: &Rc<Self>) -> Result<(), ApiError> {
        loop {
            let ready = self.watch.ready().await;
            let ready = ready.map_err(|e| ApiError::new(Code::Internal, format!("sockets cannot be watched: {e}")))?;
            for key in ready {
                let mut table = self.table.borrow_mut();
                let Some(endpoint) = table.get_mut(key) else { continue };
                let (worker, told) = oneshot::channel();
                endpoint.worker = Some(worker);
                let serial = endpoint.serial;
                self.workers.set(self.workers.get() + 1);
                tokio::task::spawn_local(self.clone().tend(key, serial, told));
            }
        }
    }

    /// The life of one worker: started, seen to its end, and its socket watched again after the pause that its end
    /// deserves.
    async fn tend(self: Rc<Self>, key: u64, serial: u64, mut told: oneshot::Receiver<()>) {
        let started = Instant::now();
        let end = self.work(key, serial, &mut told).await;
        self.workers.set(self.workers.get() - 1);
        self.worker_ended.notify_waiters();

        let pause = match self.table.borrow_mut().same(key, serial) {
            Some(endpoint) => endpoint.restarts.pause_after(end, started.elapsed()),
            None => return,
        };
        if !pause.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = &mut told => return,
            }
        }
        if let Some(endpoint) = self.table.borrow_mut().same(key, serial) {
            endpoint.worker = None;
            if let Err(error) = self.watch.arm(&endpoint.listener, key) {
                tracing::error!(%error, execution_id = endpoint.execution.as_str(), "a socket cannot be watched again");
            }
        }
    }

    async fn work(&self, key: u64, serial: u64, told: &mut oneshot::Receiver<()>) -> End {
        let started = match self.table.borrow_mut().same(key, serial) {
            Some(endpoint) => {
                let copy = endpoint.listener.try_clone().map(OwnedFd::from);
                let child = copy.and_then(|socket| self.program.start(&endpoint.execution, socket));
                child.map(|child| (child, endpoint.execution.clone()))
            }
            None => return End::Well,
        };
        let (child, execution) = match started {
            Ok(started) => started,
            Err(error) => {
                tracing::error!(%error, program = %self.program.path.display(), "a worker could not be started");
                return End::Badly;
            }
        };
        let pid = child.id();
        tracing::debug!(execution_id = execution.as_str(), pid, "a worker was started");
        match workers::ended(child, told).await {
            Ok(status) => {
                let end = status.map_or(End::Well, End::from);
                match status.filter(|_| end != End::Well) {
                    Some(status) => {
                        tracing::warn!(execution_id = execution.as_str(), pid, %status, "a worker ended badly");
                    }
                    None => tracing::debug!(execution_id = execution.as_str(), pid, "a worker ended"),
                }
                end
            }
            Err(error) => {
                tracing::error!(%error, execution_id = execution.as_str(), pid, "the end of a worker was not seen");
                End::Badly
            }
        }
    }

    /// Tells every worker to end, and waits for that within a bound. Socket files and run directories stay (E06).
    pub async fn stop(&self) {
        self.table.borrow_mut().clear();
        let all_ended = async {
            while self.workers.get() > 0 {
                self.worker_ended.notified().await;
            }
        };
        if tokio::time::timeout(STOP_TIME_MAX, all_ended).await.is_err() {
            tracing::warn!(workers = self.workers.get(), "workers did not end in time");
        }
    }
}

/// Whether a socket stands at `path`.
fn stands(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(meta) => meta.file_type().is_socket(),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "a socket cannot be looked at");
            false
        }
    }
}
