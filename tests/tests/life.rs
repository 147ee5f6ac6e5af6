//! A Work's whole life, through every process: from an Event to an outcome, by real programs.

use conduit_api::views::{ArtifactView, ChainView, EmitReply, EventView, Page};
use conduit_tests::{Suite, config, until};
use serde_json::{Value, json};

/// Emits `kind` as the operator.
fn emit(suite: &Suite, kind: &str, data: Value) -> EventView {
    let body = json!({"scope_id": "test", "type": kind, "data": data});
    let reply: EmitReply = suite.client().post("/v1/events", &body).unwrap();
    reply.event
}

fn kinds(chain: &ChainView) -> Vec<&str> {
    chain.events.iter().map(|event| event.kind.as_str()).collect()
}

/// X02, X05, T08, T09, T11, T12, U04
#[test]
fn an_event_becomes_work_whose_children_report_and_whose_outcome_is_in_the_operators_hands() {
    const PARENT: &str = r#"
        if [ "$(os context '/waits/*/state')" = "" ]; then
            a=$(os create-work child '{"n": 1}')
            b=$(os create-work child '{"n": 2}')
            os wait --all --for "core.work.finished,work=$a" --for "core.work.finished,work=$b" --timeout 60s
        else
            echo "children: $(os context '/waits/0/matches/*/data/state' | tr '\n' ' ')"
            os outcome succeeded '{"children": 2}' --summary 'both are done'
        fi"#;
    const CHILD: &str = r#"
        os emit test.counted "{\"n\": $(os context '/inputs/0/data/n')}"
        os outcome succeeded"#;
    let suite = Suite::start(|_| {
        let mut parent = config::script(PARENT);
        parent["delegates"] = json!(["child"]);
        let routes = json!([{"match": {"type": "test.wanted"}, "effect": "start", "binding": "parent"}]);
        config::one_scope(json!({"parent": parent, "child": config::script(CHILD)}), routes)
    });
    let wanted = emit(&suite, "test.wanted", json!({"why": "a test"}));
    let client = suite.client();
    let work = until("the event starts a Work", || {
        let events: ChainView = client.get(&format!("/v1/events/{}/chain", wanted.id)).ok()?;
        let created = events.events.iter().find(|event| event.kind == "core.work.created")?;
        created.work_id.clone()
    });
    let ended = suite.ended(&work);
    assert_eq!(ended.state, "succeeded", "{ended:?}\n{}", suite.log());
    let outcome = ended.outcome.unwrap();
    assert_eq!(outcome["data"], json!({"children": 2}));
    assert_eq!(outcome["summary"], "both are done");

    let chain: ChainView = client.get(&format!("/v1/events/{}/chain", wanted.id)).unwrap();
    let count = |kind: &str| kinds(&chain).iter().filter(|k| **k == kind).count();
    assert_eq!(count("core.work.created"), 3, "{:?}", kinds(&chain));
    assert_eq!(count("core.work.finished"), 3, "{:?}", kinds(&chain));
    assert_eq!(count("test.counted"), 2, "{:?}", kinds(&chain));
    assert!(chain.events.iter().all(|event| event.root_id == wanted.id));
    let emitted = chain.events.iter().find(|event| event.kind == "test.counted").unwrap();
    assert!(emitted.source.starts_with("execution:") && emitted.execution_id.is_some() && emitted.cause_id.is_some());

    let artifacts: Page<ArtifactView> = client.get(&format!("/v1/artifacts?work_id={work}")).unwrap();
    let mut texts = Vec::new();
    for artifact in artifacts.items.iter().filter(|artifact| artifact.name == "stdout") {
        let mut bytes = Vec::new();
        client.download(&format!("/v1/artifacts/{}/content", artifact.id), &mut bytes).unwrap();
        texts.push(String::from_utf8(bytes).unwrap());
    }
    assert!(texts.iter().any(|text| text.contains("children: succeeded succeeded")), "{texts:?}");
}

/// E04, E05, X02, K08, T01
#[test]
fn a_process_finds_its_socket_token_file_and_tools_and_nothing_of_the_service() {
    let mut setup = conduit_tests::suite::Setup::new(|_| {
        let script = r#"
            env | sort > "$HOME_OF_TEST/environment"
            [ "$(command -v os)" = "$OS_TOOLBELT_DIR/os" ]
            [ -S "$OS_ENDPOINT" ] && [ -r "$OS_TOKEN_FILE" ] && [ -d "$OS_PLAYBOOK_DIR" ]
            stat -c '%a' "$OS_ENDPOINT" "$OS_TOKEN_FILE" > "$HOME_OF_TEST/modes"
            os outcome succeeded"#;
        config::one_scope(json!({"look": config::script(script)}), json!([]))
    });
    setup.config["scopes"]["test"]["bindings"]["look"]["config"]["env"] = json!({"HOME_OF_TEST": setup.home.path()});
    setup.environment.push(("OS_TOKEN_FILE".into(), "/nowhere".into()));
    setup.environment.push(("SECRET_OF_THE_SERVICE".into(), "hunter2".into()));
    let suite = Suite::start_with(setup);
    let work = suite.work("look", json!({}));
    let ended = suite.ended(&work);
    assert_eq!(ended.state, "succeeded", "{:?}\n{}", suite.executions(&work), suite.log());
    let environment = std::fs::read_to_string(suite.home().join("environment")).unwrap();
    assert!(!environment.contains("hunter2") && !environment.contains("/nowhere"), "{environment}");
    for name in ["OS_ENDPOINT=", "OS_TOKEN_FILE=", "OS_TOOLBELT_DIR=", "OS_PLAYBOOK_DIR=", "OPEN_CONDUIT_WORK_ID="] {
        assert!(environment.lines().any(|line| line.starts_with(name)), "{name} is missing in {environment}");
    }
    assert_eq!(std::fs::read_to_string(suite.home().join("modes")).unwrap(), "600\n600\n");
}

/// X02, K10
#[test]
fn a_process_that_stops_its_runner_has_timed_out_all_the_same() {
    let suite = Suite::start(|_| {
        let mut binding = config::script("kill -STOP $PPID; exec sleep 1000");
        (binding["deadline_s"], binding["config"]["stop_grace_ms"]) = (json!(1), json!(100));
        config::one_scope(json!({"stops": binding}), json!([]))
    });
    let work = suite.work("stops", json!({}));
    assert_eq!(suite.ended(&work).state, "failed", "{}", suite.log());
    let execution = &suite.executions(&work)[0];
    assert_eq!(execution.code.as_deref(), Some("deadline_exceeded"), "{execution:?}");
}

/// T12
#[test]
fn a_wait_that_nothing_answers_ends_at_its_timeout_and_a_parked_execution_resumes_as_itself() {
    const WAITS: &str = r#"
        case "$(os context '/waits/0/state')" in
            timed_out) os outcome succeeded ;;
            *) os wait --for test.never --timeout 1s ;;
        esac"#;
    let suite = Suite::start(|_| {
        let bindings = json!({"ends": config::script(WAITS), "parks": config::resuming(config::script(WAITS))});
        config::one_scope(bindings, json!([]))
    });
    let (ends, parks) = (suite.work("ends", json!({})), suite.work("parks", json!({})));
    for work in [&ends, &parks] {
        let view = suite.ended(work);
        assert_eq!(view.state, "succeeded", "{:?}\n{}", suite.executions(work), suite.log());
    }
    assert_eq!(suite.executions(&ends).len(), 2, "without resume each segment is an execution");
    let parked = suite.executions(&parks);
    assert_eq!((parked.len(), parked[0].segment), (1, 2), "a parked execution goes on in its second segment");
}

/// K01
#[test]
fn a_missing_executable_fails_the_work_by_name_and_a_failing_process_is_tried_as_often_as_said() {
    let suite = Suite::start(|home| {
        let missing = config::binding(&["/nowhere/to/be/found"]);
        let mut fails = config::script(&format!("echo x >> '{}/tries'; exit 3", home.display()));
        fails["retry"] = json!({"attempts": 3, "backoff_ms": 10, "backoff_max_ms": 20});
        config::one_scope(json!({"missing": missing, "fails": fails}), json!([]))
    });
    let work = suite.work("missing", json!({}));
    assert_eq!(suite.ended(&work).state, "failed");
    let execution = &suite.executions(&work)[0];
    assert_eq!(execution.code.as_deref(), Some("executable_unavailable"));
    assert!(execution.message.as_ref().unwrap().contains("/nowhere/to/be/found"), "{execution:?}");

    let work = suite.work("fails", json!({}));
    assert_eq!(suite.ended(&work).state, "failed");
    assert_eq!(suite.executions(&work).len(), 3);
    assert_eq!(std::fs::read_to_string(suite.home().join("tries")).unwrap(), "x\nx\nx\n");
}

/// M10, E06
#[test]
fn a_cancelled_work_loses_its_process_its_socket_and_its_directory() {
    let suite = Suite::start(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    let held = suite.hold("hold");
    until("its process runs", || suite.everything().into_iter().find(|process| process.program == "cat"));
    let _: Value = suite.client().post(&format!("/v1/work/{}/cancel", held.work), &json!({})).unwrap();
    assert_eq!(suite.ended(&held.work).state, "cancelled");
    until("the process is gone", || suite.everything().iter().all(|process| process.program != "cat").then_some(()));
    until("the run directory is gone", || suite.run_directories().is_empty().then_some(()));
    until("the execution has ended", || (suite.executions(&held.work)[0].state == "cancelled").then_some(()));
}

/// X02
#[test]
fn a_process_that_outlives_its_deadline_is_ended_and_the_work_says_so() {
    let suite = Suite::start(|_| {
        let mut slow = config::script("exec sleep 600");
        slow["deadline_s"] = json!(1);
        config::one_scope(json!({"slow": slow}), json!([]))
    });
    let work = suite.work("slow", json!({}));
    assert_eq!(suite.ended(&work).state, "failed");
    let execution = &suite.executions(&work)[0];
    assert_eq!((execution.state.as_str(), execution.code.as_deref()), ("timed_out", Some("deadline_exceeded")));
}
