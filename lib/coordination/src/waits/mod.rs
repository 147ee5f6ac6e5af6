//! Waits: what a Work waits for, any of it or all of it, until a time.

pub mod decide;
pub mod look_back;
mod register;
mod settle;

pub(crate) use look_back::look_back;
pub(crate) use register::register;
pub use settle::{Ended, cancel_pending, fire_due, next_due, offer};
