//! `open-conduit artifacts`

use conduit_api::ArtifactId;
use conduit_api::views::ArtifactView;
use conduit_client::Client;

use super::{FilterArgs, page};
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::Output;

/// List and show artifacts, and print their bytes
#[derive(Debug, clap::Args)]
pub struct ArtifactsArgs {
    #[command(subcommand)]
    command: Option<ArtifactsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum ArtifactsCommand {
    /// List artifacts, newest first
    List(FilterArgs),
    /// Show one artifact
    Get(OneArgs),
    /// Print the bytes of an artifact as they are
    Cat(OneArgs),
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The artifact, as in art_...
    artifact: ArtifactId,
}

pub fn run(args: &ArtifactsArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None => list(&FilterArgs::default(), client, out),
        Some(ArtifactsCommand::List(filter)) => list(filter, client, out),
        Some(ArtifactsCommand::Get(args)) => {
            out.one(&client.get::<ArtifactView>(&format!("/v1/artifacts/{}", args.artifact))?)
        }
        Some(ArtifactsCommand::Cat(args)) => {
            client.download(&format!("/v1/artifacts/{}/content", args.artifact), out.raw())?;
            Ok(())
        }
    }?;
    Ok(Exit::Done)
}

fn list(filter: &FilterArgs, client: &Client, out: &mut Output) -> Result<()> {
    out.page(&page::<ArtifactView>(client, "/v1/artifacts", filter, None)?)
}
