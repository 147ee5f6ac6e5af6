//! The endpoints that are served, each under the key of its run directory: who owns which socket, and nothing about
//! how it came to be.

use std::collections::HashMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use conduit_api::ExecutionId;
use tokio::sync::oneshot;

use super::kept::Name;
use super::restarts::Restarts;

/// One endpoint. Dropping it closes this process's copy of the socket and tells its worker to end; the file stays.
#[derive(Debug)]
pub struct Endpoint {
    pub execution: ExecutionId,
    pub listener: UnixListener,
    pub socket: PathBuf,
    pub kept_as: Name,
    pub restarts: Restarts,
    /// Tells two endpoints of one execution apart, of which the first was closed.
    pub serial: u64,
    /// Held while a worker serves the socket, or is about to; dropped, it tells the worker to end.
    pub worker: Option<oneshot::Sender<()>>,
}

/// All endpoints.
#[derive(Debug, Default)]
pub struct Table {
    entries: HashMap<u64, Endpoint>,
    serial: u64,
}

impl Table {
    /// A number that no endpoint had before.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Puts an endpoint in, in place of the one under the same key.
    pub fn insert(&mut self, key: u64, endpoint: Endpoint) {
        self.entries.insert(key, endpoint);
    }

    pub fn get(&self, key: u64) -> Option<&Endpoint> {
        self.entries.get(&key)
    }

    pub fn get_mut(&mut self, key: u64) -> Option<&mut Endpoint> {
        self.entries.get_mut(&key)
    }

    /// The endpoint under `key`, if it is still the one with this serial.
    pub fn same(&mut self, key: u64, serial: u64) -> Option<&mut Endpoint> {
        self.entries.get_mut(&key).filter(|endpoint| endpoint.serial == serial)
    }

    pub fn remove(&mut self, key: u64) -> Option<Endpoint> {
        self.entries.remove(&key)
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    pub fn executions(&self) -> Vec<ExecutionId> {
        let mut all: Vec<_> = self.entries.values().map(|endpoint| endpoint.execution.clone()).collect();
        all.sort_unstable();
        all
    }
}
