//! The management server: what an operator on this machine asks and orders, over one owner-only socket (M01).
//!
//! Each request is authenticated, then routed by the table in [`routes`], then held against the route's role, and
//! only then is its body read. A handler parses, makes one transaction, and shapes the reply; what an order means is
//! decided in the libraries below. Execution tokens reach nothing here (E08), and no answer carries a credential.
#![forbid(unsafe_code)]

mod ask;
mod cursor;
mod daemon;
mod error;
mod handlers;
mod host;
mod operator;
pub mod routes;
mod server;
mod service;

pub use server::main;
