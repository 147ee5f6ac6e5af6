//! Raw request targets, taken apart: a decoded segment may contain `/` (M08).

use conduit_api::{ApiError, Code};

/// The segments of an absolute path, each decoded by itself: `/v1/work/a%2Fb` is `v1`, `work`, `a/b`.
///
/// `invalid_request` when an escape is broken or a segment is not UTF-8. Empty segments stay, so that `/v1//work`
/// matches nothing.
pub fn segments(raw: &str) -> Result<Vec<String>, ApiError> {
    raw.strip_prefix('/').unwrap_or(raw).split('/').map(|segment| decode(segment, false)).collect()
}

/// The pairs of a query string, decoded, in order. `invalid_request` as in [`segments`].
pub fn query(raw: &str) -> Result<Vec<(String, String)>, ApiError> {
    raw.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name, true)?, decode(value, true)?))
        })
        .collect()
}

fn decode(text: &str, plus_is_space: bool) -> Result<String, ApiError> {
    let broken = || ApiError::new(Code::InvalidRequest, "the request target has a broken % escape");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|d| char::from(d).to_digit(16));
                let (high, low) = (digit().ok_or_else(broken)?, digit().ok_or_else(broken)?);
                u8::try_from(high * 16 + low).map_err(|_| broken())?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M08
    #[test]
    fn an_escaped_slash_stays_inside_its_segment() {
        assert_eq!(segments("/v1/work/a%2Fb/c").unwrap(), ["v1", "work", "a/b", "c"]);
        assert_eq!(segments("/v1//x").unwrap(), ["v1", "", "x"]);
        assert_eq!(segments("/").unwrap(), [""]);
    }

    #[test]
    fn a_broken_escape_is_refused() {
        for bad in ["/%", "/%2", "/%zz", "/%ff"] {
            assert_eq!(segments(bad).unwrap_err().code, Code::InvalidRequest, "{bad}");
        }
    }

    #[test]
    fn a_query_is_pairs_in_order() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(query("a=1&b=x+y%26z&c").unwrap(), [pair("a", "1"), pair("b", "x y&z"), pair("c", "")]);
    }
}
