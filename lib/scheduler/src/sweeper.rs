//! Sweeping: what is kept for a while and no longer goes in small batches, when something is due (T04, T15, M06).

use conduit_coordination::bypasses;
use conduit_extension_human::approvals;
use conduit_store::{Now, Read, Write};
use conduit_toolbelt::sweep;

use crate::host::Host;

/// Pause between two batches of one sweep, and after one that found nothing to do, in microseconds.
const PAUSE: i64 = 1_000_000;
const PAUSE_IDLE: i64 = 600 * 1_000_000;

/// Knows when the next sweep has something to do, so that a turn need not ask.
pub struct Sweeper {
    /// Wall clock.
    pub due_at_us: i64,
}

impl Sweeper {
    /// Sweeps one batch when it is time. A sweep that finds nothing to do yet is not repeated for a while.
    pub fn sweep_if_due(&mut self, host: &Host) {
        let now = host.now();
        if now.wall.0 < self.due_at_us {
            return;
        }
        let mut store = host.store.borrow_mut();
        let swept = store.write(|tx| everything(tx, now)).and_then(|rows| {
            let pause = if rows > 0 { PAUSE } else { PAUSE_IDLE };
            Ok(store.read(|r| next_due(r, now))?.max(now.wall.0 + pause))
        });
        self.due_at_us = swept.unwrap_or_else(|error| {
            tracing::error!(%error, "what is over was not swept");
            now.wall.0 + PAUSE_IDLE
        });
    }
}

/// One batch of each kind; returns how many rows went.
fn everything(tx: &Write<'_>, now: Now) -> conduit_toolbelt::Result<usize> {
    Ok(sweep::sweep(tx, now)? + approvals::sweep(tx, now)? + bypasses::sweep(tx, now)?)
}

fn next_due(r: &Read<'_>, now: Now) -> conduit_toolbelt::Result<i64> {
    let due = [sweep::next_due(r, now)?, approvals::next_due(r, now)?, bypasses::next_due(r, now)?];
    Ok(due.into_iter().min().unwrap_or(now.wall.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use conduit_store::Clock;

    const SECOND_US: i64 = 1_000_000;

    /// T04, T15
    #[tokio::test]
    async fn a_sweep_with_nothing_to_do_is_not_taken_again_with_the_next_turn() {
        let world = World::new();
        let mut sweeper = Sweeper { due_at_us: 0 };
        sweeper.sweep_if_due(&world.host);
        let next = sweeper.due_at_us;
        assert!(next > Clock.now().wall.0 + 3600 * SECOND_US);
        sweeper.sweep_if_due(&world.host);
        assert_eq!(sweeper.due_at_us, next);
    }

    /// T15, M06: everything that is over goes in one sweep, and nothing that stands.
    #[tokio::test]
    async fn a_sweep_takes_what_is_over_of_every_kind_and_leaves_what_stands() {
        let world = World::new();
        let bypass = |id: &str, created: i64| {
            world.sql(&format!(
                "INSERT INTO gate_bypass (id, actor, reason, boot_id, until_boot_us, until_us, created_at_us)
                 VALUES ('{id}', 'operator:local', 'r', 'gone', 1, 1, {created})"
            ));
        };
        let now = Clock.now().wall.0;
        bypass("old", now - bypasses::KEEP_US - SECOND_US);
        bypass("new", now - bypasses::KEEP_US / 2);
        let mut sweeper = Sweeper { due_at_us: 0 };
        sweeper.sweep_if_due(&world.host);
        assert_eq!(world.number("SELECT count(*) FROM gate_bypass"), 1);
        assert_eq!(world.number("SELECT count(*) FROM gate_bypass WHERE id = 'new'"), 1);
    }
}
