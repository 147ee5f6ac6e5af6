//! `open-conduit waits`

use conduit_api::WaitId;
use conduit_api::views::WaitView;
use conduit_client::Client;

use super::{FilterArgs, page};
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::Output;

/// List and show waits
#[derive(Debug, clap::Args)]
pub struct WaitsArgs {
    #[command(subcommand)]
    command: Option<WaitsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum WaitsCommand {
    /// List waits, newest first
    List(ListArgs),
    /// Show one wait, with what it waits for
    Get {
        /// The wait, as in wai_...
        wait: WaitId,
    },
}

#[derive(Debug, Default, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only in this state: pending, matched, timed_out, woken or cancelled
    #[arg(long = "in", value_name = "STATE")]
    in_state: Option<String>,
}

pub fn run(args: &WaitsArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None => list(&ListArgs::default(), client, out),
        Some(WaitsCommand::List(args)) => list(args, client, out),
        Some(WaitsCommand::Get { wait }) => out.one(&client.get::<WaitView>(&format!("/v1/waits/{wait}"))?),
    }?;
    Ok(Exit::Done)
}

fn list(args: &ListArgs, client: &Client, out: &mut Output) -> Result<()> {
    out.page(&page::<WaitView>(client, "/v1/waits", &args.filter, args.in_state.as_deref())?)
}
