//! Cursors: where the next page starts, opaque to callers.
//!
//! For now a cursor names its list and the key of the last item. Authentication, filters and expiry (M09) get their
//! place here.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use conduit_api::{ApiError, Code};
use conduit_coordination::queries::Key;

/// Longest cursor that is looked at, in bytes.
const CURSOR_BYTES_MAX: usize = 512;

/// The cursor of the page of `list` that starts before `key`.
pub(crate) fn encode(list: &str, key: &Key) -> String {
    URL_SAFE_NO_PAD.encode(format!("{list} {} {}", key.at, key.id))
}

/// The key in `cursor`. Error: `invalid_cursor` unless `list` gave it out.
pub(crate) fn decode(list: &str, cursor: &str) -> Result<Key, ApiError> {
    read(list, cursor).ok_or_else(|| {
        ApiError::new(Code::InvalidCursor, "the cursor is not one that this list gave out; start over without it")
    })
}

fn read(list: &str, cursor: &str) -> Option<Key> {
    if cursor.len() > CURSOR_BYTES_MAX {
        return None;
    }
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let (at, id) = text.strip_prefix(list)?.strip_prefix(' ')?.split_once(' ')?;
    Some(Key { at: at.parse().ok()?, id: id.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_in_its_own_list_alone() {
        let key = Key { at: 7, id: "wrk_x".into() };
        let cursor = encode("work", &key);
        assert_eq!(decode("work", &cursor), Ok(key));
        for (list, cursor) in
            [("events", cursor.as_str()), ("work", ""), ("work", "%"), ("work", "d29yaw"), ("work", &"A".repeat(300))]
        {
            assert_eq!(decode(list, cursor).unwrap_err().code, Code::InvalidCursor, "{list} {cursor}");
        }
    }
}
