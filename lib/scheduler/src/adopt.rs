//! Recovery: what an earlier daemon left is taken over under a new epoch, and nothing is started twice (T02, K10).
//!
//! Each execution is taken over by the task that follows it, for as long as that takes: neither a start nor another
//! execution waits for it.

use std::rc::Rc;

use conduit_api::{ApiError, AttemptId};
use conduit_coordination::executions::{self, Claimed, Orphan};
use conduit_endpoint::{control, rundir, rundir::RunDir};
use conduit_extension::Transport;
use conduit_kernel::{Adoption, Launched};
use conduit_store::Write;
use conduit_store::lease::Demand;

use crate::host::{Host, LEASE_US, Live};
use crate::segment::{self, Ended, Fault, Pause};
use crate::start;
use crate::turn::{self, follow};

/// Takes over every execution that was left in the middle of a segment, and removes what belongs to none.
pub fn all(host: &Rc<Host>) -> Result<(), turn::Error> {
    let left = host.store.borrow_mut().read(|r| executions::left_by_others(r, &host.owner))?;
    for execution in left.damaged {
        tracing::error!(execution, "the row of an execution cannot be read; it is left alone");
    }
    for orphan in left.orphans {
        let (execution, scope) = (orphan.left.execution.clone(), orphan.left.scope.clone());
        tracing::info!(%execution, epoch = orphan.left.epoch, running = orphan.running, "taking over");
        follow(host, execution, scope, |host, live| take_over(host, live, orphan));
    }
    sweep_run_directories(host);
    Ok(())
}

/// Goes on from what the kernel's evidence says about an execution.
async fn take_over(host: Rc<Host>, live: Rc<Live>, orphan: Orphan) {
    let execution = &orphan.left.execution;
    if !orphan.running {
        // It had not crossed the boundary: the same steps again, and each finds what the last try left.
        let claimed = recovered(&host, &orphan).await;
        return segment::run(host, live, claimed).await;
    }
    live.launched.set(true);
    let Some(attempt) = orphan.attempt_id.as_deref().and_then(|id| id.parse::<AttemptId>().ok()) else {
        tracing::error!(%execution, "a running execution does not name its attempt");
        let claimed = recovered(&host, &orphan).await;
        return segment::record(&host, &claimed, Ended::without_evidence()).await;
    };
    let adoption = host.store.borrow_mut().read(|r| host.kernel.adopt(r, &attempt));
    match adoption {
        Ok(Adoption::Alive(launched)) => return adopt(host, live, orphan, launched).await,
        Ok(Adoption::Over | Adoption::Concluded(_) | Adoption::NotDispatched) => {}
        // One attempt's inconsistency never becomes a failure of the service: it is looked at again and again.
        Err(error) => tracing::error!(%execution, %error, "the evidence of an attempt cannot be read"),
    }
    let claimed = recovered(&host, &orphan).await;
    segment::record(&host, &claimed, Ended::by_evidence(attempt)).await;
}

/// Watches a process that lives on, and meanwhile gives it its toolbelt back, however long that takes (E06).
async fn adopt(host: Rc<Host>, live: Rc<Live>, orphan: Orphan, launched: Launched) {
    // What runs has its deadline on record; it crossed the boundary in the same transaction.
    let deadline = orphan.deadline_boot_us.unwrap_or(i64::MAX);
    let watched = segment::watch(&host, &live, &orphan.left, launched, deadline);
    tokio::pin!(watched);
    let (ended, claimed) = tokio::select! {
        ended = &mut watched => (ended, recovered(&host, &orphan).await),
        claimed = restored(&host, &orphan) => (watched.await, claimed),
    };
    segment::record(&host, &claimed, ended).await;
}

/// The claim under its new epoch; no token goes with it.
async fn recovered(host: &Host, orphan: &Orphan) -> Claimed {
    let mut pause = Pause::default();
    loop {
        let claimed = host.store.borrow_mut().write(|tx| recover(tx, host, orphan));
        match claimed {
            Ok(claimed) => return claimed,
            Err(error) => {
                tracing::error!(execution = %orphan.left.execution, %error, "an execution could not be taken over yet");
            }
        }
        pause.wait().await;
    }
}

/// The claim under its new epoch, once its socket is served and its token file holds the new token.
async fn restored(host: &Host, orphan: &Orphan) -> Claimed {
    let mut pause = Pause::default();
    loop {
        match restore(host, orphan).await {
            Ok(claimed) => return claimed,
            Err(error) => {
                tracing::error!(execution = %orphan.left.execution, %error, "an adopted execution has no new token yet");
            }
        }
        pause.wait().await;
    }
}

/// Everything that can fail or last comes before the old token ends: between the commit that replaces it and the new one
/// in its file nothing is waited for.
async fn restore(host: &Host, orphan: &Orphan) -> Result<Claimed, ApiError> {
    let bound = start::bound(host, &orphan.left)?;
    let rundir = if bound.executor.transport() == Transport::None {
        None
    } else {
        let rundir = RunDir::prepare(host.state.path(), &orphan.left.execution)?;
        control::serve(&host.places, &orphan.left.execution).await?;
        Some(rundir)
    };
    let now = host.now();
    // The deadline of the segment stands; a boot ends every process, so one of another boot cannot be alive.
    let deadline = orphan.deadline_boot_us.unwrap_or(now.boot_us + start::deadline_us(&bound.binding));
    let (claimed, token) = host.store.borrow_mut().write(|tx| {
        let claimed = recover(tx, host, orphan)?;
        let fence = claimed.fence();
        let issue = |_: &RunDir| -> Result<_, Fault> {
            let fenced = tx.fenced(&fence, &Demand::Ownership, now)?;
            Ok(start::issue(&fenced, &claimed, &bound.binding, deadline)?)
        };
        let token = rundir.as_ref().map(issue).transpose()?;
        Ok::<_, Fault>((claimed, token))
    })?;
    if let (Some(rundir), Some(token)) = (rundir, token) {
        rundir.write_token(token.expose())?;
    }
    Ok(claimed)
}

fn recover(tx: &Write<'_>, host: &Host, orphan: &Orphan) -> Result<Claimed, Fault> {
    Ok(executions::recover(tx, &orphan.left.execution, &host.owner, LEASE_US, host.now())?)
}

/// Removes the run directories of executions that are terminal or gone, those of earlier daemons too (E06).
fn sweep_run_directories(host: &Rc<Host>) {
    let listing = match rundir::list(host.state.path()) {
        Ok(listing) => listing,
        Err(error) => return tracing::warn!(%error, "run directories cannot be listed"),
    };
    for stray in &listing.strays {
        if let Some(execution) = rundir::withdrawn(stray) {
            segment::remove_endpoint(host, execution);
        } else if let Err(error) = rundir::remove_stray(stray) {
            tracing::warn!(%error, "a stray in the run directories was left behind");
        }
    }
    for dir in &listing.runs {
        let execution = dir.execution().clone();
        let live = host.store.borrow_mut().read(|r| executions::is_live(r, &execution));
        match live {
            Ok(true) => {}
            Ok(false) => segment::remove_endpoint(host, execution),
            Err(error) => tracing::warn!(%execution, %error, "an execution cannot be looked up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use conduit_coordination::{executions::Claim, routing};
    use conduit_store::Clock;

    /// A world with segments that another scheduler has claimed.
    fn left(count: u32) -> World {
        let world = World::new();
        world.ask_for("calm", count);
        let snapshot = world.host.store.borrow_mut().read(|r| world.host.active(r)).unwrap();
        let claim = Claim { owner: "scheduler_before", ..world.host.claim(&snapshot) };
        let write = |change: &dyn Fn(&Write<'_>) -> Result<(), turn::Error>| {
            world.host.store.borrow_mut().write(change).unwrap();
        };
        write(&|tx| Ok(routing::route_batch(tx, &snapshot, 9, Clock.now()).map(drop)?));
        for _ in 0..count {
            write(&|tx| Ok(executions::claim_next(tx, "", &claim, |_| true, Clock.now()).map(drop)?));
        }
        world
    }

    /// Takes over what was left, and waits until nothing is followed any more.
    async fn take_over_to_the_end(world: &World) {
        let local = tokio::task::LocalSet::new();
        local.run_until(async { all(&world.host).unwrap() }).await;
        local
            .run_until(async {
                while world.followed() != (0, 0) {
                    world.host.wake.notified().await;
                }
            })
            .await;
    }

    /// K01
    #[tokio::test]
    async fn a_running_execution_that_does_not_name_its_attempt_is_held_and_never_started_again() {
        let world = left(1);
        world.sql("UPDATE execution SET state = 'running', attempt_id = 'nonsense'");
        take_over_to_the_end(&world).await;
        assert_eq!(world.number("SELECT count(*) FROM work WHERE blocked_reason = 'ambiguous_dispatch'"), 1);
        assert_eq!(world.number("SELECT count(*) FROM attempt"), 0);
    }

    #[tokio::test]
    async fn an_execution_whose_row_cannot_be_read_is_left_alone_and_keeps_nobody_from_being_taken_over() {
        let world = left(2);
        world.sql("UPDATE execution SET state = 'running', attempt_id = 'nonsense'");
        world.sql("UPDATE execution SET scope_id = 'No scope' WHERE id = (SELECT min(id) FROM execution)");
        take_over_to_the_end(&world).await;
        assert_eq!(world.number("SELECT count(*) FROM execution WHERE state = 'running'"), 1);
        assert_eq!(world.number("SELECT count(*) FROM execution WHERE state = 'lost'"), 1);
    }
}
