//! Identifiers: a type each, so that a Work is never passed for an Execution.
//!
//! `prefix_` and 26 characters of Crockford base 32: 48 bits of milliseconds and 80 random bits for new things, so
//! that IDs sort by time; or 130 bits of a digest for things whose ID derives from their request. Callers treat
//! them as opaque.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const BODY_CHARS: usize = 26;

/// The text is not an identifier of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an identifier that starts with `{prefix}_`")]
pub struct InvalidId {
    pub prefix: &'static str,
}

fn encode(mut bits: u128) -> String {
    let mut body = [0u8; BODY_CHARS];
    for slot in body.iter_mut().rev() {
        *slot = ALPHABET[(bits & 31) as usize];
        bits >>= 5;
    }
    body.iter().map(|b| char::from(*b)).collect()
}

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// A new identifier from the wall clock (`ms` since 1970) and at least 80 random bits.
            pub fn from_parts(ms: u64, random: u128) -> Self {
                let bits = (u128::from(ms & 0xffff_ffff_ffff) << 80) | (random & ((1 << 80) - 1));
                Self(format!("{}_{}", $prefix, encode(bits)).into())
            }

            /// The identifier that stands for a digest: the same digest, the same identifier (T09).
            pub fn from_digest(digest: &[u8; 32]) -> Self {
                let mut first = [0u8; 16];
                first.copy_from_slice(&digest[..16]);
                Self(format!("{}_{}", $prefix, encode(u128::from_be_bytes(first))).into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let body = text.strip_prefix(concat!($prefix, "_")).ok_or(InvalidId { prefix: $prefix })?;
                if body.len() == BODY_CHARS && body.bytes().all(|b| ALPHABET.contains(&b)) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidId { prefix: $prefix })
                }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

identifiers! {
    /// One accepted Event.
    EventId = "evt";
    /// One piece of Work.
    WorkId = "wrk";
    /// One attempt of a Work.
    ExecutionId = "exe";
    /// One registered Wait.
    WaitId = "wai";
    /// One retained result: bytes by digest.
    ArtifactId = "art";
    /// One operation of the commitment kernel, called Job in the tools.
    JobId = "job";
    /// One physical dispatch of the kernel.
    AttemptId = "att";
    /// The revocation ID of a token; not the token.
    TokenId = "tok";
    /// One operator credential.
    OperatorId = "opr";
    /// One request for an operator's word (G07).
    ApprovalId = "apr";
    /// One time in which no gate is asked.
    BypassId = "byp";
}

/// The name of a scope, as the configuration spells it: `[a-z][a-z0-9_-]{0,63}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ScopeId(Box<str>);

impl ScopeId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ScopeId {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_name(text) {
            Ok(Self(text.into()))
        } else {
            Err("expected a scope name: a lower-case letter, then letters, digits, - or _")
        }
    }
}

impl fmt::Display for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ScopeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether `text` names a scope, a binding or a registration: `[a-z][a-z0-9_-]{0,63}`.
pub fn is_name(text: &str) -> bool {
    text.len() <= 64
        && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

/// Whether `text` is a namespaced name such as an event type or a data schema: two or more [`is_name`] parts joined by dots.
pub fn is_namespaced(text: &str) -> bool {
    text.len() <= crate::limits::NAME_BYTES_MAX && text.contains('.') && text.split('.').all(is_name)
}

/// Whether the event type `kind` belongs to `family`: equal to it, or below it by a dot.
pub fn in_family(kind: &str, family: &str) -> bool {
    kind.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_identifiers_sort_by_time_and_read_back() {
        let (old, new) = (WorkId::from_parts(1, u128::MAX), WorkId::from_parts(2, 0));
        assert!(old < new);
        assert_eq!(new.to_string().parse(), Ok(new));
    }

    #[test]
    fn an_identifier_of_another_kind_is_refused() {
        let work = WorkId::from_parts(1, 1).to_string();
        assert!(work.parse::<ExecutionId>().is_err());
        assert!("wrk_".parse::<WorkId>().is_err());
        assert!(format!("{work}x").parse::<WorkId>().is_err());
    }

    #[test]
    fn a_digest_names_the_same_thing_each_time() {
        assert_eq!(EventId::from_digest(&[7; 32]), EventId::from_digest(&[7; 32]));
        assert_ne!(EventId::from_digest(&[7; 32]), EventId::from_digest(&[8; 32]));
    }

    #[test]
    fn a_family_holds_itself_and_what_lies_below_a_dot() {
        assert!(in_family("demo.survey", "demo") && in_family("demo", "demo"));
        assert!(!in_family("demolition.survey", "demo") && !in_family("demo", "demo.survey"));
        assert!(is_namespaced("demo.survey.requested") && !is_namespaced("demo") && !is_namespaced("demo..x"));
    }
}
