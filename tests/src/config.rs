//! Configurations for tests, built from pieces.

use std::path::Path;

use serde_json::{Value, json};

/// Every builtin operation.
pub const OPERATIONS: [&str; 5] = ["emit", "create_work", "wait", "declare_outcome", "read_context"];

/// A configuration with one scope, `test`, with these bindings and routes. Events of the family `test` may be emitted.
pub fn one_scope(bindings: Value, routes: Value) -> Value {
    json!({
        "version": 1,
        "limits": {"executions": 256, "causal_depth_max": 64, "causal_per_minute": 1_000_000},
        "scopes": {"test": {
            "enabled": true, "concurrency": 256, "operations": OPERATIONS, "events": ["test"],
            "bindings": bindings, "routes": routes,
        }},
    })
}

/// A binding that runs `command` through the shell executor with every grant, and is tried once.
pub fn binding(command: &[&str]) -> Value {
    json!({
        "executor": "shell", "config": {"command": command}, "operations": OPERATIONS, "events": ["test"],
        "delegates": [], "deadline_s": 600, "retry": {"attempts": 1, "backoff_ms": 100, "backoff_max_ms": 1000},
    })
}

/// A binding that runs `script` in a shell.
pub fn script(script: &str) -> Value {
    binding(&["/bin/sh", "-euc", script])
}

/// A binding whose process lives until the test lets it go: it reads from a pipe that [`crate::Execution::release`] closes.
///
/// `home` is the suite's own directory.
pub fn hold(home: &Path) -> Value {
    let pipe = format!("'{}/hold/'\"$OPEN_CONDUIT_EXECUTION_ID.$OPEN_CONDUIT_SEGMENT\"", home.display());
    script(&format!("mkfifo -m 600 {pipe}; exec cat {pipe}"))
}

/// The same binding with an executor that says it can resume: its execution parks while it waits.
pub fn resuming(mut binding: Value) -> Value {
    binding["config"]["resume"] = json!(true);
    binding
}
