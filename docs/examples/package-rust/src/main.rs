//! An example package: an operation, a translated emission and a gate with a setting.
//!
//! Questions come on standard input, one JSON document on a line; answers go to standard output in the same way. What is
//! written to standard error lands in the daemon's log. The protocol is described in docs/extension-protocol.md.
#![forbid(unsafe_code)]

use std::io::{BufRead, Write};

use serde_json::{Value, json};

/// What the gate lets through where the settings say nothing, in bytes.
const INPUT_BYTES_MAX: u64 = 4096;

/// Nothing was done; the caller is told this code and this message.
struct Refusal {
    code: &'static str,
    message: String,
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let question: Value = serde_json::from_str(&line?)?;
        // Without an ID it is a cancellation: every question here is answered at once.
        let Some(id) = question.get("id") else { continue };
        let method = question["method"].as_str().unwrap_or_default();
        let answer = match answer(method, &question["params"]) {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(Refusal { code, message }) => {
                let error = json!({"code": -32001, "message": message, "data": {"code": code, "message": message}});
                json!({"jsonrpc": "2.0", "id": id, "error": error})
            }
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
        if method == "shutdown" {
            break;
        }
    }
    Ok(())
}

fn answer(method: &str, params: &Value) -> Result<Value, Refusal> {
    match method {
        "initialize" => Ok(json!({
            "protocol_version": 1,
            "name": "tally",
            "version": env!("CARGO_PKG_VERSION"),
            "operations": ["tally.sum", "tally.report"],
            "operation_gate": true,
        })),
        "operation.invoke" => invoke(params),
        "operation.gate" => Ok(gate(params)),
        _ => Ok(json!({})),
    }
}

fn invoke(params: &Value) -> Result<Value, Refusal> {
    // Their types were checked against the operation's schema.
    let numbers = params["input"]["numbers"].as_array().into_iter().flatten().filter_map(Value::as_i64);
    let sum = numbers.clone().try_fold(0_i64, i64::checked_add);
    let sum = sum.ok_or(Refusal { code: "too_large", message: "the sum is larger than 64 bits hold".into() })?;
    match params["operation"].as_str() {
        Some("tally.report") => {
            let data = json!({"sum": sum, "count": numbers.count()});
            Ok(json!({"emission": {"type": "tally.reported", "data": data}}))
        }
        _ => Ok(json!({"output": {"sum": sum}})),
    }
}

/// Judges a call of another extension's operation by the size of its input.
fn gate(params: &Value) -> Value {
    let max = params["settings"]["input_bytes_max"].as_u64().unwrap_or(INPUT_BYTES_MAX);
    if params["input"].to_string().len() as u64 > max {
        return json!({"answer": "refuse", "code": "input_too_large", "message": format!("an input has at most {max} bytes")});
    }
    json!({"answer": "let_through"})
}
