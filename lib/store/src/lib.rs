//! The one door to the database, and what everything that is stored is made of.
//!
//! `store.db` is the only coordination truth. [`Store`] opens it, migrates it, and hands out transactions: [`Read`]
//! to look, [`Write`] to change as a trusted host process, [`Fenced`] to change on behalf of one execution's lease.
//! The signature of a function says which it needs. Beside it: the state directory and its locks, clocks,
//! identifiers, digests, and `history.db` for what is only ever observed.
#![deny(unsafe_code)]

mod checkpoint;
pub mod clock;
pub mod digest;
pub mod error;
pub mod failpoint;
pub mod history;
pub mod id;
mod journal;
pub mod lease;
pub mod lock;
mod migrate;
mod open;
pub mod state;
mod turn;
pub mod tx;
mod unsafe_page;

pub use clock::{Clock, Now, TimeSource};
pub use error::{Error, Result};
pub use id::mint;
pub use lease::Fence;
pub use rusqlite::{Result as RowResult, Row, named_params};
pub use state::StateDir;
pub use tx::{Fenced, Read, Store, Write, column_id, column_json};
