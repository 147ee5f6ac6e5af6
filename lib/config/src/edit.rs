//! One change to the text of a configuration: everything else stays as the operator wrote it.

use conduit_api::limits::JSON_DEPTH_MAX;
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstRootNode};
use serde_json::Value;

use crate::rule::below;

/// Bytes of a pointer.
const POINTER_BYTES_MAX: usize = 4096;

/// Puts `value` in the place of the one at `pointer` (RFC 6901), and makes the objects on the way that are not there. In a
/// list a number names an element that is there, and `-` the one behind the last.
///
/// `text` is one strict JSON document. Error: why there is no such place.
pub(crate) fn set(text: &str, pointer: &str, value: &Value) -> Result<String, String> {
    let keys = keys(pointer)?;
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let root =
        CstRootNode::parse(text, &strict).map_err(|_| "the configuration is not one JSON document".to_owned())?;
    let mut at = root.value().ok_or("the configuration is empty")?;
    let mut place = String::new();
    for (index, key) in keys.iter().enumerate() {
        let last = index + 1 == keys.len();
        let rest = || if last { written(value) } else { nested(&keys[index + 1..], value) };
        if let Some(object) = at.as_object() {
            let property =
                object.properties().into_iter().find(|property| property.decoded_name().as_ref() == Some(key));
            match property {
                None => {
                    object.append(key, rest());
                    return Ok(root.to_string());
                }
                Some(property) if last => {
                    property.set_value(rest());
                    return Ok(root.to_string());
                }
                Some(property) => at = property.value().ok_or("a field has no value")?,
            }
        } else if let Some(array) = at.as_array() {
            let element = || key.parse::<usize>().ok().filter(|n| n.to_string() == *key);
            match element().and_then(|n| array.elements().into_iter().nth(n)) {
                None if key == "-" => {
                    array.append(rest());
                    return Ok(root.to_string());
                }
                None => return Err(format!("the list at `{place}` has no element `{key}`; `-` adds one")),
                Some(element) if last => {
                    replace(element, rest());
                    return Ok(root.to_string());
                }
                Some(element) => at = element,
            }
        } else {
            return Err(format!("what is at `{place}` is neither an object nor a list, so nothing is below it"));
        }
        place = below(&place, key);
    }
    Err("the whole document is replaced by `config apply`; name a place in it".to_owned())
}

/// The parts of a JSON pointer.
fn keys(pointer: &str) -> Result<Vec<String>, String> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let parts = pointer.strip_prefix('/').ok_or("a JSON pointer begins with `/`, as in /scopes/demo/enabled")?;
    if pointer.len() > POINTER_BYTES_MAX || parts.split('/').count() > JSON_DEPTH_MAX {
        return Err(format!("a pointer has at most {POINTER_BYTES_MAX} bytes and {JSON_DEPTH_MAX} parts"));
    }
    let part = |part: &str| {
        let escapes = part.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
        escapes.then(|| part.replace("~1", "/").replace("~0", "~"))
    };
    let parts: Option<Vec<String>> = parts.split('/').map(part).collect();
    parts.ok_or_else(|| "in a JSON pointer `~` is written ~0, and `/` in a name ~1".to_owned())
}

/// `value` inside the objects that `keys` name.
fn nested(keys: &[String], value: &Value) -> CstInputValue {
    let wrap = |inside, key: &String| CstInputValue::Object(vec![(key.clone(), inside)]);
    keys.iter().rev().fold(written(value), wrap)
}

fn written(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(written).collect()),
        Value::Object(fields) => {
            CstInputValue::Object(fields.iter().map(|(key, value)| (key.clone(), written(value))).collect())
        }
    }
}

fn replace(element: CstNode, value: CstInputValue) {
    use jsonc_parser::cst::{CstContainerNode as Container, CstLeafNode as Leaf};
    // A node of no other kind is an element of a list.
    let _ = match element {
        CstNode::Container(Container::Array(node)) => node.replace_with(value),
        CstNode::Container(Container::Object(node)) => node.replace_with(value),
        CstNode::Leaf(Leaf::BooleanLit(node)) => node.replace_with(value),
        CstNode::Leaf(Leaf::NullKeyword(node)) => node.replace_with(value),
        CstNode::Leaf(Leaf::NumberLit(node)) => node.replace_with(value),
        CstNode::Leaf(Leaf::StringLit(node)) => node.replace_with(value),
        _ => None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const TEXT: &str = "{\n    \"version\": 1,\n    \"scopes\": {\n        \"demo\": {\"enabled\": true,   \"operations\": [\"emit\"]}\n    }\n}\n";

    /// S06
    #[test]
    fn one_value_changes_and_every_other_byte_stays() {
        let changed = set(TEXT, "/scopes/demo/enabled", &json!(false)).unwrap();
        assert_eq!(changed, TEXT.replace("true", "false"));
        let changed = set(TEXT, "/scopes/demo/operations/0", &json!("wait")).unwrap();
        assert_eq!(changed, TEXT.replace("emit", "wait"));
        let changed = set(TEXT, "/scopes/demo/operations/-", &json!("wait")).unwrap();
        assert_eq!(changed, TEXT.replace("[\"emit\"]", "[\"emit\", \"wait\"]"));
        let added = set(TEXT, "/extensions/human/enabled", &json!(true)).unwrap();
        assert!(added.starts_with(TEXT.trim_end().trim_end_matches('}').trim_end()), "{added}");
        assert_eq!(serde_json::from_str::<Value>(&added).unwrap()["extensions"], json!({"human": {"enabled": true}}));
    }

    #[test]
    fn a_place_that_cannot_be_is_told_and_why() {
        for (pointer, word) in [
            ("", "config apply"),
            ("scopes", "begins with"),
            ("/a~2", "~0"),
            ("/version/x", "neither an object nor a list"),
            ("/scopes/demo/operations/1", "no element"),
            ("/scopes/demo/operations/00", "no element"),
            ("/scopes/demo/operations/+0", "no element"),
        ] {
            let why = set(TEXT, pointer, &json!(1)).unwrap_err();
            assert!(why.contains(word), "{pointer}: {why}");
        }
        assert!(set(TEXT, &"/x".repeat(JSON_DEPTH_MAX + 1), &json!(1)).is_err());
        assert!(set("{\"a\": 1,}", "/a", &json!(1)).is_err());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Every place in `value`.
    fn places(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.push(below(at, "fresh/~key"));
                for (key, value) in fields {
                    found.push(below(at, key));
                    places(value, &below(at, key), found);
                }
            }
            Value::Array(items) => {
                for (n, value) in items.iter().enumerate() {
                    found.push(format!("{at}/{n}"));
                    places(value, &format!("{at}/{n}"), found);
                }
            }
            _ => {}
        }
    }

    proptest! {
        /// S06
        #[test]
        fn whatever_is_set_stands_in_its_place_and_nothing_else_changed(
            document in prop::collection::btree_map(".{0,4}", any_value(), 0..5),
            value in any_value(),
            pretty in any::<bool>(),
            pick in any::<prop::sample::Index>(),
        ) {
            let mut document = Value::Object(document.into_iter().collect());
            let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) }.unwrap();
            let mut found = Vec::new();
            places(&document, "", &mut found);
            let place = pick.get(&found).clone();
            let changed = set(&text, &place, &value).unwrap();
            match document.pointer_mut(&place) {
                Some(there) => *there = value,
                None => {
                    let (parent, _) = place.rsplit_once('/').unwrap();
                    document.pointer_mut(parent).unwrap()["fresh/~key"] = value;
                }
            }
            prop_assert_eq!(serde_json::from_str::<Value>(&changed).unwrap(), document);
        }
    }
}
