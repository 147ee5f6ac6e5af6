//! What every daemon of the suite does alike, so that each does it once and the same way.
//!
//! Descriptors passed by whoever started the process, readiness, logs, process hardening, signals, and an HTTP
//! server over a Unix socket with its bounds. Knows no store, no route and no role: those are the daemons' own.
#![deny(unsafe_code)]

pub mod activation;
pub mod alarm;
pub mod args;
pub mod doorbell;
pub mod http;
pub mod log;
pub mod notify;
pub mod path;
pub mod process;
pub mod program;
pub mod shutdown;
pub mod spawn;
mod unsafe_inherit;
mod unsafe_readable;

pub use args::DaemonArgs;
