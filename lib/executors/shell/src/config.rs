//! A binding's `config` for this executor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use conduit_api::error::Diagnostic;
use conduit_api::id::is_name;
use conduit_api::{ApiError, Code, json};
use conduit_kernel::limits::{OUTPUT_BYTES_MAX, STOP_GRACE_MS_MAX};
use serde::Deserialize;
use serde_json::{Map, Value};

/// `{"command": ["/abs/program", "arg"…], "cwd"?, "env"?, "resume"?, "output_bytes_max"?, "stop_grace_ms"?, "playbook"?}`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub command: Vec<String>,
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub resume: bool,
    #[serde(default)]
    pub output_bytes_max: Option<u64>,
    #[serde(default)]
    pub stop_grace_ms: Option<u64>,
    #[serde(default)]
    pub playbook: Option<String>,
}

/// The playbook that a binding names for whatever its command starts (S05).
pub fn playbook(config: &Value) -> Option<&str> {
    config.get("playbook")?.as_str()
}

impl Config {
    /// Error: `invalid_config`, with the diagnostics.
    pub fn read(config: &Value) -> Result<Self, ApiError> {
        let refused = |diagnostics| {
            let mut error = ApiError::new(Code::InvalidConfig, "the binding's configuration has faults; correct them");
            error.diagnostics = diagnostics;
            error
        };
        let faults = validate(config, "");
        if !faults.is_empty() {
            return Err(refused(faults));
        }
        json::from_value(config.clone()).map_err(|why| refused(vec![fault("", "wrong_type", &why.0)]))
    }
}

/// Every fault of `config`, in the order of its fields; never a value of it (C01).
pub fn validate(config: &Value, pointer: &str) -> Vec<Diagnostic> {
    let Some(fields) = config.as_object() else {
        return vec![fault(pointer, "wrong_type", "use an object with `command`")];
    };
    let mut faults = Faults { fields, pointer, found: Vec::new() };
    faults.command();
    faults.absolute("cwd");
    faults.env();
    if fields.get("resume").is_some_and(|value| !value.is_boolean()) {
        faults.add("resume", "wrong_type", "use true or false");
    }
    faults.number("output_bytes_max", OUTPUT_BYTES_MAX);
    faults.number("stop_grace_ms", STOP_GRACE_MS_MAX);
    match fields.get("playbook").map(Value::as_str) {
        None => {}
        Some(Some(name)) if is_name(name) => {}
        Some(Some(_)) => faults.add("playbook", "invalid_name", "use the name of a playbook of this release"),
        Some(None) => faults.add("playbook", "wrong_type", "use a text"),
    }
    for name in fields.keys() {
        if !FIELDS.contains(&name.as_str()) {
            let remedy = format!("remove it, or use one of {}", FIELDS.join(", "));
            faults.add(&escape(name), "unknown_field", &remedy);
        }
    }
    faults.found
}

const FIELDS: [&str; 7] = ["command", "cwd", "env", "resume", "output_bytes_max", "stop_grace_ms", "playbook"];

struct Faults<'a> {
    fields: &'a Map<String, Value>,
    pointer: &'a str,
    found: Vec<Diagnostic>,
}

impl Faults<'_> {
    fn add(&mut self, at: &str, code: &str, remedy: &str) {
        self.found.push(fault(&format!("{}/{at}", self.pointer), code, remedy));
    }

    fn command(&mut self) {
        const WHAT: &str = "use a list: the absolute path of a program, then its arguments";
        match self.fields.get("command") {
            None => self.add("command", "missing_field", WHAT),
            Some(Value::Array(words)) if words.is_empty() => self.add("command", "out_of_range", WHAT),
            Some(Value::Array(words)) => {
                for (place, word) in words.iter().enumerate() {
                    let at = format!("command/{place}");
                    match word.as_str() {
                        None => self.add(&at, "wrong_type", "use a text"),
                        Some(text) if text.contains('\0') => self.add(&at, "invalid_value", "remove the NUL"),
                        Some(text) if place == 0 && !Path::new(text).is_absolute() => {
                            self.add(&at, "invalid_value", "use the absolute path of the program");
                        }
                        Some(_) => {}
                    }
                }
            }
            Some(_) => self.add("command", "wrong_type", WHAT),
        }
    }

    fn absolute(&mut self, name: &str) {
        match self.fields.get(name).map(|value| value.as_str()) {
            None => {}
            Some(Some(path)) if Path::new(path).is_absolute() && !path.contains('\0') => {}
            Some(Some(_)) => self.add(name, "invalid_value", "use an absolute path"),
            Some(None) => self.add(name, "wrong_type", "use a text"),
        }
    }

    fn env(&mut self) {
        let Some(value) = self.fields.get("env") else { return };
        let Some(values) = value.as_object() else {
            return self.add("env", "wrong_type", "use an object of names and texts");
        };
        for (name, value) in values {
            let at = format!("env/{}", escape(name));
            if name.is_empty() || name.contains(['=', '\0']) {
                self.add(&at, "invalid_value", "use a name without `=`");
            } else if name.starts_with("OS_") || name.starts_with("OPEN_CONDUIT_") {
                self.add(&at, "reserved_name", "choose another name; OS_ and OPEN_CONDUIT_ are the host's");
            }
            match value.as_str() {
                None => self.add(&at, "wrong_type", "use a text"),
                Some(text) if text.contains('\0') => self.add(&at, "invalid_value", "remove the NUL"),
                Some(_) => {}
            }
        }
    }

    fn number(&mut self, name: &str, max: u64) {
        match self.fields.get(name) {
            None => {}
            Some(value) => match value.as_u64() {
                Some(number) if number <= max => {}
                Some(_) => self.add(name, "out_of_range", &format!("use a number from 0 to {max}")),
                None => self.add(name, "wrong_type", &format!("use a whole number from 0 to {max}")),
            },
        }
    }
}

fn fault(pointer: &str, code: &str, remedy: &str) -> Diagnostic {
    Diagnostic { pointer: pointer.to_owned(), code: code.to_owned(), remedy: remedy.to_owned() }
}

/// A name as a segment of a JSON pointer (RFC 6901).
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_extension::variable;
    use serde_json::json;

    fn faults(config: &Value) -> Vec<(String, String)> {
        validate(config, "/c").into_iter().map(|fault| (fault.pointer, fault.code)).collect()
    }

    /// C01
    #[test]
    fn every_fault_is_named_at_once_and_no_value_is_repeated() {
        let config = json!({
            "command": ["sh", 7], "cwd": "secret", "env": {"OS_X": "1", "A": 2}, "resume": "yes",
            "output_bytes_max": -1, "playbook": "No", "a/b": true,
        });
        let expected = [
            ("/c/command/0", "invalid_value"),
            ("/c/command/1", "wrong_type"),
            ("/c/cwd", "invalid_value"),
            ("/c/env/A", "wrong_type"),
            ("/c/env/OS_X", "reserved_name"),
            ("/c/resume", "wrong_type"),
            ("/c/output_bytes_max", "wrong_type"),
            ("/c/playbook", "invalid_name"),
            ("/c/a~1b", "unknown_field"),
        ];
        let found = faults(&config);
        assert_eq!(found, expected.map(|(at, code)| (at.to_owned(), code.to_owned())));
        assert!(!format!("{:?}", validate(&config, "/c")).contains("secret"));
        assert!(validate(&config, "/c").iter().any(|fault| fault.remedy.ends_with(&FIELDS.join(", "))));
    }

    /// C01
    #[test]
    fn the_page_of_configurations_has_every_field_with_its_bound() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/configuration.md");
        let page = std::fs::read_to_string(page).unwrap();
        let section =
            page.split("`shell`: `scopes.*.bindings.*.config`\n").nth(1).unwrap().split("\n#").next().unwrap();
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        let row = |name: &str| *rows.iter().find(|row| row.starts_with(&format!("| `{name}` "))).unwrap_or(&"");
        assert!(FIELDS.iter().all(|name| !row(name).is_empty()), "{rows:?}");
        assert!(row("output_bytes_max").contains(&format!("0 to {OUTPUT_BYTES_MAX}")));
        assert!(row("stop_grace_ms").contains(&format!("0 to {STOP_GRACE_MS_MAX}")));
        for name in [variable::WORK_ID, variable::RESUMED, variable::PLAYBOOK, "OS_TOKEN_FILE"] {
            assert!(section.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn a_command_is_all_that_is_needed() {
        assert_eq!(faults(&json!({"command":["/bin/true"]})), []);
        assert_eq!(faults(&json!({})), [("/c/command".to_owned(), "missing_field".to_owned())]);
        assert_eq!(faults(&json!([])), [("/c".to_owned(), "wrong_type".to_owned())]);
        assert_eq!(Config::read(&json!({"command":[]})).unwrap_err().code, Code::InvalidConfig);
    }
}
