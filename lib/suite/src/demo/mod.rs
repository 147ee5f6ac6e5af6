//! `open-conduit demo`: one real piece of work from an Event to an outcome, on a suite of its own.
//!
//! It starts the same programs as `open-conduit up` in a temporary directory, emits one Event, shows what follows
//! from it as it happens, and then runs the operator's own commands on the result.

mod plan;
mod progress;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;

use conduit_api::places::Places;
use conduit_api::views::{ArtifactView, EmitReply, EmitRequest, Page};
use conduit_api::{ApiError, Code, WorkId};
use conduit_client::{AsyncClient, Call, ClientError, Credential, Method};
use conduit_daemon::log::LogFormat;
use conduit_daemon::{log, process, program, shutdown};
use serde_json::{Map, Value};

use crate::programs::Programs;
use crate::suite::{Options, Suite};
use progress::Ending;

/// Show the suite at work on a Git repository
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// The repository to look at
    #[arg(value_name = "REPO", default_value = ".")]
    pub repository: PathBuf,
    /// Leave the suite running afterwards, until Ctrl-C
    #[arg(long)]
    pub keep: bool,
}

/// Runs the demonstration. Exit code 0 when the Work succeeded.
pub fn demo(args: &DemoArgs) -> ExitCode {
    let outcome = process::harden()
        .and_then(|()| log::init("open-conduit", LogFormat::default()))
        .and_then(|()| program::block_on(run(args))?);
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(program::EXIT_FAILED),
        Err(error) => {
            eprintln!("open-conduit demo: {} ({})", error.message, error.code);
            ExitCode::from(program::EXIT_FAILED)
        }
    }
}

async fn run(args: &DemoArgs) -> Result<bool, ApiError> {
    let repository = plan::repository(&args.repository)?;
    let base = tempfile::Builder::new().prefix("open-conduit-demo-").tempdir().map_err(failed("making a directory"))?;
    let places = Places { state: base.path().join("state"), runtime: base.path().join("run") };
    let config = plan::write(base.path()).map_err(failed("writing the demonstration's configuration"))?;
    let options = Options {
        places,
        programs: Programs::beside_own()?,
        config: Some(config),
        log_format: LogFormat::default(),
        // What the programs do is shown by what follows from the Event.
        log_filter: Some("warn"),
    };
    let stop = shutdown::signals().map_err(failed("watching signals"))?;
    let mut stop = pin!(stop);
    let mut suite = Suite::start(&options)?;
    let shown = tokio::select! {
        shown = show(&mut suite, &repository) => shown,
        _ = &mut stop => Err(ApiError::new(Code::Unavailable, "stopped before the Work had ended")),
    };
    if args.keep && shown.is_ok() {
        explain_keeping(suite.places());
        tokio::select! {
            _ = &mut stop => {}
            why = suite.given_up() => eprintln!("open-conduit demo: {} ({})", why.message, why.code),
        }
    }
    let hurry = shutdown::signals().map_err(failed("watching signals"))?;
    suite.stop(hurry).await;
    shown
}

/// The demonstration itself; whether the Work succeeded.
async fn show(suite: &mut Suite, repository: &Path) -> Result<bool, ApiError> {
    suite.ready().await?;
    let places = suite.places().clone();
    let credential = Credential::from_file(places.operator_token());
    let client = match credential {
        Ok(credential) => AsyncClient::new(places.management_socket(), credential),
        // The management server makes the credential when it is first asked for anything.
        Err(_) => {
            let unknown = AsyncClient::new(places.management_socket(), Credential::none());
            let _ = unknown.send(&Call::new(Method::Get, "/v1/health").map_err(spoken)?).await; // refused, as it has to be
            AsyncClient::new(
                places.management_socket(),
                Credential::from_file(places.operator_token()).map_err(spoken)?,
            )
        }
    };
    say(&format!("Open Conduit runs in {}\n", places.state.display()));
    say(&format!("One Event asks for a survey of {}; this follows from it:\n\n", repository.display()));
    let request = EmitRequest {
        scope_id: plan::SCOPE.parse().map_err(|why| ApiError::new(Code::Internal, why))?,
        kind: plan::REQUESTED.to_owned(),
        data: Map::from_iter([("repository".to_owned(), Value::from(repository.to_string_lossy()))]),
        schema: None,
        correlation_key: None,
        work_id: None,
        cause_id: None,
    };
    let call = Call::new(Method::Post, "/v1/events").and_then(|call| call.json(&request)).map_err(spoken)?;
    let reply: EmitReply = client.send(&call).await.and_then(|answer| answer.read()).map_err(spoken)?;
    let ending = progress::follow(&client, &reply.event, say).await.map_err(spoken)?;
    tell(&places, &client, &reply, &ending).await?;
    Ok(ending.succeeded)
}

/// The operator's own commands, on what has happened.
async fn tell(places: &Places, client: &AsyncClient, reply: &EmitReply, ending: &Ending) -> Result<(), ApiError> {
    operator(places, &["events", "chain", reply.event.id.as_str()]).await?;
    operator(places, &["work", "get", ending.work.as_str()]).await?;
    operator(places, &["artifacts", "list"]).await?;
    if let Some(artifact) = newest_artifact(client, &ending.work).await? {
        operator(places, &["artifacts", "cat", artifact.id.as_str()]).await?;
    }
    Ok(())
}

async fn newest_artifact(client: &AsyncClient, work: &WorkId) -> Result<Option<ArtifactView>, ApiError> {
    let call = Call::new(Method::Get, format!("/v1/artifacts?work_id={work}")).map_err(spoken)?;
    let page: Page<ArtifactView> = client.send(&call).await.and_then(|answer| answer.read()).map_err(spoken)?;
    Ok(page.items.into_iter().max_by_key(|artifact| artifact.created_at))
}

/// Prints a command as a person would type it, and runs it on the demonstration's suite.
async fn operator(places: &Places, words: &[&str]) -> Result<(), ApiError> {
    say(&format!("\n$ open-conduit {}\n", words.join(" ")));
    let own = std::env::current_exe().map_err(failed("finding this program"))?;
    let status = tokio::process::Command::new(own)
        .args(words)
        .arg("--endpoint")
        .arg(places.management_socket())
        .arg("--token-file")
        .arg(places.operator_token())
        .status()
        .await
        .map_err(failed("running a command"))?;
    if status.success() {
        return Ok(());
    }
    Err(ApiError::new(Code::Internal, format!("`open-conduit {}` ended with {status}", words.join(" "))))
}

fn explain_keeping(places: &Places) {
    let (socket, token) = (places.management_socket(), places.operator_token());
    say(&format!(
        "\nThe suite goes on. From another terminal:\n  export OPEN_CONDUIT_ENDPOINT={}\n  export OPEN_CONDUIT_TOKEN_FILE={}\n  \
         open-conduit work list\nCtrl-C ends it.\n",
        socket.display(),
        token.display()
    ));
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> ApiError {
    move |error| ApiError::new(Code::Unavailable, format!("{doing} failed: {error}"))
}

fn spoken(error: ClientError) -> ApiError {
    ApiError::new(Code::Unavailable, error.to_string())
}

/// Prints for whoever reads; that nobody does is no reason to end.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "standard output could not be written");
    }
}
