//! Launchers start a runner on a staged bundle, and say whether it lives. For now there is one: `process`.

pub mod process;
mod watch;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::kernel::Staged;

pub use watch::Launched;

/// A runner, by what no later process shares: pid, start time, boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
    pub boot_id: String,
}

/// How runners are started. A failed launch is no proof that nothing started.
pub trait Launcher: std::fmt::Debug {
    /// Starts the runner on a bundle whose dispatch is committed, and lets go of the bundle's lock.
    fn launch(&self, staged: Staged) -> Result<Launched>;
}
