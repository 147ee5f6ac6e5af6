//! `open-conduit executions`

use conduit_api::ExecutionId;
use conduit_api::views::{ExecutionReply, ExecutionView};
use conduit_client::Client;

use super::{FilterArgs, nothing, page};
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::Output;

/// List, show and cancel executions
#[derive(Debug, clap::Args)]
pub struct ExecutionsArgs {
    #[command(subcommand)]
    command: Option<ExecutionsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum ExecutionsCommand {
    /// List executions, newest first
    List(ListArgs),
    /// Show one execution
    Get(OneArgs),
    /// Stop an execution; its Work is held until it is retried
    Cancel(OneArgs),
}

#[derive(Debug, Default, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only in this state: claimed, running, parked, succeeded, failed, cancelled, timed_out, lost or orphaned
    #[arg(long = "in", value_name = "STATE")]
    in_state: Option<String>,
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The execution, as in exe_...
    execution: ExecutionId,
}

pub fn run(args: &ExecutionsArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None => list(&ListArgs::default(), client, out),
        Some(ExecutionsCommand::List(args)) => list(args, client, out),
        Some(ExecutionsCommand::Get(args)) => {
            out.one(&client.get::<ExecutionView>(&format!("/v1/executions/{}", args.execution))?)
        }
        Some(ExecutionsCommand::Cancel(args)) => {
            let reply: ExecutionReply =
                client.post(&format!("/v1/executions/{}/cancel", args.execution), &nothing())?;
            out.one(&reply.execution)
        }
    }?;
    Ok(Exit::Done)
}

fn list(args: &ListArgs, client: &Client, out: &mut Output) -> Result<()> {
    out.page(&page::<ExecutionView>(client, "/v1/executions", &args.filter, args.in_state.as_deref())?)
}
