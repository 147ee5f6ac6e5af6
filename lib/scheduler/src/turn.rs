//! A turn: what there is to do now, a bounded share of each kind.

use std::rc::Rc;

use conduit_api::ScopeId;
use conduit_config::Snapshot;
use conduit_coordination::{executions, routing, waits};
use conduit_store::Now;

use crate::host::{Host, Live};
use crate::segment;

/// Events that one transaction routes.
const ROUTE_BATCH: i64 = 64;
/// Waits that one transaction times out.
const TIMEOUT_BATCH: i64 = 64;
/// Batches of one kind in one turn; no stream of one kind keeps the others from theirs.
const BATCHES_MAX: usize = 16;
/// Executions that one turn claims, and those that it tidies up after.
const EXECUTIONS_MAX: usize = 64;

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

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// When it began: what falls due after that was not its business, so that is the instant from which to look for the
    /// next due time.
    pub began: Now,
    /// A bound was reached, so the next turn is due at once.
    pub more: bool,
}

/// Stops what is to be stopped, times out, routes, claims: a bounded share of each. A step that fails keeps no other from
/// its turn; the first fault is returned. May be dropped at any await: it is between two transactions there.
pub async fn take(host: &Rc<Host>) -> Result<Taken, Error> {
    let began = host.now();
    let steps = [
        pass_stops_on(host).map(|()| false),
        tidy_ended(host),
        time_out(host).await,
        route(host).await,
        claim(host).await,
    ];
    let mut more = false;
    for step in steps {
        more |= step?;
    }
    Ok(Taken { began, more })
}

/// Between two batches: the daemon's other tasks go on, and stops are passed on.
async fn breathe(host: &Host) -> Result<(), Error> {
    tokio::task::yield_now().await;
    pass_stops_on(host)
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
/// after that, the next start sweeps. Returns whether there are more.
fn tidy_ended(host: &Rc<Host>) -> Result<bool, Error> {
    let ended = host.store.borrow_mut().read(executions::ended_while_parked)?;
    let more = ended.len() > EXECUTIONS_MAX;
    for execution in ended.into_iter().take(EXECUTIONS_MAX) {
        host.store.borrow_mut().write(|tx| executions::noted(tx, &execution))?;
        segment::remove_endpoint(host, execution);
    }
    Ok(more)
}

/// Times out what is due. Returns whether more may be.
async fn time_out(host: &Host) -> Result<bool, Error> {
    for _ in 0..BATCHES_MAX {
        let now = host.now();
        let due = host.store.borrow_mut().read(waits::next_due)?.is_some_and(|at| at <= now.wall.0);
        if !due {
            return Ok(false);
        }
        host.store.borrow_mut().write(|tx| waits::fire_due(tx, TIMEOUT_BATCH, now))?;
        breathe(host).await?;
    }
    Ok(true)
}

/// Routes what is pending. Returns whether more may be.
async fn route(host: &Host) -> Result<bool, Error> {
    for _ in 0..BATCHES_MAX {
        if !host.store.borrow_mut().read(routing::pending)? {
            return Ok(false);
        }
        let now = host.now();
        let routed = host.store.borrow_mut().write(|tx| {
            let snapshot = host.active(tx)?;
            Ok::<_, Error>(routing::route_batch(tx, &snapshot, ROUTE_BATCH, now)?)
        })?;
        tracing::debug!(events = routed.events, "routed");
        breathe(host).await?;
    }
    Ok(true)
}

/// Claims until nothing is due or there is no room; each claim starts its segment on its own. Returns whether more may
/// be claimed.
async fn claim(host: &Rc<Host>) -> Result<bool, Error> {
    for _ in 0..EXECUTIONS_MAX {
        let now = host.now();
        let Some(snapshot) = claimable(host, now)? else { return Ok(false) };
        let after = host.turn_of.borrow().clone();
        let claimed = host.store.borrow_mut().write(|tx| {
            executions::claim_next(tx, &after, &host.claim(&snapshot), |scope| has_room(host, &snapshot, scope), now)
        })?;
        let Some(claimed) = claimed else { return Ok(false) };
        host.turn_of.replace(claimed.scope.as_str().to_owned());
        follow(host, claimed.execution.clone(), claimed.scope.clone(), |host, live| segment::run(host, live, claimed));
        breathe(host).await?;
    }
    Ok(true)
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
    let live = Rc::new(Live::new(scope));
    host.live.borrow_mut().insert(execution.clone(), Rc::clone(&live));
    let running = task(Rc::clone(host), live);
    let host = Rc::clone(host);
    tokio::task::spawn_local(async move {
        running.await;
        host.live.borrow_mut().remove(&execution);
        host.wake.notify_one();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, configuration};
    use conduit_store::Clock;
    use serde_json::json;

    /// Runs `test` where segments can be started; what they would do next is dropped with it.
    async fn locally(test: impl Future<Output = ()>) {
        tokio::task::LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn one_turn_routes_everything_and_claims_in_turn_up_to_every_limit() {
        locally(async {
            let world = World::new();
            world.ask_for("busy", 70);
            world.ask_for("calm", 2);
            take(&world.host).await.unwrap();
            assert_eq!(world.number("SELECT count(*) FROM event WHERE route IS NULL"), 0);
            assert_eq!(world.followed(), (2, 1), "three at once, two of a scope");
            assert_eq!(world.number("SELECT count(*) FROM work WHERE state = 'ready'"), 69);
            take(&world.host).await.unwrap();
            assert_eq!(world.followed(), (2, 1), "a turn without room claims nothing");
            world.forget("busy");
            take(&world.host).await.unwrap();
            assert_eq!(world.followed(), (1, 2), "the scope whose turn it is comes first");
        })
        .await;
    }

    /// T07
    #[tokio::test]
    async fn a_stream_of_events_keeps_no_scope_from_its_turn() {
        locally(async {
            let world = World::new();
            world.ask_for("calm", 1);
            route(&world.host).await.unwrap();
            world.ask_for("busy", 1100);
            let taken = take(&world.host).await.unwrap();
            assert!(taken.more, "there is another turn at once");
            assert_eq!(world.followed().1, 1);
            let pending = || world.number("SELECT count(*) FROM event WHERE route IS NULL");
            assert!(pending() > 0);
            while take(&world.host).await.unwrap().more {}
            assert_eq!(pending(), 0);
        })
        .await;
    }

    #[tokio::test]
    async fn a_step_that_fails_keeps_no_other_from_its_turn() {
        locally(async {
            let world = World::new();
            world.ask_for("calm", 1);
            take(&world.host).await.unwrap();
            world.forget("calm");
            world.sql("UPDATE execution SET state = 'parked', owner = NULL");
            world.sql("UPDATE work SET state = 'waiting'");
            world.sql(
                "INSERT INTO wait (id, work_id, execution_id, scope_id, mode, state, watermark, timeout_at_us, unmatched, created_at_us)
                 SELECT 'damaged', work_id, id, scope_id, 'any', 'pending', 0, 1, 1, 0 FROM execution",
            );
            world.ask_for("busy", 1);
            take(&world.host).await.unwrap_err();
            assert_eq!(world.followed(), (1, 0), "routed and claimed all the same");
        })
        .await;
    }

    /// T07
    #[tokio::test]
    async fn a_disabled_scope_keeps_its_works_and_takes_no_turn_until_it_is_enabled_again() {
        locally(async {
            let world = World::new();
            world.ask_for("calm", 1);
            route(&world.host).await.unwrap();
            let mut disabled = configuration();
            disabled["scopes"]["calm"]["enabled"] = json!(false);
            world.publish(&disabled);
            take(&world.host).await.unwrap();
            assert_eq!(
                (world.followed(), world.number("SELECT count(*) FROM work WHERE state = 'ready'")),
                ((0, 0), 1)
            );
            world.publish(&configuration());
            take(&world.host).await.unwrap();
            assert_eq!(world.followed(), (0, 1));
        })
        .await;
    }

    #[tokio::test]
    async fn a_turn_times_out_what_is_due_and_claims_what_that_wakes() {
        locally(async {
            let world = World::new();
            world.ask_for("calm", 1);
            take(&world.host).await.unwrap();
            world.forget("calm");
            // What the end of a segment that waits leaves behind, overdue.
            world.sql("UPDATE execution SET state = 'parked', owner = NULL");
            world.sql("UPDATE work SET state = 'waiting'");
            world.sql(
                "INSERT INTO wait (id, work_id, execution_id, scope_id, mode, state, watermark, timeout_at_us, unmatched, created_at_us)
                 SELECT 'wai_00000000000000000000000001', work_id, id, scope_id, 'any', 'pending', 0, 1, 1, 0 FROM execution",
            );
            take(&world.host).await.unwrap();
            assert_eq!(world.followed(), (0, 1));
            assert_eq!(world.number("SELECT segment FROM execution"), 2, "it was resumed");
            assert_eq!(world.number("SELECT count(*) FROM event WHERE type = 'core.wait.timed_out' AND route IS NOT NULL"), 1);
        })
        .await;
    }

    /// M10
    #[tokio::test]
    async fn a_stop_is_passed_on_to_its_segment_once() {
        locally(async {
            let world = World::new();
            world.ask_for("calm", 2);
            route(&world.host).await.unwrap();
            let claim = |world: &World| {
                let snapshot = claimable(&world.host, Clock.now()).unwrap().unwrap();
                let claim = world.host.claim(&snapshot);
                world.host.store.borrow_mut().write(|tx| executions::claim_next(tx, "", &claim, |_| true, Clock.now()))
            };
            let lives: Vec<_> = (0..2)
                .map(|_| {
                    let claimed = claim(&world).unwrap().unwrap();
                    follow(&world.host, claimed.execution.clone(), claimed.scope, |_, _| std::future::pending());
                    (claimed.execution.clone(), Rc::clone(&world.host.live.borrow()[&claimed.execution]))
                })
                .collect();
            let cancel =
                |tx: &conduit_store::Write<'_>| executions::cancel(tx, &lives[0].0, "operator:local", Clock.now());
            world.host.store.borrow_mut().write(cancel).unwrap();
            for _ in 0..2 {
                pass_stops_on(&world.host).unwrap();
            }
            let told = async |live: &Live| {
                tokio::select! { biased; () = live.stop.notified() => true, () = std::future::ready(()) => false }
            };
            assert!(told(&lives[0].1).await);
            assert!(!told(&lives[0].1).await, "once");
            assert!(!told(&lives[1].1).await, "nobody asked");
        })
        .await;
    }
}
