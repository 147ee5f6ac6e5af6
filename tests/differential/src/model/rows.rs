//! What an execution's requests left behind, as the model keeps it.

use std::collections::BTreeMap;

use crate::history::{Body, Rows};

/// A request: its operation and its ID.
pub(super) type Key = (String, String);

/// A request whose handler may run, or may have run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intent {
    pub body: Body,
    /// The instance of the host that ran it last.
    pub host: usize,
    pub in_doubt: bool,
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// What was asked under each request that has its answer.
    pub answers: BTreeMap<Key, Body>,
    pub intents: BTreeMap<Key, Intent>,
    /// What each delivery of `emit` told.
    pub deliveries: BTreeMap<String, u8>,
    /// Events, by whichever operation.
    pub events: usize,
    pub declarations: usize,
}

impl Kept {
    /// Intents of an execution that has ended are nobody's any more.
    pub fn count(&self, lives: bool) -> Rows {
        Rows {
            events: self.events,
            declarations: self.declarations,
            replays: self.answers.len(),
            intents: if lives { self.intents.len() } else { 0 },
        }
    }
}
