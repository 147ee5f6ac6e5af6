//! Clocks. Leases and expiry use time since boot, which no one can step; people are shown wall time.

use std::sync::OnceLock;

use conduit_api::UnixMicros;
use nix::time::{ClockId, clock_gettime};

/// One reading of both clocks. Functions that depend on time take this, so that tests can choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub wall: UnixMicros,
    /// Microseconds since this machine booted, suspended time included (`CLOCK_BOOTTIME`).
    pub boot_us: i64,
    /// Names the boot that `boot_us` counts from.
    pub boot_id: &'static str,
}

impl Now {
    /// The same reading, `us` microseconds later on both clocks.
    #[must_use]
    pub const fn plus(self, us: i64) -> Self {
        Self { wall: self.wall.plus(us), boot_us: self.boot_us.saturating_add(us), boot_id: self.boot_id }
    }
}

/// Where a transaction takes its time from, once it has begun: the machine's clocks, or a reading chosen before.
pub trait TimeSource {
    fn now(&self) -> Now;
}

impl TimeSource for Clock {
    fn now(&self) -> Now {
        Self::now(*self)
    }
}

impl TimeSource for Now {
    fn now(&self) -> Now {
        *self
    }
}

impl<T: TimeSource + ?Sized> TimeSource for &T {
    fn now(&self) -> Now {
        (**self).now()
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock;

impl Clock {
    pub fn now(self) -> Now {
        Now {
            wall: UnixMicros(micros(ClockId::CLOCK_REALTIME)),
            boot_us: micros(ClockId::CLOCK_BOOTTIME),
            boot_id: boot_id(),
        }
    }
}

fn micros(clock: ClockId) -> i64 {
    // Both clocks exist on every Linux this runs on; a zero reading only makes leases look expired.
    clock_gettime(clock).map_or(0, |t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1_000)
}

/// The kernel's name for this boot, or `unknown`, which no lease of another boot equals by accident: it is never written while unknown elsewhere.
fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
    })
}
