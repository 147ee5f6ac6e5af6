//! What a running process may ask for, and the one place where that is decided.
//!
//! [`Toolbelt::call`] takes every call, reads included, through one order of checks (T05): the token's digest,
//! revocation and expiry; the narrowing assertions; the token's allowlist; the current configuration; and the lease
//! guard in the call's own transaction. Only [`check`] makes an [`Authorized`], and no operation runs without one.
#![forbid(unsafe_code)]

mod access;
pub mod budget;
mod call;
pub mod check;
mod context;
pub mod doubts;
mod error;
pub mod explain;
mod guidance;
pub mod hosted;
mod live;
mod operations;
pub mod operators;
pub mod packages;
pub mod reader;
pub mod registry;
mod replay;
pub mod sweep;
pub mod token;

pub use call::{Called, Toolbelt};
pub use check::Authorized;
pub use error::{Error, Result};
pub use live::Live;
pub use token::{Grants, NewToken, Token};
