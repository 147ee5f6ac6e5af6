//! `open-conduit doubts`

use conduit_api::ExecutionId;
use conduit_api::views::{DoubtOutcome, DoubtResolveRequest, DoubtView, Page};
use conduit_client::{Client, path};

use super::PageArgs;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// List requests of which nobody knows whether they were carried out, and say what happened
#[derive(Debug, clap::Args)]
pub struct DoubtsArgs {
    #[command(subcommand)]
    command: Option<DoubtsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum DoubtsCommand {
    /// List requests that are in doubt, newest first
    List(PageArgs),
    Resolve(ResolveArgs),
}

/// Say whether a request was carried out, after looking at where its effect would be
#[derive(Debug, clap::Args)]
struct ResolveArgs {
    /// The execution, as in exe_...
    execution: ExecutionId,
    operation: String,
    request_id: String,
    /// It was done, and this is its answer: a JSON value, null by default
    #[arg(long, value_name = "JSON", num_args = 0..=1, default_missing_value = "null", required_unless_present = "not_done")]
    done: Option<String>,
    /// It was not done: the execution may make it again
    #[arg(long, conflicts_with = "done")]
    not_done: bool,
}

pub fn run(args: &DoubtsArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None => list(&PageArgs::default(), client, out),
        Some(DoubtsCommand::List(args)) => list(args, client, out),
        Some(DoubtsCommand::Resolve(args)) => resolve(args, client, out),
    }?;
    Ok(Exit::Done)
}

fn list(args: &PageArgs, client: &Client, out: &mut Output) -> Result<()> {
    let limit = args.limit.map(|limit| limit.to_string());
    let target = path::with_query("/v1/doubts", &[("limit", limit.as_deref()), ("cursor", args.cursor.as_deref())]);
    out.page(&client.get::<Page<DoubtView>>(&target)?)
}

fn resolve(args: &ResolveArgs, client: &Client, out: &mut Output) -> Result<()> {
    let output = args.done.as_deref().map(serde_json::from_str);
    let output = output.transpose().map_err(|_| Failure::Usage("--done takes a JSON value".into()))?;
    let request = DoubtResolveRequest {
        execution_id: args.execution.clone(),
        operation: args.operation.clone(),
        request_id: args.request_id.clone(),
        outcome: if args.not_done { DoubtOutcome::NotDone } else { DoubtOutcome::Done },
        output,
    };
    out.one(&client.post::<_, DoubtView>("/v1/doubts/resolve", &request)?)
}
