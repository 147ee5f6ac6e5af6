//! Installed packages (X01): extensions that are programs of their own.
//!
//! A package is a directory with a `manifest.json` ([`manifest`]) and a program that speaks the extension protocol
//! ([`protocol`], docs/extension-protocol.md). It is copied into the state directory and bound to the digest of its files
//! ([`install`], [`tree`]). Its program is started through the kernel, as everything is ([`process`]), and asked over its
//! standard input and output ([`connection`]); [`InstalledPackage`] makes an [`Extension`](crate::Extension) of it that
//! restarts it with backoff, and [`Packages`] holds those that are in use.
//!
//! What a package does wrong ends its own process, and is said in health; it ends nothing else.

mod connection;
pub mod install;
mod installed;
pub mod manifest;
mod pool;
mod process;
mod protocol;
pub mod tree;

use std::time::Duration;

pub use installed::InstalledPackage;
pub use pool::Packages;
pub use process::Processes;

use crate::EXECUTOR_TIME_MAX;
use crate::host::{GATES_TIME_MAX, HANDLER_TIME_MAX, VALIDATE_TIME_MAX};

/// Every bound of a running package, so that tests can choose others.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// One line, in either direction, in bytes.
    pub line_bytes: usize,
    /// Requests that wait for an answer; more wait to be sent.
    pub in_flight: usize,
    /// Those of one execution among them, so that others are asked while its own hang.
    pub in_flight_of_execution: usize,
    /// Until `initialize` is answered.
    pub initialize: Duration,
    /// One operation or action.
    pub handler: Duration,
    /// One look at settings.
    pub validate: Duration,
    /// One plan of an executor, or one word on an ending.
    pub executor: Duration,
    /// One question to a gate.
    pub gate: Duration,
    /// How long a request that nobody waits for any more may stay unanswered before the process is killed.
    pub cancelled: Duration,
    /// How long a process is kept that nobody asks anything.
    pub idle: Duration,
    /// Pause after the first failure; it doubles up to `pause_max`.
    pub pause: Duration,
    /// Shorter than an executor is asked about an ending, so that one failure does not take its word.
    pub pause_max: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            line_bytes: 2 << 20,
            in_flight: 32,
            in_flight_of_execution: 8,
            initialize: Duration::from_secs(10),
            handler: HANDLER_TIME_MAX,
            validate: VALIDATE_TIME_MAX,
            executor: EXECUTOR_TIME_MAX,
            gate: GATES_TIME_MAX,
            cancelled: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            pause: Duration::from_secs(1),
            pause_max: Duration::from_secs(60),
        }
    }
}
