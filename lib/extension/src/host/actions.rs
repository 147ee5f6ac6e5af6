//! Operators' actions: an extension carries one out, and an Event has it on record (M04, M06).
//!
//! Each runs in a task of its own: who hangs up ends nothing, and finds what it came to under the same key.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use conduit_api::host::HostAct;
use conduit_api::views::ActionReply;
use conduit_api::{ApiError, Code};
use conduit_toolbelt::hosted::Asked;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{ExtensionHost, HANDLER_TIME_MAX, alone, refusal_of};
use crate::{Action, Failure};

/// Bytes of an action's output, as JSON: it stands in an Event.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// A turn for each request that is carried out, so that a second copy of it waits for the first.
pub(super) type UnderWay = RefCell<BTreeMap<String, Rc<Mutex<()>>>>;

/// A copy of a request that waits for its turn, or has it. The last one to go takes the turn along.
struct Queued<'u> {
    under_way: &'u UnderWay,
    delivery: &'u str,
    turn: Rc<Mutex<()>>,
}

impl<'u> Queued<'u> {
    fn at(under_way: &'u UnderWay, delivery: &'u str) -> Self {
        let turn = Rc::clone(under_way.borrow_mut().entry(delivery.to_owned()).or_default());
        Self { under_way, delivery, turn }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        // Its own and the map's: nobody else waits for it.
        if Rc::strong_count(&self.turn) <= 2 {
            self.under_way.borrow_mut().remove(self.delivery);
        }
    }
}

impl ExtensionHost {
    /// Has an operator's action carried out, once for each key while the daemon lives. Runs inside a `LocalSet`.
    ///
    /// Errors: those of [`conduit_toolbelt::hosted::Hosted::ask_to_act`]; the extension's own; `extension_unavailable`.
    pub async fn act(self: &Rc<Self>, asked: HostAct) -> Result<ActionReply, ApiError> {
        let host = Rc::clone(self);
        let task = tokio::task::spawn_local(async move { host.carry_out_action(&asked).await });
        task.await.unwrap_or_else(|_| Err(ApiError::new(Code::Internal, "the action ended without an answer")))
    }

    async fn carry_out_action(&self, asked: &HostAct) -> Result<ActionReply, ApiError> {
        let delivery = match self.ask_to_act(asked)? {
            Asked::Done(done) => return Ok(*done),
            Asked::Open(open) => open.delivery,
        };
        let queued = Queued::at(&self.actions_under_way, &delivery);
        let _turn = queued.turn.lock().await;
        // Another copy of the request may have been carried out meanwhile.
        match self.ask_to_act(asked)? {
            Asked::Done(done) => Ok(*done),
            Asked::Open(open) => self.carry_out_open(asked, *open, &delivery).await,
        }
    }

    fn ask_to_act(&self, asked: &HostAct) -> Result<Asked, ApiError> {
        self.toolbelt.borrow_mut().ask_to_act(asked).map_err(|error| error.to_api())
    }

    async fn carry_out_open(
        &self,
        asked: &HostAct,
        mut open: conduit_toolbelt::hosted::Action,
        delivery: &str,
    ) -> Result<ActionReply, ApiError> {
        delivery.clone_into(&mut open.delivery); // without a key each look names another
        let extension = self.extension(&asked.extension).ok_or_else(|| unavailable("it is not running"))?;
        let action = Action {
            name: asked.action.clone(),
            scope_id: asked.scope_id.clone(),
            request_id: open.delivery.clone(),
            input: asked.input.clone(),
            actor: open.operator.actor(),
            settings: std::mem::take(&mut open.settings),
        };
        let acting = alone(async move { extension.act(&action).await });
        let acted =
            timeout(HANDLER_TIME_MAX, acting).await.unwrap_or_else(|_| Err(Failure::Failed("it took too long".into())));
        let output = match acted {
            Ok(output) => output,
            Err(Failure::Refused(refusal)) => return Err(refusal_of(refusal).unwrap_or_else(|why| unavailable(&why))),
            Err(Failure::Unavailable(why) | Failure::Failed(why)) => return Err(unavailable(&why)),
        };
        if serde_json::to_vec(&output).map_or(true, |bytes| bytes.len() > OUTPUT_BYTES_MAX) {
            return Err(unavailable("its output is too large"));
        }
        let reply = self.toolbelt.borrow_mut().acted(asked, &open, output).map_err(|error| error.to_api())?;
        (self.ring)();
        Ok(reply)
    }
}

fn unavailable(why: &str) -> ApiError {
    tracing::warn!(why, "an extension did not carry an action out");
    let message = "the extension did not answer as it should; ask again under the same key";
    ApiError::new(Code::ExtensionUnavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X01
    #[tokio::test]
    async fn a_turn_is_kept_while_a_copy_of_its_request_waits_and_goes_with_the_last_however_that_ends() {
        async fn fails(under_way: &UnderWay) -> Result<(), ()> {
            let queued = Queued::at(under_way, "one");
            let _turn = queued.turn.lock().await;
            Err(())
        }
        let under_way = UnderWay::default();
        let (first, second) = (Queued::at(&under_way, "one"), Queued::at(&under_way, "one"));
        let turn = first.turn.lock().await;
        assert!(second.turn.try_lock().is_err());
        drop(turn);
        drop(first);
        assert_eq!(under_way.borrow().len(), 1);
        drop(second);
        assert!(under_way.borrow().is_empty());
        fails(&under_way).await.unwrap_err();
        assert!(under_way.borrow().is_empty());
    }
}
