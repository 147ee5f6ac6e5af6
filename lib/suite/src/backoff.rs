//! How long to wait before a program that ended is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// A program that lived this long has earned a fresh start.
const EARNED: Duration = Duration::from_secs(10);

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
    fn pauses_double_up_to_five_seconds_and_start_over_after_ten_seconds_alive() {
        let mut backoff = Backoff::default();
        let mut after = |alive| backoff.after(Duration::from_secs(alive)).as_millis();
        let pauses: Vec<u128> = (0..8).map(|_| after(0)).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!([after(9), after(10), after(0)], [5000, 100, 200]);
    }
}
