//! The package `courier`: two executors that do as files in a directory, the yard, say, and write down what they are asked.

use std::fs;
use std::path::{Path, PathBuf};

use conduit_api::WorkId;
use serde_json::{Value, json};

use crate::suite::Suite;
use crate::{config, odd};

const PROGRAM: &str = include_str!("courier/main.py");

/// Its manifest: `courier` has the toolbelt, `courier.silent` has not, and `courier.patient` resumes.
pub fn manifest() -> Value {
    let schema = json!({
        "type": "object", "required": ["yard"], "additionalProperties": false,
        "properties": {"yard": {"type": "string"}, "script": {"type": "string"}},
    });
    let executor = |name: &str, transport: &str| json!({"name": name, "summary": "Runs errands", "config": schema, "transport": transport});
    let mut patient = executor("courier.patient", "toolbelt");
    patient["resume_capable"] = json!(true);
    json!({
        "name": "courier", "version": "1.0.0", "summary": "Runs errands", "program": {"path": "main.py"},
        "protocol_versions": [1],
        "provides": {"executors": [executor("courier", "toolbelt"), executor("courier.silent", "none"), patient]},
        "needs": ["executor.run"],
    })
}

/// Installs the package.
#[track_caller]
pub fn install(suite: &Suite) {
    let place = odd::write_with(suite.home(), "courier", &manifest(), PROGRAM);
    fs::create_dir(yard(suite.home())).expect("making the yard");
    suite.client(); // whose credential the program needs on disk
    let output = suite.conduit(&["package", "install", place.to_str().expect("a path of the test's"), "--yes"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn yard(home: &Path) -> PathBuf {
    home.join("yard")
}

/// A configuration with the package enabled: `errand`, `silent` and `patient` are its executors', `plain` is the shell's. `script` is what
/// an errand runs; each binding may be tried twice.
pub fn configuration(home: &Path, script: &str) -> Value {
    let mut errand = config::script("true");
    errand["retry"] = json!({"attempts": 2, "backoff_ms": 10, "backoff_max_ms": 10});
    errand["executor"] = json!("courier");
    errand["config"] = json!({"yard": yard(home), "script": script});
    let mut silent = errand.clone();
    silent["executor"] = json!("courier.silent");
    let mut patient = errand.clone();
    patient["executor"] = json!("courier.patient");
    let routes = json!([{"match": {"type": "test.errand"}, "effect": "start", "binding": "errand"}]);
    let bindings = json!({"errand": errand, "silent": silent, "patient": patient, "plain": config::script("true")});
    let mut configuration = config::one_scope(bindings, routes);
    configuration["extensions"] = json!({"courier": {"enabled": true}});
    configuration
}

/// Has the package behave in this way when it is next asked a question of `kind`; with `once`, only then.
pub fn tell(suite: &Suite, kind: &str, how: &str) {
    let next = yard(suite.home()).join("next");
    fs::write(&next, how).expect("writing to the yard");
    fs::rename(next, yard(suite.home()).join(kind)).expect("writing to the yard");
}

/// Has it answer questions of `kind` again.
pub fn relent(suite: &Suite, kind: &str) {
    fs::remove_file(yard(suite.home()).join(kind)).expect("it misbehaves");
}

/// What it was asked about `work` so far, of this kind.
pub fn asked(suite: &Suite, kind: &str, work: &WorkId) -> Vec<Value> {
    let journal = fs::read_to_string(yard(suite.home()).join("asked")).unwrap_or_default();
    let whole = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of =
        |question: &Value| question["work_id"].as_str().or(question["context"]["work_id"].as_str()).map(str::to_owned);
    whole.filter(|question| question["kind"] == kind && of(question).as_deref() == Some(work.as_str())).collect()
}

/// How many questions it was asked so far, about whatever Work.
pub fn questions(suite: &Suite) -> usize {
    let journal = fs::read_to_string(yard(suite.home()).join("asked")).unwrap_or_default();
    journal.lines().count()
}

/// The executions that ran a process, in order.
pub fn ran(suite: &Suite) -> Vec<String> {
    let ran = fs::read_to_string(yard(suite.home()).join("ran")).unwrap_or_default();
    ran.lines().map(str::to_owned).collect()
}
