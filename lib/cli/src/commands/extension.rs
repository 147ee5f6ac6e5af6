//! `open-conduit extension`

use conduit_api::ScopeId;
use conduit_api::views::{ActionReply, ActionRequest, ExtensionView, Page};
use conduit_client::{input, path, request_id};

use crate::connect::Connection;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// List extensions, and have one carry out an action
#[derive(Debug, clap::Args)]
pub struct ExtensionArgs {
    #[command(subcommand)]
    command: ExtensionCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ExtensionCommand {
    /// List the extensions of this release and the installed packages, with their actions
    List,
    Act(ActArgs),
}

/// Have an extension carry out an action in a scope
#[derive(Debug, clap::Args)]
struct ActArgs {
    /// The action, as in words.forget
    action: String,
    /// Its input: a JSON object, @FILE, or -
    #[arg(value_name = "JSON")]
    document: Option<String>,
    /// The scope that it is done in
    #[arg(long)]
    scope: ScopeId,
    /// Name the order; under the same name it is carried out once
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

pub fn run(args: &ExtensionArgs, connection: &Connection, out: &mut Output) -> Result<Exit> {
    match &args.command {
        ExtensionCommand::List => out.page(&connection.client()?.get::<Page<ExtensionView>>("/v1/extensions")?)?,
        ExtensionCommand::Act(args) => act(args, connection, out)?,
    }
    Ok(Exit::Done)
}

/// What can be wrong with the input is told before anything is dialled.
fn act(args: &ActArgs, connection: &Connection, out: &mut Output) -> Result<()> {
    // The namespace is the extension's name.
    let extension = args.action.split('.').next().unwrap_or_default();
    let request = ActionRequest { scope_id: args.scope.clone(), input: input::object(args.document.as_deref())? };
    let name = args.request_id.clone().map_or_else(request_id, Ok)?;
    let target = format!("/v1/extensions/{}/actions/{}", path::escape(extension), path::escape(&args.action));
    let reply: ActionReply =
        connection.client()?.post_keyed(&target, &request, &name).map_err(Failure::keyed(&name))?;
    out.one(&reply)
}
