//! The daemon: starts, recovers, then takes a turn whenever something rings, falls due or ends.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code};
use conduit_config::ConfigService;
use conduit_daemon::activation::bind_datagram;
use conduit_daemon::alarm::Alarm;
use conduit_daemon::doorbell::Doorbell;
use conduit_daemon::program::{self, Start};
use conduit_daemon::{DaemonArgs, notify, process, shutdown};
use conduit_extension::desk::Desk;
use conduit_extension::host::ExtensionHost;
use conduit_extension::package::{Bounds, Packages, Processes};
use conduit_kernel::{BaseEnvironment, Kernel, Settings, Tidied};
use conduit_store::lock::RoleLock;
use conduit_store::{Clock, StateDir, Store, mint};
use conduit_toolbelt::hosted::Hosted;
use conduit_toolbelt::packages;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::executors::Executors;
use crate::host::{CLOSING_MAX, Host};
use crate::sweeper::Sweeper;
use crate::upkeep::Upkeep;
use crate::{adopt, extensions, playbooks, turn};

/// Pause after a turn that failed; it doubles up to [`FAULT_PAUSE_MAX`].
const FAULT_PAUSE: Duration = Duration::from_millis(100);
const FAULT_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a shutdown waits for segments that are just being started.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
/// Longest time between two turns: what a ring that was lost would have said is found within this.
const SLEEP_MAX_US: i64 = 3600 * 1_000_000;

/// Run the scheduler of Open Conduit
#[derive(Debug, clap::Parser)]
#[command(name = "open-conduitd", version)]
struct Args {
    #[command(flatten)]
    common: DaemonArgs,
    /// The configuration file [default: config.json in the state directory]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn main() -> ExitCode {
    program::run("open-conduitd", |args: &Args| &args.common, run)
}

async fn run(args: Args, mut start: Start) -> Result<(), ApiError> {
    let state = StateDir::open(&start.places.state).map_err(loud)?;
    let _role = RoleLock::take(&state, "scheduler").map_err(loud)?;
    let mut store = Store::open(&state).map_err(loud)?;
    // From here on an end is an orderly one; a process that still waited for a lock just ends.
    let stop =
        shutdown::signals().map_err(|e| ApiError::new(Code::Internal, format!("signals cannot be watched: {e}")))?;
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let base = BaseEnvironment::of_home(&home);
    let executors = Executors::of_this_release(&base);
    activate(&args, &start, &state, &mut store)?;
    let playbook_dir = start.places.playbooks();
    playbooks::check(&playbook_dir).map_err(loud)?;
    if let Err(error) = playbooks::write(&playbook_dir) {
        tracing::warn!(%error, "the playbooks could not be written; executions may lack them until the next start");
    }
    let bell = match start.inherited.datagram("doorbell")? {
        Some(socket) => socket,
        None => bind_datagram(&start.places.doorbell_socket())?,
    };
    let bell = Doorbell::new(bell)
        .map_err(|e| ApiError::new(Code::Internal, format!("the doorbell cannot be watched: {e}")))?;
    let host_socket = match start.inherited.listener(extensions::HOST)? {
        Some(socket) => socket,
        None => extensions::bind(&start.places)?,
    };
    let host = Rc::new(host(start, state, store, executors, base)?);
    match host.kernel.tidy(&mut host.store.borrow_mut(), host.now()) {
        Ok(Tidied { withdrawn, bundles, failed }) => {
            tracing::debug!(withdrawn, bundles, failed, "the kernel's leftovers are cleared away");
        }
        Err(error) => tracing::error!(%error, "the kernel's leftovers stay until the next start"),
    }
    let packages = Rc::new(packages_of(&host)?);
    let extension_host = extension_host(&host, &packages)?;
    // The host was made a moment ago, and its cell is empty.
    let extension_host = Rc::clone(host.extensions.get_or_init(|| extension_host));
    settle_left_behind(&extension_host)?;
    adopt::all(&host).map_err(|error| ApiError::new(Code::Internal, format!("recovery failed: {error}")))?;
    if let Err(error) = notify::ready() {
        tracing::warn!(%error, "the service manager could not be told that the scheduler is ready");
    }
    tracing::info!(owner = %host.owner, "ready");
    let closing = Rc::new(Notify::new());
    let recovering = tokio::task::spawn_local({
        let packages = Rc::clone(&packages);
        async move { packages.recover().await }
    });
    let serving = tokio::task::spawn_local(extensions::serve(host_socket, extension_host, {
        let closing = Rc::clone(&closing);
        async move { closing.notified().await }
    }));
    attend(&host, bell, stop)
        .await
        .map_err(|e| ApiError::new(Code::Internal, format!("an alarm cannot be set: {e}")))?;
    closing.notify_one();
    if let Err(error) = notify::stopping() {
        tracing::warn!(%error, "the service manager could not be told that the scheduler stops");
    }
    finish(&host).await;
    recovering.abort(); // what is left of it the next start ends
    packages.close().await;
    serving.await.map_err(|e| ApiError::new(Code::Internal, format!("the extension host did not end in order: {e}")))
}

/// What carries extensions' operations out, with a connection to the store of its own.
fn extension_host(host: &Rc<Host>, packages: &Rc<Packages>) -> Result<Rc<ExtensionHost>, ApiError> {
    let registry = Rc::new(conduit_release::registry());
    let toolbelt =
        Hosted::open(&host.places.state, Rc::clone(&registry), host.owner.clone()).map_err(|e| e.to_api())?;
    let desk = Rc::new(Desk::new(host.state.clone(), Rc::clone(&registry), ring(host)));
    let extensions = extensions::of_this_release(&desk);
    Ok(Rc::new(ExtensionHost::new(toolbelt, extensions, ring(host)).with_packages(Rc::clone(packages))))
}

/// Requests that an earlier daemon left behind are settled before any call comes, and before their executions go on (T14).
fn settle_left_behind(extensions: &ExtensionHost) -> Result<(), ApiError> {
    let left = extensions.settle_left_behind().map_err(|error| {
        ApiError::new(Code::Internal, format!("requests of an earlier daemon could not be settled: {error}"))
    })?;
    if left.doubted > 0 {
        tracing::warn!(
            requests = left.doubted,
            "nobody knows whether they were carried out; see `open-conduit doubts`"
        );
    }
    tracing::debug!(dropped = left.dropped, "requests of an earlier daemon are settled");
    Ok(())
}

/// What installed packages run by: the kernel's one way to start a process.
fn packages_of(host: &Host) -> Result<Packages, ApiError> {
    let processes = Processes::open(&host.state, host.kernel.settings().clone())
        .map_err(|error| ApiError::new(error.code(), error.to_string()))?;
    Ok(Packages::new(processes, Bounds::default()))
}

/// Tells the scheduler to look, as long as there is one.
fn ring(host: &Rc<Host>) -> Box<dyn Fn()> {
    let scheduler = Rc::downgrade(host);
    Box::new(move || {
        if let Some(scheduler) = scheduler.upgrade() {
            scheduler.wake.notify_one();
        }
    })
}

/// At start the whole sentence goes to the person who started it, paths included.
fn loud(error: conduit_store::Error) -> ApiError {
    ApiError::new(error.code(), error.to_string())
}

/// Makes a generation active (C05).
fn activate(args: &Args, start: &Start, state: &StateDir, store: &mut Store) -> Result<(), ApiError> {
    let file = args.config.clone().unwrap_or_else(|| start.places.config_file());
    if args.config.is_some() && !file.exists() {
        let message = format!("the configuration file {} is not there; name another with --config", file.display());
        return Err(ApiError::new(Code::ConfigFileUnavailable, message));
    }
    let installed = store.read(packages::all).map_err(loud)?.into_iter().map(|package| package.registration);
    let references = conduit_release::references(&conduit_release::registry_with(installed.collect()));
    let service = ConfigService::new(state.clone(), file, Rc::new(references));
    let started = service.start(store, Clock.now()).map_err(|e| e.at_start())?;
    tracing::info!(generation = started.snapshot.generation, origin = ?started.origin, "configuration");
    Ok(())
}

fn host(
    start: Start,
    state: StateDir,
    store: Store,
    executors: Executors,
    base: BaseEnvironment,
) -> Result<Host, ApiError> {
    let programs = std::env::current_exe()
        .ok()
        .and_then(|path| path.parent().map(PathBuf::from))
        .ok_or_else(|| ApiError::new(Code::Internal, "the directory of the suite's programs cannot be found"))?;
    // Each execution costs descriptors here; its own processes keep the usual limit.
    let files = Some(process::raise_file_limit()?);
    let runner = programs.join("open-conduit-runner");
    let settings = Settings { attempts: start.places.attempts(), runner, base, files };
    let instance: conduit_api::OperatorId = mint(Clock.now());
    Ok(Host {
        places: start.places,
        known: RefCell::new(conduit_toolbelt::Live::new(state.clone(), Rc::new(conduit_release::registry()))),
        state,
        store: RefCell::new(store),
        kernel: Kernel::new(settings)?,
        executors,
        owner: instance.as_str().replacen("opr", "scheduler", 1),
        programs,
        live: RefCell::new(BTreeMap::new()),
        turn_of: RefCell::new(String::new()),
        wake: Notify::new(),
        launched: Notify::new(),
        closing: Semaphore::new(CLOSING_MAX),
        extensions: OnceCell::new(),
    })
}

/// What the daemon waits for between two turns.
struct Attention {
    bell: Doorbell,
    /// Until when a doorbell that failed is not listened to.
    bell_muted: Option<Instant>,
    since_boot: Alarm,
    of_day: Alarm,
    upkeep: Upkeep,
}

/// When the next turn is due.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// At this wall time, or when something rings.
    Due(i64),
    /// At this instant, whoever rings: the last turn failed.
    Pause(Instant),
}

impl Attention {
    fn new(bell: Doorbell) -> io::Result<Self> {
        let upkeep = Upkeep::from(Clock.now());
        Ok(Self { bell, bell_muted: None, since_boot: Alarm::since_boot()?, of_day: Alarm::of_day()?, upkeep })
    }

    /// Returns when the next turn is to be taken. Error: an alarm that cannot be set.
    async fn until(&mut self, host: &Host, next: Next) -> io::Result<()> {
        let (due, pause) = match next {
            Next::Due(at_us) => (Some(at_us), None),
            Next::Pause(end) => (None, Some(end)),
        };
        loop {
            self.upkeep.carry_out(host, host.now());
            tokio::select! {
                biased;
                woken = self.since_boot.at(self.upkeep.due_us(host)) => woken?,
                () = host.launched.notified() => {} // it has a deadline
                woken = self.of_day.at(due.unwrap_or(i64::MAX)), if due.is_some() => return woken,
                () = at(pause), if pause.is_some() => return Ok(()),
                () = host.wake.notified(), if due.is_some() => return Ok(()),
                () = at(self.bell_muted), if self.bell_muted.is_some() => self.bell_muted = None,
                rung = self.bell.rung(), if due.is_some() && self.bell_muted.is_none() => match rung {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        tracing::error!(%error, "the doorbell failed; timers go on");
                        self.bell_muted = Some(Instant::now() + FAULT_PAUSE_MAX);
                    }
                }
            }
        }
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Turns, until a signal comes.
async fn attend(host: &Rc<Host>, bell: Doorbell, stop: impl Future<Output = shutdown::Reason>) -> io::Result<()> {
    let mut attention = Attention::new(bell)?;
    let turns = async {
        let mut fault_pause = FAULT_PAUSE;
        let mut sweeper = Sweeper { due_at_us: 0 };
        loop {
            attention.upkeep.carry_out(host, host.now());
            let next = match turn::take(host).await {
                Ok(taken) => {
                    fault_pause = FAULT_PAUSE;
                    let due = next_due(host, &mut sweeper, taken.due_us);
                    Next::Due(if taken.more { 0 } else { due })
                }
                Err(error) => {
                    tracing::error!(%error, "a turn failed and will be taken again");
                    fault_pause = (fault_pause * 2).min(FAULT_PAUSE_MAX);
                    Next::Pause(Instant::now() + fault_pause)
                }
            };
            attention.until(host, next).await?;
        }
    };
    tokio::select! {
        biased;
        reason = stop => {
            tracing::info!(?reason, running = host.live.borrow().len(), "stopping; executions run on");
            Ok(())
        }
        failed = turns => failed,
    }
}

/// When the next turn is due, by the wall clock: for a wait, a retry, a sweep, and after [`SLEEP_MAX_US`] at the latest.
fn next_due(host: &Host, sweeper: &mut Sweeper, due_us: Option<i64>) -> i64 {
    sweeper.sweep_if_due(host);
    let latest = host.now().wall.0 + SLEEP_MAX_US;
    due_us.map_or(latest, |at| at.min(latest)).min(sweeper.due_at_us)
}

/// Lets segments that are between claim and launch get there, within a bound; those that run are left running.
async fn finish(host: &Host) {
    let end = Instant::now() + SHUTDOWN_WAIT;
    while host.live.borrow().values().any(|live| !live.launched.get()) {
        tokio::select! {
            () = sleep_until(end) => return tracing::warn!("segments that were being started are left to the next daemon"),
            () = host.launched.notified() => {}
            () = host.wake.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use std::os::unix::fs::DirBuilderExt;

    const SECOND_US: i64 = 1_000_000;

    /// Takes a turn; microseconds until the next one is due.
    async fn pause_after_a_turn(world: &World) -> i64 {
        let taken = turn::take(&world.host).await.unwrap();
        assert!(!taken.more);
        next_due(&world.host, &mut Sweeper { due_at_us: i64::MAX }, taken.due_us) - Clock.now().wall.0
    }

    #[tokio::test]
    async fn with_nothing_due_the_daemon_sleeps_until_it_is_rung() {
        let world = World::new();
        assert!(pause_after_a_turn(&world).await > 3590 * SECOND_US);
    }

    #[tokio::test]
    async fn the_daemon_sleeps_until_the_next_retry_and_no_longer() {
        let world = World::new();
        world.ask_for("calm", 1);
        let snapshot = world.host.store.borrow_mut().read(|r| world.host.active(r)).unwrap();
        let now = Clock.now();
        let route = |tx: &conduit_store::Write<'_>| conduit_coordination::routing::route_batch(tx, &snapshot, 9, now);
        world.host.store.borrow_mut().write(route).unwrap();
        world.sql(&format!("UPDATE work SET ready_at_us = {}", now.wall.0 + 90 * SECOND_US));
        let pause = pause_after_a_turn(&world).await;
        assert!(pause > 60 * SECOND_US && pause <= 90 * SECOND_US, "{pause}");
    }

    #[tokio::test]
    async fn a_due_work_that_there_is_no_room_for_wakes_nobody() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let world = World::new();
                world.ask_for("calm", 3);
                assert!(pause_after_a_turn(&world).await > 3590 * SECOND_US);
                assert_eq!(world.followed(), (0, 2));
            })
            .await;
    }

    fn doorbell(world: &World) -> (Doorbell, conduit_daemon::doorbell::Ringer) {
        std::fs::DirBuilder::new().mode(0o700).create(&world.host.places.runtime).unwrap();
        let socket = bind_datagram(&world.host.places.doorbell_socket()).unwrap();
        (Doorbell::new(socket).unwrap(), conduit_daemon::doorbell::Ringer::new(&world.host.places))
    }

    #[tokio::test]
    async fn after_a_turn_that_failed_no_ring_shortens_the_pause() {
        let world = World::new();
        let (bell, ringer) = doorbell(&world);
        let mut attention = Attention::new(bell).unwrap();
        let end = Instant::now() + Duration::from_millis(200);
        ringer.ring();
        world.host.wake.notify_one();
        attention.until(&world.host, Next::Pause(end)).await.unwrap();
        assert!(Instant::now() >= end);
        attention.until(&world.host, Next::Due(i64::MAX)).await.unwrap();
        attention.until(&world.host, Next::Due(i64::MAX)).await.unwrap(); // both were kept
    }

    /// U02
    #[tokio::test]
    async fn a_stop_is_heard_in_the_middle_of_a_backlog() {
        let local = tokio::task::LocalSet::new();
        let run = async {
            let world = World::new();
            let (bell, _) = doorbell(&world);
            world.ask_for("busy", 300);
            let stop = async {
                tokio::task::yield_now().await;
                shutdown::Reason::Terminate
            };
            attend(&world.host, bell, stop).await.unwrap();
            assert!(world.number("SELECT count(*) FROM event WHERE route IS NULL") > 100);
        };
        local.run_until(run).await;
    }
}
