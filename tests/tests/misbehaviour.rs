//! Packages that judge, and packages that misbehave, over whole programs: what callers get, what health says, and that nothing
//! else is touched.

use conduit_api::WorkId;
use conduit_api::views::{ConfigReply, EventView, ExplainView, HealthView, Page};
use conduit_client::ClientError;
use conduit_tests::execution::call_as;
use conduit_tests::{Suite, odd, until, until_within};
use serde_json::{Value, json};

fn suite(settings: Value) -> Suite {
    let suite = Suite::start(|home| odd::configuration(home, None, None));
    odd::install(&suite);
    apply(&suite, settings);
    suite
}

/// Applies `settings`, after the pause that a failure of the package brings.
#[track_caller]
fn apply(suite: &Suite, settings: Value) {
    let config = odd::configuration(suite.home(), Some(settings), None);
    let client = suite.client();
    until("the settings are applied", || {
        client.post::<_, ConfigReply>("/v1/config/apply", &json!({"config": config})).ok()
    });
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (u16, String) {
    match answer.unwrap_err() {
        ClientError::Refused { body, status } => (status, body.code),
        other => panic!("no refusal: {other}"),
    }
}

#[track_caller]
fn in_state(suite: &Suite, work: &WorkId, state: &str) {
    until(&format!("{work} is {state}"), || (suite.work_view(work).state == state).then_some(()));
}

fn health(suite: &Suite) -> HealthView {
    suite.client().get("/v1/health").unwrap()
}

#[track_caller]
fn open(suite: &Suite, work: &WorkId) {
    let done = suite.conduit(&["emit", "odd.opened", "--scope", "test", "--work", work.as_str()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn summary(suite: &Suite, work: &WorkId) -> (String, String) {
    let ended = suite.ended(work);
    (ended.state, ended.outcome.unwrap_or_default()["summary"].as_str().unwrap_or_default().to_owned())
}

/// G02, G03, G05, T12
#[test]
fn a_packages_gate_parks_a_call_of_a_real_process_and_lets_it_through_when_it_goes_on() {
    let suite = suite(json!({"gate": "park"}));
    let work = suite.work("job", json!({}));
    in_state(&suite, &work, "waiting");
    apply(&suite, json!({}));
    open(&suite, &work);
    assert_eq!(summary(&suite, &work), ("succeeded".into(), "it was let through".into()));

    apply(&suite, json!({"gate": "refuse"}));
    let refused = suite.work("job", json!({}));
    let (state, told) = summary(&suite, &refused);
    assert!(state == "failed" && told.contains("odd_gate") && told.contains("the odd gate is shut"), "{told}");

    // Its own operations it does not judge, and the record of what it judged names it.
    let held = suite.hold("hold");
    held.call("odd.do", json!({})).unwrap();
    assert_eq!(code(call_as(&held.client(), "introspection.work", json!({}), "judged")), (422, "odd_gate".into()));
    let explained = until("the record is written", || suite.client().get::<ExplainView>("/v1/explain/judged").ok());
    assert_eq!(explained.calls[0].gate.as_deref(), Some("odd"));
}

/// G06
#[test]
fn a_packages_start_gate_holds_a_work_and_releases_it() {
    let suite = suite(json!({"start": "park"}));
    let waits = suite.work("job", json!({}));
    in_state(&suite, &waits, "waiting");
    apply(&suite, json!({"start": "refuse"}));
    let held = suite.work("job", json!({}));
    in_state(&suite, &held, "blocked");
    apply(&suite, json!({}));
    open(&suite, &waits);
    assert_eq!(summary(&suite, &waits).0, "succeeded");
    let retried = suite.conduit(&["work", "retry", held.as_str()]);
    assert!(retried.status.success());
    assert_eq!(summary(&suite, &held).0, "succeeded");
}

/// G04, X01
#[test]
fn a_gate_that_crashes_hangs_floods_or_answers_nonsense_refuses_and_is_asked_again_when_it_works() {
    let suite = suite(json!({}));
    let held = suite.hold("hold");
    for how in ["crash", "hang", "flood", "nonsense", "stranger"] {
        let once = suite.home().join(how);
        apply(&suite, json!({"gate": how, "once": once.to_str().unwrap()}));
        assert_eq!(code(held.call("introspection.work", json!({}))), (422, "gate_failed".into()), "{how}");
        held.call("read_context", json!({})).unwrap();
        let told = until("health says that the package fails", || {
            let health = health(&suite);
            (health.status == "degraded").then_some(health)
        });
        assert_eq!(told.packages_failing[0].name, "odd", "{how}: {told:?}");
        until_within(std::time::Duration::from_secs(90), || held.call("introspection.work", json!({})).ok())
            .unwrap_or_else(|| panic!("{how}: it is asked again\n{}", suite.log()));
        assert_eq!(health(&suite).packages_failing, [], "{how}");
    }
}

/// X01, T14
#[test]
fn a_handler_that_crashes_floods_or_answers_nonsense_has_done_nothing_and_the_same_request_may_be_made_again() {
    let suite = suite(json!({}));
    let held = suite.hold("hold");
    for how in ["crash", "flood", "large", "nonsense", "stranger"] {
        let once = suite.home().join(how);
        apply(&suite, json!({"invoke": how, "once": once.to_str().unwrap()}));
        let ask = || call_as(&held.client(), "odd.do", json!({"how": how}), how);
        assert_eq!(code(ask()), (503, "extension_unavailable".into()), "{how}");
        held.call("emit", json!({"type": "test.alive"})).unwrap();
        let done = until("the same request is carried out", || ask().ok());
        assert_eq!(done["input"], json!({"how": how}));
        assert_eq!(health(&suite).packages_failing, [], "{how}");
    }
    let events: Page<EventView> = suite.client().get("/v1/events?scope_id=test").unwrap();
    assert_eq!(events.items.iter().filter(|event| event.kind == "test.alive").count(), 5);
}

/// X01, T16
#[test]
fn a_package_that_lies_about_itself_is_asked_nothing_and_health_says_what_it_lied_about() {
    let lies = [
        (json!({"protocol_version": 99}), "version 99"),
        (json!({"name": "human"}), "name"),
        (json!({"version": "9.0.0"}), "version"),
        (json!({"operations": ["odd.do", "human.decide"]}), "list of operations"),
        (json!({"operation_gate": false}), "list of gates"),
    ];
    let suite = Suite::start(|home| odd::configuration(home, None, None));
    let held = suite.hold("hold");
    for (at, (lie, expected)) in lies.into_iter().enumerate() {
        let mut manifest = odd::manifest();
        manifest["version"] = json!(format!("1.0.{at}"));
        manifest["provides"]["validate"] = json!(false);
        manifest["provides"]["start_gate"] = json!(false);
        manifest["needs"] = json!(["operation.gate"]);
        let place = odd::write(suite.home(), &format!("odd-{at}"), &manifest);
        let mut said = json!({"validate": false, "start_gate": false, "version": manifest["version"]});
        said.as_object_mut().unwrap().extend(lie.as_object().unwrap().clone());
        std::fs::write(place.join("lie.json"), said.to_string()).unwrap();
        let nothing = odd::configuration(suite.home(), None, None);
        suite.client().post::<_, ConfigReply>("/v1/config/apply", &json!({"config": nothing})).unwrap();
        let installed = suite.conduit(&["package", "install", place.to_str().unwrap(), "--yes"]);
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        apply(&suite, json!({}));
        assert_eq!(code(held.call("introspection.work", json!({}))), (422, "gate_failed".into()), "{lie}");
        let failing = health(&suite).packages_failing;
        assert!(failing[0].why.contains(expected), "{expected}: {failing:?}");
    }
}
