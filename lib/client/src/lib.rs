//! The client: one HTTP exchange at a time with a server of the suite, over its Unix socket.
//!
//! It dials the configured socket and nothing else: host `localhost`, no proxy, no redirect (M13). It links the
//! wire types alone, neither SQLite nor the store, so that `os` and `open-conduit` stay small and start quickly.
//! [`Client`] blocks and is meant for programs; [`AsyncClient`] is for a caller with a tokio runtime of its own.
#![forbid(unsafe_code)]

mod blocking;
mod call;
mod client;
mod credential;
mod error;
pub mod input;
pub mod os;
pub mod path;

pub use blocking::Client;
pub use call::{Answer, Call, Method, request_id};
pub use client::{AsyncClient, Download};
pub use credential::Credential;
pub use error::{ClientError, Loss, Result, Unreachable};
