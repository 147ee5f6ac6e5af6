//! What an operator is shown of a call's input: bounded, and without what looks like a secret.
//!
//! The decision is bound to the digest of the whole input, so that what is left out here is decided about all the same.

use serde_json::{Map, Value};

/// Characters of one text that are shown.
const TEXT_CHARS_MAX: usize = 300;
/// Entries of one list or object that are shown.
const ENTRIES_MAX: usize = 24;
/// How deep a value is shown.
const DEPTH_MAX: usize = 6;
/// Values that are shown of one input, together.
const VALUES_MAX: usize = 200;

/// A name that holds one of these, whatever its case and separators, is a secret's.
const SECRET: [&str; 14] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "authorization",
    "bearer",
    "cookie",
    "apikey",
    "accesskey",
    "privatekey",
    "signingkey",
];
const HIDDEN: &str = "[redacted]";
const CUT: &str = "…";

/// The part of `input` that is shown.
pub fn shown(input: &Map<String, Value>) -> Value {
    let mut left = VALUES_MAX;
    object(input, 0, &mut left)
}

fn value(value: &Value, depth: usize, left: &mut usize) -> Value {
    *left = left.saturating_sub(1);
    match value {
        Value::String(text) if text.chars().count() > TEXT_CHARS_MAX => {
            Value::String(text.chars().take(TEXT_CHARS_MAX).chain(CUT.chars()).collect())
        }
        Value::Array(_) | Value::Object(_) if depth >= DEPTH_MAX => Value::from(CUT),
        Value::Array(items) => {
            let mut shown = Vec::new();
            for item in items.iter().take(ENTRIES_MAX) {
                if *left == 0 {
                    break;
                }
                shown.push(self::value(item, depth + 1, left));
            }
            if shown.len() < items.len() {
                shown.push(Value::from(CUT));
            }
            Value::Array(shown)
        }
        Value::Object(fields) => object(fields, depth, left),
        other => other.clone(),
    }
}

fn object(fields: &Map<String, Value>, depth: usize, left: &mut usize) -> Value {
    let mut shown = Map::new();
    for (name, field) in fields.iter().take(ENTRIES_MAX) {
        if *left == 0 {
            break;
        }
        let short: String = name.chars().take(TEXT_CHARS_MAX).collect();
        let field = if is_secret(name) { Value::from(HIDDEN) } else { value(field, depth + 1, left) };
        shown.insert(short, field);
    }
    if shown.len() < fields.len() {
        shown.insert(CUT.to_owned(), Value::from(CUT));
    }
    Value::Object(shown)
}

fn is_secret(name: &str) -> bool {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    SECRET.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// G07
    #[test]
    fn what_is_shown_is_bounded_and_has_no_field_that_is_named_like_a_secret() {
        let input = json!({
            "title": "x".repeat(5000), "Access-Token": "t", "apiKey": "k", "private_key": "k", "PWD": "p", "deep": {"db": {"password": ["p"]}, "n": 1},
            "list": (0..1000).collect::<Vec<_>>(),
        });
        let shown = shown(input.as_object().unwrap());
        assert_eq!(shown["title"].as_str().unwrap().chars().count(), TEXT_CHARS_MAX + 1);
        for name in ["Access-Token", "apiKey", "private_key", "PWD"] {
            assert_eq!(shown[name], HIDDEN, "{name}");
        }
        assert_eq!(shown["deep"], json!({"db": {"password": HIDDEN}, "n": 1}));
        assert_eq!(shown["list"].as_array().unwrap().len(), ENTRIES_MAX + 1);
        let wide: Map<String, Value> = (0..90)
            .map(|n| (n.to_string(), json!((0..90).map(|_| json!({"a": [1, 2]})).collect::<Vec<_>>())))
            .collect();
        assert!(super::shown(&wide).to_string().len() < 4096);
    }
}
