//! Gathering evidence: the result, then who lives, then the result again.

use std::fs::File;
use std::io::{ErrorKind, Result};

use conduit_api::AttemptId;
use rustix::fs::{FlockOperation, flock};

use crate::attempt::Evidence;
use crate::bundle::{self, Bundle, OutputFact, RunnerResult, StartEvidence};
use crate::launcher::Unit;
use crate::proc;

/// The runner that the start evidence names; `None` when there is none yet.
pub(crate) fn started(bundle: &Bundle) -> Result<Option<Unit>> {
    let start: Option<StartEvidence> = bundle::read(&bundle.start())?;
    Ok(start.map(|start| Unit { pid: start.pid, start_ticks: start.start_ticks, boot_id: start.boot_id }))
}

/// Whether someone holds the bundle's lock: only the process that stages it, and then its runner, ever do.
pub(crate) fn is_locked(bundle: &Bundle) -> Result<bool> {
    let lock = match File::open(bundle.lock()) {
        Ok(lock) => lock,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// What the bundle says now. `recorded` is the runner that the store knows of. Of processes other than the runner it
/// knows nothing: [`Evidence::Absent`] still has to be proven by looking for survivors.
pub(crate) fn gather(bundle: &Bundle, attempt: &AttemptId, recorded: Option<&Unit>, boot_id: &str) -> Result<Evidence> {
    if let Some(evidence) = result(bundle, attempt)? {
        return Ok(evidence);
    }
    let started = match started(bundle) {
        Ok(started) => started,
        // Torn by a crash of the machine: something started, and nobody can say what.
        Err(error) if error.kind() == ErrorKind::InvalidData => None,
        Err(error) => return Err(error),
    };
    let mut alive = None;
    for unit in started.as_ref().into_iter().chain(recorded) {
        if proc::open_unit(unit, boot_id)?.is_some() {
            alive = Some(unit.clone());
            break;
        }
    }
    if alive.is_some() || is_locked(bundle)? {
        return Ok(Evidence::Alive(alive));
    }
    // It may have written its result and ended since the first look.
    if let Some(evidence) = result(bundle, attempt)? {
        return Ok(evidence);
    }
    Ok(Evidence::Absent { started: bundle.start().exists() })
}

/// The result as evidence, when there is a file in its place.
fn result(bundle: &Bundle, attempt: &AttemptId) -> Result<Option<Evidence>> {
    match bundle::read::<RunnerResult>(&bundle.result()) {
        Ok(None) => Ok(None),
        Ok(Some(result)) if result.attempt == *attempt && outputs_are_whole(bundle, &result) => {
            Ok(Some(Evidence::Ended(result)))
        }
        Ok(Some(_)) => Ok(Some(Evidence::Invalid)),
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(Some(Evidence::Invalid)),
        Err(error) => Err(error),
    }
}

/// Lengths only: bytes are compared with their digest whenever they are read.
fn outputs_are_whole(bundle: &Bundle, result: &RunnerResult) -> bool {
    result.streams.iter().all(|stream| {
        matches!(stream.name.as_str(), "stdout" | "stderr")
            && match std::fs::symlink_metadata(bundle.output(&stream.name)) {
                Ok(meta) => meta.is_file() && meta.len() == stream.bytes,
                // On a full disk there may be no file for what was only counted.
                Err(_) => stream.bytes == 0,
            }
    })
}

/// What the caller may keep of a result.
pub(crate) fn outputs(bundle: &Bundle, evidence: &Evidence) -> Vec<OutputFact> {
    let Evidence::Ended(result) = evidence else { return Vec::new() };
    let fact = |stream: &bundle::StreamResult| OutputFact {
        name: stream.name.clone(),
        path: bundle.output(&stream.name),
        digest: stream.digest.clone(),
        bytes: stream.bytes,
        dropped_bytes: stream.dropped_bytes,
    };
    result.streams.iter().map(fact).collect()
}
