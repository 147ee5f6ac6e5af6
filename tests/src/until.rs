//! The one place that waits. A wait has a name, and an end that is generous: meeting it is a failure, not a result.

use std::time::{Duration, Instant};

/// How long a named condition may take before the test fails.
pub const END: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `found` gives something, and gives it back.
///
/// # Panics
/// After [`END`], with the name of what did not happen.
#[track_caller]
pub fn until<T>(condition: &str, found: impl FnMut() -> Option<T>) -> T {
    match until_within(END, found) {
        Some(found) => found,
        None => panic!("within {} s it did not come true that {condition}", END.as_secs()),
    }
}

/// Waits at most `end` until `found` gives something; `None` when it did not. For callers that report failures themselves.
pub fn until_within<T>(end: Duration, mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + end;
    loop {
        if let Some(found) = found() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait_and_one_that_does_not_ends_at_its_end() {
        let mut asked = 0;
        let third = until_within(END, || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(third, Some(3));
        assert_eq!(until_within(Duration::ZERO, || None::<()>), None);
    }
}
