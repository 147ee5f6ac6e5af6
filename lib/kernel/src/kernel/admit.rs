//! From a request to the boundary: admission, the bundle, the dispatch.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use conduit_api::{AttemptId, JobId};
use conduit_store::digest::{hex, sha256_parts};
use conduit_store::{Now, Store, Write, failpoint, mint};
use rustix::fs::{FlockOperation, flock};

use crate::attempt::store::{self, NewOperation};
use crate::attempt::{AttemptState, Event, Reason};
use crate::bundle::{self, Bundle, Manifest};
use crate::error::{Error, Result, bundling};
use crate::identity::{self, OperationRequest, Plan};
use crate::kernel::{Admission, Kernel, Staged, stop_grace};

impl Kernel {
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
