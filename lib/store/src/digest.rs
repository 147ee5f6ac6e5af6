//! Digests and the canonical form they are taken over (RFC 8785).

use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub type Sha256Digest = [u8; 32];

pub fn sha256(bytes: &[u8]) -> Sha256Digest {
    Sha256::digest(bytes).into()
}

/// SHA-256 of bytes that come in pieces.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    pub fn finish(self) -> Sha256Digest {
        self.0.finalize().into()
    }
}

/// SHA-256 over length-prefixed parts behind a domain, so that no two lists of parts share a digest by concatenation.
pub fn sha256_parts(domain: &str, parts: &[&[u8]]) -> Sha256Digest {
    let mut hash = Sha256::new();
    for part in std::iter::once(domain.as_bytes()).chain(parts.iter().copied()) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// RFC 8785 bytes of a value; the same value, however spelt, gives the same bytes.
pub fn canonical_json(value: &Value) -> Vec<u8> {
    // Serializing a Value to memory cannot fail: its keys are strings and its numbers are finite.
    serde_json_canonicalizer::to_vec(value).unwrap_or_else(|_| value.to_string().into_bytes())
}

/// Lower-case hex, as digests are shown.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_order_and_spelling_of_a_document_do_not_change_its_digest() {
        let one: Value = serde_json::from_str(r#"{"b":1.0,"a":"\u0041"}"#).unwrap();
        assert_eq!(canonical_json(&one), canonical_json(&json!({"a":"A","b":1.0})));
        assert_eq!(canonical_json(&one), br#"{"a":"A","b":1}"#);
    }

    #[test]
    fn parts_cannot_be_moved_across_their_borders() {
        assert_ne!(sha256_parts("d", &[b"ab", b"c"]), sha256_parts("d", &[b"a", b"bc"]));
        assert_eq!(hex(&sha256(b"")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
