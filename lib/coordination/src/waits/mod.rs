//! Waits: what a Work waits for, any of it or all of it, until a time.

pub mod decide;
mod register;
mod settle;

pub use register::register;
pub use settle::{Ended, cancel_pending, fire_due, next_due, offer};
