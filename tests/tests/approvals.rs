//! Gates as an operator meets them: calls and starts that wait for approval, and break-glass, by real programs.

use std::process::Output;

use conduit_api::views::{ApprovalView, EventView, GatesView, Page};
use conduit_client::ClientError;
use conduit_tests::execution::call_as;
use conduit_tests::{Execution, Suite, config, until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const INTROSPECTION: [&str; 5] = [
    "introspection.work",
    "introspection.events",
    "introspection.children",
    "introspection.executions",
    "introspection.budget",
];

/// A suite that has `human` with these settings, and `introspection`, which everything is granted.
fn suite(settings: Value, bindings: impl FnOnce(&std::path::Path) -> Value) -> Suite {
    Suite::start(|home| configuration(settings, bindings(home)))
}

fn configuration(settings: Value, mut bindings: Value) -> Value {
    let operations = [&config::OPERATIONS[..], &INTROSPECTION[..]].concat();
    for binding in bindings.as_object_mut().unwrap().values_mut() {
        binding["operations"] = json!(operations);
    }
    let mut configuration = config::one_scope(bindings, json!([]));
    configuration["scopes"]["test"]["operations"] = json!(operations);
    configuration["extensions"] =
        json!({"human": {"enabled": true, "config": settings}, "introspection": {"enabled": true}});
    configuration
}

fn held(home: &std::path::Path) -> Value {
    json!({"hold": config::resuming(config::hold(home))})
}

#[track_caller]
fn done(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for the one request that is pending.
#[track_caller]
fn pending(suite: &Suite) -> ApprovalView {
    let client = suite.client();
    until("one request is pending", || {
        let page: Page<ApprovalView> = client.get("/v1/approvals?state=pending").ok()?;
        (page.items.len() == 1).then(|| page.items[0].clone())
    })
}

fn approval(suite: &Suite, id: &conduit_api::ApprovalId) -> ApprovalView {
    suite.client().get(&format!("/v1/approvals/{id}")).unwrap()
}

/// Waits until the Work is in `state`.
#[track_caller]
fn in_state(suite: &Suite, work: &conduit_api::WorkId, state: &str) {
    until(&format!("{work} is {state}"), || (suite.work_view(work).state == state).then_some(()));
}

/// Ends the held segment, which has declared a wait, has an operator say `words`, and waits for the next segment.
#[track_caller]
fn resumed<'s>(suite: &'s Suite, held: Execution<'s>, segment: i64, words: &[&str]) -> Execution<'s> {
    let old = held.token();
    held.release(segment);
    in_state(suite, &held.work, "waiting");
    done(suite.conduit(words));
    with_another_token(suite, &held, &old)
}

/// Waits until the Work's execution runs and its token is another than `old`.
#[track_caller]
fn with_another_token<'s>(suite: &'s Suite, held: &Execution<'_>, old: &str) -> Execution<'s> {
    until("the next segment has its token", || {
        let next = suite.running(&held.work);
        (next.token() != old && !next.token().is_empty()).then_some(next)
    })
}

fn refusal(result: Result<Value, ClientError>) -> (u16, String, String) {
    match result {
        Err(ClientError::Refused { status, body, .. }) => (status, body.code, body.message),
        other => panic!("{other:?}"),
    }
}

const ASKING: &str = r#"
    if ! answer=$(os --json call introspection.work 2>error); then
        os outcome failed --summary "$(cat error)"
    elif [ "${answer#*\"declared\"}" = "$answer" ]; then
        os outcome succeeded --summary "it was let through"
    fi"#;

/// G03, G05, G07, T12, X04
#[test]
fn a_call_that_a_rule_names_waits_for_an_operator_and_its_process_goes_on_when_it_is_approved() {
    for resume in [true, false] {
        let suite = suite(json!({"rules": [{"operations": ["introspection.*"], "timeout_s": 600}]}), |home| {
            let script = format!("cd '{}'; {ASKING}", home.display());
            let job = config::script(&script);
            json!({"job": if resume { config::resuming(job) } else { job }})
        });
        let work = suite.work("job", json!({}));
        let request = pending(&suite);
        assert_eq!((request.operation.as_deref(), &request.work_id), (Some("introspection.work"), &work));
        in_state(&suite, &work, "waiting");
        let listed = done(suite.conduit(&["approvals"]));
        assert!(listed.contains(request.id.as_str()) && listed.contains("introspection.work"), "{listed}");
        let shown = done(suite.conduit(&["approve", request.id.as_str(), "--note", "go on"]));
        assert!(shown.contains("approved") && shown.contains("operator:local") && shown.contains("go on"), "{shown}");
        let ended = suite.ended(&work);
        assert_eq!(ended.state, "succeeded", "{ended:?}\n{}", suite.log());
        let used = approval(&suite, &request.id);
        assert_eq!(used.state, "consumed");
        let executions = suite.executions(&work);
        assert_eq!(executions.len(), if resume { 1 } else { 2 });
        assert_eq!(used.used_execution_id, Some(executions[0].id.clone()));
        let events: Page<EventView> = suite.client().get(&format!("/v1/events?work_id={work}")).unwrap();
        let decided = events.items.iter().find(|event| event.kind == "human.decided").unwrap();
        assert_eq!((decided.source.as_str(), decided.actor.as_deref()), ("core.action", Some("operator:local")));
        let requested = events.items.iter().find(|event| event.kind == "human.approval.requested").unwrap();
        assert_eq!(decided.cause_id.as_ref(), Some(&requested.id));
    }
}

/// G07
#[test]
fn a_denied_call_is_refused_in_the_operators_words() {
    let suite = suite(
        json!({"rules": [{"operations": ["introspection.work"]}]}),
        |home| json!({"job": config::script(&format!("cd '{}'; {ASKING}", home.display()))}),
    );
    let work = suite.work("job", json!({}));
    let request = pending(&suite);
    done(suite.conduit(&["deny", request.id.as_str(), "--note", "not on a Friday"]));
    let ended = suite.ended(&work);
    assert_eq!(ended.state, "failed");
    let summary = ended.outcome.unwrap()["summary"].as_str().unwrap().to_owned();
    assert!(summary.contains("approval_denied") && summary.contains("not on a Friday"), "{summary}");
    let late = suite.conduit(&["approve", request.id.as_str()]);
    assert!(String::from_utf8_lossy(&late.stderr).contains("illegal_state"), "the Work has ended");
}

/// G03, G07, T14
#[test]
fn an_approval_lets_the_very_call_through_as_often_as_it_says_and_no_other() {
    let suite = suite(json!({"rules": [{"operations": ["introspection.events"]}]}), held);
    let first = suite.hold("hold");
    let three = json!({"limit": 3, "x": {}});
    assert_eq!(refusal(first.call("introspection.events", three)).1, "invalid_request", "and nobody is asked");
    let three = json!({"limit": 3});
    let asked = first.call("introspection.events", three.clone()).unwrap();
    let request = pending(&suite);
    assert_eq!(asked["approval_id"], json!(request.id));
    assert_eq!(request.input, three);
    assert_eq!(refusal(first.call("read_context", json!({}))).1, "authority_released");

    // Once: one call, whose request may be made again; the next call asks anew.
    let second = resumed(&suite, first, 1, &["approve", request.id.as_str()]);
    let through = call_as(&second.client(), "introspection.events", three.clone(), "r").unwrap();
    assert!(through["events"].is_array(), "{through}");
    assert_eq!(approval(&suite, &request.id).used_request_id.as_deref(), Some("r"));
    assert_eq!(call_as(&second.client(), "introspection.events", three.clone(), "r").unwrap(), through);
    call_as(&second.client(), "introspection.events", three.clone(), "s").unwrap();
    let another = pending(&suite);
    assert_ne!(another.id, request.id);
    assert_eq!(another.call_digest, request.call_digest);

    // For this execution: this very call, again and again. Another input is another call.
    let third = resumed(&suite, second, 2, &["approve", another.id.as_str(), "--for", "execution"]);
    for _ in 0..2 {
        assert!(third.call("introspection.events", three.clone()).unwrap()["events"].is_array());
    }
    third.call("introspection.events", json!({"limit": 4})).unwrap();
    let other = pending(&suite);
    assert_ne!(other.call_digest, request.call_digest);

    // Denied; and an approval that stands is withdrawn by denying it.
    let fourth = resumed(&suite, third, 3, &["deny", other.id.as_str(), "--note", "too many"]);
    let (status, code, message) = refusal(fourth.call("introspection.events", json!({"limit": 4})));
    assert_eq!((status, code.as_str()), (422, "approval_denied"));
    assert!(message.contains("too many"), "{message}");
    assert!(fourth.call("introspection.events", three.clone()).unwrap()["events"].is_array());
    done(suite.conduit(&["deny", another.id.as_str()]));
    assert_eq!(refusal(fourth.call("introspection.events", three.clone())).1, "approval_denied");
    done(suite.conduit(&["approve", another.id.as_str(), "--until", "2999-01-01T00:00:00Z"]));
    assert!(fourth.call("introspection.events", three).unwrap()["events"].is_array());
    let late = suite.conduit(&["approve", request.id.as_str()]);
    assert!(String::from_utf8_lossy(&late.stderr).contains("illegal_state"), "it is used up");
}

/// G07
#[test]
fn what_nobody_decides_in_time_wakes_the_caller_is_refused_once_and_can_be_asked_again() {
    let suite = suite(json!({"rules": [{"operations": ["introspection.work"], "timeout_s": 1}]}), held);
    let first = suite.hold("hold");
    first.call("introspection.work", json!({})).unwrap();
    let request = pending(&suite);
    let old = first.token();
    first.release(1);
    let second = with_another_token(&suite, &first, &old);
    assert_eq!(refusal(second.call("introspection.work", json!({}))).1, "approval_expired");
    assert_eq!(approval(&suite, &request.id).state, "expired");
    second.call("introspection.work", json!({})).unwrap();
    let page: Page<ApprovalView> = suite.client().get("/v1/approvals").unwrap();
    assert_eq!(page.items.len(), 2);
}

/// G06, G07
#[test]
fn a_work_starts_when_its_start_is_approved_and_is_held_when_it_is_denied() {
    let suite = suite(
        json!({"starts": [{"bindings": ["job"]}]}),
        |_| json!({"job": config::script("os outcome succeeded"), "free": config::script("os outcome succeeded")}),
    );
    assert_eq!(suite.ended(&suite.work("free", json!({}))).state, "succeeded");
    let work = suite.work("job", json!({}));
    let request = pending(&suite);
    assert_eq!((request.operation.as_ref(), &request.work_id), (None, &work));
    in_state(&suite, &work, "waiting");
    let kept = &suite.executions(&work)[0];
    assert_eq!((kept.state.as_str(), kept.code.as_deref()), ("cancelled", Some("start_gated")));
    assert!(kept.started_at.is_none());
    done(suite.conduit(&["approve", request.id.as_str()]));
    assert_eq!(suite.ended(&work).state, "succeeded", "{}", suite.log());

    let work = suite.work("job", json!({}));
    let request = pending(&suite);
    in_state(&suite, &work, "waiting");
    done(suite.conduit(&["deny", request.id.as_str(), "--note", "later"]));
    in_state(&suite, &work, "blocked");
    assert_eq!(suite.work_view(&work).blocked_reason.as_deref(), Some("gate"));
    let held = &suite.executions(&work)[0];
    assert!(held.message.as_deref().unwrap().contains("later"), "{held:?}");
    done(suite.conduit(&["approve", request.id.as_str()]));
    done(suite.conduit(&["work", "retry", work.as_str()]));
    assert_eq!(suite.ended(&work).state, "succeeded", "{}", suite.log());
}

/// G05, M06
#[test]
fn gates_are_bypassed_by_an_administrator_for_a_while_and_restored() {
    let suite = suite(json!({"rules": [{"operations": ["introspection.work"]}]}), held);
    let held = suite.hold("hold");
    let gates: GatesView = suite.client().get("/v1/gates").unwrap();
    assert_eq!((gates.gates, gates.start_gates), (vec!["human".to_owned()], vec!["human".to_owned()]));
    for bad in [["--for", "2h"], ["--for", "0s"]] {
        let refused = suite.conduit(&[&["gates", "bypass", "--reason", "r"][..], &bad[..]].concat());
        assert!(String::from_utf8_lossy(&refused.stderr).contains("invalid_request"), "{bad:?}");
    }
    let order = ["gates", "bypass", "--for", "10m", "--reason", "nobody is there", "--request-id", "once"];
    let began = done(suite.conduit(&order));
    assert_eq!(done(suite.conduit(&order)).lines().next(), began.lines().next(), "the same order begins one");
    assert_eq!(held.call("introspection.work", json!({})).unwrap()["work"]["id"], json!(held.work));
    let shown = done(suite.conduit(&["gates", "restore"]));
    assert!(shown.contains("restored") && shown.contains("nobody is there"), "{shown}");
    held.call("introspection.work", json!({})).unwrap();
    pending(&suite);
    let events: Page<EventView> = suite.client().get("/v1/events").unwrap();
    for kind in ["core.gates.bypassed", "core.gates.restored"] {
        let told = events.items.iter().find(|event| event.kind == kind).unwrap();
        assert_eq!(told.actor.as_deref(), Some("operator:local"), "{kind}");
    }
}

/// G06, M06
#[test]
fn a_work_that_starts_past_bypassed_gates_says_so_and_one_that_was_approved_does_not() {
    let suite =
        suite(json!({"starts": [{"bindings": ["job"]}]}), |_| json!({"job": config::script("os outcome succeeded")}));
    let asked = suite.work("job", json!({}));
    let request = pending(&suite);
    done(suite.conduit(&["approve", request.id.as_str()]));
    assert_eq!(suite.ended(&asked).state, "succeeded");
    done(suite.conduit(&["gates", "bypass", "--for", "10m", "--reason", "nobody is there"]));
    let unasked = suite.work("job", json!({}));
    assert_eq!(suite.ended(&unasked).state, "succeeded");
    assert!(suite.executions(&asked).iter().all(|one| one.gates_bypassed_at.is_none()));
    let started = &suite.executions(&unasked)[0];
    assert!(started.gates_bypassed_at.is_some_and(|at| at <= started.started_at.unwrap()), "{started:?}");
    let shown = done(suite.conduit(&["executions", "get", started.id.as_str()]));
    assert!(shown.contains("gates bypassed"), "{shown}");
}

/// C01, G07
#[test]
fn a_rule_for_an_extension_that_is_not_active_is_refused_with_its_place_and_its_remedy() {
    let settings = json!({"rules": [{"operations": ["introspection.work"]}]});
    let suite = suite(settings.clone(), held);
    let mut changed = configuration(settings, held(suite.home()));
    changed["extensions"]["introspection"] = json!({"enabled": false});
    let file = suite.home().join("next.json");
    std::fs::write(&file, changed.to_string()).unwrap();
    suite.client(); // whose credential the program needs on disk
    let refused = suite.conduit(&["config", "apply", file.to_str().unwrap()]);
    let told = format!("{}{}", String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert!(!refused.status.success());
    assert!(told.contains("/extensions/human/config/rules/0/operations/0"), "{told}");
    assert!(told.contains("enable the extension introspection"), "{told}");
}

/// X04
#[test]
fn an_execution_sees_its_own_work_and_nothing_of_another() {
    let suite = suite(json!({}), |home| {
        let mut bindings = held(home);
        bindings["hold"]["delegates"] = json!(["child"]);
        bindings["child"] = config::script("os outcome succeeded");
        bindings
    });
    let (mine, other) = (suite.hold("hold"), suite.hold("hold"));
    mine.call("emit", json!({"type": "test.mine", "data": {"n": 1}})).unwrap();
    other.call("emit", json!({"type": "test.others", "data": {"n": 2}})).unwrap();
    let child = mine.call("create_work", json!({"binding": "child"})).unwrap()["work_id"].clone();
    let all: Vec<String> =
        INTROSPECTION.iter().map(|operation| mine.call(operation, json!({})).unwrap().to_string()).collect();
    let (token, all) = (mine.token(), all.join("\n"));
    assert!(
        all.contains("test.mine") && all.contains(child.as_str().unwrap()) && all.contains(mine.id.as_str()),
        "{all}"
    );
    for foreign in [other.work.as_str(), other.id.as_str(), "test.others", &token, suite.home().to_str().unwrap()] {
        assert!(!all.contains(foreign), "{foreign}: {all}");
    }
    let newest = mine.call("introspection.events", json!({"limit": 1})).unwrap();
    assert_eq!((newest["events"].as_array().unwrap().len(), &newest["more"]), (1, &json!(true)));
    for odd in [json!({"limit": 0}), json!({"limit": 51}), json!({"work_id": other.work})] {
        assert_eq!(refusal(mine.call("introspection.events", odd)).1, "invalid_request");
    }
    let enable = |extensions: Value| {
        let mut changed = configuration(json!({}), held(suite.home()));
        changed["extensions"] = extensions;
        let applied: Value = suite.client().post("/v1/config/apply", &json!({"config": changed})).unwrap();
        assert_eq!(applied["valid"], json!(true));
    };
    // Where no gate judges it, a look needs no daemon.
    enable(json!({"introspection": {"enabled": true}}));
    let daemon = suite.process("open-conduitd");
    daemon.signal(Signal::SIGSTOP);
    let shown = mine.call("introspection.work", json!({})).unwrap();
    assert_eq!(shown["work"]["id"], json!(mine.work));
    assert_eq!(refusal(mine.call("introspection.events", json!({"limit": 0}))).1, "invalid_request");
    daemon.signal(Signal::SIGCONT);
    // Without an entry that enables it there is no such operation.
    enable(json!({}));
    assert_eq!(refusal(mine.call("introspection.work", json!({}))).1, "forbidden");
}

/// G06, G07, T12
#[test]
fn requests_and_decisions_outlive_the_daemon() {
    let settings = json!({"rules": [{"operations": ["introspection.work"]}], "starts": [{"bindings": ["job"]}]});
    let suite = suite(
        settings,
        |home| json!({"job": config::resuming(config::script(&format!("cd '{}'; {ASKING}", home.display())))}),
    );
    let work = suite.work("job", json!({}));
    let start = pending(&suite);
    assert_eq!(start.operation, None);
    // Decided while nobody schedules; the next daemon finds the decision on record.
    let killed = suite.kill("open-conduitd");
    done(suite.conduit(&["approve", start.id.as_str()]));
    suite.replaced(&killed);
    let call = pending(&suite);
    assert_eq!(call.operation.as_deref(), Some("introspection.work"));
    in_state(&suite, &work, "waiting");
    let killed = suite.kill("open-conduitd");
    done(suite.conduit(&["approve", call.id.as_str()]));
    suite.replaced(&killed);
    assert_eq!(suite.ended(&work).state, "succeeded", "{}", suite.log());
    assert_eq!(approval(&suite, &call.id).state, "consumed");
    let page: Page<ApprovalView> = suite.client().get("/v1/approvals").unwrap();
    assert_eq!(page.items.len(), 2, "nothing was asked twice");
}
