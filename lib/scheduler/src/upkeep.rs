//! What goes by the time since boot: leases are renewed, and a runner that let its deadline pass is told on.
//!
//! A suspended machine spends that time too, so all of it is looked at before anything else when the machine wakes.

use conduit_coordination::executions;
use conduit_store::Now;

use crate::host::{Host, LEASE_US, RENEWAL_US};

/// Pause before a renewal that failed is tried again, in microseconds.
const RETRY_US: i64 = 10 * 1_000_000;

/// Keeps the leases of what runs.
#[derive(Debug)]
pub struct Upkeep {
    /// When leases are due, in microseconds since boot.
    renewal_us: i64,
}

impl Upkeep {
    pub const fn from(now: Now) -> Self {
        Self { renewal_us: now.boot_us + RENEWAL_US }
    }

    /// Does what is due at `now`.
    pub fn carry_out(&mut self, host: &Host, now: Now) {
        if host.live.borrow().is_empty() {
            // What is claimed next comes with a lease of its own.
            self.renewal_us = now.boot_us + RENEWAL_US;
            return;
        }
        if now.boot_us >= self.renewal_us {
            self.renewal_us = now.boot_us + renew(host, now);
        }
        for segment in host.live.borrow().values() {
            if now.boot_us >= segment.overdue_boot_us.get() {
                segment.overdue_boot_us.set(i64::MAX);
                segment.overdue.notify_one();
            }
        }
    }

    /// When there is something to do next, in microseconds since boot; `i64::MAX` when nothing runs.
    pub fn due_us(&self, host: &Host) -> i64 {
        let live = host.live.borrow();
        let overdue = live.values().map(|segment| segment.overdue_boot_us.get()).min();
        overdue.map_or(i64::MAX, |overdue| overdue.min(self.renewal_us))
    }
}

/// Renews the leases; returns in how many microseconds to do so again.
fn renew(host: &Host, now: Now) -> i64 {
    match host.store.borrow_mut().write(|tx| executions::renew(tx, &host.owner, LEASE_US, now)) {
        Ok(leases) => {
            tracing::debug!(leases, "renewed");
            RENEWAL_US
        }
        Err(error) => {
            tracing::error!(%error, "leases were not renewed");
            RETRY_US
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use crate::turn;
    use conduit_store::Clock;

    const HOUR_US: i64 = 3600 * 1_000_000;

    fn leases(world: &World) -> i64 {
        world.number("SELECT min(lease_boot_us) FROM execution")
    }

    /// T03
    #[tokio::test]
    async fn the_first_thing_after_a_suspend_is_to_renew_what_expired_in_it() {
        let local = tokio::task::LocalSet::new();
        let run = async {
            let (world, now) = (World::new(), Clock.now());
            let mut upkeep = Upkeep::from(now);
            assert_eq!(upkeep.due_us(&world.host), i64::MAX, "nothing runs");
            world.ask_for("calm", 1);
            turn::take(&world.host).await.unwrap();
            let before = leases(&world);
            assert_eq!(upkeep.due_us(&world.host), now.boot_us + RENEWAL_US);
            upkeep.carry_out(&world.host, now.plus(RENEWAL_US - 1));
            assert_eq!(leases(&world), before, "not due yet");
            let woken = now.plus(HOUR_US);
            assert!(woken.boot_us > before, "it has expired");
            upkeep.carry_out(&world.host, woken);
            assert_eq!(leases(&world), woken.boot_us + LEASE_US);
            assert_eq!(upkeep.due_us(&world.host), woken.boot_us + RENEWAL_US);
        };
        local.run_until(run).await;
    }

    #[tokio::test]
    async fn a_segment_is_told_once_that_its_runner_is_overdue() {
        let local = tokio::task::LocalSet::new();
        let run = async {
            let (world, now) = (World::new(), Clock.now());
            world.ask_for("calm", 1);
            turn::take(&world.host).await.unwrap();
            let mut upkeep = Upkeep::from(now);
            let segment = world.host.live.borrow().values().next().unwrap().clone();
            segment.overdue_boot_us.set(now.boot_us + 7);
            assert_eq!(upkeep.due_us(&world.host), now.boot_us + 7);
            let mut told = async |at| {
                upkeep.carry_out(&world.host, at);
                tokio::select! { biased; () = segment.overdue.notified() => true, () = std::future::ready(()) => false }
            };
            assert!(!told(now.plus(6)).await);
            assert!(told(now.plus(7)).await);
            assert!(!told(now.plus(HOUR_US)).await, "once");
        };
        local.run_until(run).await;
    }
}
