//! `open-conduit emit`

use conduit_api::views::{EmitReply, EmitRequest};
use conduit_api::{EventId, ScopeId, WorkId};
use conduit_client::{input, request_id};

use crate::connect::Connection;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Emit an Event as an operator
#[derive(Debug, clap::Args)]
pub struct EmitArgs {
    /// Type of the Event, as in demo.survey.requested
    #[arg(value_name = "TYPE")]
    kind: String,
    /// Data of the Event: a JSON object, @FILE, or -
    #[arg(value_name = "JSON")]
    document: Option<String>,
    /// The scope that accepts it
    #[arg(long)]
    scope: ScopeId,
    /// Correlation key
    #[arg(long, allow_hyphen_values = true)]
    key: Option<String>,
    /// Name of the schema that the data follows
    #[arg(long, allow_hyphen_values = true)]
    schema: Option<String>,
    /// The Work that the Event is for, as in wrk_...
    #[arg(long, value_name = "WORK")]
    work: Option<WorkId>,
    /// The Event that it follows from, as in evt_...
    #[arg(long, value_name = "EVENT")]
    cause: Option<EventId>,
    /// Name the order; under the same name it is carried out once
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

/// What can be wrong with the input is told before anything is dialled.
pub fn run(args: &EmitArgs, connection: &Connection, out: &mut Output) -> Result<Exit> {
    let request = EmitRequest {
        scope_id: args.scope.clone(),
        kind: args.kind.clone(),
        data: input::object(args.document.as_deref())?,
        schema: args.schema.clone(),
        correlation_key: args.key.clone(),
        work_id: args.work.clone(),
        cause_id: args.cause.clone(),
    };
    let name = args.request_id.clone().map_or_else(request_id, Ok)?;
    let reply: EmitReply =
        connection.client()?.post_keyed("/v1/events", &request, &name).map_err(Failure::keyed(&name))?;
    out.shaped(&reply, |reply, _| format!("{}\n", reply.event.id))?;
    Ok(Exit::Done)
}
