//! What one execution may use up: a part of its binding, pinned when its token is issued.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fields::{Field, Kind, Object, Presence, Text};
use crate::parse::{count, field};

#[rustfmt::skip]
pub(crate) static TABLE: [Field; 5] = [
    field("calls_per_minute", count(1, 1_000_000),                         Presence::Optional),
    field("emissions",        count(0, 1 << 40),                            Presence::Optional),
    field("children",         count(0, 1 << 40),                            Presence::Optional),
    field("bytes",            count(0, 1 << 50),                            Presence::Optional),
    field("on_exceeded",      Kind::Text(Text::OneOf(&OnExceeded::NAMES)),  Presence::Optional),
];

/// The bounds of one execution; `None` bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Calls, reads among them, in a minute: as many at once, which come back evenly. Declarations do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_per_minute: Option<u64>,
    /// Events that it emits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emissions: Option<u64>,
    /// Works that it creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<u64>,
    /// Bytes of the inputs of calls that left something on record, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default)]
    pub on_exceeded: OnExceeded,
}

impl Budget {
    /// Whether it bounds nothing.
    pub const fn is_unlimited(&self) -> bool {
        let Self { calls_per_minute, emissions, children, bytes, on_exceeded: _ } = self;
        calls_per_minute.is_none() && emissions.is_none() && children.is_none() && bytes.is_none()
    }

    pub(crate) fn of(object: &Object<'_>) -> Self {
        let bound = |name: &str| object.get(name).and_then(Value::as_u64);
        Self {
            calls_per_minute: bound("calls_per_minute"),
            emissions: bound("emissions"),
            children: bound("children"),
            bytes: bound("bytes"),
            on_exceeded: if object.text("on_exceeded") == Some("hold") { OnExceeded::Hold } else { OnExceeded::Refuse },
        }
    }
}

/// What becomes of an execution that asks for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExceeded {
    /// The call is refused, and nothing else.
    #[default]
    Refuse,
    /// Its authority ends, and its Work is held until an operator retries it.
    Hold,
}

impl OnExceeded {
    /// How the configuration spells them.
    pub const NAMES: [&'static str; 2] = ["refuse", "hold"];
}
