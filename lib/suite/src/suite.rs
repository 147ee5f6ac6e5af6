//! A running suite: its directories, its sockets, and its programs kept running.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use conduit_api::places::Places;
use conduit_api::{ApiError, Code};
use conduit_daemon::activation::{bind_datagram, bind_stream, remove_stale};
use conduit_daemon::log::{self, LogFormat};
use conduit_daemon::process;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::child::{Kept, News, Wish};
use crate::directories::{self, Held};
use crate::keeping::Keeping;
use crate::manager::Manager;
use crate::programs::{Programs, Role};

/// All the news that there can be: each program tells of its readiness once, and once that it was given up.
const NEWS_MAX: usize = 2 * Role::ALL.len();

/// What a suite is started with.
#[derive(Debug, Clone)]
pub struct Options {
    pub places: Places,
    pub programs: Programs,
    /// Configuration file for the first start.
    pub config: Option<PathBuf>,
    pub log_format: LogFormat,
    /// What the programs log, where the environment does not say.
    pub log_filter: Option<&'static str>,
}

/// Programs that are kept running until [`Suite::stop`]. Dropped without it, they get SIGTERM when this process ends.
#[derive(Debug)]
pub struct Suite {
    places: Places,
    news: mpsc::Receiver<News>,
    wish: watch::Sender<Wish>,
    keepers: JoinSet<()>,
    _held: Held,
}

/// How a suite ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

impl Suite {
    /// Makes the directories, binds the sockets, and starts the programs. Runs inside a `LocalSet`
    /// ([`conduit_daemon::program::block_on`]).
    ///
    /// Refusals: `state_locked` for a second suite on the same directories, and those of the directories and sockets.
    pub fn start(options: &Options) -> Result<Self, ApiError> {
        let held = directories::take(&options.places)?;
        let files = process::raise_file_limit()?;
        let (tell, news) = mpsc::channel(NEWS_MAX);
        let (wish, wished) = watch::channel(Wish::Run);
        let mut keepers = JoinSet::new();
        // All or nothing: every socket is there before the first program is.
        let programs: Vec<Kept> =
            Role::ALL.into_iter().map(|role| prepare(role, options, files)).collect::<Result<_, _>>()?;
        for program in programs {
            keepers.spawn_local(program.keep(tell.clone(), wished.clone()));
        }
        Ok(Self { places: options.places.clone(), news, wish, keepers, _held: held })
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Returns when every program that has to run has said that it is ready.
    ///
    /// `unavailable` when one was given up; its own log says why.
    pub async fn ready(&mut self) -> Result<(), ApiError> {
        let mut waiting: Vec<Role> = Role::ALL.into_iter().filter(|role| !role.on_demand()).collect();
        while !waiting.is_empty() {
            match self.news.recv().await {
                Some(News::Ready(role)) => waiting.retain(|waited| *waited != role),
                Some(News::GivenUp(_, why)) => return Err(ApiError::new(Code::Unavailable, why)),
                None => return Err(ApiError::new(Code::Unavailable, "no program of the suite runs")),
            }
        }
        Ok(())
    }

    /// Returns when a program was given up; as long as all are kept, it does not.
    pub async fn given_up(&mut self) -> ApiError {
        loop {
            match self.news.recv().await {
                Some(News::Ready(role)) => tracing::debug!(program = role.program(), "a program is ready"),
                Some(News::GivenUp(_, why)) => return ApiError::new(Code::Unavailable, why),
                None => return ApiError::new(Code::Unavailable, "no program of the suite runs"),
            }
        }
    }

    /// Asks every program to end and waits until all have. Executions keep running. When `hurry` ends first, what is
    /// left is killed.
    pub async fn stop(mut self, hurry: impl Future) -> Stopped {
        // A keeper that has ended already needs no wish.
        let _ = self.wish.send(Wish::Stop);
        let mut hurry = std::pin::pin!(hurry);
        let mut hurried = false;
        loop {
            tokio::select! {
                ended = self.keepers.join_next() => match ended {
                    Some(Ok(())) => {}
                    Some(Err(error)) => tracing::error!(%error, "a keeper failed"),
                    None => break,
                },
                // Taken and dropped, so that no keeper waits for a reader.
                Some(_) = self.news.recv() => {}
                _ = &mut hurry, if !hurried => {
                    hurried = true;
                    let _ = self.wish.send(Wish::Kill);
                }
            }
        }
        let passed =
            Role::ALL.into_iter().flat_map(|role| [role.socket(&self.places), role.notify_socket(&self.places)]);
        // The scheduler binds this one by itself, and nobody answers there any more either.
        for path in passed.chain([self.places.host_socket()]) {
            if let Err(error) = remove_stale(&path) {
                tracing::warn!(%error, "a socket could not be removed");
            }
        }
        Stopped
    }
}

fn prepare(role: Role, options: &Options, files: rustix::process::Rlimit) -> Result<Kept, ApiError> {
    let places = &options.places;
    let path = role.socket(places);
    let socket: OwnedFd = match role {
        Role::Scheduler => bind_datagram(&path)?.into(),
        Role::Endpointd | Role::Management => bind_stream(&path)?.into(),
    };
    let notify = role.notify_socket(places);
    let manager = Manager::bind(&notify)?;
    let parent = std::process::id().to_string();
    let mut args = vec![
        "--state".into(),
        places.state.clone().into(),
        "--runtime".into(),
        places.runtime.clone().into(),
        "--log-format".into(),
        options.log_format.as_str().into(),
        "--parent".into(),
        parent.into(),
    ];
    if let (Role::Scheduler | Role::Management, Some(config)) = (role, &options.config) {
        args.extend(["--config".into(), config.into()]);
    }
    let unsaid = std::env::var_os(log::FILTER_VARIABLE).is_none();
    let log_filter = options.log_filter.filter(|_| unsaid);
    Ok(Kept {
        role,
        program: options.programs.path(role),
        args,
        variables: log_filter.map(|filter| (log::FILTER_VARIABLE.into(), filter.into())).into_iter().collect(),
        socket,
        notify,
        manager,
        files: (role != Role::Endpointd).then_some(files),
        keeping: Keeping::default(),
    })
}
