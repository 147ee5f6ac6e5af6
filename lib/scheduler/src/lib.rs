//! The scheduler daemon: routes what was accepted, claims what is ready, runs it through the kernel, and applies what
//! it declared.
//!
//! One thread. [`turn`] does what there is to do now; [`daemon`] waits for a ring, a due time or the end of a process,
//! and takes a turn again; [`upkeep`] renews leases and minds deadlines meanwhile, and [`sweeper`] removes what is over. [`segment`] follows one segment from its
//! claim to its end, [`gates`] asks before the first of a Work, [`start`] brings it to its running process, and [`adopt`] finds those that an earlier daemon left.
#![forbid(unsafe_code)]

mod adopt;
mod daemon;
mod executors;
pub mod extensions;
mod gates;
mod host;
mod meaning;
mod outputs;
mod playbooks;
mod segment;
mod start;
mod sweeper;
#[cfg(test)]
mod testing;
mod turn;
mod upkeep;

pub use daemon::main;
