//! An installed package over whole programs, from its directory to the answer of its operation.

use std::path::{Path, PathBuf};

use conduit_api::views::{HealthView, PackageView, Page};
use conduit_client::ClientError;
use conduit_tests::{Suite, config, until};
use serde_json::{Value, json};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples").join(name).canonicalize().unwrap()
}

fn configuration(home: &Path, enabled: bool) -> Value {
    let mut configuration = config::one_scope(json!({"hold": config::hold(home)}), json!([]));
    if enabled {
        configuration["extensions"] = json!({"words": {"enabled": true}});
        configuration["scopes"]["test"]["operations"].as_array_mut().unwrap().push(json!("@words.reader"));
        let granted = configuration["scopes"]["test"]["bindings"]["hold"]["operations"].as_array_mut().unwrap();
        granted.push(json!("@words.reader"));
    }
    configuration
}

#[track_caller]
fn apply(suite: &Suite, configuration: &Value) {
    let file = suite.home().join("next.json");
    std::fs::write(&file, configuration.to_string()).unwrap();
    done(suite, &["config", "apply", file.to_str().unwrap()]);
}

#[track_caller]
fn run(suite: &Suite, args: &[&str]) -> (bool, String) {
    suite.client(); // whose credential the program needs on disk
    let output = suite.conduit(args);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

#[track_caller]
fn done(suite: &Suite, args: &[&str]) -> String {
    let (done, text) = run(suite, args);
    assert!(done, "{args:?}: {text}");
    text
}

#[track_caller]
fn refused(suite: &Suite, args: &[&str]) -> String {
    let (done, text) = run(suite, args);
    assert!(!done, "{args:?}: {text}");
    text
}

fn code<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (u16, String) {
    match answer.unwrap_err() {
        ClientError::Refused { body, status } => (status, body.code),
        other => panic!("no refusal: {other}"),
    }
}

/// X01, T16, T18
#[test]
fn a_package_is_installed_enabled_called_and_removed_while_the_suite_runs() {
    let suite = Suite::start(|home| configuration(home, false));
    let path = example("package-python");
    let path = path.to_str().unwrap();
    // Held from before the package was there: its worker learns of it by the next generation.
    let before = suite.hold("hold");
    assert_eq!(code(before.call("words.count", json!({"text": "a b"}))), (403, "forbidden".into()));

    let told = refused(&suite, &["package", "install", path]);
    assert!(told.contains("--yes"), "without a terminal nobody can be asked: {told}");
    let told = done(&suite, &["package", "install", path, "--yes"]);
    assert!(told.contains("operation.gate") && told.contains("words.count"), "{told}");
    assert!(told.contains("for each process 1024 MiB of memory, 1024 open files, files of 1024 MiB"), "{told}");
    done(&suite, &["package", "install", path, "--yes"]); // the same bytes again change nothing
    apply(&suite, &configuration(suite.home(), true));

    let execution = suite.hold("hold");
    let answer = execution.call("words.count", json!({"text": "one three five"})).unwrap();
    assert_eq!(answer, json!({"words": 3, "longest": "three"}));
    assert_eq!(code(execution.call("words.count", json!({"text": ""}))), (422, "no_words".into()));
    assert_eq!(code(execution.call("words.count", json!({"text": 7}))), (400, "invalid_request".into()));
    let waits = execution.call("words.expect", json!({"word": "five"})).unwrap();
    assert_eq!(waits["expected"], "five");
    assert_eq!(
        code(before.call("words.count", json!({"text": "a b"}))),
        (403, "forbidden".into()),
        "its grant is older"
    );
    assert_eq!(suite.client().get::<HealthView>("/v1/health").unwrap().packages_failing, []);

    let told = refused(&suite, &["package", "remove", "words"]);
    assert!(told.contains("package_in_use"), "{told}");
    // Disabled, and named all the same: without it the next start could not read its configuration.
    done(&suite, &["config", "set", "/extensions/words/enabled", "false"]);
    before.release(1);
    execution.release(1);
    let told = until("no execution may use it", || {
        let told = refused(&suite, &["package", "remove", "words"]);
        told.contains("names what").then_some(told)
    });
    assert!(told.contains("package_in_use") && told.contains("/extensions/words"), "{told}");
    apply(&suite, &configuration(suite.home(), false));
    until("nobody is pinned to a generation with the package", || {
        run(&suite, &["package", "remove", "words"]).0.then_some(())
    });
    let left: Page<PackageView> = suite.client().get("/v1/packages").unwrap();
    assert_eq!(left.items, []);
    assert!(!suite.state().join("packages/words").exists());
    let told = refused(&suite, &["package", "show", "words"]);
    assert!(told.contains("not_found"), "{told}");
}

/// X01
#[test]
fn a_package_whose_bytes_changed_is_not_started_and_health_says_so() {
    let suite = Suite::start(|home| configuration(home, false));
    done(&suite, &["package", "install", example("package-python").to_str().unwrap(), "--yes"]);
    apply(&suite, &configuration(suite.home(), true));
    let installed: PackageView = suite.client().get("/v1/packages/words").unwrap();
    let program = suite.state().join("packages/words").join(installed.digest).join("main.py");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(&program, "#!/bin/sh\necho pwned\n").unwrap();

    let execution = suite.hold("hold");
    let answer = execution.call("words.count", json!({"text": "a b"}));
    assert_eq!(code(answer), (503, "extension_unavailable".into()));
    execution.call("read_context", json!({})).unwrap();
    let health: HealthView = suite.client().get("/v1/health").unwrap();
    assert_eq!((health.status.as_str(), health.packages_failing[0].name.as_str()), ("degraded", "words"));
    assert!(health.packages_failing[0].why.contains("bytes changed"), "{health:?}");
}

/// X01, T16, S04, G01
#[test]
fn a_package_that_breaks_a_rule_is_refused_by_name_and_nothing_of_it_is_installed() {
    let suite = Suite::start(|home| configuration(home, false));
    let source = suite.home().join("package");
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(example("package-python").join("manifest.json")).unwrap()).unwrap();
    let offer = |change: &dyn Fn(&mut Value)| {
        let _ = std::fs::remove_dir_all(&source);
        std::fs::create_dir(&source).unwrap();
        std::fs::copy(example("package-python").join("main.py"), source.join("main.py")).unwrap();
        let mut manifest = manifest.clone();
        change(&mut manifest);
        std::fs::write(source.join("manifest.json"), manifest.to_string()).unwrap();
    };
    let install = ["package", "install", source.to_str().unwrap(), "--yes"];
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 7] = [
        (|m| m["provides"]["operations"][0]["name"] = json!("other.count"), "invalid"),
        (|m| m["name"] = json!("human"), "conflict"),
        (|m| m["needs"] = json!([]), "package_refused"),
        (|m| m["needs"] = json!(["operation.gate", "network"]), "package_refused"),
        (|m| m["protocol_versions"] = json!([99]), "package_refused"),
        (|m| m["program"]["path"] = json!("missing.py"), "package_refused"),
        (|m| m["provides"]["operations"][0]["input"] = json!({"type": "object", "properties": 7}), "package_refused"),
    ];
    for (change, expected) in changes {
        offer(&change);
        let told = refused(&suite, &install);
        assert!(told.contains(expected), "{expected}: {told}");
    }
    offer(&|_| ());
    std::os::unix::fs::symlink("/etc/passwd", source.join("link")).unwrap();
    assert!(refused(&suite, &install).contains("package_refused"));
    assert!(!suite.state().join("packages").exists());

    offer(&|_| ());
    done(&suite, &install);
    offer(&|m| {
        m["version"] = json!("1.1.0");
        m["provides"]["toolsets"][0]["operations"].as_array_mut().unwrap().pop();
    });
    assert!(refused(&suite, &install).contains("words.expect"), "a toolset only gains operations");
    offer(&|m| m["summary"] = json!("Other bytes of the same version"));
    assert!(refused(&suite, &install).contains("not newer"));
    offer(&|m| m["version"] = json!("1.1.0"));
    done(&suite, &install);
    let installed: PackageView = suite.client().get("/v1/packages/words").unwrap();
    assert_eq!(installed.version.to_string(), "1.1.0");
    let kept = std::fs::read_dir(suite.state().join("packages/words")).unwrap().count();
    assert_eq!(kept, 1, "the older bytes are gone");
}
