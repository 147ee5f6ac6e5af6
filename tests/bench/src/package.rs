//! The benchmark's own package: it speaks the extension protocol and does nothing else, so that a call of its operation
//! costs the way there and back. With as many operations and toolsets as a measure wants.

use std::io::{BufRead, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::Result;

fn operations(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{name}.operation{i}")).collect()
}

/// Writes a package of this program into `folder`: `count` operations, each of which only looks, in `toolsets` toolsets.
pub fn write(folder: &Path, name: &str, count: usize, toolsets: usize) -> Result<()> {
    let program = folder.join("program");
    std::fs::create_dir_all(folder)?;
    std::fs::copy(std::env::current_exe()?, &program)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700))?;
    let names = operations(name, count);
    let each = |operation: &String| {
        json!({
            "name": operation, "summary": "Look at nothing", "kind": "read",
            "input": {"type": "object", "additionalProperties": false},
        })
    };
    let toolset = |i: usize| {
        let of = names.iter().skip(i).step_by(toolsets.max(1));
        let members: Vec<Value> = of.map(|name| json!({"operation": name, "since": "1.0.0"})).collect();
        json!({"name": format!("{name}.toolset{i}"), "summary": "Some of them", "operations": members})
    };
    let manifest = json!({
        "name": name, "version": "1.0.0", "summary": "Does nothing, quickly",
        "program": {"path": "program", "args": ["package", name, count.to_string()]},
        "protocol_versions": [1],
        "provides": {
            "operations": names.iter().map(each).collect::<Vec<_>>(),
            "toolsets": (0..toolsets).map(toolset).collect::<Vec<_>>(),
        },
    });
    Ok(std::fs::write(folder.join("manifest.json"), manifest.to_string())?)
}

/// Answers every question until there are no more.
pub fn serve(name: &str, count: usize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let question: Value = serde_json::from_str(&line?)?;
        let Some(id) = question.get("id") else { continue };
        let method = question["method"].as_str().unwrap_or_default();
        let result = match method {
            "initialize" => {
                json!({"protocol_version": 1, "name": name, "version": "1.0.0", "operations": operations(name, count)})
            }
            "operation.invoke" => json!({"output": {"looked": true}}),
            _ => json!({}),
        };
        writeln!(out, "{}", json!({"jsonrpc": "2.0", "id": id, "result": result}))?;
        out.flush()?;
        if method == "shutdown" {
            break;
        }
    }
    Ok(())
}
