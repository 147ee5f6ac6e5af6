//! Reads of the suite's own extensions, carried out where the call arrives and in the call's own view, like `read_context`:
//! there is nothing to commit, so the way to the extension host would only cost time, and the daemon need not run.
//!
//! Only what no gate judges is read here; gates are the host's.

use std::collections::BTreeMap;

use conduit_store::Read;
use serde_json::{Map, Value};

use crate::error::Result;
use crate::token::TokenRecord;

/// One call of an operation that only reads. It passed every check, and its input keeps the operation's schema.
pub struct Look<'l> {
    /// The view that the call was decided in.
    pub read: &'l Read<'l>,
    /// The caller.
    pub token: &'l TokenRecord,
    pub input: &'l Map<String, Value>,
    /// Calls that it made in the last minute, as its budget counts them.
    pub calls: u64,
}

/// Carries a look out.
pub type Reader = fn(&Look<'_>) -> Result<Value>;

/// The reads that a process can carry out itself, by operation. Each is of the kind `read` in the registry.
#[derive(Debug, Clone, Default)]
pub struct Readers(BTreeMap<&'static str, Reader>);

impl Readers {
    pub fn new(readers: impl IntoIterator<Item = (&'static str, Reader)>) -> Self {
        Self(readers.into_iter().collect())
    }

    pub fn get(&self, operation: &str) -> Option<Reader> {
        self.0.get(operation).copied()
    }

    /// The operations, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}
