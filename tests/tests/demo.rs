//! What a newcomer does first: the demo, and a look around with the operator's command.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use conduit_tests::{Suite, config, programs};
use serde_json::{Value, json};

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn git(folder: &Path, args: &[&str]) {
    let done = Command::new("git")
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.org"])
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done));
}

/// U04, X02, X05
#[test]
fn the_demo_counts_a_repository_and_shows_what_led_to_what() {
    let repository = tempfile::tempdir().unwrap();
    for (file, bytes) in [("docs/a b.md", 7), ("docs/c.md", 5), ("src/deep/er/main.rs", 30), ("README", 2)] {
        let path = repository.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![b'x'; bytes]).unwrap();
    }
    git(repository.path(), &["init", "--quiet"]);
    git(repository.path(), &["add", "."]);
    git(repository.path(), &["commit", "--quiet", "--message", "all"]);
    let shown = Command::new(programs::folder().join("open-conduit"))
        .arg("demo")
        .arg(repository.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = text(&shown);
    assert!(shown.status.success(), "{text}");
    for part in [
        "demo.survey.requested",
        "core.work.created",
        "core.work.finished",
        "4 files, 44 bytes",
        "docs: 2 files, 12 bytes",
    ] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
}

/// M13, M14
#[test]
fn an_operator_emits_an_event_and_follows_it_with_the_command_line() {
    let suite = Suite::start(|_| {
        let bindings = json!({"greet": config::script("echo hello; os outcome succeeded '{\"said\": true}'")});
        let routes = json!([{"match": {"type": "test.hello"}, "effect": "start", "binding": "greet"}]);
        config::one_scope(bindings, routes)
    });
    let _ = suite.client();
    let json = |args: &[&str]| -> Value {
        let mut all = vec!["--json"];
        all.extend(args);
        let output = suite.conduit(&all);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", text(&output)))
    };
    let emitted = json(&["emit", "test.hello", "{}", "--scope", "test"]);
    let event = emitted["event"]["id"].as_str().unwrap().to_owned();
    let work = conduit_tests::until("the event starts a Work", || {
        json(&["work", "list"])["items"].as_array()?.first()?["id"].as_str().map(str::to_owned)
    });
    assert_eq!(suite.ended(&work.parse().unwrap()).state, "succeeded");
    assert_eq!(json(&["work", "get", &work])["outcome"]["data"]["said"], true);
    let chain = text(&suite.conduit(&["events", "chain", &event]));
    assert!(chain.contains("core.work.created") && chain.contains("core.work.finished"), "{chain}");
    let artifact = json(&["artifacts", "list"])["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(text(&suite.conduit(&["artifacts", "cat", &artifact])), "hello\n");
    let unknown = suite.conduit(&["work", "get", "wrk_00000000000000000000000000"]);
    assert!(!unknown.status.success() && text(&unknown).contains("not_found"), "{}", text(&unknown));
    assert_eq!(json(&["health"])["status"], "ok");
}
