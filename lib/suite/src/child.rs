//! One program kept running: started with its sockets, listened to, started again when it ends.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use conduit_daemon::program::EXIT_REFUSED;
use conduit_daemon::spawn::Spawn;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::backoff::{self, Backoff};
use crate::keeping::Keeping;
use crate::manager::{Manager, Said};
use crate::programs::Role;

/// Time that a program has to end after SIGTERM, before it is killed.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// What a program is asked to do by whoever keeps it. Later values are stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    Run,
    /// End, within [`STOP_TIME_MAX`].
    Stop,
    /// End at once.
    Kill,
}

/// What became of a program. Each of them is told once at most, so that nobody has to listen for the programs' sake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// It was ready for the first time.
    Ready(Role),
    /// It is not started again; the sentence says why.
    GivenUp(Role, String),
}

/// A program with all that it is started with.
#[derive(Debug)]
pub struct Kept {
    pub role: Role,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub variables: Vec<(OsString, OsString)>,
    pub socket: OwnedFd,
    pub notify: PathBuf,
    pub manager: Manager,
    /// Limit of open files for a program that holds few; `None` leaves it this process's own.
    pub files: Option<Rlimit>,
    pub keeping: Keeping,
}

/// What a program did up to its end, as far as the next step depends on it.
#[derive(Debug, Clone, Copy)]
struct Past {
    /// It was ready at some time since `up` began.
    ready: bool,
    /// Starts in a row that ended before it was ready.
    failures: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Again,
    /// Again, after the longest pause: the others are worth more than an end.
    Later,
    Wait,
    GiveUp,
}

/// Decides what follows an end that nobody asked for. `code` is the exit code, if the program exited by itself. Only a
/// refusal says that another start fares no better: a signal, a full disk or a held lock pass.
fn decide(role: Role, code: Option<i32>, past: Past) -> Next {
    match code {
        // One that was not even ready has answered nobody: who waits for it would start it again at once.
        Some(0) if role.on_demand() && past.failures == 0 => Next::Wait,
        _ if past.ready => Next::Again,
        // Work is done without the program that is started on demand, so that one is no reason to stop the others.
        Some(code) if code == i32::from(EXIT_REFUSED) => {
            if role.on_demand() {
                Next::Later
            } else {
                Next::GiveUp
            }
        }
        _ => Next::Again,
    }
}

impl Kept {
    /// Keeps the program running until `wish` is more than [`Wish::Run`] and it has ended, or until it is given up.
    pub async fn keep(mut self, news: mpsc::Sender<News>, mut wish: watch::Receiver<Wish>) {
        let role = self.role;
        let mut backoff = Backoff::default();
        let mut past = Past { ready: false, failures: 0 };
        let mut wait = role.on_demand();
        while *wish.borrow_and_update() == Wish::Run {
            if wait {
                tokio::select! {
                    asked = self.connection() => match asked {
                        Ok(()) => {}
                        Err(error) => return give_up(&news, role, &error.to_string()).await,
                    },
                    _ = wish.changed() => continue,
                }
            }
            let started = Instant::now();
            let mut ready = false;
            let ended = match self.start() {
                Ok(child) => {
                    let news = Some(&news).filter(|_| !past.ready);
                    self.attend(child, &mut ready, news, &mut wish).await
                }
                Err(error) => Err(error),
            };
            if *wish.borrow() != Wish::Run {
                break;
            }
            past.ready |= ready;
            past.failures = if ready { 0 } else { past.failures + 1 };
            let shown = match &ended {
                Ok(status) => status.to_string(),
                Err(error) => format!("it cannot be started: {error}"),
            };
            match decide(role, ended.ok().and_then(|status| status.code()), past) {
                Next::Wait => wait = true,
                Next::GiveUp => return give_up(&news, role, &shown).await,
                next @ (Next::Again | Next::Later) => {
                    wait = false;
                    let pause = if next == Next::Later { backoff::LONGEST } else { backoff.after(started.elapsed()) };
                    let program = role.program();
                    if next == Next::Later {
                        tracing::error!(
                            program,
                            ended = shown,
                            ?pause,
                            "a program cannot be kept running; the others go on, and it is tried again"
                        );
                    } else {
                        tracing::warn!(program, ended = shown, ?pause, "a program ended; it is started again");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = wish.changed() => {}
                    }
                }
            }
        }
    }

    /// Returns when a connection waits on the socket.
    async fn connection(&self) -> io::Result<()> {
        // Registered anew each time: what an earlier registration remembers may have been answered since.
        #[expect(deprecated, reason = "what it warns of, a type that lies about its descriptor, `OwnedFd` is not")]
        let watched = AsyncFd::with_interest(self.socket.try_clone()?, Interest::READABLE)?;
        watched.readable().await.map(drop)
    }

    fn start(&self) -> io::Result<Child> {
        let mut spawn = Spawn::new(&self.program).descriptor(self.role.descriptor(), self.socket.try_clone()?);
        spawn.args.clone_from(&self.args);
        spawn.variables.extend(self.variables.iter().cloned());
        spawn.descriptors.extend(self.keeping.copies()?);
        spawn.notify = Some(self.notify.clone());
        let child = spawn.start()?;
        if let (Some(limit), Some(pid)) = (self.files, pid_of(&child))
            && let Err(error) = rustix::process::prlimit(Some(pid), Resource::Nofile, limit)
        {
            tracing::warn!(%error, "a program keeps a raised limit of open files");
        }
        tracing::debug!(program = self.role.program(), pid = child.id(), "a program was started");
        Ok(child)
    }

    /// Listens to `child` until it has ended, and passes on what it is asked to do.
    async fn attend(
        &mut self,
        mut child: Child,
        ready: &mut bool,
        news: Option<&mpsc::Sender<News>>,
        wish: &mut watch::Receiver<Wish>,
    ) -> io::Result<ExitStatus> {
        let Some(pid) = pid_of(&child) else { return child.wait().await };
        let number = pid.as_raw_nonzero().get();
        let mut done = Wish::Run;
        let mut kill_at = None;
        let mut deaf = false;
        let ended = loop {
            let wished = *wish.borrow_and_update();
            if wished > done {
                done = wished;
                send(pid, if wished == Wish::Kill { Signal::KILL } else { Signal::TERM });
                kill_at = Some(Instant::now() + STOP_TIME_MAX);
            }
            tokio::select! {
                ended = child.wait() => break ended?,
                said = self.manager.next(number), if !deaf => match said {
                    Ok(Some(said)) => self.heed(said, ready, news).await,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(%error, program = self.role.program(), "a program cannot be heard any more");
                        deaf = true;
                    }
                },
                _ = wish.changed() => {}
                () = at(kill_at) => {
                    tracing::warn!(program = self.role.program(), "a program did not end in time and is killed");
                    send(pid, Signal::KILL);
                    kill_at = None;
                }
            }
        };
        // What it handed over just before its end counts.
        match self.manager.drain(number) {
            Ok(all) => {
                for said in all {
                    self.heed(said, ready, news).await;
                }
            }
            Err(error) => tracing::error!(%error, program = self.role.program(), "last words were not heard"),
        }
        Ok(ended)
    }

    /// Carries out what the program said. Whether it is ready is told where there are `news` to be told of.
    async fn heed(&mut self, said: Said, ready: &mut bool, news: Option<&mpsc::Sender<News>>) {
        if let Some((name, descriptors)) = said.store {
            for fd in descriptors {
                if !self.keeping.store(&name, fd) {
                    tracing::warn!(name, kept = self.keeping.len(), "no room to keep another descriptor");
                }
            }
        }
        if let Some(name) = said.remove {
            self.keeping.remove(&name);
        }
        if said.ready && !*ready {
            *ready = true;
            if let Some(news) = news {
                tell(news, News::Ready(self.role)).await;
            }
        }
    }
}

async fn give_up(news: &mpsc::Sender<News>, role: Role, why: &str) {
    tell(news, News::GivenUp(role, format!("{} could not be kept running: {why}", role.program()))).await;
}

/// Signals a child that was not waited for yet, so that the number is still its own.
fn send(pid: Pid, signal: Signal) {
    if let Err(error) = rustix::process::kill_process(pid, signal) {
        tracing::error!(%error, ?signal, "a program could not be signalled");
    }
}

async fn tell(news: &mpsc::Sender<News>, what: News) {
    if news.send(what).await.is_err() {
        tracing::debug!("nobody listens any more");
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NEW: Past = Past { ready: false, failures: 1 };

    #[test]
    fn a_refusal_before_the_first_readiness_is_final_and_later_it_is_not() {
        let refused = Some(i32::from(EXIT_REFUSED));
        assert_eq!(decide(Role::Scheduler, refused, NEW), Next::GiveUp);
        assert_eq!(decide(Role::Scheduler, refused, Past { ready: true, failures: 50 }), Next::Again);
    }

    #[test]
    fn a_management_server_that_cannot_start_is_tried_again_and_stops_nobody() {
        let refused = Some(i32::from(EXIT_REFUSED));
        assert_eq!(decide(Role::Management, refused, NEW), Next::Later);
        let often = Past { ready: false, failures: 1000 };
        assert_eq!(decide(Role::Management, Some(1), often), Next::Again);
        assert_eq!(decide(Role::Management, Some(0), often), Next::Again);
    }

    #[test]
    fn a_program_that_is_killed_or_meets_a_passing_fault_before_it_is_ready_is_tried_for_ever() {
        let often = Past { ready: false, failures: 1000 };
        for role in [Role::Scheduler, Role::Endpointd] {
            assert_eq!(decide(role, None, often), Next::Again, "by a signal");
            assert_eq!(decide(role, Some(1), often), Next::Again, "a full disk, a held lock");
        }
    }

    #[test]
    fn only_the_management_server_may_end_by_itself_once_it_was_ready() {
        let was_ready = Past { ready: true, failures: 0 };
        assert_eq!(decide(Role::Management, Some(0), was_ready), Next::Wait);
        assert_eq!(decide(Role::Management, Some(0), NEW), Next::Again);
        assert_eq!(decide(Role::Management, Some(1), was_ready), Next::Again);
        assert_eq!(decide(Role::Scheduler, Some(0), was_ready), Next::Again);
    }

    /// The channel has room for every piece of news that there can be, so nobody has to listen for the suite's sake.
    #[tokio::test]
    async fn a_program_tells_of_its_first_readiness_only() {
        let base = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap();
        let notify = base.path().join("n");
        let mut kept = Kept {
            role: Role::Scheduler,
            program: "/bin/false".into(),
            args: Vec::new(),
            variables: Vec::new(),
            socket: std::fs::File::open("/dev/null").unwrap().into(),
            manager: Manager::bind(&notify).unwrap(),
            notify,
            files: None,
            keeping: Keeping::default(),
        };
        let (tell, mut news) = mpsc::channel(1);
        let said = || Said { ready: true, ..Said::default() };
        kept.heed(said(), &mut false, Some(&tell)).await;
        for _ in 0..20 {
            kept.heed(said(), &mut false, None).await;
        }
        assert_eq!(news.recv().await, Some(News::Ready(Role::Scheduler)));
        assert!(news.try_recv().is_err());
    }
}
