//! `open-conduit work`

use conduit_api::views::{WorkCreateRequest, WorkReply, WorkView};
use conduit_api::{ScopeId, WorkId};
use conduit_client::{Client, input, request_id};

use super::{FilterArgs, nothing, page};
use crate::connect::Connection;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// List, show, create, cancel and retry Works
#[derive(Debug, clap::Args)]
pub struct WorkArgs {
    #[command(subcommand)]
    command: Option<WorkCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum WorkCommand {
    /// List Works, newest first; with --work, the children of that Work
    List(ListArgs),
    /// Show one Work
    Get(OneArgs),
    Create(CreateArgs),
    /// End a Work: its waits, its tokens and its execution
    Cancel(OneArgs),
    /// Let a blocked, failed or cancelled Work go on
    Retry(OneArgs),
}

#[derive(Debug, Default, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only in this state: ready, running, waiting, blocked, succeeded, failed or cancelled
    #[arg(long = "in", value_name = "STATE")]
    in_state: Option<String>,
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The Work, as in wrk_...
    work: WorkId,
}

/// Create a Work; prints its ID
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// The binding that runs it
    binding: String,
    /// What it is to know: a JSON object, @FILE, or -
    #[arg(value_name = "JSON")]
    document: Option<String>,
    /// The scope that it is in
    #[arg(long)]
    scope: ScopeId,
    #[arg(long, allow_hyphen_values = true)]
    title: Option<String>,
    /// A correlation key that it owns; may be given more than once
    #[arg(long = "key", value_name = "KEY", allow_hyphen_values = true)]
    keys: Vec<String>,
    /// Name the order; under the same name it is carried out once
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

pub fn run(args: &WorkArgs, connection: &Connection, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None => list(&ListArgs::default(), &connection.client()?, out),
        Some(WorkCommand::List(args)) => list(args, &connection.client()?, out),
        Some(WorkCommand::Get(args)) => out.one(&connection.client()?.get::<WorkView>(&at(&args.work, ""))?),
        Some(WorkCommand::Create(args)) => create(args, connection, out),
        Some(WorkCommand::Cancel(args)) => order(args, "/cancel", &connection.client()?, out),
        Some(WorkCommand::Retry(args)) => order(args, "/retry", &connection.client()?, out),
    }?;
    Ok(Exit::Done)
}

fn at(work: &WorkId, order: &str) -> String {
    format!("/v1/work/{work}{order}")
}

fn list(args: &ListArgs, client: &Client, out: &mut Output) -> Result<()> {
    out.page(&page::<WorkView>(client, "/v1/work", &args.filter, args.in_state.as_deref())?)
}

fn order(args: &OneArgs, order: &str, client: &Client, out: &mut Output) -> Result<()> {
    let reply: WorkReply = client.post(&at(&args.work, order), &nothing())?;
    out.one(&reply.work)
}

/// What can be wrong with the input is told before anything is dialled.
fn create(args: &CreateArgs, connection: &Connection, out: &mut Output) -> Result<()> {
    let request = WorkCreateRequest {
        scope_id: args.scope.clone(),
        binding: args.binding.clone(),
        title: args.title.clone(),
        data: input::object(args.document.as_deref())?,
        keys: args.keys.clone(),
    };
    let name = args.request_id.clone().map_or_else(request_id, Ok)?;
    let reply: WorkReply =
        connection.client()?.post_keyed("/v1/work", &request, &name).map_err(Failure::keyed(&name))?;
    // The ID alone, as `emit` has it, for a script to go on with.
    out.shaped(&reply.work, |work, _| format!("{}\n", work.id))
}
