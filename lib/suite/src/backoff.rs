//! How long to wait before a program that ended is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
pub const LONGEST: Duration = Duration::from_secs(5);
/// A program that lived this long has earned a fresh start: one that falls once a second costs little to pick up, and
/// whoever asks it for something waits less.
const EARNED: Duration = Duration::from_secs(1);

/// Doubling pauses between starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The pause after a program that was `alive` for so long.
    pub fn after(&mut self, alive: Duration) -> Duration {
        if alive >= EARNED {
            self.next = FIRST;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_seconds_and_start_over_after_one_second_alive() {
        let mut backoff = Backoff::default();
        let mut after = |alive| backoff.after(Duration::from_millis(alive)).as_millis();
        let pauses: Vec<u128> = (0..8).map(|_| after(0)).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!([after(999), after(1000), after(0)], [5000, 100, 200]);
    }
}
