//! One segment, from its claim to its end: started by [`crate::start`], followed, and concluded with what it declared.
//!
//! Every step is recorded before the next is taken, and each can be taken again: a daemon that dies at any point
//! leaves rows from which [`crate::adopt`] goes on.

use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, AttemptId, Code, ExecutionId, Retry};
use conduit_coordination::executions::{self, Claimed, Completed, SegmentEnd};
use conduit_endpoint::{control, rundir};
use conduit_kernel::{Launched, StopReason};
use conduit_store::lease::Demand;
use serde_json::json;

use crate::host::{Host, Live};
use crate::meaning::{self, Asking, Word};
use crate::start::{self, Started, bound};
use crate::{gates, outputs};

/// The wait before a step that has to succeed is tried again: it doubles from try to try.
#[derive(Debug)]
pub struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(30);

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(Self::MAX);
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

/// Runs a claimed segment to its end.
pub async fn run(host: Rc<Host>, live: Rc<Live>, claimed: Claimed) {
    tracing::info!(
        execution = %claimed.execution, work = %claimed.work, epoch = claimed.epoch, segment = claimed.segment, "claimed"
    );
    if let Some(gated) = gates::before_start(&host, &live, &claimed).await {
        return record(&host, &claimed, gated).await;
    }
    let ended = match start::start(&host, &claimed).await {
        Ok(Started::Launched(launched, deadline_boot_us)) => {
            live.launched.set(true);
            watch(&host, &live, &claimed, launched, deadline_boot_us).await
        }
        Ok(Started::Dispatched(attempt)) => Ended::by_evidence(attempt),
        Ok(Started::Stopped(attempt)) => Ended { end: SegmentEnd::Stopped, attempt: Some((attempt, Past::Staging)) },
        Err(refused) => refused,
    };
    record(&host, &claimed, ended).await;
}

/// How a segment ended, and what the kernel has to be told in the same transaction.
pub struct Ended {
    end: SegmentEnd,
    attempt: Option<(AttemptId, Past)>,
}

/// Which side of the launch boundary an attempt is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Past {
    /// Its bundle was built, and it will never be launched.
    Staging,
    /// Its evidence is read again and decides.
    Boundary,
}

impl Ended {
    /// The attempt crossed the boundary; its evidence decides.
    pub fn by_evidence(attempt: AttemptId) -> Self {
        Self { end: SegmentEnd::Lost { started: true }, attempt: Some((attempt, Past::Boundary)) }
    }

    /// It crossed the boundary, and nothing says which attempt it was: what it did is unknown (K01).
    pub fn without_evidence() -> Self {
        Self { end: SegmentEnd::Lost { started: true }, attempt: None }
    }

    /// Nothing was staged, and nothing will be: the segment ends so.
    pub const fn before_staging(end: SegmentEnd) -> Self {
        Self { end, attempt: None }
    }

    /// The segment could not be started: by a fault of the host that can pass, or because it is impossible.
    pub fn not_started(error: ApiError, staged: Option<AttemptId>) -> Self {
        let ApiError { code, message, .. } = error;
        let end = if passes(code) {
            SegmentEnd::HostFault { code, message }
        } else {
            SegmentEnd::Failed { code, message, retryable: false }
        };
        Self { end, attempt: staged.map(|attempt| (attempt, Past::Staging)) }
    }
}

/// Whether what stopped a start is a fault of the host, which can pass.
pub fn passes(code: Code) -> bool {
    code.retry() == Retry::SameRequest || code == Code::StateUnavailable
}

/// Follows a running process until its runner has ended, and stops it when somebody asks, or when the runner itself
/// does not at the deadline: nobody is his own only guard.
pub async fn watch(host: &Host, live: &Live, claimed: &Claimed, launched: Launched, deadline_boot_us: i64) -> Ended {
    let patience_us = i64::try_from(launched.patience().as_micros()).unwrap_or(i64::MAX);
    live.overdue_boot_us.set(deadline_boot_us.saturating_add(patience_us));
    host.launched.notify_one();
    let attempt = launched.attempt.clone();
    let recorded = host.store.borrow_mut().write(|tx| host.kernel.record_running(tx, &attempt, &launched, host.now()));
    if let Err(error) = recorded {
        tracing::warn!(execution = %claimed.execution, %error, "the runner was not recorded; its own evidence stands");
    }
    let (mut asked, mut pause) = (None, Pause::default());
    loop {
        asked = tokio::select! {
            exited = launched.exited() => {
                if let Err(error) = exited {
                    tracing::error!(execution = %claimed.execution, %error, "the runner cannot be watched");
                }
                break;
            }
            () = live.stop.notified() => Some(StopReason::Cancel),
            () = live.overdue.notified() => Some(StopReason::Deadline),
            () = pause.wait(), if asked.is_some() => asked,
        };
        if let Some(reason) = asked
            && stop(host, claimed, &attempt, &launched, reason).await
        {
            asked = None;
        }
    }
    Ended::by_evidence(attempt)
}

/// Records that the process is to stop, then stops it; `false` when it has to be asked again.
async fn stop(host: &Host, claimed: &Claimed, attempt: &AttemptId, launched: &Launched, reason: StopReason) -> bool {
    tracing::info!(execution = %claimed.execution, reason = reason.as_str(), "stopping");
    let recorded = host.store.borrow_mut().write(|tx| host.kernel.record_stop(tx, attempt, reason, host.now()));
    if let Err(error) = recorded {
        tracing::warn!(execution = %claimed.execution, %error, "the stop could not be recorded; it is carried out all the same");
    }
    let stopped = host.kernel.stop(launched).await;
    if let Err(error) = &stopped {
        tracing::error!(execution = %claimed.execution, %error, "the runner could not be stopped yet");
    }
    stopped.is_ok()
}

/// Records the end of a segment, again and again until the store takes it, then tidies up.
pub async fn record(host: &Rc<Host>, claimed: &Claimed, ended: Ended) {
    let asking = Asking::default();
    let record = async || try_record(host, claimed, &ended, &asking).await;
    if let Some(completed) = tried(claimed, record, async || meaning::stopped(host, claimed).await).await {
        tidy(host, claimed, &ended, &completed);
    }
}

/// Tries until `record` has recorded; a stop ends a pause. `None` for a segment that another hand has ended.
async fn tried(
    claimed: &Claimed,
    record: impl AsyncFn() -> Result<Try, Fault>,
    stopped: impl AsyncFn(),
) -> Option<Completed> {
    let mut pause = Pause::default();
    loop {
        match record().await {
            Ok(Try::Recorded(completed)) => return Some(completed),
            // It was told once, and was heard: whoever waits for it now waits his time out.
            Ok(Try::AtOnce) => continue,
            Ok(Try::Later) => {}
            Err(Fault::Store(conduit_store::Error::LeaseLost { why })) => {
                tracing::warn!(execution = %claimed.execution, why, "the segment was ended by another hand");
                return None;
            }
            Err(error) => {
                tracing::error!(execution = %claimed.execution, %error, "the end of a segment could not be recorded yet")
            }
        }
        tokio::select! {
            () = pause.wait() => {}
            () = stopped() => {}
        }
    }
}

/// What one try to record an end came to.
enum Try {
    Recorded(Completed),
    /// Something that it started lives on, or its executor is asked again.
    Later,
    /// It was asked to stop while its executor was asked.
    AtOnce,
}

/// One try: the evidence is read again, and kernel and coordination change in one transaction.
async fn try_record(host: &Host, claimed: &Claimed, ended: &Ended, asking: &Asking) -> Result<Try, Fault> {
    let bound = bound(host, claimed);
    let (retry, resumable) = match &bound {
        Ok(bound) => (bound.binding.retry, bound.executor.resume_capable(&bound.binding.config)),
        // A look that failed for the moment says nothing about how the process ended.
        Err(error) if matches!(error.code, Code::StoreBusy | Code::StorageFull) => {
            return Err(Fault::Look(error.clone()));
        }
        Err(_) => (conduit_config::Retry { attempts: 1, backoff_ms: 0, backoff_max_ms: 0 }, false),
    };
    let attempt = match &ended.attempt {
        Some((attempt, Past::Boundary)) => attempt,
        before => {
            let completed = host.store.borrow_mut().fenced(&claimed.fence(), &Demand::Ownership, host.now(), |tx| {
                if let Some((attempt, _)) = before {
                    host.kernel.abandon(tx, attempt, tx.now())?;
                }
                Ok::<_, Fault>(executions::complete(tx, claimed, &ended.end, &[], &json!({}), retry, resumable)?)
            })?;
            return Ok(Try::Recorded(completed));
        }
    };
    let ending = host.kernel.settle(attempt).await?;
    let mut kept =
        outputs::keep(&host.state, ending.outputs()).map_err(conduit_store::error::doing_io("keeping outputs"))?;
    let mut said = None;
    if let Some(bound) = bound.as_ref().ok().filter(|bound| bound.executor.interprets()) {
        match meaning::ask(host, claimed, bound, attempt, &ending, asking).await? {
            Word::Later => return Ok(Try::Later),
            Word::Stopped => return Ok(Try::AtOnce),
            Word::Said { meaning, outputs } => (said, kept) = (Some(meaning), outputs),
            Word::Unresolved => {}
        }
    }
    let completed = host.store.borrow_mut().fenced(&claimed.fence(), &Demand::Ownership, host.now(), |tx| {
        let conclusion = host.kernel.conclude(tx, attempt, &ending, tx.now())?;
        let Some(terminal) = &conclusion.terminal else {
            executions::orphaned(tx)?;
            return Ok::<_, Fault>(None);
        };
        let (end, usage) = meaning::of(&conclusion, terminal, bound.is_ok(), said.as_ref());
        Ok(Some(executions::complete(tx, claimed, &end, &kept, &usage, retry, resumable)?))
    })?;
    let Some(completed) = completed else {
        ending.survivors_gone().await?;
        return Ok(Try::Later);
    };
    Ok(Try::Recorded(completed))
}

/// Removes what only a live execution needs (E06).
fn tidy(host: &Rc<Host>, claimed: &Claimed, ended: &Ended, completed: &Completed) {
    tracing::info!(
        execution = %claimed.execution, work = %claimed.work, state = completed.state, work_state = completed.work_state, "ended"
    );
    host.wake.notify_one();
    if !completed.parked {
        remove_endpoint(host, claimed.execution.clone());
    }
    if let Some((attempt, _)) = &ended.attempt
        && let Err(error) = host.kernel.forget_bundle(attempt)
    {
        tracing::warn!(execution = %claimed.execution, %error, "a bundle was left behind");
    }
}

/// Closes an execution's socket and removes its run directory, in a task of its own, however long that takes (E06). What a
/// shutdown leaves of it, the next start goes on with.
pub fn remove_endpoint(host: &Rc<Host>, execution: ExecutionId) {
    let host = Rc::clone(host);
    tokio::task::spawn_local(async move {
        let mut pause = Pause::default();
        while let Err(error) = try_remove_endpoint(&host, &execution).await {
            tracing::warn!(%execution, %error, "a run directory could not be removed yet");
            pause.wait().await;
        }
    });
}

async fn try_remove_endpoint(host: &Host, execution: &ExecutionId) -> Result<(), ApiError> {
    // Out of sight first: a spawner that starts at this moment must not bind a socket in what is being removed.
    let withdrawn = rundir::withdraw(host.state.path(), execution)?;
    // The spawner is not asked about more than a few at once, however many wait for it to come back.
    let _turn = host.closing.acquire().await;
    control::close(&host.places, execution).await?;
    withdrawn.map_or(Ok(()), |path| rundir::remove_stray(&path))
}

/// Whatever can go wrong between the rows.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
    #[error(transparent)]
    Coordination(conduit_coordination::Error),
    #[error(transparent)]
    Toolbelt(#[from] conduit_toolbelt::Error),
    #[error(transparent)]
    Kernel(conduit_kernel::Error),
    #[error("the binding cannot be looked up: {0}")]
    Look(ApiError),
}

impl From<conduit_coordination::Error> for Fault {
    fn from(error: conduit_coordination::Error) -> Self {
        match error {
            conduit_coordination::Error::Store(error) => Self::Store(error),
            other => Self::Coordination(other),
        }
    }
}

impl From<conduit_kernel::Error> for Fault {
    fn from(error: conduit_kernel::Error) -> Self {
        match error {
            conduit_kernel::Error::Store(error) => Self::Store(error),
            other => Self::Kernel(other),
        }
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Store(error) => error.to_api(),
            Fault::Coordination(error) => error.into(),
            Fault::Toolbelt(error) => error.to_api(),
            Fault::Kernel(error) => error.into(),
            Fault::Look(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, operation};
    use conduit_kernel::Adoption;
    use std::os::unix::fs::PermissionsExt;

    /// A runner that never says who it is, and ends when it finds that it was asked to.
    const SILENT: &str = "#!/bin/sh\nuntil [ -f \"$1/stop\" ]; do sleep 0.02; done\n";

    fn claimed(live: &Live) -> Claimed {
        Claimed {
            execution: conduit_api::ExecutionId::from_parts(1, 2),
            work: conduit_api::WorkId::from_parts(1, 3),
            scope: live.scope.clone(),
            binding: "b".into(),
            generation: 1,
            attempt: 1,
            epoch: 1,
            segment: 1,
            resumed: false,
            owner: "scheduler_test".into(),
        }
    }

    fn silent_runner(world: &World) -> Launched {
        let request = operation();
        let (kernel, now) = (&world.host.kernel, world.host.now());
        let mut store = world.host.store.borrow_mut();
        let attempt = store.write(|tx| kernel.admit(tx, &request, now)).unwrap().attempt;
        let staged = kernel.stage(&mut store, &attempt).unwrap();
        store.write(|tx| kernel.dispatch(tx, &staged, now)).unwrap();
        drop(kernel.launch(staged).unwrap());
        match store.read(|r| kernel.adopt(r, &attempt)).unwrap() {
            Adoption::Alive(launched) => launched,
            other => panic!("{other:?}"),
        }
    }

    /// M10
    #[tokio::test]
    async fn a_stop_that_cannot_be_carried_out_is_tried_again_until_it_is() {
        let programs = tempfile::tempdir().unwrap();
        let runner = programs.path().join("runner");
        std::fs::write(&runner, SILENT).unwrap();
        std::fs::set_permissions(&runner, std::fs::Permissions::from_mode(0o755)).unwrap();
        let world = World::with_runner(&runner);
        let live = Live::new("calm".parse().unwrap());
        let claimed = claimed(&live);
        let launched = silent_runner(&world);
        let stop = world.host.places.attempts().join(launched.attempt.as_str()).join("stop");
        std::fs::create_dir(&stop).unwrap(); // where the request would be written, nothing can be
        live.stop.notify_one();
        let watched = watch(&world.host, &live, &claimed, launched, i64::MAX);
        let freed = async {
            while world.number("SELECT count(*) FROM attempt_event WHERE reason = 'stop_asked'") == 0 {
                tokio::task::yield_now().await;
            }
            std::fs::remove_dir(&stop).unwrap();
        };
        tokio::join!(watched, freed);
        assert!(stop.is_file());
    }

    /// X01, M10
    #[tokio::test(start_paused = true)]
    async fn a_stop_that_was_heard_while_an_executor_was_asked_waits_no_pause_out() {
        let (live, begun) = (Live::new("calm".parse().unwrap()), tokio::time::Instant::now());
        let (tries, told) = (std::cell::Cell::new(0), std::cell::Cell::new(None));
        let record = async || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1..=8 => Ok(Try::Later),
                9 => {
                    told.set(Some(begun.elapsed()));
                    Ok(Try::AtOnce)
                }
                _ => Ok(Try::Recorded(Completed {
                    state: "cancelled",
                    work_state: "cancelled",
                    parked: false,
                    wait: None,
                })),
            }
        };
        let recorded = tried(&claimed(&live), record, async || std::future::pending().await).await;
        assert_eq!(recorded.map(|completed| completed.state), Some("cancelled"));
        assert!(told.get().is_some_and(|told| told > Duration::from_secs(20)), "{told:?}");
        assert_eq!(Some(begun.elapsed()), told.get());
    }
}
