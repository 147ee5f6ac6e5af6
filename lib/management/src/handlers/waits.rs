//! Waits: who waits for what.

use conduit_api::WaitId;
use conduit_coordination::queries::waits as shown;
use conduit_daemon::http::Reply;

use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::Host;

const STATES: [&str; 5] = ["pending", "matched", "timed_out", "woken", "cancelled"];

pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let paging = ask.page("waits", &STATES)?;
    let listed = host.read(|r, _| Ok(shown::list(r, paging.filter(), paging.window())?))?;
    Ok(Reply::json(200, &paging.shown(listed)))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: WaitId = ask.id("wait")?;
    let found = host.read(|r, _| Ok(shown::get(r, &id)?))?;
    Ok(Reply::json(200, &found.ok_or_else(|| Error::not_found("wait"))?))
}
