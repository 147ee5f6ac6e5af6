//! One CPU for both sides of an exchange.
//!
//! Where the system puts two processes that take turns is settled once and for long: on one CPU a wake-up costs a
//! microsecond or two, across CPUs of an idle virtual machine it can cost forty. The floor and what is compared with it have
//! to meet the same, or their ratio says where they stood.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::Result;

const SELF: Pid = Pid::from_raw(0);

/// This thread, and whatever else was put there, on one CPU; this thread may run anywhere again when it is dropped.
pub struct OneCpu {
    one: CpuSet,
    before: CpuSet,
}

impl OneCpu {
    /// Puts this thread on the first CPU that it may run on.
    pub fn take() -> Result<Self> {
        let before = sched_getaffinity(SELF)?;
        let mut one = CpuSet::new();
        for cpu in 0..CpuSet::count() {
            if before.is_set(cpu)? {
                one.set(cpu)?;
                break;
            }
        }
        sched_setaffinity(SELF, &one)?;
        Ok(Self { one, before })
    }

    /// Puts the process `pid`, which has one thread, there too.
    pub fn join(&self, pid: i32) -> Result<()> {
        Ok(sched_setaffinity(Pid::from_raw(pid), &self.one)?)
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(SELF, &self.before) {
            eprintln!("conduit-bench: it stays on one CPU: {error}");
        }
    }
}
