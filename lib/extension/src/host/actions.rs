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

impl ExtensionHost {
    /// Carries an operator's action out, once for each key. Runs inside a `LocalSet`.
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
        let turn = Rc::clone(self.actions_under_way.borrow_mut().entry(delivery.clone()).or_default());
        let done = {
            let _turn = turn.lock().await;
            // Another copy of the request may have been carried out meanwhile.
            match self.ask_to_act(asked)? {
                Asked::Done(done) => Ok(*done),
                Asked::Open(open) => self.carry_out_open(asked, *open, &delivery).await,
            }
        };
        if Rc::strong_count(&turn) <= 2 {
            self.actions_under_way.borrow_mut().remove(&delivery); // nobody else waits for it
        }
        done
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
