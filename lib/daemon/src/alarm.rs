//! Alarms at an instant of a clock that goes on while the machine sleeps (`timerfd_create(2)`).
//!
//! The runtime's own timers stand still in a suspended machine; what a lease, a deadline or a due time depends on must
//! not. No alarm wakes a sleeping machine.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::unsafe_readable::readable;

/// An alarm, to be set again and again.
#[derive(Debug)]
pub struct Alarm {
    timer: AsyncFd<OwnedFd>,
    how: TimerfdTimerFlags,
}

impl Alarm {
    /// By the time since boot, suspended time included. Must run within a tokio runtime.
    pub fn since_boot() -> io::Result<Self> {
        Self::of(TimerfdClockId::Boottime, TimerfdTimerFlags::ABSTIME)
    }

    /// By the wall clock. Must run within a tokio runtime.
    pub fn of_day() -> io::Result<Self> {
        Self::of(TimerfdClockId::Realtime, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET)
    }

    fn of(clock: TimerfdClockId, how: TimerfdTimerFlags) -> io::Result<Self> {
        let timer = timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { timer: readable(timer)?, how })
    }

    /// Completes at an instant in microseconds, at once when it is past; `i64::MAX` is never. An alarm of the wall clock
    /// completes when the clock is set, too. May be dropped and called again; the last call counts.
    pub async fn at(&self, at_us: i64) -> io::Result<()> {
        // Zero would switch it off.
        let at_us = at_us.max(1);
        let it_value = Timespec { tv_sec: at_us / 1_000_000, tv_nsec: at_us % 1_000_000 * 1_000 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        match timerfd_settime(self.timer.get_ref(), self.how, &once) {
            Err(Errno::CANCELED) => return Ok(()),
            set => _ = set?,
        }
        loop {
            let mut ready = self.timer.readable().await?;
            match ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0; 8])?)) {
                Ok(Err(error)) if error.raw_os_error() != Some(Errno::CANCELED.raw_os_error()) => return Err(error),
                Ok(_) => return Ok(()),
                // It was set anew since it last went off.
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    fn micros(clock: ClockId) -> i64 {
        let now = clock_gettime(clock);
        now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
    }

    async fn goes_off(alarm: &Alarm, at_us: i64) -> bool {
        tokio::select! {
            biased;
            done = alarm.at(at_us) => done.map(|()| true).unwrap(),
            () = tokio::time::sleep(Duration::from_millis(50)) => false,
        }
    }

    #[tokio::test]
    async fn an_alarm_goes_off_at_its_instant_and_the_last_one_that_was_set_counts() {
        for (alarm, clock) in
            [(Alarm::since_boot().unwrap(), ClockId::Boottime), (Alarm::of_day().unwrap(), ClockId::Realtime)]
        {
            assert!(goes_off(&alarm, 0).await, "past");
            assert!(!goes_off(&alarm, i64::MAX).await, "never");
            let at = micros(clock) + 100_000;
            assert!(!goes_off(&alarm, at).await, "not yet");
            assert!(!goes_off(&alarm, at + 3_600_000_000).await, "set anew");
            alarm.at(at).await.unwrap();
            assert!(micros(clock) >= at);
        }
    }
}
