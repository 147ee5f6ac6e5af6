//! Recovery: what an earlier daemon left is taken over under a new epoch, and nothing is started twice (T02, K10).

use std::rc::Rc;

use conduit_api::{ApiError, AttemptId};
use conduit_coordination::executions::{self, Claimed, Orphan};
use conduit_endpoint::{control, rundir, rundir::RunDir};
use conduit_extension::Transport;
use conduit_kernel::Adoption;
use conduit_store::lease::Demand;

use crate::host::{Host, LEASE_US};
use crate::segment::{self, Ended, Fault};
use crate::turn::{self, follow};

/// Takes over every execution that was left in the middle of a segment, then removes what belongs to none.
pub async fn all(host: &Rc<Host>) -> Result<(), turn::Error> {
    let left = host.store.borrow_mut().read(|r| executions::live_owned_by_others(r, &host.owner))?;
    for orphan in left {
        let now = host.now();
        let recover =
            |tx: &conduit_store::Write<'_>| executions::recover(tx, &orphan.execution, &host.owner, LEASE_US, now);
        let claimed = host.store.borrow_mut().write(recover)?;
        tracing::info!(execution = %claimed.execution, epoch = claimed.epoch, running = orphan.running, "recovering");
        take_over(host, orphan, claimed).await;
    }
    sweep_run_directories(host).await;
    Ok(())
}

/// Goes on from what the kernel's evidence says about a recovered execution.
async fn take_over(host: &Rc<Host>, orphan: Orphan, claimed: Claimed) {
    let (execution, scope) = (claimed.execution.clone(), claimed.scope.clone());
    let attempt = orphan.attempt_id.as_deref().filter(|_| orphan.running).and_then(|id| id.parse::<AttemptId>().ok());
    let Some(attempt) = attempt else {
        // It had not crossed the boundary: the same steps again, and each finds what the last try left.
        return follow(host, execution, scope, |host, live| segment::run(host, live, claimed));
    };
    let adoption = host.store.borrow_mut().read(|r| host.kernel.adopt(r, &attempt));
    match adoption {
        Ok(Adoption::Alive(launched)) => {
            if let Err(error) = restore_endpoint(host, &orphan, &claimed).await {
                tracing::error!(%execution, %error, "an adopted execution has no toolbelt");
            }
            follow(host, execution, scope, |host, live| async move {
                live.launched.set(true);
                // What runs has its deadline on record; it crossed the boundary in the same transaction.
                let deadline = orphan.deadline_boot_us.unwrap_or(i64::MAX);
                let ended = segment::watch(&host, &live, &claimed, launched, deadline).await;
                segment::record(&host, &claimed, ended).await;
            });
        }
        Ok(Adoption::Over | Adoption::Concluded(_) | Adoption::NotDispatched) => {
            follow(host, execution, scope, |host, _| async move {
                segment::record(&host, &claimed, Ended::by_evidence(attempt)).await;
            });
        }
        Err(error) => {
            // One attempt's inconsistency never becomes a failure of the service: it is looked at again and again.
            tracing::error!(%execution, %error, "the evidence of an attempt cannot be read");
            follow(host, execution, scope, |host, _| async move {
                segment::record(&host, &claimed, Ended::by_evidence(attempt)).await;
            });
        }
    }
}

/// Serves the socket of an adopted execution again, with a rotated token; the old one is refused (E06).
async fn restore_endpoint(host: &Host, orphan: &Orphan, claimed: &Claimed) -> Result<(), ApiError> {
    let bound = segment::bound(host, claimed)?;
    if bound.executor.transport() == Transport::None {
        return Ok(());
    }
    let rundir = RunDir::prepare(host.state.path(), &claimed.execution)?;
    control::serve(&host.places, &claimed.execution).await?;
    let now = host.now();
    // The deadline of the segment stands; a boot ends every process, so one of another boot cannot be alive.
    let deadline = orphan.deadline_boot_us.unwrap_or(now.boot_us + segment::deadline_us(&bound.binding));
    let token = host.store.borrow_mut().fenced(&claimed.fence(), &Demand::Ownership, now, |tx| {
        Ok::<_, Fault>(segment::issue(tx, claimed, &bound.binding, deadline)?)
    })?;
    rundir.write_token(token.expose())
}

/// Removes the run directories of executions that are terminal or gone, those of earlier daemons too (E06).
async fn sweep_run_directories(host: &Host) {
    let listing = match rundir::list(host.state.path()) {
        Ok(listing) => listing,
        Err(error) => return tracing::warn!(%error, "run directories cannot be listed"),
    };
    for stray in &listing.strays {
        if let Some(execution) = rundir::withdrawn(stray)
            && let Err(error) = control::close(&host.places, &execution).await
        {
            tracing::warn!(%execution, %error, "an endpoint stays open until its spawner starts anew");
        }
        if let Err(error) = rundir::remove_stray(stray) {
            tracing::warn!(%error, "a stray in the run directories was left behind");
        }
    }
    for dir in &listing.runs {
        let execution = dir.execution().clone();
        let live = host.store.borrow_mut().read(|r| executions::is_live(r, &execution));
        match live {
            Ok(true) => {}
            Ok(false) => segment::remove_endpoint(host, &execution).await,
            Err(error) => tracing::warn!(%execution, %error, "an execution cannot be looked up"),
        }
    }
}
