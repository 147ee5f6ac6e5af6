//! The program around [`Desk`]: the passed socket, authority given up, and an end when nobody calls.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code, ExecutionId};
use conduit_daemon::http::{self, Served};
use conduit_daemon::program::Start;
use conduit_daemon::{DaemonArgs, process, program, shutdown};

use super::Desk;
use crate::spawner::SOCKET;

/// Bounds of one run socket. [`super::REQUESTS_MAX`] bounds the bodies among the connections.
const LIMITS: http::Limits = http::Limits {
    connections: 256,
    header_bytes: 16 << 10,
    headers: 64,
    header_read: Duration::from_secs(30),
    body_bytes: conduit_api::limits::BODY_BYTES_MAX,
    body_read: Duration::from_secs(10),
    drain: Duration::from_secs(5),
    own_user_only: false,
};

/// Serve the toolbelt of one execution on the socket that was passed
#[derive(Debug, clap::Parser)]
#[command(name = "open-conduit-endpoint", version)]
struct Args {
    #[command(flatten)]
    common: DaemonArgs,
    /// The execution that the socket belongs to, as in exe_...
    #[arg(long, value_name = "ID")]
    execution: ExecutionId,
    /// Seconds without a connection after which this ends
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    idle_s: u64,
}

/// The whole program `open-conduit-endpoint`.
pub fn main() -> ExitCode {
    program::run("open-conduit-endpoint", |args: &Args| &args.common, run)
}

async fn run(args: Args, start: Start) -> Result<(), ApiError> {
    let Start { places, mut inherited } = start;
    let signals = shutdown::signals()
        .map_err(|error| ApiError::new(Code::Internal, format!("signals cannot be received: {error}")))?;
    let listener = inherited.listener(SOCKET)?.ok_or_else(|| {
        ApiError::new(
            Code::Internal,
            format!("no socket called {SOCKET} was passed; open-conduit-endpointd starts this"),
        )
    })?;
    process::drop_authority()?;

    let desk = Rc::new(Desk::new(&places, args.execution.clone()));
    let idle = Some(Duration::from_secs(args.idle_s));
    let served = tokio::select! {
        served = http::serve(listener, desk.clone(), LIMITS, signals, idle) => served,
        // Never ends.
        () = desk.write_when_quiet() => Ok(Served::Shutdown),
    };
    desk.finish();
    tracing::debug!(execution_id = args.execution.as_str(), ?served, "the end");
    served.map(drop)
}
