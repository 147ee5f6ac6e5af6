//! The life of a daemon's process around what it is for: arguments, descriptors, hardening, log, one thread.

use std::process::ExitCode;

use conduit_api::places::Places;
use conduit_api::{ApiError, Code};

use crate::activation::Inherited;
use crate::{DaemonArgs, log, process};

/// Exit code of a failure that starting again may cure.
pub const EXIT_FAILED: u8 = 1;
/// Exit code of a failure that starting again does not cure (`EX_CONFIG` of `sysexits.h`); a service manager need not
/// try.
pub const EXIT_REFUSED: u8 = 78;

/// What a daemon finds when its own code starts.
#[derive(Debug)]
pub struct Start {
    pub places: Places,
    pub inherited: Inherited,
}

/// Runs a daemon: takes over what the starter passed, hardens the process, sets up the log, and runs `body` on one
/// thread, where `tokio::task::spawn_local` works. `common` finds the shared options in the daemon's own.
///
/// Ends with 0, [`EXIT_FAILED`] or [`EXIT_REFUSED`]; with 2 when the arguments cannot be read.
pub fn run<A, B>(program: &'static str, common: fn(&A) -> &DaemonArgs, body: B) -> ExitCode
where
    A: clap::Parser,
    B: AsyncFnOnce(A, Start) -> Result<(), ApiError>,
{
    // First of all: nothing is open yet that could take a passed descriptor's number.
    let inherited = Inherited::take();
    let args = A::parse();
    let mut logging = false;
    let outcome = inherited.and_then(|inherited| {
        let shared = common(&args);
        process::harden()?;
        log::init(program, shared.log_format)?;
        logging = true;
        if let Some(parent) = shared.parent {
            process::end_with_parent(parent)?;
        }
        let start = Start { places: shared.places()?, inherited };
        block_on(body(args, start))?
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if logging {
                tracing::error!(code = %error.code, "{}", error.message);
            } else {
                eprintln!("{program}: {} ({})", error.message, error.code);
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Runs `future` on one thread, with timers, I/O, and `tokio::task::spawn_local`.
pub fn block_on<F: Future>(future: F) -> Result<F::Output, ApiError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ApiError::new(Code::Internal, format!("the event loop could not be made: {error}")))?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, future))
}

/// Faults that stay until a person does something about them. That a caller had better not ask again is another
/// matter: a process that could not read a file may well be able to in a second.
const REFUSALS: [Code; 8] = [
    Code::CredentialUnknown,
    Code::ExecutableUnavailable,
    Code::InvalidConfig,
    Code::InvalidRequest,
    Code::SocketPathTooLong,
    Code::StateUnsafe,
    Code::StoreNewer,
    Code::StoreUnreadable,
];

/// What `error` makes of a process.
fn exit_code(error: &ApiError) -> u8 {
    if REFUSALS.contains(&error.code) { EXIT_REFUSED } else { EXIT_FAILED }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_starting_again_does_not_cure_has_its_own_exit_code() {
        for lasting in [Code::StoreNewer, Code::CredentialUnknown] {
            assert_eq!(exit_code(&ApiError::new(lasting, "")), EXIT_REFUSED, "{lasting}");
        }
        for passing in [Code::StateLocked, Code::StorageFull, Code::StateUnavailable, Code::ConfigFileUnavailable] {
            assert_eq!(exit_code(&ApiError::new(passing, "")), EXIT_FAILED, "{passing}");
        }
    }
}
