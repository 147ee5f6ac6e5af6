//! `open-conduit up`: the suite in the foreground, until a signal.

use std::io::{self, Write};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use conduit_api::places::Places;
use conduit_api::views::{ExecutionView, Page};
use conduit_api::{ApiError, Code, ExecutionId};
use conduit_client::{AsyncClient, Call, Credential, Method};
use conduit_daemon::{DaemonArgs, log, process, program, shutdown};

use crate::programs::Programs;
use crate::suite::{Options, Suite};

/// How long the question which executions run may take when the suite is to stop.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(2);
/// Most executions that are named when the suite stops.
const NAMED_MAX: usize = 20;

/// Run the suite in the foreground
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub common: DaemonArgs,
    /// Configuration file that the first start activates [default: config.json in the state directory]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Runs the suite until SIGINT or SIGTERM. Exit code 0 after a signal, 1 when it could not start or be kept.
pub fn up(args: &UpArgs) -> ExitCode {
    let outcome = process::harden()
        .and_then(|()| log::init("open-conduit", args.common.log_format))
        .and_then(|()| args.common.parent.map_or(Ok(()), process::end_with_parent))
        .and_then(|()| program::block_on(run(args))?);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("open-conduit up: {} ({})", error.message, error.code);
            ExitCode::from(program::EXIT_FAILED)
        }
    }
}

async fn run(args: &UpArgs) -> Result<(), ApiError> {
    let deaf = |error: io::Error| ApiError::new(Code::Internal, format!("signals cannot be watched: {error}"));
    let mut first = pin!(shutdown::signals().map_err(deaf)?);
    let options = Options {
        places: args.common.places()?,
        programs: Programs::beside_own()?,
        config: args.config.as_ref().map(std::path::absolute).transpose().map_err(|error| {
            ApiError::new(Code::InvalidRequest, format!("the configuration's path cannot be made absolute: {error}"))
        })?,
        log_format: args.common.log_format,
        log_filter: None,
    };
    let mut suite = Suite::start(&options)?;
    let given_up = tokio::select! {
        ready = suite.ready() => match ready {
            Ok(()) => {
                say(&welcome(suite.places()));
                tokio::select! {
                    _ = &mut first => None,
                    why = suite.given_up() => Some(why),
                }
            }
            Err(why) => Some(why),
        },
        _ = &mut first => None,
    };
    // A second signal does not wait.
    let second = shutdown::signals().map_err(deaf)?;
    let places = suite.places().clone();
    let running = executions(&places).await;
    suite.stop(second).await;
    say(&farewell(&running));
    given_up.map_or(Ok(()), Err)
}

/// What is printed once the suite is ready.
fn welcome(places: &Places) -> String {
    format!(
        "open-conduit up: ready\n  socket  {}\n  state   {}\n  Ctrl-C stops the suite; executions keep running.\n",
        places.management_socket().display(),
        places.state.display()
    )
}

/// Executions that live, as far as could be told.
#[derive(Debug, PartialEq, Eq)]
enum Living {
    /// The management server said that these run.
    Running(Vec<ExecutionId>),
    /// It did not answer; these have a run directory, so they run or wait.
    Unended(Vec<String>),
}

async fn executions(places: &Places) -> Living {
    match ask(places).await {
        Ok(running) => Living::Running(running),
        Err(error) => {
            tracing::debug!(%error, "the management server could not be asked which executions run");
            Living::Unended(run_directories(places))
        }
    }
}

async fn ask(places: &Places) -> Result<Vec<ExecutionId>, conduit_client::ClientError> {
    let credential = Credential::from_file(places.operator_token())?;
    let client = AsyncClient::new(places.management_socket(), credential).with_time_limit(QUESTION_TIME_MAX);
    let answer = client.send(&Call::new(Method::Get, "/v1/executions?state=running")?).await?;
    let page: Page<ExecutionView> = answer.read()?;
    Ok(page.items.into_iter().filter(|execution| execution.state == "running").map(|execution| execution.id).collect())
}

/// The executions that have a run directory (E01, E06).
fn run_directories(places: &Places) -> Vec<String> {
    let entries = match std::fs::read_dir(places.runs()) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::debug!(%error, "the run directories could not be listed");
            return Vec::new();
        }
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("execution")).ok())
        .map(|name| name.trim().to_owned())
        .collect();
    names.sort_unstable();
    names
}

/// What is printed when the suite has stopped.
fn farewell(living: &Living) -> String {
    let (names, what): (Vec<String>, &str) = match living {
        Living::Running(ids) => (ids.iter().map(ToString::to_string).collect(), "keep running"),
        Living::Unended(names) => (names.clone(), "have not ended and may keep running"),
    };
    if names.is_empty() {
        return "open-conduit up: stopped; no execution runs\n".to_owned();
    }
    let more = names.len().saturating_sub(NAMED_MAX);
    let mut text = format!(
        "open-conduit up: stopped; executions that {what} ({}), for the next start to take over:\n",
        names.len()
    );
    for name in names.iter().take(NAMED_MAX) {
        text.push_str(&format!("  {name}\n"));
    }
    if more > 0 {
        text.push_str(&format!("  and {more} more\n"));
    }
    text
}

/// Prints for whoever reads; that nobody does is no reason to end.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "standard output could not be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_names_what_keeps_running() {
        assert!(farewell(&Living::Running(Vec::new())).contains("no execution runs"));
        let names = (0..25).map(|n| format!("exe_{n}")).collect();
        let text = farewell(&Living::Unended(names));
        assert!(text.contains("have not ended and may keep running (25)"), "{text}");
        assert!(text.contains("exe_19\n") && text.ends_with("and 5 more\n"), "{text}");
    }

    /// E06
    #[test]
    fn run_directories_name_the_executions_that_live() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { state: dir.path().into(), runtime: dir.path().into() };
        assert!(run_directories(&places).is_empty());
        for (key, name) in [("b", "exe_2\n"), ("a", "exe_1")] {
            std::fs::create_dir_all(places.runs().join(key)).unwrap();
            std::fs::write(places.runs().join(key).join("execution"), name).unwrap();
        }
        assert_eq!(run_directories(&places), ["exe_1", "exe_2"]);
    }
}
