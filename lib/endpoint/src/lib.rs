//! Toolbelt endpoints: one private socket and one run directory per execution.
//!
//! [`rundir`] is what stands on disk, [`control`] how the scheduler asks for an endpoint. The two programs are the
//! [`spawner`], which owns every run socket and accepts nothing on them, and the [`worker`], which serves one of them.
#![deny(unsafe_code)]

pub mod control;
pub mod rundir;
pub mod spawner;
pub mod worker;
