//! Inputs held against the JSON Schema of their operation. A violation names a place and a rule, never a value.

use std::cell::OnceCell;

use conduit_api::error::Diagnostic;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Draft, ValidationError, Validator};
use serde_json::Value;

use super::bounded;

/// Most violations that one answer lists.
const VIOLATIONS_MAX: usize = 16;
/// Bytes of an extension's settings, as JSON: they go with every question to it.
pub const SETTINGS_BYTES_MAX: usize = 64 << 10;
/// Longest property name that a place repeats, in bytes.
const KEY_BYTES_MAX: usize = 256;

/// Every violation of `schema` by `value`, for a schema that is seldom asked. `Err` says why the schema cannot be used.
pub fn violations(schema: &Value, value: &Value) -> Result<Vec<Diagnostic>, String> {
    Compiled::default().violations(schema, value).map_err(str::to_owned)
}

/// The schema of an extension's settings, or of what a binding says to an executor of its own.
#[derive(Debug)]
pub struct SettingsSchema {
    schema: Value,
    compiled: Compiled,
}

impl SettingsSchema {
    pub fn new(schema: Value) -> Self {
        Self { schema, compiled: Compiled::default() }
    }

    /// Why the schema cannot be used, if it cannot.
    pub fn fault(&self) -> Option<&str> {
        self.compiled.violations(&self.schema, &Value::Null).err()
    }

    /// Every fault of `settings`, which stand at `pointer`: a place, a rule, a remedy, never a value.
    pub fn faults(&self, settings: &Value, pointer: &str) -> Vec<Diagnostic> {
        let whole =
            |remedy: String| vec![Diagnostic { pointer: pointer.to_owned(), code: "invalid_value".into(), remedy }];
        if serde_json::to_vec(settings).map_or(true, |bytes| bytes.len() > SETTINGS_BYTES_MAX) {
            return whole(format!("keep what an extension is told below {SETTINGS_BYTES_MAX} bytes"));
        }
        match self.compiled.violations(&self.schema, settings) {
            Ok(mut found) => {
                found.iter_mut().for_each(|fault| fault.pointer.insert_str(0, pointer));
                found
            }
            Err(why) => whole(format!("install the extension again: its schema {why}")),
        }
    }
}

/// A schema, compiled when the first value is held against it.
#[derive(Debug, Default)]
pub(super) struct Compiled(OnceCell<Result<Validator, String>>);

impl Compiled {
    /// Every violation of `schema` by `input`, at most [`VIOLATIONS_MAX`], in the order of their places.
    ///
    /// `Err` when the schema itself is none, and why.
    pub fn violations(&self, schema: &Value, input: &Value) -> Result<Vec<Diagnostic>, &str> {
        let validator = self.0.get_or_init(|| compile(schema)).as_ref().map_err(String::as_str)?;
        if validator.is_valid(input) {
            return Ok(Vec::new());
        }
        let mut found: Vec<Diagnostic> = validator.iter_errors(input).take(VIOLATIONS_MAX).map(|e| told(&e)).collect();
        found.sort();
        found.dedup();
        Ok(found)
    }
}

/// Compiles a schema of draft 2020-12 that refers to nothing outside itself, and whose walk is bounded.
pub(super) fn compile(schema: &Value) -> Result<Validator, String> {
    bounded::check(schema)?;
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .offline()
        .build(schema)
        .map_err(|error| format!("is no JSON Schema: {} at `{}`", error.masked(), error.instance_path()))
}

fn told(error: &ValidationError<'_>) -> Diagnostic {
    let pointer = error.instance_path().to_string();
    let (pointer, code, remedy) = match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => (
            below(&pointer, unexpected.first()),
            "unknown_field",
            "remove the field; there is none of this name".into(),
        ),
        ValidationErrorKind::Required { property } => {
            (below(&pointer, property.as_str().map(str::to_owned).as_ref()), "missing_field", "add the field".into())
        }
        ValidationErrorKind::Type { kind } => (pointer, "wrong_type", format!("use {}", type_name(kind))),
        ValidationErrorKind::Enum { options } => (pointer, "invalid_value", format!("use one of {options}")),
        ValidationErrorKind::Constant { expected_value } => (pointer, "invalid_value", format!("use {expected_value}")),
        ValidationErrorKind::Maximum { limit } => (pointer, "out_of_range", format!("use at most {limit}")),
        ValidationErrorKind::Minimum { limit } => (pointer, "out_of_range", format!("use at least {limit}")),
        ValidationErrorKind::ExclusiveMaximum { limit } => (pointer, "out_of_range", format!("use less than {limit}")),
        ValidationErrorKind::ExclusiveMinimum { limit } => (pointer, "out_of_range", format!("use more than {limit}")),
        ValidationErrorKind::MaxLength { limit } => {
            (pointer, "invalid_value", format!("use at most {limit} characters"))
        }
        ValidationErrorKind::MinLength { limit } => {
            (pointer, "invalid_value", format!("use at least {limit} characters"))
        }
        ValidationErrorKind::MaxItems { limit } => {
            (pointer, "too_many_entries", format!("keep at most {limit} entries"))
        }
        ValidationErrorKind::MinItems { limit } => (pointer, "invalid_value", format!("use at least {limit} entries")),
        ValidationErrorKind::UniqueItems => (pointer, "duplicate_entry", "use each entry once".into()),
        ValidationErrorKind::Pattern { pattern } => {
            (pointer, "invalid_value", format!("use a text that matches {pattern}"))
        }
        ValidationErrorKind::Format { format } => {
            (pointer, "invalid_value", format!("use a text of the format {format}"))
        }
        _ => {
            let keyword = error.schema_path().to_string();
            let keyword = keyword.rsplit('/').next().unwrap_or_default().to_owned();
            (pointer, "invalid_value", format!("use a value that keeps `{keyword}` of the schema"))
        }
    };
    Diagnostic { pointer, code: code.to_owned(), remedy }
}

fn type_name(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => format!("a value of type {one}"),
        TypeKind::Multiple(several) => {
            let names: Vec<String> = several.iter().map(|one| one.to_string()).collect();
            format!("a value of one of the types {}", names.join(", "))
        }
    }
}

/// `pointer` and below it `key`, as RFC 6901 spells it; a key that is too long to be a name is not repeated.
fn below(pointer: &str, key: Option<&String>) -> String {
    match key.filter(|key| key.len() <= KEY_BYTES_MAX) {
        Some(key) => format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")),
        None => pointer.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(schema: &Value, input: &Value) -> Vec<(String, String)> {
        let found = Compiled::default().violations(schema, input).unwrap();
        found.into_iter().map(|fault| (fault.pointer, fault.code)).collect()
    }

    /// T05
    #[test]
    fn each_violation_is_named_by_place_and_rule_and_no_value_is_repeated() {
        let schema = json!({
            "type": "object", "required": ["repository", "number"], "additionalProperties": false,
            "properties": {
                "repository": {"type": "string"}, "number": {"type": "integer", "minimum": 1},
                "state": {"enum": ["open", "closed"]}, "labels": {"type": "array", "items": {"type": "string"}},
                "title": {"type": "string", "maxLength": 3, "pattern": "^a"},
            },
        });
        let input = json!({"number": 0, "state": "hunter2", "labels": [7], "title": "hunter2", "a/b": "hunter2"});
        let expected = [
            ("/a~1b", "unknown_field"),
            ("/labels/0", "wrong_type"),
            ("/number", "out_of_range"),
            ("/repository", "missing_field"),
            ("/state", "invalid_value"),
            ("/title", "invalid_value"),
            ("/title", "invalid_value"),
        ];
        assert_eq!(faults(&schema, &input), expected.map(|(at, code)| (at.to_owned(), code.to_owned())));
        let told = Compiled::default();
        assert!(!format!("{:?}", told.violations(&schema, &input)).contains("hunter2"));
        assert_eq!(faults(&schema, &json!({"repository": "a", "number": 1})), []);
    }

    #[test]
    fn a_schema_that_refers_outside_itself_or_is_none_is_refused() {
        for schema in [json!({"type": "object", "$ref": "https://example.invalid/x"}), json!({"type": "objekt"})] {
            assert!(Compiled::default().violations(&schema, &json!({})).is_err(), "{schema}");
        }
    }
}
