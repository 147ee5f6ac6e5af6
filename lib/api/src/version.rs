//! Versions of registrations: `MAJOR.MINOR.PATCH`, ordered by their numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version of a registration, and the one in which an operation joined a toolset (S04).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

/// The text is not three numbers joined by dots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a version of three numbers, as in 1.4.0")]
pub struct InvalidVersion;

impl FromStr for Version {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let mut parts = text.split('.').map(number);
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => Ok(Self { major, minor, patch }),
            _ => Err(InvalidVersion),
        }
    }
}

/// A number in its one spelling: digits alone, and no zero before others.
fn number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers_and_have_one_spelling() {
        let version = |text: &str| text.parse::<Version>();
        assert!(version("1.10.0").unwrap() > version("1.9.9").unwrap());
        assert_eq!(version("0.1.0").unwrap().to_string(), "0.1.0");
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "01.2.3", "1..3", "+1.2.3", "1.2.4294967296"] {
            assert_eq!(version(text), Err(InvalidVersion), "{text}");
        }
    }
}
