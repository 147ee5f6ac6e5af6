//! How much a schema may ask of whoever holds a value against it: every reference written out, since that is what is walked.
//!
//! Fifty definitions that each name the next one twice are a short text and a walk without an end.

use std::collections::HashMap;

use serde_json::Value;

/// Parts of a schema with every reference written out.
const PARTS_MAX: u64 = 4096;

/// Why `schema` is refused, if it is: it is too large once its references are written out, it refers to itself, or it refers to
/// something by another way than a place in itself.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut walk = Walk { root: schema, known: HashMap::new() };
    let parts = walk.parts(schema, true)?;
    if parts > PARTS_MAX {
        return Err(format!("has more than {PARTS_MAX} parts once its references are written out"));
    }
    Ok(())
}

struct Walk<'s> {
    root: &'s Value,
    /// What a place comes to; `None` while it is walked.
    known: HashMap<&'s str, Option<u64>>,
}

impl<'s> Walk<'s> {
    fn parts(&mut self, value: &'s Value, root: bool) -> Result<u64, String> {
        let mut parts: u64 = 1;
        match value {
            Value::Array(items) => {
                for item in items {
                    parts = parts.saturating_add(self.parts(item, false)?);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    let more = match (name.as_str(), field) {
                        ("$ref", Value::String(place)) => self.referred(place)?,
                        ("$dynamicRef" | "$recursiveRef", Value::String(_)) => {
                            return Err(format!("uses `{name}`; write `$ref`"));
                        }
                        ("$id", Value::String(_)) if !root => return Err("has an `$id` below its top".into()),
                        _ => self.parts(field, false)?,
                    };
                    parts = parts.saturating_add(more);
                }
            }
            _ => {}
        }
        Ok(parts)
    }

    fn referred(&mut self, place: &'s str) -> Result<u64, String> {
        match self.known.get(place) {
            Some(Some(parts)) => return Ok(*parts),
            Some(None) => return Err(format!("refers to itself at `{}`", shown(place))),
            None => {}
        }
        let pointer = place.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let found = pointer.and_then(|pointer| self.root.pointer(pointer));
        let target = found.ok_or_else(|| format!("refers to `{}`, which is no place in it", shown(place)))?;
        self.known.insert(place, None);
        let parts = self.parts(target, false)?;
        self.known.insert(place, Some(parts));
        Ok(parts)
    }
}

fn shown(place: &str) -> String {
    place.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// T16: a short text that is long to walk is refused before anybody walks it.
    #[test]
    fn a_schema_that_doubles_with_each_reference_is_refused_and_one_that_shares_its_parts_is_not() {
        for keyword in ["anyOf", "allOf", "oneOf"] {
            let bomb = |depth: usize| {
                let mut schema = json!({"type": "object", "$defs": {}, "properties": {"x": {"$ref": "#/$defs/d0"}}});
                for at in 0..depth {
                    let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
                    schema["$defs"][format!("d{at}")] = json!({keyword: [next, next]});
                }
                schema["$defs"][format!("d{depth}")] = json!({"type": "integer"});
                schema
            };
            assert_eq!(check(&bomb(3)), Ok(()));
            assert!(check(&bomb(50)).unwrap_err().contains("4096"), "{keyword}");
        }
        let shared: Vec<Value> = (0..100).map(|_| json!({"$ref": "#/$defs/name"})).collect();
        assert_eq!(check(&json!({"$defs": {"name": {"type": "string"}}, "prefixItems": shared})), Ok(()));
    }

    #[test]
    fn a_schema_refers_to_places_in_itself_and_never_to_where_it_stands() {
        for (schema, why) in [
            (json!({"properties": {"x": {"$ref": "#"}}}), "itself"),
            (json!({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}), "itself"),
            (json!({"$ref": "#/$defs/none"}), "no place"),
            (json!({"$ref": "#name"}), "no place"),
            (json!({"$ref": "https://example.com/x"}), "no place"),
            (json!({"$dynamicRef": "#x"}), "$ref"),
            (json!({"$defs": {"a": {"$id": "other"}}}), "$id"),
        ] {
            assert!(check(&schema).unwrap_err().contains(why), "{schema}");
        }
        let named = json!({"$id": "urn:x", "properties": {"$id": {"type": "string"}, "$ref": {"type": "string"}}});
        assert_eq!(check(&named), Ok(()));
    }
}
