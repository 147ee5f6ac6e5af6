//! Requests for an operator's word, and what became of them: rows, the operator's decision, and what operators are shown.
//!
//! One request is open for one call of one Work; its ID is never used again. A request is made by the gate alone and decided
//! by an operator alone.

mod decide;
mod rows;
mod shown;
mod sweep;
mod used;

pub use decide::{Decision, decide};
pub(crate) use rows::{Asked, AskedCall, Met, meet};
pub use shown::{STATES, get, list};
pub use sweep::{KEEP_US, next_due, sweep};
pub(crate) use used::{close, give_back, pass};
