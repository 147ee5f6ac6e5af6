//! Instants as the store keeps them (integer microseconds UTC) and as the API shows them (RFC 3339).

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Wall-clock time in microseconds since 1970-01-01T00:00:00Z. For display and timers; never for leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMicros(pub i64);

const MICROS_PER_DAY: i64 = 86_400_000_000;

impl UnixMicros {
    /// The instant `us` microseconds later, saturating.
    #[must_use]
    pub const fn plus(self, us: i64) -> Self {
        Self(self.0.saturating_add(us))
    }
}

impl std::fmt::Display for UnixMicros {
    /// RFC 3339 in UTC with six decimals: `2026-11-30T19:19:08.000000Z`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (days, in_day) = (self.0.div_euclid(MICROS_PER_DAY), self.0.rem_euclid(MICROS_PER_DAY));
        let (year, month, day) = civil_from_days(days);
        let (seconds, micros) = (in_day / 1_000_000, in_day % 1_000_000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

impl std::str::FromStr for UnixMicros {
    type Err = &'static str;

    /// Parses `YYYY-MM-DDTHH:MM:SS[.fraction]Z`; other offsets are refused, as the API writes only `Z`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "expected a time as 2026-11-30T19:19:08Z";
        let text = text.strip_suffix('Z').ok_or(WRONG)?;
        let (date, clock) = text.split_once('T').ok_or(WRONG)?;
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let numbers = |part: &str, by: char, widths: [usize; 3]| -> Option<[i64; 3]> {
            let pieces: Vec<&str> = part.split(by).collect();
            let [a, b, c] = pieces[..] else { return None };
            let mut found = [0; 3];
            for (slot, (piece, width)) in found.iter_mut().zip([a, b, c].into_iter().zip(widths)) {
                if piece.len() != width || !piece.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                *slot = piece.parse().ok()?;
            }
            Some(found)
        };
        let [year, month, day] = numbers(date, '-', [4, 2, 2]).ok_or(WRONG)?;
        let [hour, minute, second] = numbers(clock, ':', [2, 2, 2]).ok_or(WRONG)?;
        if fraction.is_empty() || fraction.len() > 6 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return Err(WRONG);
        }
        let micros: i64 = format!("{fraction:0<6}").parse().map_err(|_| WRONG)?;
        let days = days_from_civil(year, month, day);
        if hour > 23 || minute > 59 || second > 59 || civil_from_days(days) != (year, month, day) {
            return Err(WRONG);
        }
        Ok(Self(days * MICROS_PER_DAY + (hour * 3600 + minute * 60 + second) * 1_000_000 + micros))
    }
}

/// Proleptic Gregorian date of a day count since 1970-01-01, by 400-year eras of 146,097 days.
const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

impl Serialize for UnixMicros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UnixMicros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_reads_back_as_it_was_written() {
        for us in [0, 1, -1, 951_782_400_000_000, 1_796_066_348_123_456, 4_102_444_799_999_999] {
            assert_eq!(UnixMicros(us).to_string().parse(), Ok(UnixMicros(us)));
        }
        assert_eq!(UnixMicros(951_782_400_000_000).to_string(), "2000-02-29T00:00:00.000000Z");
    }

    #[test]
    fn a_date_that_does_not_exist_is_refused() {
        for text in [
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01",
            "2026-1-01T00:00:00Z",
        ] {
            assert!(text.parse::<UnixMicros>().is_err(), "{text}");
        }
    }
}
