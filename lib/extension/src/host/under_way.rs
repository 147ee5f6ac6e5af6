//! Requests that this host carries out at this moment, so that the same one attaches to the first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use conduit_api::toolbelt::CallResponse;
use conduit_api::{ApiError, Code};
use conduit_store::digest::Sha256Digest;
use conduit_toolbelt::hosted::RequestKey;
use tokio::sync::watch;

/// How a request ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    /// The gate that decided, if one did (G05).
    pub gate: Option<String>,
    pub answer: Result<CallResponse, ApiError>,
}

type Table = Rc<RefCell<HashMap<RequestKey, (Sha256Digest, watch::Receiver<Option<Ended>>)>>>;

/// The table of requests.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Table);

/// The request that is carried out; it leaves the table when it has ended, or is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    key: RequestKey,
    table: Table,
    ended: watch::Sender<Option<Ended>>,
}

/// Somebody who waits for the end of a request.
#[derive(Debug)]
pub(super) struct Place(watch::Receiver<Option<Ended>>);

impl UnderWay {
    /// Enters a request. `Err`: it is under way already, with a place at it, or without one when its content is another.
    pub fn enter(&self, key: &RequestKey, digest: Sha256Digest) -> Result<Entry, Option<Place>> {
        let mut table = self.0.borrow_mut();
        if let Some((asked, ended)) = table.get(key) {
            return Err((*asked == digest).then(|| Place(ended.clone())));
        }
        let (ended, waits) = watch::channel(None);
        table.insert(key.clone(), (digest, waits));
        Ok(Entry { key: key.clone(), table: Rc::clone(&self.0), ended })
    }

    pub fn has(&self, key: &RequestKey) -> bool {
        self.0.borrow().contains_key(key)
    }

    /// A place at the request `key`, while it is under way. Its content was compared by whoever asks.
    pub fn of(&self, key: &RequestKey) -> Option<Place> {
        self.0.borrow().get(key).map(|(_, ended)| Place(ended.clone()))
    }
}

impl Entry {
    pub fn place(&self) -> Place {
        Place(self.ended.subscribe())
    }

    /// Tells everybody who waits, and leaves the table.
    pub fn end(self, ended: Ended) {
        self.ended.send_replace(Some(ended));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.borrow_mut().remove(&self.key);
    }
}

impl Place {
    /// How the request ended; `internal` when its task ended without saying so.
    pub async fn ended(mut self) -> Ended {
        match self.0.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or_else(gone),
            Err(_) => gone(),
        }
    }
}

fn gone() -> Ended {
    let message = "the request ended without an answer; ask again under the same request ID";
    Ended { gate: None, answer: Err(ApiError::new(Code::Internal, message)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::ExecutionId;
    use serde_json::json;

    fn key() -> RequestKey {
        RequestKey { execution: ExecutionId::from_parts(1, 1), operation: "x.y".into(), request_id: "r".into() }
    }

    /// T14
    #[tokio::test]
    async fn the_same_request_attaches_a_changed_one_does_not_and_an_ended_one_is_entered_anew() {
        let table = UnderWay::default();
        let first = table.enter(&key(), [1; 32]).unwrap();
        let Err(Some(second)) = table.enter(&key(), [1; 32]) else { panic!("it is under way") };
        assert!(matches!(table.enter(&key(), [2; 32]), Err(None)));
        let third = table.of(&key()).unwrap();
        first.end(Ended { gate: None, answer: Ok(CallResponse::new(json!(7))) });
        assert_eq!(second.ended().await.answer.unwrap().output, json!(7));
        assert_eq!(third.ended().await.answer.unwrap().output, json!(7));
        assert!(table.of(&key()).is_none());
        let again = table.enter(&key(), [2; 32]).unwrap();
        let waiting = again.place();
        drop(again);
        assert_eq!(
            waiting.ended().await.answer.unwrap_err().code,
            Code::Internal,
            "a task that dies leaves nobody waiting"
        );
    }
}
