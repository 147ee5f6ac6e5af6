//! Events, routes, Work, Executions and Waits: what the suite knows, and how one thing leads to the next.
//!
//! Each room has its pure decision (`decide`) and its rows; functions take a transaction that says what they may
//! do. Nothing here starts a process, opens a socket or reads a clock.
#![forbid(unsafe_code)]

pub mod artifacts;
pub mod bypasses;
pub mod error;
pub mod events;
pub mod executions;
mod inputs;
pub mod queries;
pub mod routes;
pub mod routing;
pub mod waits;
pub mod work;

pub use error::{Error, Result};
