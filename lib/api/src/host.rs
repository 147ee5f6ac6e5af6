//! The extension host's socket on the wire: how a worker passes a call on (design §2). Owner-only, and of no use to anyone
//! who has no execution's token: the host decides again about every call.

use serde::{Deserialize, Serialize};

use crate::ExecutionId;
use crate::toolbelt::CallRequest;

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
        let text = self.bearer_digest.as_bytes();
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
