//! Work: what is to be done, from its creation to its outcome.

mod change;
mod create;
pub mod state;

pub use change::{cancel, finish, make_ready, retry};
pub(crate) use change::{set_state, state_of};
pub(crate) use create::create_routed;
pub use create::{Created, NewWork, create, owner_of_key};
pub use state::{BlockedReason, Event, State};
