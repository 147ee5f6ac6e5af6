//! Clocks. Leases and expiry use time since boot, which no one can step; people are shown wall time.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use conduit_api::UnixMicros;
use nix::time::{ClockId, clock_gettime};

use crate::error::{Result, doing_io};

/// Where the kernel names the boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

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

/// The kernel's name for this boot; empty where it has none, which no store is opened without ([`boot_is_named`]).
fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| read_boot_id(Path::new(BOOT_ID)).unwrap_or_default())
}

/// Refuses a machine that does not name its boots: two of them could not be told apart, and a lease of the one before
/// would look live. Error: `internal`.
pub(crate) fn boot_is_named() -> Result<()> {
    read_boot_id(Path::new(BOOT_ID)).map(drop).map_err(doing_io("reading the name of this boot"))
}

fn read_boot_id(file: &Path) -> io::Result<String> {
    let id = std::fs::read_to_string(file)?.trim().to_owned();
    if id.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_without_a_name_is_no_boot_to_hold_leases_in() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("boot_id");
        assert!(read_boot_id(&file).is_err());
        std::fs::write(&file, "\n").unwrap();
        assert!(read_boot_id(&file).is_err());
        std::fs::write(&file, "a\n").unwrap();
        assert_eq!(read_boot_id(&file).unwrap(), "a");
        boot_is_named().unwrap();
        assert!(!Clock.now().boot_id.is_empty());
    }
}
