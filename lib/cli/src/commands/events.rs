//! `open-conduit events`

use conduit_api::EventId;
use conduit_api::views::{ChainView, EventView};
use conduit_client::Client;

use super::{FilterArgs, page};
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::Output;
use crate::tree::tree;

/// List and show Events, and what followed from them
#[derive(Debug, clap::Args)]
pub struct EventsArgs {
    #[command(subcommand)]
    command: Option<EventsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum EventsCommand {
    /// List Events, newest first
    List(FilterArgs),
    /// Show one Event
    Get(OneArgs),
    /// Show the whole causal chain of an Event as a tree
    Chain(OneArgs),
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The Event, as in evt_...
    event: EventId,
}

pub fn run(args: &EventsArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None => list(&FilterArgs::default(), client, out),
        Some(EventsCommand::List(filter)) => list(filter, client, out),
        Some(EventsCommand::Get(args)) => out.one(&client.get::<EventView>(&format!("/v1/events/{}", args.event))?),
        Some(EventsCommand::Chain(args)) => {
            let chain: ChainView = client.get(&format!("/v1/events/{}/chain", args.event))?;
            let width = out.width();
            out.shaped(&chain, |chain, _| tree(chain, width))
        }
    }?;
    Ok(Exit::Done)
}

fn list(filter: &FilterArgs, client: &Client, out: &mut Output) -> Result<()> {
    out.page(&page::<EventView>(client, "/v1/events", filter, None)?)
}
