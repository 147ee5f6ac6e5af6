//! One attempt: its states and their moves, the decision from evidence, and its rows.

mod decide;
mod state;
pub(crate) mod store;

pub use decide::{Evidence, Resolution, resolve};
pub use state::{AttemptState, Event, ProcessEnd, Reason, StopReason, Terminal};
