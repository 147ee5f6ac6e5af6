//! Approvals: what the extension `human` asks for, and an operator's answer (G07). Each answer is one transaction of this
//! server's own: it needs no daemon, and cannot be half done.

use conduit_api::ApprovalId;
use conduit_api::views::{ApprovalView, ApproveRequest, DenyRequest};
use conduit_daemon::http::Reply;
use conduit_extension_human::approvals::{self as shown, Decision};
use conduit_store::{Clock, Now, Read};

use crate::ask::{Ask, check_length};
use crate::error::{Error, Result};
use crate::host::Host;

/// Longest note, in bytes: it reaches the caller in the message of a refusal.
const NOTE_BYTES_MAX: usize = 2048;

pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let paging = ask.page("approvals", &shown::STATES)?;
    let listed = host.read(|r, _| Ok(shown::list(r, paging.filter(), paging.window(), Clock.now())?))?;
    Ok(Reply::json(200, &paging.shown(listed)))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: ApprovalId = ask.id("approval")?;
    Ok(Reply::json(200, &host.read(|r, _| view(r, &id, Clock.now()))?))
}

fn view(r: &Read<'_>, id: &ApprovalId, now: Now) -> Result<ApprovalView> {
    shown::get(r, id, now)?.ok_or_else(|| Error::not_found("approval"))
}

/// Lets the call through that the request was made for. Errors: `not_found`, `illegal_state`, `invalid_request`.
pub(crate) fn approve(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: ApproveRequest = ask.body()?;
    let decision = Decision::Approve { reach: request.reach, until: request.until };
    decide(host, ask, decision, request.note.as_deref())
}

/// Refuses the call that the request was made for, or withdraws its approval. Errors: `not_found`, `illegal_state`.
pub(crate) fn deny(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: DenyRequest = ask.body()?;
    decide(host, ask, Decision::Deny, request.note.as_deref())
}

fn decide(host: &mut Host, ask: &Ask, decision: Decision, note: Option<&str>) -> Result<Reply> {
    let id: ApprovalId = ask.id("approval")?;
    note.map_or(Ok(()), |note| check_length("note", note, NOTE_BYTES_MAX))?;
    let (actor, now) = (ask.operator.actor(), Clock.now());
    let view = host.write(|tx, _| {
        shown::decide(tx, &id, decision, note, &actor, now)?;
        view(tx, &id, now)
    })?;
    Ok(Reply::json(200, &view))
}
