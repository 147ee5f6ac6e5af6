//! JSON pointers (RFC 6901) in which a segment `*` stands for every element, so that a shell script needs no other
//! tool to take an answer apart.

use serde_json::Value;

use super::failure::{Failure, Result};

/// A parsed pointer.
#[derive(Debug)]
pub struct Pointer {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Debug)]
enum Segment {
    Every,
    Named(String),
}

impl Pointer {
    /// Reads `/inputs/*/data/count`. The empty pointer is the whole document. Errors: usage.
    pub fn parse(text: &str) -> Result<Self> {
        if !text.is_empty() && !text.starts_with('/') {
            return Err(Failure::Usage(format!("a pointer starts with `/`, as in /work/id; this one is `{text}`")));
        }
        let segments = text.split('/').skip(1).map(|segment| match segment {
            "*" => Ok(Segment::Every),
            _ => unescape(segment).map(Segment::Named),
        });
        Ok(Self { text: text.to_owned(), segments: segments.collect::<Result<_>>()? })
    }

    /// Whether it can name more than one value.
    pub fn is_wild(&self) -> bool {
        self.segments.iter().any(|segment| matches!(segment, Segment::Every))
    }

    /// The values that it names, in document order. Elements that lack what stands after a `*` are passed over;
    /// without a `*`, a missing value is an error.
    pub fn select<'v>(&self, document: &'v Value) -> Result<Vec<&'v Value>> {
        let mut found = vec![document];
        for segment in &self.segments {
            found = found.into_iter().flat_map(|value| step(value, segment)).collect();
        }
        if found.is_empty() && !self.is_wild() {
            return Err(Failure::Nothing(format!("there is nothing at {}", self.text)));
        }
        Ok(found)
    }
}

fn step<'v>(value: &'v Value, segment: &Segment) -> Vec<&'v Value> {
    match (value, segment) {
        (Value::Array(items), Segment::Every) => items.iter().collect(),
        (Value::Object(fields), Segment::Every) => fields.values().collect(),
        (Value::Array(items), Segment::Named(name)) => index(name).and_then(|at| items.get(at)).into_iter().collect(),
        (Value::Object(fields), Segment::Named(name)) => fields.get(name).into_iter().collect(),
        (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), _) => Vec::new(),
    }
}

/// An array index has no sign and no leading zero.
fn index(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok())?
}

fn unescape(segment: &str) -> Result<String> {
    let mut parts = segment.split('~');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (replacement, rest) = match part.as_bytes().first() {
            Some(b'0') => ('~', &part[1..]),
            Some(b'1') => ('/', &part[1..]),
            _ => {
                return Err(Failure::Usage("in a pointer `~` is written `~0`, and `/` in a name `~1`".into()));
            }
        };
        plain.push(replacement);
        plain.push_str(rest);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn select(pointer: &str, document: &Value) -> Result<Vec<Value>> {
        Ok(Pointer::parse(pointer)?.select(document)?.into_iter().cloned().collect())
    }

    #[test]
    fn a_star_stands_for_every_element() {
        let document = json!({"inputs": [{"data": {"n": 1}}, {"data": {}}, {"data": {"n": 3}}]});
        assert_eq!(select("/inputs/*/data/n", &document).unwrap(), [json!(1), json!(3)]);
        assert_eq!(select("/inputs/2/data/n", &document).unwrap(), [json!(3)]);
        assert_eq!(select("/*/0/data/*", &document).unwrap(), [json!(1)]);
    }

    #[test]
    fn a_star_may_match_nothing_and_a_name_may_not() {
        let document = json!({"inputs": []});
        assert!(select("/inputs/*/n", &document).unwrap().is_empty());
        let error = select("/inputs/0", &document).unwrap_err();
        assert_eq!(error.to_string(), "there is nothing at /inputs/0");
    }

    #[test]
    fn the_pointer_follows_the_standard_in_its_escapes_and_indices() {
        let document = json!({"a/b": 1, "m~n": 2, "": 3, "list": [4]});
        assert_eq!(select("/a~1b", &document).unwrap(), [json!(1)]);
        assert_eq!(select("/m~0n", &document).unwrap(), [json!(2)]);
        assert_eq!(select("/", &document).unwrap(), [json!(3)]);
        assert!(select("", &document).unwrap().iter().eq([&document]));
        for wrong in ["/list/00", "/list/+0", "/list/-", "/list/1"] {
            assert!(select(wrong, &document).is_err(), "{wrong}");
        }
        assert!(select("list", &document).is_err() && select("/~2", &document).is_err());
    }
}
