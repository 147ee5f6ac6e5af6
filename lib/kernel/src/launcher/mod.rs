//! Launchers start a runner on a staged bundle, and say whether it lives. For now there is one: `process`.

pub mod process;
mod waiting;
mod watch;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::kernel::Staged;

pub use waiting::Waiting;
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
    /// Starts a runner on a staged bundle. Without its token it does nothing; a failure leaves nothing.
    fn start(&self, staged: &Staged) -> Result<Waiting>;

    /// Gives the token to the runner of a bundle whose dispatch is committed, which is started now unless it waits already,
    /// and lets go of the bundle's lock.
    fn launch(&self, staged: Staged) -> Result<Launched>;
}
