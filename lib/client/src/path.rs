//! Request targets: segments and queries, escaped so that an opaque ID with `/` in it stays one segment (M08).

use std::fmt::Write;

/// Escapes `text` for one path segment or one query value: all but unreserved characters become `%XX`.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// `path` with the pairs that have a value as its query, each escaped.
pub fn with_query(path: &str, pairs: &[(&str, Option<&str>)]) -> String {
    let mut target = path.to_owned();
    let given = pairs.iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    for (at, (name, value)) in given.enumerate() {
        target.push(if at == 0 { '?' } else { '&' });
        target.push_str(&escape(name));
        target.push('=');
        target.push_str(&escape(value));
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M08
    #[test]
    fn a_slash_in_an_identifier_stays_inside_its_segment() {
        assert_eq!(escape("a/b c%é"), "a%2Fb%20c%25%C3%A9");
        assert_eq!(escape("evt_0a-._~"), "evt_0a-._~");
    }

    #[test]
    fn a_query_holds_only_what_was_given() {
        assert_eq!(with_query("/v1/work", &[("a", None)]), "/v1/work");
        assert_eq!(
            with_query("/v1/work", &[("a", None), ("b", Some("1&2")), ("c", Some("x"))]),
            "/v1/work?b=1%262&c=x"
        );
    }
}
