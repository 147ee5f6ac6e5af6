//! A turn: everything that there is to do now, in bounded steps.

use std::cell::Cell;
use std::rc::Rc;

use conduit_api::ScopeId;
use conduit_config::Snapshot;
use conduit_coordination::{executions, routing, waits};
use conduit_store::Now;
use tokio::sync::Notify;

use crate::host::{Host, Live};
use crate::segment;

/// Events that one transaction routes.
const ROUTE_BATCH: i64 = 64;
/// Waits that one transaction times out.
const TIMEOUT_BATCH: i64 = 64;

/// A fault of a turn; the next one tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Coordination(#[from] conduit_coordination::Error),
    #[error(transparent)]
    Config(#[from] conduit_config::Error),
    #[error(transparent)]
    Toolbelt(#[from] conduit_toolbelt::Error),
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
}

/// Stops what is to be stopped, times out, routes, claims. Returns when it began: what falls due after that was not its
/// business, so that is the instant from which to look for the next due time.
pub async fn take(host: &Rc<Host>) -> Result<Now, Error> {
    let began = host.now();
    pass_stops_on(host)?;
    tidy_ended(host)?;
    time_out(host).await?;
    route(host).await?;
    claim(host).await?;
    Ok(began)
}

/// Tells each followed segment that somebody asked to stop it.
fn pass_stops_on(host: &Host) -> Result<(), Error> {
    let asked = host.store.borrow_mut().read(executions::stop_requested)?;
    let live = host.live.borrow();
    for (execution, reason) in asked {
        if let Some(segment) = live.get(&execution)
            && segment.stop_reason.replace(Some(reason)).is_none()
        {
            segment.stop.notify_one();
        }
    }
    Ok(())
}

/// Removes the endpoints of executions that were ended while they were parked. Noted first: what a crash leaves behind
/// after that, the next start sweeps.
fn tidy_ended(host: &Rc<Host>) -> Result<(), Error> {
    let ended = host.store.borrow_mut().read(executions::ended_while_parked)?;
    for execution in ended {
        host.store.borrow_mut().write(|tx| executions::noted(tx, &execution))?;
        let host = Rc::clone(host);
        tokio::task::spawn_local(async move { segment::remove_endpoint(&host, &execution).await });
    }
    Ok(())
}

async fn time_out(host: &Host) -> Result<(), Error> {
    loop {
        let now = host.now();
        let due = host.store.borrow_mut().read(waits::next_due)?.is_some_and(|at| at <= now.wall.0);
        if !due {
            return Ok(());
        }
        host.store.borrow_mut().write(|tx| waits::fire_due(tx, TIMEOUT_BATCH, now))?;
        tokio::task::yield_now().await;
    }
}

async fn route(host: &Host) -> Result<(), Error> {
    while host.store.borrow_mut().read(routing::pending)? {
        let now = host.now();
        let routed = host.store.borrow_mut().write(|tx| {
            let snapshot = host.active(tx)?;
            Ok::<_, Error>(routing::route_batch(tx, &snapshot, ROUTE_BATCH, now)?)
        })?;
        if routed.interrupted {
            pass_stops_on(host)?;
        }
        tracing::debug!(events = routed.events, "routed");
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Claims until nothing is due or there is no room; each claim starts its segment on its own.
async fn claim(host: &Rc<Host>) -> Result<(), Error> {
    loop {
        let now = host.now();
        let Some(snapshot) = claimable(host, now)? else { return Ok(()) };
        let after = host.turn_of.borrow().clone();
        let claimed = host.store.borrow_mut().write(|tx| {
            executions::claim_next(tx, &after, &host.claim(&snapshot), |scope| has_room(host, &snapshot, scope), now)
        })?;
        let Some(claimed) = claimed else { return Ok(()) };
        host.turn_of.replace(claimed.scope.as_str().to_owned());
        follow(host, claimed.execution.clone(), claimed.scope.clone(), |host, live| segment::run(host, live, claimed));
        tokio::task::yield_now().await;
    }
}

/// The active configuration, when there is room for one more execution and something is ready and due: looking costs
/// no write lock.
fn claimable(host: &Host, now: Now) -> Result<Option<Rc<Snapshot>>, Error> {
    host.store.borrow_mut().read(|r| {
        let snapshot = host.active(r)?;
        let full = host.live.borrow().len() >= snapshot.config.limits.executions as usize;
        if full || !executions::any_due(r, |scope| has_room(host, &snapshot, scope), now)? {
            return Ok(None);
        }
        Ok(Some(snapshot))
    })
}

fn has_room(host: &Host, snapshot: &Snapshot, scope: &ScopeId) -> bool {
    snapshot.enabled_scope(scope).is_some_and(|configured| host.live_in(scope) < configured.concurrency as usize)
}

/// Follows a segment in a task of its own, and takes a turn when it has ended.
pub fn follow<F, T>(host: &Rc<Host>, execution: conduit_api::ExecutionId, scope: ScopeId, task: T)
where
    T: FnOnce(Rc<Host>, Rc<Live>) -> F,
    F: Future<Output = ()> + 'static,
{
    let live =
        Rc::new(Live { scope, stop: Rc::new(Notify::new()), stop_reason: Cell::new(None), launched: Cell::new(false) });
    host.live.borrow_mut().insert(execution.clone(), Rc::clone(&live));
    let running = task(Rc::clone(host), live);
    let host = Rc::clone(host);
    tokio::task::spawn_local(async move {
        running.await;
        host.live.borrow_mut().remove(&execution);
        host.wake.notify_one();
    });
}
