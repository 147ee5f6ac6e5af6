//! The kernel with the real runner: whole attempts, and deaths of the daemon at each point of one.

mod attempts;
mod crashes;
mod host;
