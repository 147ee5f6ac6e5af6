//! `open-conduit scopes`

use conduit_api::ScopeId;
use conduit_api::views::{Page, ScopeView};
use conduit_client::{Client, path};

use crate::exit::Exit;
use crate::failure::Result;
use crate::output::Output;

/// List scopes, or show one
#[derive(Debug, clap::Args)]
pub struct ScopesArgs {
    #[command(subcommand)]
    command: Option<ScopesCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum ScopesCommand {
    /// List every configured scope
    List,
    /// Show one scope
    Get { scope: ScopeId },
}

pub fn run(args: &ScopesArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None | Some(ScopesCommand::List) => out.page(&client.get::<Page<ScopeView>>("/v1/scopes")?)?,
        Some(ScopesCommand::Get { scope }) => {
            out.one(&client.get::<ScopeView>(&format!("/v1/scopes/{}", path::escape(scope.as_str())))?)?;
        }
    }
    Ok(Exit::Done)
}
