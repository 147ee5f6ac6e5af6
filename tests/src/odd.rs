//! The package `odd`: it does what its settings say, so that a test can have it misbehave in the way that it is about.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::config;
use crate::suite::Suite;

const PROGRAM: &str = include_str!("odd/main.py");

/// Its manifest. `settings` say for each kind of question (`validate`, `invoke`, `gate`, `start`, `act`) how it behaves.
pub fn manifest() -> Value {
    let how = json!({"type": "string", "enum": ["behave", "crash", "hang", "flood", "large", "nonsense", "stranger", "memory", "park", "refuse"]});
    let anything = json!({"type": "object"});
    let number = json!({
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false,
    });
    let action = |name: &str, role: &str, input: &Value| json!({"name": name, "summary": "An action", "input": input, "role": role});
    json!({
        "name": "odd", "version": "1.0.0", "summary": "Does what its settings say", "program": {"path": "main.py"},
        "protocol_versions": [1],
        "provides": {
            "operations": [{"name": "odd.do", "summary": "Do something", "input": anything}],
            "wait_families": ["odd"], "operation_gate": true, "start_gate": true,
            "actions": [
                action("odd.look", "view", &anything), action("odd.reset", "operate", &number),
                action("odd.wipe", "admin", &anything),
            ],
            "settings": {
                "type": "object", "additionalProperties": false,
                "properties": {
                    "validate": how, "invoke": how, "gate": how, "start": how, "act": how,
                    "once": {"type": "string"}, "mark": {"type": "integer", "minimum": 1},
                },
            },
            "validate": true,
        },
        "needs": ["operation.gate", "start.gate"],
    })
}

/// Writes the package with `manifest` into a fresh directory `name` of the suite's home.
#[track_caller]
pub fn write(home: &Path, name: &str, manifest: &Value) -> PathBuf {
    write_with(home, name, manifest, PROGRAM)
}

/// Writes a package with `program` into a fresh directory `name` of the suite's home.
#[track_caller]
pub fn write_with(home: &Path, name: &str, manifest: &Value, program_text: &str) -> PathBuf {
    let place = home.join(name);
    fs::create_dir(&place).expect("making the package's directory");
    fs::write(place.join("manifest.json"), manifest.to_string()).expect("writing the manifest");
    let program = place.join("main.py");
    fs::write(&program, program_text).expect("writing the program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("making it executable");
    place
}

/// Installs the package.
#[track_caller]
pub fn install(suite: &Suite) {
    let place = write(suite.home(), "odd", &manifest());
    suite.client(); // whose credential the program needs on disk
    let output = suite.conduit(&["package", "install", place.to_str().expect("a path of the test's"), "--yes"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Asks for its own Work; goes on when it had to wait, and ends as it was answered.
const ASKING: &str = r#"
    if ! answer=$(os --json call introspection.work 2>error); then
        os outcome failed --summary "$(cat error)"
    elif [ "${answer#*\"declared\"}" = "$answer" ]; then
        os outcome succeeded --summary "it was let through"
    fi"#;

/// A configuration with the bindings `hold` and `job`, a script that asks for its own Work, which may use `odd.do` and look at its own Work; where `settings` are given the
/// package is enabled with them, in the scopes that `scopes` lists.
pub fn configuration(home: &Path, settings: Option<Value>, scopes: Option<Value>) -> Value {
    let mut configuration =
        config::one_scope(json!({"hold": config::hold(home), "job": config::script(ASKING)}), json!([]));
    configuration["extensions"] = json!({"introspection": {"enabled": true}});
    let mut granted = vec!["@introspection.read"];
    if let Some(settings) = settings {
        configuration["extensions"]["odd"] = json!({"enabled": true, "config": settings});
        if let Some(scopes) = scopes {
            configuration["extensions"]["odd"]["scopes"] = scopes;
        }
        granted.push("odd.do");
    }
    let scope = &mut configuration["scopes"]["test"];
    scope["events"] = json!(["test", "odd"]);
    for list in ["/operations", "/bindings/hold/operations", "/bindings/job/operations"] {
        let list = scope.pointer_mut(list).and_then(Value::as_array_mut).expect("a list");
        list.extend(granted.iter().map(|name| json!(name)));
    }
    configuration
}
