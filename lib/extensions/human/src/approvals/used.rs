//! What a call uses up, in the transaction that commits its intent, and what is given back when it did nothing (G07).
//!
//! So a later gate's refusal, or a handler's, leaves an approval as it was; and since an intent and the use of its approval
//! stand or fall together, a crash leaves neither without the other.

use conduit_api::ExecutionId;
use conduit_extension::Pass;
use conduit_extension::desk::Fault;
use conduit_store::digest::Sha256Digest;
use conduit_store::{Now, Write, named_params};

use super::rows::{Asked, AskedCall, open};
use crate::verdict::{self, Verdict};

const IS_BY: &str = "
    SELECT EXISTS (SELECT 1 FROM approval INDEXED BY approval_used
                    WHERE used_execution_id = :execution AND call_digest = :digest AND state = 'consumed'
                      AND used_request_id = :request)";
const TAKE: &str = "
    UPDATE approval SET used_execution_id = :execution, revision = revision + 1 WHERE id = :id AND state = 'approved'";
const CONSUME: &str = "
    UPDATE approval SET state = 'consumed', open = 0, closed_at_us = :at, used_execution_id = :execution,
                        used_request_id = :request, revision = revision + 1
     WHERE id = :id AND state = 'approved'";
/// A Work that has ended asks for nothing, and a call that was met by a newer request goes on with that one.
const GIVE_BACK: &str = "
    UPDATE approval INDEXED BY approval_used
       SET state = 'approved', open = 1, closed_at_us = NULL, used_execution_id = NULL, used_request_id = NULL,
           revision = revision + 1
     WHERE used_execution_id = :execution AND call_digest = :digest AND state = 'consumed' AND used_request_id = :request
       AND EXISTS (SELECT 1 FROM work w WHERE w.id = approval.work_id AND w.finished_at_us IS NULL)
       AND NOT EXISTS (SELECT 1 FROM approval o INDEXED BY approval_open
                        WHERE o.work_id = approval.work_id AND o.call_digest = approval.call_digest AND o.open = 1)";

/// Whether an approval was used up by this very request: it was let through before, and nothing says that it was carried out.
pub(super) fn is_by(tx: &Write<'_>, asked: &Asked<'_>, call: &AskedCall<'_>) -> Result<bool, Fault> {
    let params = named_params! {
        ":execution": call.execution.as_str(), ":digest": asked.digest, ":request": call.request_id,
    };
    Ok(tx.one("looking for an approval", IS_BY, params, |row| row.get(0))?)
}

/// Uses up what lets `asked` through, if that still stands.
pub(crate) fn pass(tx: &Write<'_>, asked: &Asked<'_>, now: Now) -> Result<Pass, Fault> {
    let Some(call) = &asked.call else { return Ok(Pass::Free) };
    if is_by(tx, asked, call)? {
        return Ok(Pass::Free);
    }
    let Some((id, standing)) = open(tx, asked)? else { return Ok(Pass::Over) };
    let execution = call.execution.as_str();
    match verdict::decide(standing, Some(call.execution), now.wall) {
        Verdict::Through => Ok(Pass::Free),
        // From now on it is this execution's, whatever becomes of the call.
        Verdict::Take => {
            tx.execute("taking an approval", TAKE, named_params! { ":id": id.as_str(), ":execution": execution })?;
            Ok(Pass::Free)
        }
        Verdict::Consume => {
            let params = named_params! {
                ":id": id.as_str(), ":execution": execution, ":request": call.request_id, ":at": now.wall.0,
            };
            tx.execute("using an approval up", CONSUME, params)?;
            Ok(Pass::Used)
        }
        Verdict::Park | Verdict::Expire | Verdict::Deny { .. } | Verdict::AskAnew => Ok(Pass::Over),
    }
}

/// What this request used up is used up for good: the same request is another call from now on.
pub(crate) fn close(
    tx: &Write<'_>,
    execution: &ExecutionId,
    digest: &Sha256Digest,
    request: &str,
) -> Result<(), Fault> {
    // No request has the empty ID.
    const CLOSE: &str = "
        UPDATE approval INDEXED BY approval_used SET used_request_id = '', revision = revision + 1
         WHERE used_execution_id = :execution AND call_digest = :digest AND state = 'consumed' AND used_request_id = :request";
    let params = named_params! { ":execution": execution.as_str(), ":digest": digest, ":request": request };
    tx.execute("closing an approval", CLOSE, params)?;
    Ok(())
}

/// Gives back what this request used up.
pub(crate) fn give_back(
    tx: &Write<'_>,
    execution: &ExecutionId,
    digest: &Sha256Digest,
    request: &str,
) -> Result<(), Fault> {
    let params = named_params! { ":execution": execution.as_str(), ":digest": digest, ":request": request };
    tx.execute("giving an approval back", GIVE_BACK, params)?;
    Ok(())
}
