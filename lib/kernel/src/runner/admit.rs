//! Is this the admitted bundle, is no other runner on it, and is the world still what was admitted?

use std::io::{ErrorKind, Read as _, Result};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt;

use conduit_api::{ApiError, Code, json};
use conduit_store::Clock;
use conduit_store::digest::hex;
use rustix::fs::{FlockOperation, flock, fstat};

use crate::bundle::{self, Bundle, Manifest};
use crate::identity::{self, Plan};
use crate::limits::BUNDLE_FILE_BYTES_MAX;
use crate::runner::Job;

/// Whether this runner has the bundle's lock, as its standard output, and no runner was here before.
pub(super) fn is_alone(bundle: &Bundle) -> Result<bool> {
    let output = std::io::stdout();
    let (given, lock) = (fstat(&output)?, std::fs::metadata(bundle.lock())?);
    if (given.st_dev, given.st_ino) != (lock.dev(), lock.ino()) {
        return Ok(false);
    }
    // Held already when the launcher handed it over; a second runner's own open file is refused here.
    match flock(&output, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(!bundle.start().exists() && !bundle.result().exists()),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The job of `bundle`, once this runner has its launch token; `None` when its files are not those that were admitted. The
/// token derives from the attempt and from the digests of request and plan, so it proves them all.
///
/// The token is the launch: it is given when the boundary is crossed, and the runner may have been started before that.
/// Everything up to here only looks.
pub(super) fn verify(bundle: &Bundle) -> Result<Option<Job>> {
    let manifest: Manifest = match bundle::read(&bundle.manifest()) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(None),
        Err(error) => return Err(error),
    };
    let (Some(request), Some(plan)) = (bundle::read_bytes(&bundle.request())?, bundle::read_bytes(&bundle.plan())?)
    else {
        return Ok(None);
    };
    let (request_digest, plan_digest) = (identity::request_digest(&request), identity::plan_digest(&plan));
    let operation = identity::operation_digest(&request_digest, &plan_digest);
    let Ok(plan) = json::read::<Plan>(&plan, BUNDLE_FILE_BYTES_MAX) else { return Ok(None) };
    let Some(token) = launch_token(plan.channel)? else { return Ok(None) };
    let started_at_us = Clock.now().wall.0;
    let claimed = Manifest {
        version: 1,
        attempt: manifest.attempt.clone(),
        request_digest: hex(&request_digest),
        plan_digest: hex(&plan_digest),
        operation_digest: hex(&operation),
        token_digest: hex(&identity::token_digest(&token)),
    };
    let named = bundle.dir().file_name().is_some_and(|name| name == manifest.attempt.as_str());
    if !named || claimed != manifest || token != identity::launch_token(&manifest.attempt, &operation) {
        return Ok(None);
    }
    let operation_digest = manifest.operation_digest;
    Ok(Some(Job { bundle: bundle.clone(), attempt: manifest.attempt, operation_digest, plan, started_at_us }))
}

/// Waits for the launch token; `None` when what came is no text. Nothing comes, not even a byte, when the launcher ended
/// or gave up before the boundary. Not a byte is read behind it, where a channel begins.
fn launch_token(channel: bool) -> Result<Option<String>> {
    let mut token = String::new();
    let input = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let bytes_max = if channel { identity::LAUNCH_TOKEN_BYTES } else { 1024 };
    match input.take(bytes_max as u64).read_to_string(&mut token) {
        Ok(_) => Ok(Some(token)),
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks at the world a last time before the spawn: the directory is there, and the executable has the bytes that
/// were admitted (K01).
pub(super) fn ready(plan: &Plan) -> std::result::Result<(), ApiError> {
    let executable = plan.executable.canonical.display();
    match plan.executable.is_unchanged() {
        Ok(true) => {}
        Ok(false) => {
            let message = format!("the executable {executable} changed after the operation was admitted");
            return Err(ApiError::new(Code::ExecutableUnavailable, message));
        }
        Err(error) => {
            let message = format!("the executable {executable} cannot be read: {}", crate::error::in_words(&error));
            return Err(ApiError::new(Code::ExecutableUnavailable, message));
        }
    }
    if plan.cwd.is_dir() {
        return Ok(());
    }
    let message = format!("the working directory {} is not there any more", plan.cwd.display());
    Err(ApiError::new(Code::WorkingDirectoryUnavailable, message))
}
