//! The replay window: the scheduler dies before, behind and after the handler of a package's operation that leaves a trace
//! outside the suite. What may run again does, once for each death; what may not is in doubt until an operator says what
//! happened (T14).
//!
//! Needs the programs with failpoints, which `tests/run` builds into a folder of their own.

use std::path::PathBuf;

use conduit_api::views::{DoubtView, Page};
use conduit_client::ClientError;
use conduit_tests::execution::call_as;
use conduit_tests::suite::Setup;
use conduit_tests::{Execution, Suite, config, odd, programs, until};
use serde_json::{Value, json};

const BEFORE_HANDLER: &str = "host.before_handler";
const AFTER_HANDLER: &str = "host.after_handler";
const AFTER_COMMIT: &str = "host.after_commit";

/// Appends a line to the file that it is given, and answers with the line.
const PROGRAM: &str = r#"#!/usr/bin/env python3
import json
import sys

for line in sys.stdin:
    question = json.loads(line)
    if "id" not in question:
        continue
    method, params = question["method"], question.get("params", {})
    result = {}
    if method == "initialize":
        result = {"protocol_version": 1, "name": "trace", "version": "1.0.0", "operations": ["trace.again", "trace.once"]}
    elif method == "operation.invoke":
        with open(params["input"]["file"], "a") as trace:
            trace.write(params["request_id"] + "\n")
        result = {"output": {"left": params["request_id"]}}
    print(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": result}), flush=True)
    if method == "shutdown":
        break
"#;

fn manifest() -> Value {
    let input = json!({
        "type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"], "additionalProperties": false,
    });
    json!({
        "name": "trace", "version": "1.0.0", "summary": "Leaves a trace", "program": {"path": "main.py"},
        "protocol_versions": [1],
        "provides": {"operations": [
            {"name": "trace.again", "summary": "Leave a trace", "input": input},
            {"name": "trace.once", "summary": "Leave a trace, once", "input": input, "idempotent": false},
        ]},
    })
}

/// A suite whose programs have failpoints, and the package; `None` where they were not built.
fn suite() -> Option<Suite> {
    let Some(folder) = programs::with_failpoints() else {
        assert!(
            std::env::var_os("CONDUIT_WITHOUT_FAILPOINTS").is_some(),
            "the programs with failpoints are not built: tests/run does that; CONDUIT_WITHOUT_FAILPOINTS=1 leaves these tests out"
        );
        return None;
    };
    let mut setup = Setup::new(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    setup.programs = folder;
    let points = setup.home.path().join("failpoints");
    std::fs::create_dir(&points).unwrap();
    setup.environment.push(("OPEN_CONDUIT_FAILPOINTS".to_owned(), points.to_string_lossy().into_owned()));
    let suite = Suite::start_with(setup);
    let package = odd::write_with(suite.home(), "trace", &manifest(), PROGRAM);
    suite.client(); // whose credential the program needs on disk
    done(&suite, &["package", "install", package.to_str().unwrap(), "--yes"]);
    let mut configuration = config::one_scope(json!({"hold": config::hold(suite.home())}), json!([]));
    configuration["extensions"] = json!({"trace": {"enabled": true}});
    for list in ["/scopes/test/operations", "/scopes/test/bindings/hold/operations"] {
        let list = configuration.pointer_mut(list).unwrap().as_array_mut().unwrap();
        list.extend(["trace.again", "trace.once"].map(Value::from));
    }
    let applied: Value = suite.client().post("/v1/config/apply", &json!({"config": configuration})).unwrap();
    assert_eq!(applied["valid"], json!(true));
    Some(suite)
}

#[track_caller]
fn done(suite: &Suite, args: &[&str]) {
    let output = suite.conduit(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn trace(suite: &Suite) -> PathBuf {
    suite.home().join("trace.txt")
}

/// The requests that left a trace, in their order.
fn traces(suite: &Suite) -> Vec<String> {
    std::fs::read_to_string(trace(suite)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Asks until there is an answer that stays: the output, or the code of a refusal.
#[track_caller]
fn asked(suite: &Suite, held: &Execution<'_>, operation: &str, id: &str) -> Result<Value, String> {
    until(&format!("{id} is answered"), || {
        match call_as(&held.client(), operation, json!({"file": trace(suite)}), id) {
            Ok(output) => Some(Ok(output)),
            // The next daemon rotates the token; until it is ready the worker says that it is away.
            Err(error) if error.may_retry() || error.code() == "forbidden" => None,
            Err(ClientError::Refused { body, .. }) => Some(Err(body.code)),
            Err(error) => panic!("{error}"),
        }
    })
}

/// Asks once, while the scheduler is to die at `point`; then the next one is there.
#[track_caller]
fn killed_at(suite: &Suite, point: &str, held: &Execution<'_>, operation: &str, id: &str) {
    let scheduler = suite.process("open-conduitd");
    let armed = suite.home().join("failpoints").join(point);
    let part = suite.home().join("failpoints/.part");
    std::fs::write(&part, "open-conduitd").unwrap();
    std::fs::rename(&part, &armed).unwrap();
    // A daemon that took over a moment ago may be rotating the token still: such a call did not get as far as the point.
    let lost = until(&format!("somebody passes {point}"), || {
        let lost = call_as(&held.client(), operation, json!({"file": trace(suite)}), id).unwrap_err();
        (!armed.exists()).then_some(lost)
    });
    assert!(lost.may_retry(), "{point}: {lost}");
    suite.replaced(&scheduler);
}

fn doubts(suite: &Suite) -> Vec<String> {
    let page: Page<DoubtView> = suite.client().get("/v1/doubts").unwrap();
    page.items.into_iter().map(|doubt| format!("{} {}", doubt.operation, doubt.request_id)).collect()
}

/// What may run again: asked for again after a death at `point`, its handler has run `runs` times, and it is answered.
#[track_caller]
fn runs_again(point: &str, runs: usize) {
    let Some(suite) = suite() else { return };
    let held = suite.hold("hold");
    for id in ["r1", "r2"] {
        killed_at(&suite, point, &held, "trace.again", id);
        assert_eq!(doubts(&suite), Vec::<String>::new());
        for _ in 0..2 {
            assert_eq!(asked(&suite, &held, "trace.again", id), Ok(json!({"left": id})));
        }
        assert_eq!(traces(&suite).iter().filter(|line| *line == id).count(), runs, "{point}: {:?}", traces(&suite));
    }
}

/// What may not: after a death at `point` it is in doubt, whether it ran (`ran`) or not, until an operator says what happened.
#[track_caller]
fn is_in_doubt(point: &str, ran: usize) {
    let Some(suite) = suite() else { return };
    let held = suite.hold("hold");
    for id in ["was-done", "was-not"] {
        let before = traces(&suite).len();
        killed_at(&suite, point, &held, "trace.once", id);
        // Listed by the next start, before anybody asks for it again.
        until("the doubt is listed", || (doubts(&suite) == [format!("trace.once {id}")]).then_some(()));
        for _ in 0..2 {
            assert_eq!(asked(&suite, &held, "trace.once", id), Err("in_doubt".into()));
        }
        assert_eq!(traces(&suite).len() - before, ran, "it is not run again");
        let resolve = ["doubts", "resolve", held.id.as_str(), "trace.once", id];
        if id == "was-done" {
            done(&suite, &[&resolve[..], &["--done", r#"{"said":"by hand"}"#]].concat());
            assert_eq!(asked(&suite, &held, "trace.once", id), Ok(json!({"said": "by hand"})));
            assert_eq!(traces(&suite).len() - before, ran);
        } else {
            done(&suite, &[&resolve[..], &["--not-done"]].concat());
            for _ in 0..2 {
                assert_eq!(asked(&suite, &held, "trace.once", id), Ok(json!({"left": id})));
            }
            assert_eq!(traces(&suite).len() - before, ran + 1, "it ran once more, by an operator's word");
        }
        assert_eq!(doubts(&suite), Vec::<String>::new());
    }
}

#[test]
fn every_failpoint_of_the_extension_host_is_one_of_these() {
    assert_eq!(conduit_store::failpoint::OF_HOST, [BEFORE_HANDLER, AFTER_HANDLER, AFTER_COMMIT]);
}

/// T14
#[test]
fn what_may_run_again_runs_once_when_the_daemon_died_before_its_handler() {
    runs_again(BEFORE_HANDLER, 1);
}

/// T14
#[test]
fn what_may_run_again_runs_once_more_when_the_daemon_died_before_its_result_was_on_record() {
    runs_again(AFTER_HANDLER, 2);
}

/// T14
#[test]
fn what_may_run_again_does_not_when_the_daemon_died_with_its_result_on_record() {
    runs_again(AFTER_COMMIT, 1);
}

/// T14
#[test]
fn what_may_run_once_is_in_doubt_when_the_daemon_died_before_its_handler_though_it_left_no_trace() {
    is_in_doubt(BEFORE_HANDLER, 0);
}

/// T14
#[test]
fn what_may_run_once_is_in_doubt_when_the_daemon_died_before_its_result_was_on_record_and_never_runs_by_itself() {
    is_in_doubt(AFTER_HANDLER, 1);
}

/// T14
#[test]
fn what_may_run_once_is_answered_from_the_record_when_the_daemon_died_after_its_commit() {
    let Some(suite) = suite() else { return };
    let held = suite.hold("hold");
    killed_at(&suite, AFTER_COMMIT, &held, "trace.once", "r");
    assert_eq!(asked(&suite, &held, "trace.once", "r"), Ok(json!({"left": "r"})));
    assert_eq!((traces(&suite), doubts(&suite)), (vec!["r".to_owned()], Vec::new()));
}
