//! Doubts: requests of which nobody knows whether they were carried out, and an operator's word about one.

use conduit_api::views::DoubtResolveRequest;
use conduit_daemon::http::Reply;
use conduit_store::Clock;
use conduit_toolbelt::doubts;

use crate::ask::Ask;
use crate::error::Result;
use crate::host::Host;

pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let paging = ask.page("doubts", &[])?;
    let listed = host.read(|r, _| Ok(doubts::list(r, paging.window())?))?;
    Ok(Reply::json(200, &paging.shown(listed)))
}

/// Says what happened to one. Errors: `illegal_state`, `invalid_request`.
pub(crate) fn resolve(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: DoubtResolveRequest = ask.body()?;
    let (actor, now) = (ask.operator.actor(), Clock.now());
    let doubt = host.write(|tx, _| Ok(doubts::resolve(tx, &request, &actor, now)?))?;
    Ok(Reply::json(200, &doubt))
}
