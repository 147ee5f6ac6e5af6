//! From bytes to a JSON value, noting on the way what a careful reader refuses: every duplicate key and every null,
//! each where it stands. What is not JSON at all ends the reading.

use std::cell::{Cell, RefCell};
use std::fmt;

use conduit_api::limits::{BODY_BYTES_MAX, JSON_DEPTH_MAX};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::rule::{Faults, Rule, below};

/// Reads one document; `None` when it has no value to look at further. Nulls stay in the value, duplicates do not.
pub(crate) fn read(bytes: &[u8], faults: &mut Faults) -> Option<Value> {
    if bytes.len() > BODY_BYTES_MAX {
        faults.add(Rule::DocumentTooLarge, "", format!("make the document smaller than {BODY_BYTES_MAX} bytes"));
        return None;
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        faults.add(Rule::InvalidJson, "", "remove the byte order mark at the start");
        return None;
    }
    let notes = Notes { faults: RefCell::new(std::mem::take(faults)), too_deep: Cell::new(false) };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = Node { notes: &notes, at: At::Root, depth: 0 }.deserialize(&mut reader);
    let ended = read.and_then(|value| reader.end().map(|()| value));
    let too_deep = notes.too_deep.get();
    *faults = notes.faults.into_inner();
    match ended {
        Ok(value) => Some(value),
        Err(_) if too_deep => {
            faults.add(Rule::NestedTooDeep, "", format!("nest at most {JSON_DEPTH_MAX} levels"));
            None
        }
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let remedy = format!("write one JSON document in UTF-8; reading stopped at line {line}, column {column}");
            faults.add(Rule::InvalidJson, "", remedy);
            None
        }
    }
}

struct Notes {
    faults: RefCell<Faults>,
    too_deep: Cell<bool>,
}

/// Where the reader is; spelt out only when there is something to note.
#[derive(Clone, Copy)]
enum At<'p> {
    Root,
    Key(&'p At<'p>, &'p str),
    Index(&'p At<'p>, usize),
}

impl At<'_> {
    fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(parent, key) => below(&parent.pointer(), key),
            Self::Index(parent, index) => format!("{}/{index}", parent.pointer()),
        }
    }
}

#[derive(Clone, Copy)]
struct Node<'n> {
    notes: &'n Notes,
    at: At<'n>,
    depth: usize,
}

impl Node<'_> {
    fn note(&self, rule: Rule, at: At<'_>, remedy: &str) {
        self.notes.faults.borrow_mut().add(rule, at.pointer(), remedy);
    }

    /// The depth of what is inside this value; an error past the limit, so that a document cannot exhaust the stack.
    fn inside<E: serde::de::Error>(&self) -> Result<usize, E> {
        if self.depth >= JSON_DEPTH_MAX {
            self.notes.too_deep.set(true);
            return Err(E::custom("nested too deep"));
        }
        Ok(self.depth + 1)
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
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
    fn visit_unit<E>(self) -> Result<Value, E> {
        self.note(Rule::NullValue, self.at, "leave the field out, or give it a value");
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let depth = self.inside()?;
        let mut items = Vec::new();
        loop {
            let item = Node { notes: self.notes, at: At::Index(&self.at, items.len()), depth };
            match seq.next_element_seed(item)? {
                Some(value) => items.push(value),
                None => return Ok(Value::Array(items)),
            }
        }
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let depth = self.inside()?;
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let at = At::Key(&self.at, &key);
            let value = map.next_value_seed(Node { notes: self.notes, at, depth })?;
            if fields.contains_key(&key) {
                self.note(Rule::DuplicateKey, at, "keep one of the fields of this name");
            } else {
                fields.insert(key, value);
            }
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &[u8]) -> Vec<(String, String)> {
        let mut faults = Faults::default();
        read(text, &mut faults);
        faults.sorted().into_iter().map(|d| (d.pointer, d.code)).collect()
    }

    fn one(pointer: &str, code: &str) -> Vec<(String, String)> {
        vec![(pointer.to_owned(), code.to_owned())]
    }

    /// C01
    #[test]
    fn every_duplicate_key_and_every_null_is_named_where_it_stands() {
        let found = faults(br#"{"a":{"x":1,"\u0078":2},"b":[0,null],"a/b":null,"a":3}"#);
        let expected =
            [("/a", "duplicate_key"), ("/a/x", "duplicate_key"), ("/a~1b", "null_value"), ("/b/1", "null_value")];
        assert_eq!(found, expected.map(|(p, c)| (p.to_owned(), c.to_owned())));
    }

    /// C01
    #[test]
    fn what_is_not_one_json_document_is_refused_as_a_whole() {
        for text in [
            &b""[..],
            b"{",
            b"{} {}",
            b"{\"a\":1,}",
            b"\xef\xbb\xbf{}",
            b"\"\xff\"",
            b"\"\\ud800\"",
            b"[1e999]",
            b"nul",
        ] {
            assert_eq!(faults(text), one("", "invalid_json"), "{}", String::from_utf8_lossy(text));
        }
        assert_eq!(faults(&b" ".repeat(BODY_BYTES_MAX + 1)), one("", "document_too_large"));
    }

    /// C01
    #[test]
    fn nesting_is_bounded_without_exhausting_the_stack() {
        let deep = |n: usize| [b"[".repeat(n), b"]".repeat(n)].concat();
        assert_eq!(faults(&deep(JSON_DEPTH_MAX)), []);
        assert_eq!(faults(&deep(JSON_DEPTH_MAX + 1)), one("", "nested_too_deep"));
        assert_eq!(faults(&deep(500_000)), one("", "nested_too_deep"));
    }

    /// C01
    #[test]
    fn a_document_of_nothing_but_faults_gets_a_bounded_answer() {
        let text = format!("[{}0]", "null,".repeat(100_000));
        let found = faults(text.as_bytes());
        assert_eq!(found.len(), crate::FAULTS_MAX + 1);
        assert_eq!(found[0], (String::new(), "too_many_faults".to_owned()));
    }
}
