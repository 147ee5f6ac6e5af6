//! Times for people: UTC, short, with how long ago.

use std::time::{SystemTime, UNIX_EPOCH};

use conduit_api::UnixMicros;

/// The wall clock of this machine, which is the server's too.
pub fn now() -> UnixMicros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMicros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// `2026-11-30T19:19:08Z`
pub fn short(at: UnixMicros) -> String {
    let mut text = at.to_string();
    text.truncate("2026-11-30T19:19:08".len());
    text + "Z"
}

/// `2026-11-30T19:19:08Z (3m ago)`
pub fn with_age(at: UnixMicros, now: UnixMicros) -> String {
    if at.0.abs_diff(now.0) < 1_000_000 {
        format!("{} (now)", short(at))
    } else if at > now {
        format!("{} (in {})", short(at), age(now, at))
    } else {
        format!("{} ({} ago)", short(at), age(at, now))
    }
}

/// The time from `at` to `now` in its largest unit: `12s`, `3m`, `2h`, `5d`.
pub fn age(at: UnixMicros, now: UnixMicros) -> String {
    let seconds = now.0.saturating_sub(at.0).max(0) / 1_000_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The time between two instants, as a duration that tells milliseconds apart: `12ms`, `3.204s`, `2m05s`, `3h10m`.
pub fn between(from: UnixMicros, to: UnixMicros) -> String {
    let ms = to.0.saturating_sub(from.0).max(0) / 1000;
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{s}.{:03}s", ms % 1000),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        _ => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    #[test]
    fn an_age_is_told_in_its_largest_unit() {
        let told = |s: i64| age(UnixMicros(0), UnixMicros(s * S));
        assert_eq!([0, 59, 60, 3599, 3600, 86_400, 864_000].map(told), ["0s", "59s", "1m", "59m", "1h", "1d", "10d"]);
        assert_eq!(age(UnixMicros(5 * S), UnixMicros(0)), "0s", "a clock that was stepped back");
        assert_eq!(with_age(UnixMicros(90 * S), UnixMicros(0)), "1970-01-01T00:01:30Z (in 1m)");
        assert_eq!(with_age(UnixMicros(S), UnixMicros(S - 1)), "1970-01-01T00:00:01Z (now)");
    }

    #[test]
    fn a_step_of_a_chain_is_told_to_the_millisecond_while_it_is_short() {
        let told = |us: i64| between(UnixMicros(0), UnixMicros(us));
        assert_eq!([1_999, 3_204_000, 125 * S, 11_400 * S].map(told), ["1ms", "3.204s", "2m05s", "3h10m"]);
    }
}
