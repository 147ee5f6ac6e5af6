//! The extension host's socket on the wire: how a worker passes a call on. Owner-only, and of no use to anyone
//! who has no execution's token: the host decides again about every call.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::toolbelt::CallRequest;
use crate::{ExecutionId, ScopeId};

/// `POST` here carries out a [`HostCall`] and answers like a run socket.
pub const CALL: &str = "/v1/host/call";

/// A call as a worker passes it on, its request ID settled.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCall {
    /// SHA-256 of the bearer, 64 lower-case hex digits: the token itself stays with the worker.
    pub bearer_digest: String,
    /// The execution that the run socket belongs to (E03).
    pub execution_id: ExecutionId,
    pub request: CallRequest,
}

impl HostCall {
    /// The digest; `None` when it is not spelt as one.
    pub fn bearer(&self) -> Option<[u8; 32]> {
        digest(&self.bearer_digest)
    }
}

/// `POST` here has an extension look at settings: a [`HostValidate`], answered by a [`HostValidated`].
pub const VALIDATE: &str = "/v1/host/validate";

/// Settings that keep their schema, for what no schema says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostValidate {
    /// SHA-256 of an operator's credential, as in [`HostCall`].
    pub bearer_digest: String,
    pub extension: String,
    pub settings: Value,
}

impl HostValidate {
    /// The digest; `None` when it is not spelt as one.
    pub fn bearer(&self) -> Option<[u8; 32]> {
        digest(&self.bearer_digest)
    }
}

/// What the extension found; nothing when the settings are sound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostValidated {
    pub faults: Vec<SettingFault>,
}

/// `POST` here has an extension carry out an operator's action: a [`HostAct`], answered by an `ActionReply`.
pub const ACT: &str = "/v1/host/act";

/// An operator's action.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostAct {
    /// SHA-256 of the operator's credential, as in [`HostCall`].
    pub bearer_digest: String,
    pub extension: String,
    pub action: String,
    pub scope_id: ScopeId,
    pub input: Map<String, Value>,
    /// Under the same key of the same operator it is asked once while the daemon lives, and its record answers afterwards. When
    /// the daemon or the extension ends in between, it is asked again with the same key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idempotency_key: Option<String>,
}

impl HostAct {
    /// The digest; `None` when it is not spelt as one.
    pub fn bearer(&self) -> Option<[u8; 32]> {
        digest(&self.bearer_digest)
    }
}

/// What is wrong with an extension's settings, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingFault {
    /// JSON pointer into the settings.
    pub pointer: String,
    /// What to do about it; repeats no value.
    pub message: String,
}

fn digest(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let mut digest = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = nibble(*pair.first()?)? << 4 | nibble(*pair.get(1)?)?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_spelt_and_nothing_else_is_one() {
        let call = |text: &str| HostCall {
            bearer_digest: text.into(),
            execution_id: ExecutionId::from_parts(1, 1),
            request: CallRequest::new("x.y"),
        };
        let mut expected = [0x0f; 32];
        expected[0] = 0xa9;
        assert_eq!(call(&format!("a9{}", "0f".repeat(31))).bearer(), Some(expected));
        for bad in ["", "a9", &"0F".repeat(32), &"0g".repeat(32), &"0f".repeat(33)] {
            assert_eq!(call(bad).bearer(), None, "{bad}");
        }
    }
}
