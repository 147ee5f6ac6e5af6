//! Executions: the lists, and the order to stop one (M10).

use conduit_api::ExecutionId;
use conduit_api::views::{ExecutionReply, ExecutionView};
use conduit_coordination::executions;
use conduit_coordination::queries::executions as shown;
use conduit_daemon::http::Reply;
use conduit_store::{Clock, Read};

use super::Nothing;
use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::Host;

const STATES: [&str; 9] =
    ["claimed", "running", "parked", "succeeded", "failed", "cancelled", "timed_out", "lost", "orphaned"];

pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let paging = ask.page("executions", &STATES)?;
    let listed = host.read(|r, _| Ok(shown::list(r, paging.filter(), paging.window())?))?;
    Ok(Reply::json(200, &paging.shown(listed)))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: ExecutionId = ask.id("execution")?;
    Ok(Reply::json(200, &host.read(|r, _| view(r, &id))?))
}

fn view(r: &Read<'_>, id: &ExecutionId) -> Result<ExecutionView> {
    shown::get(r, id)?.ok_or_else(|| Error::not_found("execution"))
}

/// Fences one attempt; its Work is held `operator_cancelled` until a manual retry. Error: `illegal_state`.
pub(crate) fn cancel(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let _: Nothing = ask.body()?;
    let id: ExecutionId = ask.id("execution")?;
    let actor = ask.operator.actor();
    let execution = host.write(|tx, _| {
        executions::cancel(tx, &id, &actor, Clock.now())?;
        view(tx, &id)
    })?;
    Ok(Reply::json(200, &ExecutionReply { execution }))
}
