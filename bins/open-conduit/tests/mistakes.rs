//! What the program says when there is nobody to ask: exit codes, and sentences that help.

use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_open-conduit"))
        .args(args)
        .env_remove("OPEN_CONDUIT_ENDPOINT")
        .env_remove("OPEN_CONDUIT_TOKEN_FILE")
        .output()
        .unwrap()
}

/// The exit code, and what went to standard error; nothing may go to standard output.
#[track_caller]
fn failed(args: &[&str]) -> (i32, String) {
    let output = run(args);
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn state() -> tempfile::TempDir {
    tempfile::tempdir_in("/tmp").unwrap()
}

/// M13, M14
#[test]
fn without_a_suite_every_command_is_unavailable_and_says_how_to_start_one() {
    let base = state();
    let at = base.path().to_str().unwrap();
    let runtime = base.path().join("r");
    for words in [
        "health",
        "scopes",
        "work list",
        "events",
        "executions",
        "waits",
        "artifacts",
        "config show",
        "emit a.b --scope c",
    ] {
        let words: Vec<&str> =
            words.split(' ').chain(["--state", at, "--runtime", runtime.to_str().unwrap()]).collect();
        let (code, said) = failed(&words);
        assert_eq!(code, 4, "{words:?}: {said}");
        assert!(said.starts_with("open-conduit: unavailable: ") && said.contains("open-conduit up"), "{said}");
        assert!(!said.contains("--request-id"), "nothing was sent, so nothing needs a name: {said}");
    }
}

/// M13
#[test]
fn a_socket_path_that_is_too_long_and_a_credential_that_is_not_there_are_named() {
    let base = state();
    let long = base.path().join("d".repeat(100));
    let (code, said) = failed(&["health", "--state", long.to_str().unwrap(), "--runtime", long.to_str().unwrap()]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("socket_path_too_long") && said.contains("shorter"), "{said}");
    let (code, said) = failed(&["health", "--endpoint", "/nowhere.sock", "--token-file", "/nowhere/token"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("/nowhere/token"), "{said}");
}

/// M14
#[test]
fn arguments_and_input_that_make_no_sense_are_usage_errors_before_anything_is_dialled() {
    let to = ["--endpoint", "/nowhere.sock"];
    for words in [
        &["work", "get", "evt_00000000000000000000000000"][..],
        &["emit", "a.b"],
        &["emit", "a.b", "{", "--scope", "c"],
        &["emit", "a.b", r#"{"a":1,"a":2}"#, "--scope", "c"],
        &["emit", "a.b", "@/nowhere", "--scope", "c"],
        &["work", "create", "b", "[]", "--scope", "c"],
        &["config", "validate", "/nowhere"],
        &["nonsense"],
        &["up"],
    ] {
        let (code, said) = failed(&[words, &to].concat());
        assert_eq!(code, 2, "{words:?}: {said}");
    }
}

/// M14
#[test]
fn under_json_an_error_is_one_envelope_on_standard_error() {
    let (code, said) = failed(&["--json", "health", "--endpoint", "/nowhere.sock", "--token-file", "/dev/null"]);
    assert_eq!(code, 2);
    let envelope: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(envelope["error"]["code"], "invalid_request");
}

/// M14
#[test]
fn help_lists_the_commands_and_the_exit_codes() {
    let output = run(&["--help"]);
    assert!(output.status.success() && output.stderr.is_empty());
    let help = String::from_utf8(output.stdout).unwrap();
    for word in ["up", "demo", "health", "work", "events", "emit", "config", "Exit codes:", "not found"] {
        assert!(help.contains(word), "{word}");
    }
}
