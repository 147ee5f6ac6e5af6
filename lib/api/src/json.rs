//! Strict JSON: what a trusting parser lets through and a careful one names.
//!
//! Refused: duplicate keys (also when spelt by escapes), nulls, anything after the document, a byte order mark,
//! bytes that are not UTF-8, nesting past [`JSON_DEPTH_MAX`], documents past the caller's size limit. Unknown
//! fields are the business of the type that is read (`deny_unknown_fields`).

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::limits::JSON_DEPTH_MAX;

/// Why a document was refused. The message never repeats a value of the document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Parses a whole document, strictly; `bytes_max` bounds its size.
pub fn parse(bytes: &[u8], bytes_max: usize) -> Result<Value, Refused> {
    if bytes.len() > bytes_max {
        return Err(Refused(format!("the document is larger than {bytes_max} bytes")));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(Refused("the document starts with a byte order mark; remove it".into()));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { depth: 0 }.deserialize(&mut reader).map_err(|e| Refused(describe(&e)))?;
    reader.end().map_err(|_| Refused("there is text after the end of the document".into()))?;
    Ok(value)
}

/// Parses a document strictly, then reads a `T` from the object that it has to be.
pub fn read<T: DeserializeOwned>(bytes: &[u8], bytes_max: usize) -> Result<T, Refused> {
    match parse(bytes, bytes_max)? {
        // serde would take an array for the fields of a struct, in their order.
        object @ Value::Object(_) => from_value(object),
        _ => Err(Refused("the document is not a JSON object".into())),
    }
}

/// Reads a `T` from a strictly parsed value; the message names the fault, not the value.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Refused> {
    serde_json::from_value(value).map_err(|e| Refused(describe(&e)))
}

/// serde's sentence without quoted values: `invalid type: string "…"` loses its text.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match (text.find("string \""), text.rfind("\", expected")) {
        (Some(start), Some(end)) if start < end => format!("{}string{}", &text[..start], &text[end + 1..]),
        _ => text,
    }
}

#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Strict {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth >= JSON_DEPTH_MAX {
            return Err(E::custom(format_args!("the document is nested deeper than {JSON_DEPTH_MAX} levels")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value other than null")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is out of range"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Err(E::custom("null is not accepted; leave the field out"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if fields.contains_key(&key) {
                return Err(serde::de::Error::custom("a key stands twice in one object"));
            }
            fields.insert(key, map.next_value_seed(inner)?);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text.as_bytes(), 1 << 20).unwrap_err().0
    }

    #[test]
    fn a_duplicate_key_is_refused_also_when_escaped() {
        assert!(refused(r#"{"a":1,"a":2}"#).contains("twice"));
        assert!(refused(r#"{"x":{"a":1,"\u0061":2}}"#).contains("twice"));
    }

    #[test]
    fn an_array_does_not_stand_for_the_fields_of_an_object() {
        #[derive(Debug, serde::Deserialize)]
        struct Two {
            _a: i64,
            _b: i64,
        }
        assert!(read::<Two>(br#"{"_a":1,"_b":2}"#, 100).is_ok());
        assert!(read::<Two>(b"[1,2]", 100).unwrap_err().0.contains("not a JSON object"));
    }

    #[test]
    fn null_and_trailing_text_and_a_byte_order_mark_are_refused() {
        assert!(refused(r#"{"a":null}"#).contains("null"));
        assert!(refused("{} {}").contains("after the end"));
        assert!(refused("\u{feff}{}").contains("byte order mark"));
        assert!(parse(b"\"\xff\"", 100).is_err());
        assert!(parse(b"\"\\ud800\"", 100).is_err());
        assert!(parse(b"1e999", 100).is_err());
    }

    #[test]
    fn nesting_is_bounded_without_exhausting_the_stack() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(deep(JSON_DEPTH_MAX).as_bytes(), 1 << 20).is_ok());
        assert!(refused(&deep(JSON_DEPTH_MAX + 1)).contains("nested"));
        assert!(parse(deep(500_000).as_bytes(), 1 << 20).is_err());
    }

    #[test]
    fn a_refusal_never_repeats_a_value() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Number {
            #[allow(dead_code)] // read by serde only; the test looks at the refusal
            n: u32,
        }
        let Refused(text) = read::<Number>(br#"{"n":"hunter2"}"#, 100).unwrap_err();
        assert!(!text.contains("hunter2") && text.contains("expected u32"), "{text}");
        assert!(read::<Number>(br#"{"n":1,"m":2}"#, 100).unwrap_err().0.contains("unknown field"));
    }

    #[test]
    fn a_document_past_the_limit_is_refused_unread() {
        assert!(parse(b"[1,2,3]", 6).unwrap_err().0.contains("larger than 6 bytes"));
    }
}
