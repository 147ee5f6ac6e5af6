//! From a claim to its running process: endpoint, bundle, token, the boundary, the launch.
//!
//! Nothing happens before the one commit that makes it true; what is prepared before it belongs to nobody, and a crash
//! leaves at most files that the next start removes.

use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::error::with_causes;
use conduit_api::{ApiError, AttemptId, Code};
use conduit_config::Binding;
use conduit_coordination::executions::{self, Claimed};
use conduit_endpoint::{control, rundir::RunDir};
use conduit_extension::{Executor, Phase, SegmentContext, Transport};
use conduit_kernel::{Launched, Prepared, Staged};
use conduit_store::lease::Demand;
use conduit_store::{Clock, StateDir};
use conduit_toolbelt::{Grants, NewToken, Token, token};

use crate::executors::executor;
use crate::host::Host;
use crate::segment::{self, Ended, Fault};

/// What a binding of the pinned generation says about a segment.
pub struct Bound {
    pub binding: Binding,
    pub executor: Rc<dyn Executor>,
}

/// The pinned binding and its executor. Errors: `unknown_binding`; those of reading a generation.
pub fn bound(host: &Host, claimed: &Claimed) -> Result<Bound, ApiError> {
    let snapshot = host.pinned(claimed.generation).map_err(|error| error.to_api())?;
    let missing = || ApiError::new(Code::UnknownBinding, "the configuration has no such binding in this scope");
    let binding = snapshot.binding(&claimed.scope, &claimed.binding).cloned().ok_or_else(missing)?;
    let executor = executor(host, &binding.executor, &snapshot);
    Ok(Bound { binding, executor })
}

/// How far a segment came.
#[derive(Debug)]
pub enum Started {
    /// It runs, until its deadline in microseconds since boot.
    Launched(Launched, i64),
    /// Past the boundary, and the launch failed: only evidence can say whether anything started (K01).
    Dispatched(AttemptId),
    /// Somebody asked to stop it before the boundary, so nothing was started.
    Stopped(AttemptId),
}

/// Turns of the runtime in which a request gets out: the connection is made, its task starts, and that writes.
const REQUEST_TURNS: usize = 3;

/// Everything up to the running process: endpoint, bundle, token, the boundary, the launch.
pub async fn start(host: &Host, claimed: &Claimed) -> Result<Started, Ended> {
    let mut staged = None;
    match advance(host, claimed, &mut staged).await {
        Ok(started) => Ok(started),
        Err(error) => {
            tracing::warn!(
                execution = %claimed.execution, work = %claimed.work, code = error.code.as_str(), error = error.message,
                "a segment was not started"
            );
            Err(refused(host, error, staged))
        }
    }
}

/// What is recorded of a start that failed. Before a fault of the host is met again, directories that somebody removed
/// are made anew, so that the next try finds them.
fn refused(host: &Host, error: ApiError, staged: Option<AttemptId>) -> Ended {
    if !segment::passes(error.code) {
        return Ended::not_started(error, staged);
    }
    // A state directory that is gone as a whole is not replaced by an empty one.
    if host.state.path().is_dir()
        && let Err(error) = StateDir::open(host.state.path())
    {
        tracing::warn!(%error, "the state directory cannot be put in order");
    }
    Ended::not_started(ApiError::new(error.code, sentence(error.code)), staged)
}

/// What a fault of the host is called on record: the paths and causes stand in the log, and the start is tried again by
/// itself, so that nothing of it has to be asked for once more.
const fn sentence(code: Code) -> &'static str {
    match code {
        Code::StorageFull => "the disk is full; once there is room, it is started",
        Code::StateUnavailable => {
            "a part of the state directory cannot be used; the scheduler's log says which, and it is tried again"
        }
        Code::Unavailable => {
            "the endpoint spawner does not answer; it is tried again; if that lasts, restart open-conduit-endpointd or the suite"
        }
        Code::StoreBusy => "the store was busy; it is tried again",
        Code::ExecutorUnavailable => {
            "the extension of its executor does not say what to run; `open-conduit health` says why, and it is tried again"
        }
        _ => "the host failed; the scheduler's log says how, and it is tried again",
    }
}

/// What depends on nothing that another process answers is done while the spawner binds the socket, and the runner comes
/// up while the boundary is committed. Neither does anything by itself: the runner waits for its token.
async fn advance(host: &Host, claimed: &Claimed, staged: &mut Option<AttemptId>) -> Result<Started, ApiError> {
    let bound = bound(host, claimed)?;
    let rundir = RunDir::prepare(host.state.path(), &claimed.execution)?;
    let toolbelt = bound.executor.transport() == Transport::Toolbelt;
    let ready = match rundir.socket_in_place() {
        _ if !toolbelt => ready(host, claimed, &bound, &rundir, None, staged).await?,
        Some(socket) => {
            let preparing = async {
                // The request leaves first; what it is prepared with below holds the thread. Too few turns cost time only.
                for _ in 0..REQUEST_TURNS {
                    tokio::task::yield_now().await;
                }
                ready(host, claimed, &bound, &rundir, Some(socket), staged).await
            };
            let (served, ready) = tokio::join!(control::serve(&host.places, &claimed.execution), preparing);
            served?;
            ready?
        }
        None => {
            let socket = control::serve(&host.places, &claimed.execution).await?;
            ready(host, claimed, &bound, &rundir, Some(socket), staged).await?
        }
    };
    launch(host, claimed, &bound.binding, ready, toolbelt.then_some(&rundir))
}

/// A segment that lacks nothing but its boundary.
struct Ready {
    prepared: Prepared,
    staged: Staged,
}

/// Plans a segment, builds its bundle and starts its runner, which waits. Nothing of it is on record, and what a crash leaves
/// of it the next start removes.
async fn ready(
    host: &Host,
    claimed: &Claimed,
    bound: &Bound,
    rundir: &RunDir,
    endpoint: Option<PathBuf>,
    staged: &mut Option<AttemptId>,
) -> Result<Ready, ApiError> {
    let context = SegmentContext {
        execution_id: claimed.execution.clone(),
        work_id: claimed.work.clone(),
        scope_id: claimed.scope.clone(),
        binding: claimed.binding.clone(),
        attempt: claimed.attempt,
        epoch: claimed.epoch,
        segment: claimed.segment,
        token_file: endpoint.is_some().then(|| rundir.token_file()),
        endpoint,
        toolbelt_dir: host.programs.clone(),
        playbook_dir: host.places.playbooks(),
        run_dir: rundir.path().to_owned(),
        deadline_ms: u64::try_from(deadline_us(&bound.binding) / 1000).unwrap_or(u64::MAX),
    };
    let phase = if claimed.segment > 1 { Phase::Resume } else { Phase::Run };
    let request = bound.executor.plan(&bound.binding.config, &context, phase).await?;
    let prepared = host.kernel.prepare(&request, host.now()).map_err(chained)?;
    *staged = Some(prepared.attempt.clone());
    let mut bundle = host.kernel.stage_prepared(&prepared).map_err(chained)?;
    host.kernel.start(&mut bundle).map_err(chained)?;
    Ok(Ready { prepared, staged: bundle })
}

/// One commit makes the token that the process will have, puts the operation that it will be on record and crosses the
/// boundary (T02, K01); behind it the token is put in place and the runner let go. Process and token end at one instant,
/// which was fixed when the operation was looked at (T03).
fn launch(
    host: &Host,
    claimed: &Claimed,
    binding: &Binding,
    Ready { prepared, staged }: Ready,
    rundir: Option<&RunDir>,
) -> Result<Started, ApiError> {
    let (attempt, deadline_boot_us) = (prepared.attempt.clone(), prepared.deadline_boot_us);
    let crossed = host.store.borrow_mut().fenced(&claimed.fence(), &Demand::Ownership, Clock, |tx| {
        if !executions::started(tx, attempt.as_str(), deadline_boot_us)? {
            return Ok::<_, Fault>(None);
        }
        let issued = rundir.map(|rundir| Ok::<_, Fault>((rundir, issue(tx, claimed, binding, deadline_boot_us)?)));
        let issued = issued.transpose()?;
        host.kernel.admit_prepared(tx, &prepared, tx.now())?;
        host.kernel.dispatch(tx, &staged, tx.now())?;
        Ok(Some(issued))
    });
    let crossed = crossed.map_err(chained)?;
    let Some(issued) = crossed else { return Ok(Started::Stopped(attempt)) };
    if let Some((rundir, token)) = issued {
        rundir.write_token(token.expose())?;
    }
    Ok(match host.kernel.launch(staged) {
        Ok(launched) => Started::Launched(launched, deadline_boot_us),
        Err(error) => {
            tracing::error!(execution = %claimed.execution, %error, "the launch failed; the evidence decides what became of it");
            Started::Dispatched(attempt)
        }
    })
}

/// The refusal that is passed on, which leaves out the causes; they are logged here.
fn chained<E: std::error::Error + Into<ApiError>>(error: E) -> ApiError {
    tracing::warn!(error = with_causes(&error), "a step of a start failed");
    error.into()
}

pub fn deadline_us(binding: &Binding) -> i64 {
    i64::try_from(binding.deadline_s.saturating_mul(1_000_000)).unwrap_or(i64::MAX)
}

/// A fresh token for the claim, with what its binding grants (C07).
pub fn issue(
    tx: &conduit_store::Fenced<'_>,
    claimed: &Claimed,
    binding: &Binding,
    expires_boot_us: i64,
) -> Result<Token, conduit_toolbelt::Error> {
    let list = |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect();
    let grants = Grants {
        operations: binding.operations.granted().map(str::to_owned).collect(),
        events: list(&binding.events),
        delegates: list(&binding.delegates),
        budget: binding.budget,
    };
    token::issue(tx, &NewToken { claimed, grants: &grants, expires_boot_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use conduit_store::Write;

    /// A world with one claimed Work, and that claim ready for its boundary.
    async fn ready_world() -> (World, Claimed, RunDir, Ready) {
        let world = World::new();
        let claimed = world.claimed();
        let rundir = RunDir::prepare(world.host.state.path(), &claimed.execution).unwrap();
        let bound = bound(&world.host, &claimed).unwrap();
        let socket = rundir.socket_in_place();
        let ready = ready(&world.host, &claimed, &bound, &rundir, socket, &mut None).await.unwrap();
        (world, claimed, rundir, ready)
    }

    fn cross(world: &World, claimed: &Claimed, rundir: &RunDir, ready: Ready) -> Result<Started, ApiError> {
        let bound = bound(&world.host, claimed).unwrap();
        launch(&world.host, claimed, &bound.binding, ready, Some(rundir))
    }

    /// K01, T02
    #[tokio::test]
    async fn before_its_one_commit_nothing_of_a_segment_is_on_record_and_behind_it_everything() {
        let (world, claimed, rundir, ready) = ready_world().await;
        for table in ["token", "operation", "attempt", "reservation"] {
            assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
        }
        assert!(!rundir.token_file().exists());
        let deadline = ready.prepared.deadline_boot_us;
        let Started::Launched(launched, until) = cross(&world, &claimed, &rundir, ready).unwrap() else { panic!() };
        assert_eq!(until, deadline);
        let one = |sql: &str| assert_eq!(world.number(sql), 1, "{sql}");
        one("SELECT count(*) FROM attempt WHERE state = 'dispatching'");
        one("SELECT count(*) FROM execution e JOIN attempt a ON a.id = e.attempt_id WHERE e.state = 'running'");
        // T03: one instant for the process and its token.
        one("SELECT count(*) FROM execution e JOIN token t ON t.expires_boot_us = e.deadline_boot_us");
        assert!(rundir.token_file().exists());
        launched.exited().await.unwrap();
    }

    /// K01: nothing of it counts against the Work, and the next try finds what was removed.
    #[tokio::test]
    async fn directories_that_are_removed_under_the_daemon_are_there_for_the_next_try() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let (world, claimed, _, ready) = ready_world().await;
                drop(ready);
                for gone in [world.host.places.runs(), world.host.places.attempts()] {
                    std::fs::remove_dir_all(&gone).unwrap();
                }
                let ended = start(&world.host, &claimed).await.err().unwrap();
                assert!(world.host.places.runs().is_dir() && world.host.places.attempts().is_dir());
                segment::record(&world.host, &claimed, ended).await;
                assert_eq!(world.number("SELECT count(*) FROM work WHERE state = 'ready' AND failures = 0"), 1);
            })
            .await;
    }

    #[tokio::test]
    async fn a_fault_of_the_host_is_recorded_with_its_remedy_and_without_a_path() {
        for code in [
            Code::StorageFull,
            Code::StateUnavailable,
            Code::Unavailable,
            Code::ExecutorUnavailable,
            Code::StoreBusy,
            Code::Internal,
        ] {
            assert!(segment::passes(code), "{code:?}");
            assert!(!sentence(code).contains('/'), "{code:?}");
        }
        assert!(sentence(Code::Unavailable).contains("restart open-conduit-endpointd"));
    }

    /// M10, K01
    #[tokio::test]
    async fn a_segment_that_somebody_stops_before_its_boundary_leaves_no_attempt_and_no_token() {
        let (world, claimed, rundir, ready) = ready_world().await;
        let cancel = |tx: &Write<'_>| executions::cancel(tx, &claimed.execution, "operator:local", Clock.now());
        world.host.store.borrow_mut().write(cancel).unwrap();
        assert!(matches!(cross(&world, &claimed, &rundir, ready).unwrap(), Started::Stopped(_)));
        assert_eq!(world.number("SELECT count(*) FROM attempt"), 0);
        assert_eq!(world.number("SELECT count(*) FROM token"), 0);
    }

    /// K01: the boundary was crossed and the token could not be put in place: the runner never gets its own.
    #[tokio::test]
    async fn a_fault_of_the_host_behind_the_boundary_launches_nothing_and_costs_the_work_no_attempt() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let (world, claimed, rundir, ready) = ready_world().await;
                let (attempt, token) = (ready.prepared.attempt.clone(), rundir.token_file());
                // Where the token would be written, nothing can be.
                std::fs::create_dir(token.with_file_name(".token.next")).unwrap();
                let error = cross(&world, &claimed, &rundir, ready).unwrap_err();
                assert_eq!(error.code, Code::StateUnavailable);
                segment::record(&world.host, &claimed, Ended::not_started(error, Some(attempt))).await;
                let one = |sql: &str| assert_eq!(world.number(sql), 1, "{sql}");
                one("SELECT count(*) FROM attempt WHERE state = 'cancelled'");
                one("SELECT count(*) FROM reservation WHERE state = 'released'");
                one("SELECT count(*) FROM work WHERE state = 'ready' AND failures = 0");
                one("SELECT count(*) FROM token WHERE revoked_at_us IS NOT NULL");
                assert_eq!(std::fs::read_dir(world.host.places.attempts()).unwrap().count(), 0);
            })
            .await;
    }
}
