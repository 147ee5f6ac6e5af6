//! The life of the server: locks, the owner's credential, its socket, and its end.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code};
use conduit_daemon::http::{Limits, serve};
use conduit_daemon::program::{self, Start};
use conduit_daemon::{DaemonArgs, activation, notify, shutdown};
use conduit_store::lock::RoleLock;
use conduit_store::{Clock, StateDir, Store};

use crate::host::Host;
use crate::operator::{self, Bootstrapped};
use crate::service::Management;

/// The program's name, in its log and on its socket.
const PROGRAM: &str = "open-conduit-management";
/// The name of the socket, as the starter passes it, and of the role's lock.
const ROLE: &str = "management";

/// Answers operators on the management socket
#[derive(Debug, clap::Parser)]
#[command(name = "open-conduit-management", version)]
struct Args {
    #[command(flatten)]
    common: DaemonArgs,
    /// Configuration file that `config apply` saves [default: config.json in the state directory]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seconds without a connection after which a socket-activated server ends; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    idle_s: u64,
}

/// Runs the server until it is asked to end, or until it is idle and was activated by its socket.
pub fn main() -> ExitCode {
    program::run(PROGRAM, |args: &Args| &args.common, run)
}

async fn run(args: Args, start: Start) -> Result<(), ApiError> {
    let Start { places, mut inherited } = start;
    let state = StateDir::open(&places.state).map_err(told)?;
    let lock = RoleLock::take(&state, ROLE).map_err(told)?;
    let mut store = Store::open(&state).map_err(told)?;
    let file = places.operator_token();
    match operator::bootstrap(&mut store, &lock, &file, Clock.now()).map_err(|error| error.fatal())? {
        Bootstrapped::Known => {}
        Bootstrapped::First => tracing::info!(file = %file.display(), "issued the owner's credential"),
        Bootstrapped::Reissued => tracing::warn!(
            file = %file.display(),
            "the owner's credential file was missing: its credential is revoked, and another was issued"
        ),
    }
    let (listener, activated) = match inherited.listener(ROLE)? {
        Some(listener) => (listener, true),
        None => (bind(&places.management_socket())?, false),
    };
    let config_file = args.config.unwrap_or_else(|| places.config_file());
    let service = Rc::new(Management::new(Host::new(state, store, &places, config_file)));
    let signals = shutdown::signals()
        .map_err(|error| ApiError::new(Code::Internal, format!("signals cannot be watched: {error}")))?;
    notify::ready().map_err(|error| ApiError::new(Code::Internal, format!("readiness cannot be told: {error}")))?;
    tracing::info!(socket = %places.management_socket().display(), activated, "serving");
    // A socket that outlives the process starts another at the next connection; one of our own would only be gone.
    let idle = (activated && args.idle_s > 0).then(|| Duration::from_secs(args.idle_s));
    let why = serve(listener, service, Limits::default(), signals, idle).await?;
    tracing::info!(?why, "ended");
    drop(lock);
    Ok(())
}

/// Binds the socket in its owner-only directory, which is made where it is missing.
fn bind(path: &Path) -> Result<UnixListener, ApiError> {
    if let Some(directory) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| activation::unavailable(directory, &error))?;
    }
    activation::bind_stream(path)
}

/// The store's fault with its path, which the owner's terminal may show and a caller over a socket may not.
fn told(error: conduit_store::Error) -> ApiError {
    ApiError::new(error.code(), error.to_string())
}
