//! The channel to a package's process: questions and their answers, in any order, within bounds.
//!
//! Whatever goes wrong on it ends it, once, for everybody who waits; [`Connection::broken`] says so to whoever then ends
//! the process. A question that nobody waits for any more is cancelled, and has to be answered soon all the same; until then it
//! keeps its slot, so that no package works on more than it may be asked at a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use conduit_api::ExecutionId;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

use super::Bounds;
use super::protocol::{self, Request, method};
use crate::Failure;

type Answered = Result<Value, Failure>;

/// One channel. Dropped, it is closed, which a package takes as its end.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Rc<Shared>,
    reader: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    bounds: Bounds,
    next: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Answered>>>,
    write: Mutex<OwnedWriteHalf>,
    slots: Arc<Semaphore>,
    /// The part of the slots that each execution may have, of those that have one now.
    shares: RefCell<HashMap<ExecutionId, Arc<Semaphore>>>,
    broken: watch::Sender<Option<String>>,
}

impl Connection {
    /// Listens to `stream`. Runs inside a `LocalSet`. Error: a stream that cannot be waited for.
    pub fn new(stream: std::os::unix::net::UnixStream, bounds: Bounds) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(stream)?.into_split();
        let shared = Rc::new(Shared {
            bounds,
            next: Cell::new(1),
            waiting: RefCell::default(),
            write: Mutex::new(write),
            slots: Arc::new(Semaphore::new(bounds.in_flight)),
            shares: RefCell::default(),
            broken: watch::channel(None).0,
        });
        let listening = Rc::clone(&shared);
        let reader = tokio::task::spawn_local(async move {
            let why = listening.listen(read).await;
            listening.end(why);
        });
        Ok(Self { shared, reader })
    }

    /// Asks on behalf of an execution, if it is one, and waits for the answer. Dropped before that, the question is cancelled.
    ///
    /// `Unavailable` when it was not sent; `Failed` when the channel ended under way.
    pub async fn ask<P: Serialize>(&self, of: Option<&ExecutionId>, method: &str, params: P) -> Answered {
        let shared = &self.shared;
        let slot = shared.slot(of).await?;
        let id = shared.next.get();
        shared.next.set(id + 1);
        let line = shared.line(&Request { jsonrpc: "2.0", id: Some(id), method, params })?;
        let (answer, answered) = oneshot::channel();
        {
            // Nothing is awaited between the look and the entry.
            if let Some(why) = shared.broken.borrow().clone() {
                return Err(Failure::Unavailable(why));
            }
            shared.waiting.borrow_mut().insert(id, answer);
        }
        let mut asked = Asked { id, shared, sent: false, under_way: Some((answered, slot)) };
        shared.send(&line).await?;
        asked.sent = true;
        let done = match asked.under_way.as_mut() {
            Some((answered, _)) => answered.await.unwrap_or_else(|_| Err(shared.failure())),
            None => Err(shared.failure()),
        };
        asked.under_way = None;
        done
    }

    /// Completes when the channel has ended, with the reason.
    pub async fn broken(&self) -> String {
        let mut broken = self.shared.broken.subscribe();
        let ended = broken.wait_for(Option::is_some).await.map(|why| why.clone());
        ended.ok().flatten().unwrap_or_else(|| "it was closed".into())
    }

    pub fn is_broken(&self) -> bool {
        self.shared.broken.borrow().is_some()
    }

    /// Whether a question waits for its answer.
    pub fn is_busy(&self) -> bool {
        !self.shared.waiting.borrow().is_empty()
    }

    /// Ends the channel for everybody who waits.
    pub fn end(&self, why: &str) {
        self.shared.end(why.to_owned());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
        self.shared.end("it was closed".into());
    }
}

/// A place among the questions under way: one of all, and one of its execution's share.
#[derive(Debug)]
struct Slot {
    _of_all: OwnedSemaphorePermit,
    _of_share: Option<OwnedSemaphorePermit>,
}

impl Shared {
    /// Waits for a place. An execution that has its share waits for its own questions, and keeps no other one waiting.
    async fn slot(&self, of: Option<&ExecutionId>) -> Result<Slot, Failure> {
        let ended = |_| Failure::Unavailable("the package has ended".into());
        let of_share = match of.map(|execution| self.share(execution)) {
            Some(share) => Some(share.acquire_owned().await.map_err(ended)?),
            None => None,
        };
        let of_all = Arc::clone(&self.slots).acquire_owned().await.map_err(ended)?;
        Ok(Slot { _of_all: of_all, _of_share: of_share })
    }

    fn share(&self, execution: &ExecutionId) -> Arc<Semaphore> {
        let mut shares = self.shares.borrow_mut();
        // Those that nobody has or waits for any more.
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        let whole = || Arc::new(Semaphore::new(self.bounds.in_flight_of_execution));
        Arc::clone(shares.entry(execution.clone()).or_insert_with(whole))
    }

    /// Reads lines until the channel ends; returns why.
    async fn listen(&self, mut read: OwnedReadHalf) -> String {
        let (mut line, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let bytes = match read.read(&mut buffer).await {
                Ok(0) => return "its process ended or closed its output".into(),
                Ok(bytes) => &buffer[..bytes],
                Err(error) => return format!("its output cannot be read: {error}"),
            };
            let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
            while let Some(part) = parts.next() {
                if line.len() + part.len() > self.bounds.line_bytes {
                    return format!("a line of its output is longer than {} bytes", self.bounds.line_bytes);
                }
                line.extend_from_slice(part);
                if parts.peek().is_some() {
                    if let Err(why) = self.take(&line) {
                        return why;
                    }
                    line.clear();
                }
            }
        }
    }

    fn take(&self, line: &[u8]) -> Result<(), String> {
        let (id, answered) = protocol::answer(line, self.bounds.line_bytes)?;
        let asked = self.waiting.borrow_mut().remove(&id);
        let asked = asked.ok_or("a line answers a question that was not asked, or was answered before")?;
        // Whoever asked may have gone.
        let _ = asked.send(answered);
        Ok(())
    }

    fn line<P: Serialize>(&self, request: &Request<'_, P>) -> Result<Vec<u8>, Failure> {
        let unsent = |why: String| Failure::Unavailable(why);
        let mut line = serde_json::to_vec(request).map_err(|error| unsent(format!("no line can hold it: {error}")))?;
        if line.len() > self.bounds.line_bytes {
            return Err(unsent(format!("the question is longer than {} bytes", self.bounds.line_bytes)));
        }
        line.push(b'\n');
        Ok(line)
    }

    /// Writes a whole line. Who is dropped in the middle of it has ended the channel: half a line is none.
    async fn send(&self, line: &[u8]) -> Result<(), Failure> {
        struct Whole<'s>(&'s Shared, bool);
        impl Drop for Whole<'_> {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.end("it did not take a question in time".into());
                }
            }
        }
        let mut write = self.write.lock().await;
        let mut whole = Whole(self, false);
        let written = write.write_all(line).await;
        whole.1 = true;
        written.map_err(|_| {
            self.end("its input is closed".into());
            self.failure()
        })
    }

    fn end(&self, why: String) {
        self.broken.send_if_modified(|broken| {
            let first = broken.is_none();
            if first {
                *broken = Some(why);
            }
            first
        });
        self.slots.close();
        for (_, asked) in self.waiting.borrow_mut().drain() {
            let _ = asked.send(Err(self.failure())); // whoever asked may have gone
        }
    }

    fn failure(&self) -> Failure {
        Failure::Failed(self.broken.borrow().clone().unwrap_or_else(|| "it ended".into()))
    }
}

/// A question that is under way.
struct Asked<'s> {
    id: u64,
    shared: &'s Rc<Shared>,
    /// Whether the package has it; one that it has not is only forgotten.
    sent: bool,
    /// Its answer and its slot; `None` once it is answered.
    under_way: Option<(oneshot::Receiver<Answered>, Slot)>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some((answered, slot)) = self.under_way.take() else { return };
        if !self.sent {
            self.shared.waiting.borrow_mut().remove(&self.id);
        }
        if !self.shared.waiting.borrow().contains_key(&self.id) {
            return;
        }
        let (id, shared) = (self.id, Rc::clone(self.shared));
        tokio::task::spawn_local(async move {
            let cancelled = async {
                let params = json!({"id": id});
                let line = shared.line(&Request { jsonrpc: "2.0", id: None, method: method::CANCEL, params })?;
                shared.send(&line).await?;
                // What it answers nobody wants to know.
                let _ = answered.await;
                Ok::<_, Failure>(())
            };
            if timeout(shared.bounds.cancelled, cancelled).await.is_err() {
                shared.end("it answered neither a question in time nor its cancellation".into());
            }
            drop(slot); // it is answered, or the channel has ended
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::digest::sha256;
    use tokio::io::{AsyncBufReadExt, BufReader};

    /// X01
    #[tokio::test]
    async fn a_question_that_was_dropped_keeps_its_slot_until_the_package_has_answered_it() {
        let asked = async {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let (read, mut write) = UnixStream::from_std(theirs).unwrap().into_split();
            let mut lines = BufReader::new(read).lines();
            let connection = Rc::new(Connection::new(ours, Bounds { in_flight: 1, ..Bounds::default() }).unwrap());
            let ask = |what: &'static str| {
                let connection = Rc::clone(&connection);
                tokio::task::spawn_local(async move { connection.ask(None, what, json!({})).await })
            };
            let mut told =
                async || -> Value { serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap() };

            let first = ask("first");
            assert_eq!(told().await["method"], "first");
            first.abort();
            assert_eq!(told().await["method"], "$/cancel");
            let second = ask("second");
            tokio::task::yield_now().await;
            assert_eq!(connection.shared.slots.available_permits(), 0);
            assert_eq!(connection.shared.waiting.borrow().keys().copied().collect::<Vec<_>>(), [1]);

            write.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n").await.unwrap();
            let question = told().await;
            assert_eq!((&question["method"], &question["id"]), (&json!("second"), &json!(2)));
            write.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"a\":1}}\n").await.unwrap();
            assert_eq!(second.await.unwrap(), Ok(json!({"a": 1})));
            assert_eq!(connection.shared.slots.available_permits(), 1);
            assert!(!connection.is_broken());
        };
        tokio::task::LocalSet::new().run_until(asked).await;
    }

    /// X01
    #[tokio::test]
    async fn an_execution_whose_questions_hang_leaves_room_for_every_other_one() {
        let asked = async {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let (read, _write) = UnixStream::from_std(theirs).unwrap().into_split();
            let mut lines = BufReader::new(read).lines();
            let bounds = Bounds { in_flight: 3, in_flight_of_execution: 2, ..Bounds::default() };
            let connection = Rc::new(Connection::new(ours, bounds).unwrap());
            let ask = |of: &str, what: &'static str| {
                let (connection, of) = (Rc::clone(&connection), ExecutionId::from_digest(&sha256(of.as_bytes())));
                tokio::task::spawn_local(async move { connection.ask(Some(&of), what, json!({})).await })
            };
            let hanging: Vec<_> = (0..40).map(|_| ask("one", "hang")).collect();
            let other = ask("other", "short");
            let mut told = Vec::new();
            for _ in 0..3 {
                let line: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
                told.push(line["method"].as_str().unwrap().to_owned());
            }
            told.sort();
            assert_eq!(told, ["hang", "hang", "short"]);
            assert_eq!(connection.shared.waiting.borrow().len(), 3);

            connection.end("over");
            for question in hanging.into_iter().chain([other]) {
                assert!(question.await.unwrap().is_err(), "whoever waits for a place hears of the end, too");
            }
            let last = connection.shared.share(&ExecutionId::from_digest(&sha256(b"third")));
            assert_eq!((connection.shared.shares.borrow().len(), last.available_permits()), (1, 2));
        };
        tokio::task::LocalSet::new().run_until(asked).await;
    }

    /// X01
    #[tokio::test]
    async fn a_question_that_was_dropped_before_it_was_sent_is_forgotten_and_not_cancelled() {
        let asked = async {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let connection = Rc::new(Connection::new(ours, Bounds::default()).unwrap());
            let writing = connection.shared.write.lock().await;
            let task = Rc::clone(&connection);
            let question = tokio::task::spawn_local(async move { task.ask(None, "late", json!({})).await });
            while !connection.is_busy() {
                tokio::task::yield_now().await;
            }
            question.abort();
            assert!(question.await.unwrap_err().is_cancelled());
            drop(writing);
            tokio::task::yield_now().await;
            assert!(!connection.is_busy() && !connection.is_broken());
            theirs.set_nonblocking(true).unwrap();
            let said = std::io::Read::read(&mut &theirs, &mut [0; 8]).unwrap_err();
            assert_eq!(said.kind(), std::io::ErrorKind::WouldBlock);
        };
        tokio::task::LocalSet::new().run_until(asked).await;
    }
}
