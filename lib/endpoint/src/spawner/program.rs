//! The program around [`Spawner`]: locks, inherited sockets, readiness, and an orderly end.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code};
use conduit_daemon::program::Start;
use conduit_daemon::{DaemonArgs, activation, http, notify, process, program, shutdown};
use conduit_store::StateDir;
use conduit_store::lock::{RoleLock, StateLock};

use super::kept::PREFIX;
use super::{Orders, Program, ShortPlaces, Spawner};

/// Name of the inherited control socket, and of the role that one process has.
const ENDPOINTD: &str = "endpointd";
/// Bounds of the control socket. One scheduler talks to it, and a person may look.
const LIMITS: http::Limits = http::Limits {
    connections: 64,
    header_bytes: 8 << 10,
    headers: 32,
    header_read: Duration::from_secs(30),
    body_bytes: 4 << 10,
    body_read: Duration::from_secs(5),
    drain: Duration::from_secs(5),
    own_user_only: true,
};

/// Own the toolbelt sockets of a suite's executions, and start a worker for each that is used
#[derive(Debug, clap::Parser)]
#[command(name = "open-conduit-endpointd", version)]
struct Args {
    #[command(flatten)]
    common: DaemonArgs,
    /// Program that serves one socket [default: open-conduit-endpoint beside this program]
    #[arg(long, value_name = "FILE")]
    worker: Option<PathBuf>,
    /// Seconds without a connection after which a worker ends
    #[arg(long, value_name = "SECONDS")]
    worker_idle_s: Option<u64>,
}

/// The whole program `open-conduit-endpointd`.
pub fn main() -> ExitCode {
    program::run("open-conduit-endpointd", |args: &Args| &args.common, run)
}

async fn run(args: Args, start: Start) -> Result<(), ApiError> {
    let Start { places, mut inherited } = start;
    let state = StateDir::open(&places.state).map_err(in_full)?;
    let _shared = StateLock::shared(&state).map_err(in_full)?;
    let _alone = RoleLock::take(&state, ENDPOINTD).map_err(in_full)?;
    // From here on an end is an orderly one; a process that still waited for a lock just ends.
    let signals = shutdown::signals().map_err(|e| failed("signals cannot be received", &e))?;
    process::raise_file_limit()?;

    let worker = match args.worker {
        Some(path) => path,
        None => Program::beside_this_one().map_err(|e| failed("this program's own path is not known", &e))?,
    };
    let program = Program {
        path: worker,
        places: places.clone(),
        log_format: args.common.log_format,
        idle_s: args.worker_idle_s,
    };
    let spawner = Rc::new(Spawner::new(program, ShortPlaces::of_process())?);
    spawner.restore(inherited.all(PREFIX))?;
    let control = match inherited.listener(ENDPOINTD)? {
        Some(listener) => listener,
        None => {
            // An existing one is checked, and a new one is ours: what is missing now the bind names.
            if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&places.runtime) {
                tracing::warn!(%error, path = %places.runtime.display(), "the runtime directory cannot be made");
            }
            activation::bind_stream(&places.endpointd_socket())?
        }
    };
    for name in inherited.rest() {
        tracing::warn!(name, "a descriptor was passed that has no use here");
    }
    notify::ready().map_err(|e| failed("the service manager cannot be told that this is ready", &e))?;
    tracing::info!(endpoints = spawner.executions().len(), "ready");

    let orders = Rc::new(Orders::new(spawner.clone()));
    let outcome = tokio::select! {
        served = http::serve(control, orders, LIMITS, signals, None) => served.map(drop),
        broken = spawner.run() => broken,
    };
    if let Err(error) = notify::stopping() {
        tracing::debug!(%error, "the service manager was not told of the end");
    }
    spawner.stop().await;
    outcome
}

/// A fault of the state directory, in the words for a log and a terminal: the path is the operator's own.
fn in_full(error: conduit_store::Error) -> ApiError {
    ApiError::new(error.code(), error.to_string())
}

fn failed(what: &str, error: &std::io::Error) -> ApiError {
    ApiError::new(Code::Internal, format!("{what}: {error}"))
}
