//! What whole-program tests stand on: a suite of real programs in a directory of its own, and one way to wait.
//!
//! Nothing here knows how the suite works inside: it starts programs, dials sockets, reads what operators may read,
//! and kills processes. What it started it ends, by process ID, and nothing else.
#![forbid(unsafe_code)]

pub mod config;
pub mod courier;
pub mod drill;
pub mod execution;
pub mod odd;
pub mod processes;
pub mod programs;
pub mod suite;
pub mod until;

pub use execution::Execution;
pub use suite::Suite;
pub use until::{until, until_within};
