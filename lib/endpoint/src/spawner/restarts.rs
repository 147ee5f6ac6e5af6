//! How soon a worker that ended badly is started again. Pure.

use std::process::ExitStatus;
use std::time::Duration;

use conduit_daemon::program::EXIT_REFUSED;

/// Pause after a first bad end; it doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause; also the pause after an end that starting again is not likely to cure.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A worker that lived this long was well: its end counts as a first one.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// How a worker's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was idle, or told to end.
    Well,
    /// A crash, a signal, or an error.
    Badly,
    /// It says that starting it again does not help.
    Refused,
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match status.code() {
            Some(0) => Self::Well,
            Some(code) if code == i32::from(EXIT_REFUSED) => Self::Refused,
            _ => Self::Badly,
        }
    }
}

/// Bad ends in a row.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Restarts {
    bad: u32,
}

impl Restarts {
    /// How long its socket is left alone after a worker that lived for `lived`: a crash loop cannot spin.
    pub fn pause_after(&mut self, end: End, lived: Duration) -> Duration {
        if end == End::Well || lived >= WELL_AFTER {
            self.bad = 0;
        }
        match end {
            End::Well => Duration::ZERO,
            End::Refused => PAUSE_MAX,
            End::Badly => {
                let pause = PAUSE_FIRST.saturating_mul(1 << self.bad.min(16)).min(PAUSE_MAX);
                self.bad = self.bad.saturating_add(1);
                pause
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_a_good_end_forgets_them() {
        let mut restarts = Restarts::default();
        let mut pause = |end, lived_ms| restarts.pause_after(end, Duration::from_millis(lived_ms)).as_millis();
        assert_eq!([(); 8].map(|()| pause(End::Badly, 1)), [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pause(End::Well, 1), 0);
        assert_eq!(pause(End::Badly, 1), 100);
        assert_eq!(pause(End::Badly, 1), 200);
        assert_eq!(pause(End::Badly, 10_000), 100);
        assert_eq!(pause(End::Refused, 1), 5000);
    }

    #[test]
    fn a_signal_is_a_bad_end() {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(End::from(ExitStatus::from_raw(9)), End::Badly);
        assert_eq!(End::from(ExitStatus::from_raw(0)), End::Well);
        assert_eq!(End::from(ExitStatus::from_raw(78 << 8)), End::Refused);
    }
}
