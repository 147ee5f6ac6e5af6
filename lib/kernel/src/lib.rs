//! The commitment kernel: an admitted operation is dispatched at most once, leaves evidence bound to its identity,
//! and what cannot be proven stays marked as unknown.
//!
//! One attempt goes `admit` → `stage` → `dispatch` (the boundary: one committed transaction) → `launch` → `exited` →
//! `settle` → `conclude`; a caller in a hurry takes `prepare` → `stage_prepared` → `start` and then admits and dispatches
//! in one commit. A daemon that died in between asks [`Kernel::adopt`] and goes on from what it is told.
//! [`attempt`] has the states and the pure decision, [`bundle`] the files that the kernel and the runner share,
//! [`launcher`] starts runners and watches them, [`runner`] is the program that supervises one attempt.
//!
//! The kernel knows no scopes, tokens or events, and decides no retry: its callers do.
#![deny(unsafe_code)]

pub mod attempt;
pub mod bundle;
pub mod error;
mod evidence;
pub mod executable;
pub mod identity;
mod kernel;
pub mod launcher;
pub mod limits;
mod linux;
mod proc;
pub mod runner;

pub use attempt::{AttemptState, Event, Evidence, ProcessEnd, Reason, Resolution, StopReason, Terminal, resolve};
pub use bundle::OutputFact;
pub use error::{Commitment, Error, Origin, Result, RetryClass};
pub use executable::Executable;
pub use identity::{BaseEnvironment, Limits, OperationRequest, Plan, Resources};
pub use kernel::{Admission, Adoption, Conclusion, Ending, Kernel, Prepared, Settings, Staged, Stopping, Tidied};
pub use launcher::{Launched, Unit};
