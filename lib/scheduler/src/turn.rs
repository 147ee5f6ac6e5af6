//! A turn: what there is to do now, a bounded share of each kind.

use std::rc::Rc;

use conduit_api::{ExecutionId, ScopeId};
use conduit_config::Snapshot;
use conduit_coordination::executions::{self, Claimed, StopReason};
use conduit_coordination::{routing, waits};
use conduit_store::{Now, Read, Write};

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
    /// When something falls due next, by the wall clock, as the turn's last look at the store had it: everything that was
    /// due by then was done, or has no room.
    pub due_us: Option<i64>,
    /// A bound was reached, so the next turn is due at once.
    pub more: bool,
}

/// What a turn may have to do. One that fails keeps no other from being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Tell segments that somebody asked to stop them.
    Stops,
    /// Remove the endpoints of executions that were ended while they were parked.
    Tidy,
    TimeOut,
    Route,
    Claim,
}

impl Step {
    const ALL: [Self; 5] = [Self::Stops, Self::Tidy, Self::TimeOut, Self::Route, Self::Claim];
}

/// Stops what is to be stopped, times out, routes, claims: a bounded share of each. The first fault is returned, after
/// everything that did not fail. May be dropped at any await: it is between two transactions there.
///
/// A turn looks at the store once, in one view, and writes only what that says: with nothing to do it ends there. What
/// there is to write goes into one commit, so that an Event that starts a Work, and the claim of that Work, are durable at once.
pub async fn take(host: &Rc<Host>) -> Result<Taken, Error> {
    Turn::of(&Step::ALL).take(host).await
}

/// Everything that a turn asks the store, in one view; what cannot be read concerns its own step only.
struct View {
    stops: Result<Vec<(ExecutionId, StopReason)>, Error>,
    ended: Result<Vec<ExecutionId>, Error>,
    timeout_at_us: Result<Option<i64>, Error>,
    pending: Result<bool, Error>,
    claimable: Result<bool, Error>,
    ready_at_us: Result<Option<i64>, Error>,
}

fn look(host: &Host, now: Now) -> Result<View, Error> {
    host.store.borrow_mut().read(|r| {
        Ok(View {
            stops: executions::stop_requested(r).map_err(Error::from),
            ended: executions::ended_while_parked(r).map_err(Error::from),
            timeout_at_us: waits::next_due(r).map_err(Error::from),
            pending: routing::pending(r).map_err(Error::from),
            claimable: claimable(r, host, now),
            ready_at_us: executions::next_ready_at(r, now).map_err(Error::from),
        })
    })
}

/// Whether there is room for one more execution, and something is ready and due.
fn claimable(r: &Read<'_>, host: &Host, now: Now) -> Result<bool, Error> {
    let snapshot = host.active(r)?;
    Ok(!is_full(host, &snapshot) && executions::any_due(r, |scope| has_room(host, &snapshot, scope), now)?)
}

fn is_full(host: &Host, snapshot: &Snapshot) -> bool {
    host.live.borrow().len() >= snapshot.config.limits.executions as usize
}

/// What one transaction is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    time_out: bool,
    route: bool,
    claim: bool,
}

/// A transaction that failed, at a step or as a whole.
struct Broken {
    at: Option<Step>,
    error: Error,
}

impl From<conduit_store::Error> for Broken {
    fn from(error: conduit_store::Error) -> Self {
        Self { at: None, error: error.into() }
    }
}

fn at<E: Into<Error>>(step: Step) -> impl FnOnce(E) -> Broken {
    move |error| Broken { at: Some(step), error: error.into() }
}

/// Times out, routes and claims, as far as `share` says. Returns the claim: what was routed a moment ago can be what it is of.
fn change(tx: &Write<'_>, host: &Host, share: Share, now: Now) -> Result<Option<Claimed>, Broken> {
    if share.time_out {
        waits::fire_due(tx, TIMEOUT_BATCH, now).map_err(at(Step::TimeOut))?;
    }
    if share.route {
        let snapshot = host.active(tx).map_err(at(Step::Route))?;
        let routed = routing::route_batch(tx, &snapshot, ROUTE_BATCH, now).map_err(at(Step::Route))?;
        tracing::debug!(events = routed.events, "routed");
    }
    if !share.claim {
        return Ok(None);
    }
    let snapshot = host.active(tx).map_err(at(Step::Claim))?;
    if is_full(host, &snapshot) {
        return Ok(None);
    }
    let (after, claim) = (host.turn_of.borrow(), host.claim(&snapshot));
    executions::claim_next(tx, &after, &claim, |scope| has_room(host, &snapshot, scope), now).map_err(at(Step::Claim))
}

/// How much of each step is left, and what failed.
struct Turn {
    /// By step; a step that failed has nothing left.
    left: [usize; Step::ALL.len()],
    /// Something is left to do that a bound keeps from this turn.
    more: bool,
    fault: Option<Error>,
}

impl Turn {
    /// A turn that takes `steps` alone.
    fn of(steps: &[Step]) -> Self {
        let mut left = [0; Step::ALL.len()];
        for step in steps {
            left[*step as usize] = match step {
                Step::Stops => usize::MAX,
                Step::TimeOut | Step::Route => BATCHES_MAX,
                Step::Tidy | Step::Claim => EXECUTIONS_MAX,
            };
        }
        Self { left, more: false, fault: None }
    }

    async fn take(mut self, host: &Rc<Host>) -> Result<Taken, Error> {
        loop {
            let now = host.now();
            let view = look(host, now)?;
            self.more = false;
            let (stops, ended) = (self.sound(Step::Stops, view.stops), self.sound(Step::Tidy, view.ended));
            if self.left[Step::Stops as usize] > 0 {
                pass_stops_on(host, stops.unwrap_or_default());
            }
            let tidied = self.tidy(host, ended.unwrap_or_default());
            let timeout_at_us = self.sound(Step::TimeOut, view.timeout_at_us).flatten();
            let (pending, claimable) = (self.sound(Step::Route, view.pending), self.sound(Step::Claim, view.claimable));
            let ready_at_us = self.sound(Step::Claim, view.ready_at_us).flatten();
            let time_out = self.due(Step::TimeOut, timeout_at_us.is_some_and(|at| at <= now.wall.0));
            let route = self.due(Step::Route, pending == Some(true));
            // What is timed out or routed can be what makes a Work ready.
            let claim = self.due(Step::Claim, claimable == Some(true)) || self.may(Step::Claim) && (time_out || route);
            let share = Share { time_out, route, claim };
            if share == Share::default() && !tidied {
                let due_us = timeout_at_us.into_iter().chain(ready_at_us).min();
                return match self.fault {
                    Some(fault) => Err(fault),
                    None => Ok(Taken { due_us, more: self.more }),
                };
            }
            if share != Share::default() {
                self.carry_out(host, share)?;
            }
            // The daemon's other tasks go on.
            tokio::task::yield_now().await;
        }
    }

    fn may(&self, step: Step) -> bool {
        self.left[step as usize] > 0
    }

    /// Whether a step is taken that there is something to do for; a bound that keeps it from that is noted.
    fn due(&mut self, step: Step, something: bool) -> bool {
        self.more |= something && !self.may(step);
        something && self.may(step)
    }

    fn spend(&mut self, step: Step, spent: bool) {
        if spent {
            let left = &mut self.left[step as usize];
            *left = left.saturating_sub(1);
        }
    }

    /// What could be read; a step whose part could not be has failed.
    fn sound<T>(&mut self, step: Step, read: Result<T, Error>) -> Option<T> {
        read.map_err(|error| self.fail(step, error)).ok()
    }

    /// The step is over for this turn. The first fault is the one that is told.
    fn fail(&mut self, step: Step, error: Error) {
        self.left[step as usize] = 0;
        self.fault.get_or_insert(error);
    }

    /// Writes a share in one transaction. A step that fails undoes all of it, and is left out the next time.
    fn carry_out(&mut self, host: &Rc<Host>, share: Share) -> Result<(), Error> {
        let now = host.now();
        self.spend(Step::TimeOut, share.time_out);
        self.spend(Step::Route, share.route);
        self.spend(Step::Claim, share.claim);
        let changed = host.store.borrow_mut().write(|tx| change(tx, host, share, now));
        match changed {
            Ok(Some(claimed)) => {
                host.turn_of.replace(claimed.scope.as_str().to_owned());
                follow(host, claimed.execution.clone(), claimed.scope.clone(), |host, live| {
                    segment::run(host, live, claimed)
                });
            }
            Ok(None) => {}
            Err(Broken { at: Some(step), error }) => self.fail(step, error),
            Err(Broken { at: None, error }) => return Err(error),
        }
        Ok(())
    }

    /// Removes the endpoints of executions that were ended while they were parked; whether there were any. Noted first: what
    /// a crash leaves behind after that, the next start sweeps.
    fn tidy(&mut self, host: &Rc<Host>, ended: Vec<ExecutionId>) -> bool {
        let mut tidied = false;
        for execution in ended {
            if !self.due(Step::Tidy, true) {
                break;
            }
            self.spend(Step::Tidy, true);
            let noted: Result<(), conduit_coordination::Error> =
                host.store.borrow_mut().write(|tx| executions::noted(tx, &execution));
            match noted {
                Ok(()) => segment::remove_endpoint(host, execution),
                Err(error) => self.fail(Step::Tidy, error.into()),
            }
            tidied = true;
        }
        tidied
    }
}

/// Tells each followed segment that somebody asked to stop it.
fn pass_stops_on(host: &Host, asked: Vec<(ExecutionId, StopReason)>) {
    let live = host.live.borrow();
    for (execution, reason) in asked {
        if let Some(segment) = live.get(&execution)
            && segment.stop_reason.replace(Some(reason)).is_none()
        {
            segment.stop.notify_one();
        }
    }
}

fn has_room(host: &Host, snapshot: &Snapshot, scope: &ScopeId) -> bool {
    snapshot.enabled_scope(scope).is_some_and(|configured| host.live_in(scope) < configured.concurrency as usize)
}

/// Follows a segment in a task of its own, and takes a turn when it has ended.
pub fn follow<F, T>(host: &Rc<Host>, execution: ExecutionId, scope: ScopeId, task: T)
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

    /// Routes, and does nothing else.
    async fn route(host: &Rc<Host>) -> Result<Taken, Error> {
        Turn::of(&[Step::Route]).take(host).await
    }

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
                let snapshot = world.host.store.borrow_mut().read(|r| world.host.active(r)).unwrap();
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
                Turn::of(&[Step::Stops]).take(&world.host).await.unwrap();
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
