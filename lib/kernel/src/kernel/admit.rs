//! From a request to the boundary: admission, the bundle, the dispatch.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use conduit_api::{AttemptId, JobId};
use conduit_store::digest::{Sha256Digest, hex, sha256_parts};
use conduit_store::{Now, Store, Write, failpoint, mint};
use rustix::fs::{FlockOperation, flock};

use crate::attempt::store::{self, NewOperation};
use crate::attempt::{AttemptState, Event, Reason};
use crate::bundle::{self, Bundle, Manifest};
use crate::error::{Error, Result, bundling};
use crate::identity::{self, OperationRequest, Plan};
use crate::kernel::{Admission, Kernel, Prepared, Staged, has_channel, stop_grace};

impl Kernel {
    /// Looks at an operation and at the world, and freezes what was seen. Nothing is on record and nothing is written
    /// yet. Its deadline counts from here.
    ///
    /// Errors: `invalid_request`, `executable_unavailable`, `working_directory_unavailable`.
    pub fn prepare(&self, request: &OperationRequest, now: Now) -> Result<Prepared> {
        let request_bytes = identity::canonical(request)?;
        request.check()?;
        check_directory(&request.cwd)?;
        let executable = self.executables.identify(&request.executable)?;
        let plan = Plan::freeze(request, executable, &self.settings.base, now);
        let plan_bytes = identity::canonical(&plan)?;
        let (principal, id) = (request.principal.as_bytes(), request.client_request_id.as_bytes());
        let utf8 =
            |bytes| String::from_utf8(bytes).map_err(|_| Error::InvalidRequest { why: "a path is not UTF-8".into() });
        Ok(Prepared {
            attempt: mint(now),
            deadline_boot_us: plan.deadline_boot_us,
            job: JobId::from_digest(&sha256_parts("open-conduit job v1", &[principal, id])),
            principal: request.principal.clone(),
            client_request_id: request.client_request_id.clone(),
            request_digest: identity::request_digest(&request_bytes),
            plan_digest: identity::plan_digest(&plan_bytes),
            request: utf8(request_bytes)?,
            plan: utf8(plan_bytes)?,
        })
    }

    /// Puts an operation on record, or finds the one that is (K01, K02).
    ///
    /// The look-up comes before every check of the world: the same request is the same job for ever, also when its
    /// executable has gone. Errors: `idempotency_conflict`, and those of [`Kernel::prepare`]; none leaves anything
    /// behind.
    pub fn admit(&self, tx: &Write<'_>, request: &OperationRequest, now: Now) -> Result<Admission> {
        let asked = identity::request_digest(&identity::canonical(request)?);
        match recorded(tx, &request.principal, &request.client_request_id, &asked)? {
            Some(admission) => Ok(admission),
            None => put(tx, &self.prepare(request, now)?, now),
        }
    }

    /// Like [`Kernel::admit`] for what was looked at, and may be staged already: no more than the rows is left to do.
    /// A replay answers with the attempt that is on record, which is then not the prepared one.
    pub fn admit_prepared(&self, tx: &Write<'_>, prepared: &Prepared, now: Now) -> Result<Admission> {
        match recorded(tx, &prepared.principal, &prepared.client_request_id, &prepared.request_digest)? {
            Some(admission) => Ok(admission),
            None => put(tx, prepared, now),
        }
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
        let digests = (&record.request_digest, &record.plan_digest);
        build(self.bundle(attempt), attempt, digests, (&request, &plan))
    }

    /// Builds the bundle of an operation that is about to be admitted, so that its admission and the boundary can be one
    /// commit. Until then it is nobody's: what a crash leaves of it is removed by [`Kernel::tidy`]. Errors as for
    /// [`Kernel::stage`].
    pub fn stage_prepared(&self, prepared: &Prepared) -> Result<Staged> {
        let digests = (&prepared.request_digest, &prepared.plan_digest);
        build(self.bundle(&prepared.attempt), &prepared.attempt, digests, (&prepared.request, &prepared.plan))
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

/// The operation that is on record under this identity. Error: `idempotency_conflict` when it is another one.
fn recorded(tx: &Write<'_>, principal: &str, id: &str, asked: &Sha256Digest) -> Result<Option<Admission>> {
    match store::find(tx, principal, id)? {
        Some((job, known, _)) if known != *asked => Err(Error::Conflict { job }),
        Some((job, _, attempt)) => Ok(Some(Admission { job, attempt, replayed: true })),
        None => Ok(None),
    }
}

fn put(tx: &Write<'_>, prepared: &Prepared, now: Now) -> Result<Admission> {
    let operation = identity::operation_digest(&prepared.request_digest, &prepared.plan_digest);
    let new = NewOperation {
        job: &prepared.job,
        attempt: &prepared.attempt,
        principal: &prepared.principal,
        client_request_id: &prepared.client_request_id,
        request_digest: prepared.request_digest,
        plan_digest: prepared.plan_digest,
        token_digest: identity::token_digest(&identity::launch_token(&prepared.attempt, &operation)),
        request: &prepared.request,
        plan: &prepared.plan,
    };
    store::put(tx, &new, now)?;
    failpoint!("kernel.admitted");
    Ok(Admission { job: prepared.job.clone(), attempt: prepared.attempt.clone(), replayed: false })
}

/// Writes a bundle and takes its lock.
fn build(
    bundle: Bundle,
    attempt: &AttemptId,
    (request_digest, plan_digest): (&Sha256Digest, &Sha256Digest),
    (request, plan): (&str, &str),
) -> Result<Staged> {
    failpoint!("kernel.staging");
    match DirBuilder::new().mode(0o700).create(bundle.dir()) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(bundling(attempt, "making its directory")(error)),
    }
    let lock = take_lock(&bundle, attempt)?;
    if bundle.start().exists() || bundle.result().exists() {
        return Err(Error::AlreadyLaunched { attempt: attempt.clone() });
    }
    let operation = identity::operation_digest(request_digest, plan_digest);
    let token = identity::launch_token(attempt, &operation);
    let manifest = Manifest {
        version: 1,
        attempt: attempt.clone(),
        request_digest: hex(request_digest),
        plan_digest: hex(plan_digest),
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
    let (stop_grace, channel) = (stop_grace(plan), has_channel(plan));
    Ok(Staged { attempt: attempt.clone(), bundle, lock, token, stop_grace, channel, waiting: None })
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
        Err(error) => Err(unavailable(crate::error::in_words(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::StopReason;
    use crate::kernel::fixture::{Fixture, request};
    use conduit_store::Clock;

    type Change = fn(&mut OperationRequest);

    /// K02
    #[test]
    fn the_same_request_is_the_same_job_and_any_other_under_its_id_is_a_conflict() {
        let mut host = Fixture::new();
        let first = host.admit(&request("1")).unwrap();
        let again = host.admit(&request("1")).unwrap();
        assert_eq!((&again.job, &again.attempt, again.replayed), (&first.job, &first.attempt, true));
        let changes: [Change; 9] = [
            |r| r.args.push("x".into()),
            |r| r.cwd = "/tmp".into(),
            |r| r.executable = "/bin/sh".into(),
            |r| _ = r.env.insert("A".into(), "1".into()),
            |r| r.limits.timeout_ms += 1,
            |r| r.limits.output_bytes_max = Some(crate::limits::OUTPUT_BYTES_DEFAULT),
            |r| r.limits.resources.memory_bytes_max = Some(1 << 30),
            |r| r.workspace_digest = Some("0".into()),
            |r| r.channel = true,
        ];
        for change in changes {
            let mut other = request("1");
            change(&mut other);
            let Err(Error::Conflict { job }) = host.admit(&other) else { panic!("{other:?}") };
            assert_eq!(job, first.job);
        }
        let other_principal = OperationRequest { principal: "another".into(), ..request("1") };
        assert_ne!(host.admit(&other_principal).unwrap().job, first.job);
        assert_eq!(host.count("operation"), 2);
    }

    /// K02
    #[test]
    fn a_replay_is_answered_before_anyone_looks_at_the_world() {
        let mut host = Fixture::new();
        let program = host.base.path().join("program");
        std::fs::copy("/bin/true", &program).unwrap();
        let asked = OperationRequest { executable: program.clone(), ..request("1") };
        let first = host.admit(&asked).unwrap();
        std::fs::remove_file(&program).unwrap();
        assert_eq!(host.admit(&asked).unwrap().job, first.job);
        let refused = host.admit(&OperationRequest { client_request_id: "2".into(), ..asked }).unwrap_err();
        assert_eq!(refused.code(), conduit_api::Code::ExecutableUnavailable);
    }

    /// K01
    #[test]
    fn what_cannot_be_admitted_leaves_nothing_behind() {
        let mut host = Fixture::new();
        let changes: [(Change, &str); 9] = [
            (|r| r.executable = "true".into(), "invalid_request"),
            (|r| r.cwd = "x".into(), "invalid_request"),
            (|r| r.args.push("a\0b".into()), "invalid_request"),
            (|r| r.args.push("a".repeat(1 << 18)), "invalid_request"),
            (|r| _ = r.env.insert("A=B".into(), "1".into()), "invalid_request"),
            (|r| _ = r.env.insert(identity::MARKER.into(), "1".into()), "invalid_request"),
            (|r| r.limits.timeout_ms = 0, "invalid_request"),
            (|r| r.executable = "/no/such".into(), "executable_unavailable"),
            (|r| r.cwd = "/no/such".into(), "working_directory_unavailable"),
        ];
        for (change, code) in changes {
            let mut bad = request("1");
            change(&mut bad);
            assert_eq!(host.admit(&bad).unwrap_err().code().as_str(), code, "{bad:?}");
        }
        assert_eq!((host.count("operation"), host.count("attempt"), host.count("reservation")), (0, 0, 0));
    }

    /// K01
    #[test]
    fn the_boundary_is_crossed_once() {
        let mut host = Fixture::new();
        let attempt = host.admit(&request("1")).unwrap().attempt;
        let staged = host.kernel.stage(&mut host.store, &attempt).unwrap();
        host.store.write(|tx| host.kernel.dispatch(tx, &staged, Clock.now())).unwrap();
        let again = host.store.write(|tx| host.kernel.dispatch(tx, &staged, Clock.now())).unwrap_err();
        assert_eq!(again.code(), conduit_api::Code::IllegalState);
        drop(staged);
        let again = host.kernel.stage(&mut host.store, &attempt).unwrap_err();
        assert!(matches!(again, Error::AlreadyLaunched { .. }));
    }

    /// K01
    #[test]
    fn a_bundle_is_locked_for_one_and_rebuilt_the_same_from_the_store() {
        let mut host = Fixture::new();
        let attempt = host.admit(&request("1")).unwrap().attempt;
        let staged = host.kernel.stage(&mut host.store, &attempt).unwrap();
        assert!(matches!(host.kernel.stage(&mut host.store, &attempt), Err(Error::AlreadyLaunched { .. })));
        let read = |bundle: &Bundle| {
            [bundle.request(), bundle.plan(), bundle.manifest()].map(|path| std::fs::read(path).unwrap())
        };
        let (bundle, token, before) = (staged.bundle.clone(), staged.token.clone(), read(&staged.bundle));
        drop(staged);
        std::fs::remove_dir_all(bundle.dir()).unwrap();
        let staged = host.kernel.stage(&mut host.store, &attempt).unwrap();
        assert_eq!((read(&staged.bundle), &staged.token), (before, &token));
        let all: Vec<u8> = read(&bundle).concat();
        assert!(!all.windows(token.len()).any(|part| part == token.as_bytes()), "the token is in no file");
    }

    /// K01
    #[test]
    fn a_bundle_is_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let mut host = Fixture::new();
        let attempt = host.admit(&request("1")).unwrap().attempt;
        let staged = host.kernel.stage(&mut host.store, &attempt).unwrap();
        let paths = std::fs::read_dir(staged.bundle.dir()).unwrap().map(|entry| entry.unwrap().path());
        for path in paths.chain([staged.bundle.dir().to_owned()]) {
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
        }
    }

    /// C02
    #[test]
    fn what_an_attempt_was_started_with_leaves_the_store_when_it_ends() {
        let mut host = Fixture::new();
        let mut asked = request("1");
        asked.args = vec!["needle-in-an-argument".into(), "x".repeat(20_000)];
        asked.env.insert("SECRET".into(), "needle-in-the-environment".into());
        let admitted = host.admit(&asked).unwrap();
        let attempt = admitted.attempt.clone();
        host.kernel.stage(&mut host.store, &attempt).unwrap();
        host.store.write(|tx| host.kernel.record_stop(tx, &attempt, StopReason::Cancel, Clock.now())).unwrap();
        host.kernel.forget_bundle(&attempt).unwrap();
        assert_eq!(host.admit(&asked).unwrap().attempt, attempt, "the digests still answer a replay");
        let Fixture { base, store, kernel: _kernel } = host;
        drop(store); // the last to close it writes the log back
        let state = base.path().join("state");
        for name in ["store.db", "store.db-wal"] {
            let bytes = std::fs::read(state.join(name)).unwrap_or_default();
            assert!(!bytes.windows(10).any(|part| part == b"needle-in-"), "{name}");
        }
        assert!(state.join("store.db").exists());
    }
}
