//! Executors of packages over whole programs: what they plan is run at most once, whatever becomes of them and of the daemon.

use std::path::Path;

use conduit_api::views::{ConfigReply, ExecutionView, HealthView, PackageView, WorkView};
use conduit_api::{EventId, WorkId};
use conduit_client::ClientError;
use conduit_tests::courier::{self, asked, questions, ran, relent, tell};
use conduit_tests::execution::call;
use conduit_tests::{Suite, config, until};
use serde_json::{Value, json};

const EMIT: &str = "os emit test.done '{}' >/dev/null; os outcome succeeded --summary delivered";

fn suite(script: &str) -> Suite {
    let suite = Suite::start(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    courier::install(&suite);
    apply(&suite, &courier::configuration(suite.home(), script)).unwrap();
    suite
}

fn apply(suite: &Suite, config: &Value) -> Result<ConfigReply, ClientError> {
    suite.client().post("/v1/config/apply", &json!({"config": config}))
}

fn errand(suite: &Suite) -> WorkId {
    suite.work("errand", json!({}))
}

fn code(view: &ExecutionView) -> Option<&str> {
    view.code.as_deref()
}

/// The executions of `work`, once one of them was ended with `wanted`.
#[track_caller]
fn ended_with(suite: &Suite, work: &WorkId, wanted: &str) -> Vec<ExecutionView> {
    until(&format!("an execution of {work} ends with {wanted}"), || {
        let executions = suite.executions(work);
        executions.iter().any(|view| code(view) == Some(wanted)).then_some(executions)
    })
}

/// X01, X02, E04, E05, T12
#[test]
fn an_event_starts_what_a_packages_executor_plans_with_the_whole_toolbelt_and_nothing_of_the_token_is_told() {
    let suite = suite(&format!("test \"$COURIER\" = here; {EMIT}"));
    let body = json!({"scope_id": "test", "type": "test.errand", "data": {}});
    let event: Value = suite.client().post_keyed("/v1/events", &body, "first").unwrap();
    let _: EventId = event["event"]["id"].as_str().unwrap_or_else(|| panic!("{event}")).parse().unwrap();
    let work = until("the Event's Work is there", || {
        let page: conduit_api::views::Page<WorkView> = suite.client().get("/v1/work?scope_id=test").ok()?;
        page.items.into_iter().find(|work| work.binding == "errand")
    });
    let ended = suite.ended(&work.id);
    assert_eq!((ended.state.as_str(), ended.outcome.unwrap()["summary"].clone()), ("succeeded", json!("delivered")));
    let plans = asked(&suite, "plan", &work.id);
    assert_eq!(plans.len(), 1);
    let context = plans[0]["context"].as_object().unwrap();
    for told in ["endpoint", "token_file", "toolbelt_dir", "playbook_dir", "run_dir", "deadline_ms", "epoch"] {
        assert!(context.contains_key(told), "{told}: {context:?}");
    }
    assert_eq!((plans[0]["phase"].clone(), plans[0]["settings"].clone()), (json!("run"), json!({})));
    assert!(asked(&suite, "interpret", &work.id).is_empty(), "what it declared stands, whatever the ending means");
    assert_eq!(ran(&suite).len(), 1);

    let silent = suite.work("silent", json!({}));
    let ended = suite.ended(&silent);
    assert_eq!(ended.state, "succeeded", "the executor says so, whatever the status");
    let plan = &asked(&suite, "plan", &silent)[0];
    assert!(plan["context"].get("endpoint").is_none() && plan["context"].get("token_file").is_none(), "{plan}");
    let told = &asked(&suite, "interpret", &silent)[0];
    assert_eq!(told["terminal"]["result"], "failed", "without a toolbelt it cannot emit: {told}");
    let stderr = told["outputs"].as_array().unwrap().iter().find(|output| output["name"] == "stderr").unwrap();
    assert!(stderr["tail"].as_str().unwrap().contains("OS_ENDPOINT"), "{stderr}");
    assert_eq!(stderr["digest"].as_str().unwrap().len(), 64);
}

/// X01, C01, T18
#[test]
fn a_binding_names_an_executor_of_a_package_that_is_enabled_in_its_scope_and_keeps_to_its_schema() {
    let suite = suite("true");
    let sound = courier::configuration(suite.home(), "true");
    let faults = |change: &dyn Fn(&mut Value)| {
        let mut config = sound.clone();
        change(&mut config);
        match apply(&suite, &config).unwrap_err() {
            ClientError::Refused { body, .. } => {
                assert_eq!(body.code, "invalid_config");
                body.diagnostics.into_iter().map(|fault| (fault.pointer, fault.code)).collect::<Vec<_>>()
            }
            other => panic!("no refusal: {other}"),
        }
    };
    let at = |place: &str, code: &str| (format!("/scopes/test/bindings/{place}"), code.to_owned());
    let all = ["errand", "patient", "silent"].map(|binding| at(&format!("{binding}/executor"), "unknown_reference"));
    assert_eq!(faults(&|config| config["extensions"] = json!({})), all);
    assert_eq!(
        faults(&|config| {
            config["extensions"]["courier"]["scopes"] = json!(["other"]);
            config["scopes"]["other"] = json!({});
        }),
        all
    );
    let errand = "/scopes/test/bindings/errand/config";
    assert_eq!(
        faults(&|config| *config.pointer_mut(errand).unwrap() = json!({"yard": 1, "loud": true})),
        [at("errand/config/loud", "unknown_field"), at("errand/config/yard", "wrong_type")]
    );
    let removed = suite.conduit(&["package", "remove", "courier"]);
    assert!(String::from_utf8_lossy(&removed.stderr).contains("package_in_use"));
    let view: PackageView = suite.client().get("/v1/packages/courier").unwrap();
    assert_eq!(view.executors, ["courier", "courier.silent", "courier.patient"]);
    assert_eq!(view.permissions, ["executor.run"]);
}

/// X01, K01: a fault of the host, which costs the Work none of its two attempts.
#[test]
fn an_executor_that_crashes_hangs_or_answers_nonsense_delays_its_own_works_and_no_other() {
    let suite = suite("true");
    for how in ["crash", "nonsense", "hang"] {
        tell(&suite, "plan", how);
        let work = errand(&suite);
        until("it is asked what to run", || (!asked(&suite, "plan", &work).is_empty()).then_some(()));
        assert_eq!(suite.ended(&suite.work("plain", json!({}))).state, "succeeded", "others start meanwhile");
        let failed = ended_with(&suite, &work, "executor_unavailable");
        assert!(failed[0].message.as_deref().unwrap_or_default().contains("open-conduit health"), "{failed:?}");
        until("health says so", || {
            let health: HealthView = suite.client().get("/v1/health").ok()?;
            health.packages_failing.iter().find(|failing| failing.name == "courier").map(drop)
        });
        relent(&suite, "plan");
        assert_eq!(suite.ended(&work).state, "succeeded", "{how}");
        assert_eq!(ran(&suite).len(), 1, "{how}");
        std::fs::remove_file(suite.home().join("yard/ran")).unwrap();
    }
}

/// X01
#[test]
fn what_an_executor_refuses_or_cannot_name_fails_the_work_in_words_and_runs_nothing() {
    let suite = suite("true");
    for (how, said) in
        [("refuse", "no_errands: nobody is sent today"), ("relative", "absolute"), ("masked", "OS_TOKEN_FILE")]
    {
        tell(&suite, "plan", how);
        let work = errand(&suite);
        assert_eq!(suite.ended(&work).state, "failed");
        let executions = suite.executions(&work);
        assert_eq!(executions.len(), 1, "{executions:?}");
        assert_eq!(code(&executions[0]), Some("executor_refused"));
        assert!(executions[0].message.as_deref().unwrap().contains(said), "{executions:?}");
    }
    assert_eq!(ran(&suite), [""; 0]);
}

/// X01, K01
#[test]
fn an_ending_that_the_executor_fails_to_judge_is_put_before_it_again_and_the_process_is_not() {
    let suite = suite("exit 3");
    for how in ["crash once", "nonsense once"] {
        tell(&suite, "interpret", how);
        let work = errand(&suite);
        let ended = suite.ended(&work);
        assert_eq!((ended.state.as_str(), suite.executions(&work).len()), ("succeeded", 1), "{how}");
        assert_eq!(asked(&suite, "interpret", &work).len(), 2);
        assert_eq!(asked(&suite, "plan", &work).len(), 1);
    }
    assert_eq!(ran(&suite).len(), 2);

    tell(&suite, "interpret", "refuse");
    let work = errand(&suite);
    assert_eq!(suite.ended(&work).state, "failed", "then the exit status says it");
    let execution = &suite.executions(&work)[0];
    assert!(execution.message.as_deref().unwrap().contains("did not say what that means"), "{execution:?}");
    assert_eq!(execution.usage.as_ref().unwrap()["meaning"], "exit_status");

    tell(&suite, "interpret", "later");
    let work = errand(&suite);
    assert_eq!(suite.ended(&work).state, "failed");
    let executions = suite.executions(&work);
    assert_eq!(executions.len(), 2, "what may be tried again is, as often as the binding says");
    assert_eq!(executions[0].message.as_deref(), Some("come_again: not today"));

    tell(&suite, "interpret", "lost");
    let work = errand(&suite);
    until("the Work is held", || {
        (suite.work_view(&work).blocked_reason.as_deref() == Some("ambiguous_dispatch")).then_some(())
    });
}

/// X01, K01, K10
#[test]
fn a_scheduler_killed_while_an_executor_plans_or_judges_starts_the_process_once() {
    let suite = suite("exit 3");
    let mut config = courier::configuration(suite.home(), "exit 3");
    config["scopes"]["test"]["bindings"]["hold"] = config::hold(suite.home());
    apply(&suite, &config).unwrap();
    let held = suite.hold("hold");
    tell(&suite, "plan", "hang once");
    let work = errand(&suite);
    until("it is asked what to run", || (!asked(&suite, "plan", &work).is_empty()).then_some(()));
    let dead = suite.kill("open-conduitd");
    suite.replaced(&dead);
    assert_eq!(suite.ended(&work).state, "succeeded");
    assert_eq!((asked(&suite, "plan", &work).len(), ran(&suite).len()), (2, 1));

    tell(&suite, "interpret", "hang once");
    let work = errand(&suite);
    until("it is asked what the ending means", || (!asked(&suite, "interpret", &work).is_empty()).then_some(()));
    let execution = suite.executions(&work)[0].id.clone();
    let run = suite.run_directory(&execution).unwrap();
    let token = std::fs::read_to_string(run.join("token/token")).unwrap();
    let dead = suite.kill("open-conduitd");
    suite.replaced(&dead);
    let ended = suite.ended(&work);
    assert_eq!((ended.state.as_str(), suite.executions(&work).len()), ("succeeded", 1));
    assert_eq!(asked(&suite, "plan", &work).len(), 1, "what was admitted is not planned again");
    assert_eq!(asked(&suite, "interpret", &work).len(), 2);
    assert_eq!(ran(&suite).len(), 2);
    // Whoever kept the token of the segment that ended has nothing by it, at whatever socket.
    let client = held.client_with(token.trim());
    let answer = until("the held execution's socket answers", || match call(&client, "read_context", json!({})) {
        Err(ClientError::Refused { status, body }) => Some((status, body.code)),
        Err(_) => None,
        Ok(told) => panic!("{told}"),
    });
    assert_eq!(answer, (403, "forbidden".into()));
    let kept: Vec<String> = suite.executions(&work)[0].usage.iter().map(|usage| usage["meaning"].to_string()).collect();
    assert_eq!(kept, ["\"executor\""]);
}

/// X01, K01, K10: the moments are spread over plans and endings, as they come.
#[test]
fn however_often_the_scheduler_is_killed_each_errand_is_run_once_and_judged() {
    const ERRANDS: usize = 8;
    let suite = suite("exit 3");
    let mut config = courier::configuration(suite.home(), "exit 3");
    config["scopes"]["test"]["bindings"]["errand"]["retry"]["attempts"] = json!(10);
    apply(&suite, &config).unwrap();
    let works: Vec<WorkId> = (0..ERRANDS).map(|_| errand(&suite)).collect();
    for n in [1, 3, 6, 9, 12, 15] {
        until(&format!("it has been asked {n} times"), || (questions(&suite) >= n).then_some(()));
        let dead = suite.kill("open-conduitd");
        suite.replaced(&dead);
    }
    for work in &works {
        assert_eq!(suite.ended(work).state, "succeeded");
        let judged = suite.executions(work).into_iter().find(|execution| execution.state == "succeeded").unwrap();
        assert_eq!(judged.usage.unwrap()["meaning"], "executor");
    }
    let mut ran = ran(&suite);
    assert_eq!(ran.len(), ERRANDS);
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), ERRANDS, "each by an execution of its own");
}

/// X01, M10, T03
#[test]
fn while_an_executor_judges_the_ended_process_has_no_token_and_an_operator_need_not_wait() {
    let suite = suite("exit 3");
    tell(&suite, "interpret", "hang");
    let work = errand(&suite);
    until("it is asked what the ending means", || (!asked(&suite, "interpret", &work).is_empty()).then_some(()));
    let held = suite.running(&work);
    assert_eq!(held.call("read_context", json!({})).unwrap_err().code(), "forbidden");
    suite.client().post::<_, Value>(&format!("/v1/work/{work}/cancel"), &json!({})).unwrap();
    let executions = ended_with(&suite, &work, "operator_cancelled");
    assert_eq!(executions[0].state, "cancelled");
}

/// X01, T12, E05
#[test]
fn an_executor_that_resumes_is_asked_anew_for_each_segment_of_the_one_execution() {
    let wait = r#"[ -n "${OPEN_CONDUIT_RESUMED-}" ] || exec os wait --for test.news,source=core.manual"#;
    let suite = suite(wait);
    let work = suite.work("patient", json!({}));
    until("its execution is parked", || {
        suite.executions(&work).first().is_some_and(|execution| execution.state == "parked").then_some(())
    });
    let news = json!({"scope_id": "test", "type": "test.news", "data": {}});
    suite.client().post_keyed::<_, Value>("/v1/events", &news, "news").unwrap();
    assert_eq!(suite.ended(&work).state, "succeeded");
    let plans = asked(&suite, "plan", &work);
    let told = |name: &str| plans.iter().map(|plan| plan["context"][name].clone()).collect::<Vec<_>>();
    let phases: Vec<&Value> = plans.iter().map(|plan| &plan["phase"]).collect();
    assert_eq!(phases, [&json!("run"), &json!("resume")]);
    assert_eq!(told("segment"), [json!(1), json!(2)]);
    assert_eq!(suite.executions(&work).len(), 1);
    assert_eq!(asked(&suite, "interpret", &work).len(), 1, "the segment that declared a Wait means just that");
}

/// X01: the example of docs/examples.
#[test]
fn the_example_runs_scripts_and_says_what_their_endings_mean() {
    let suite = Suite::start(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/package-executor").canonicalize().unwrap();
    suite.client();
    let installed = suite.conduit(&["package", "install", example.to_str().unwrap(), "--yes"]);
    let told = String::from_utf8_lossy(&installed.stdout).into_owned();
    assert!(installed.status.success() && told.contains("executor.run") && told.contains("executors"), "{told}");

    let script = |text: &str| {
        let mut binding = config::script("true");
        binding["executor"] = json!("scripts");
        binding["config"] = json!({"script": text, "args": ["one", "two"], "playbook": "os"});
        binding["retry"]["attempts"] = json!(2);
        binding
    };
    let bindings = json!({
        "calls": script("import subprocess, sys; sys.exit(subprocess.run(['os', 'emit', 'test.done', '{}']).returncode)"),
        "fails": script("import sys; sys.exit('no luck with ' + ' '.join(sys.argv[1:]))"),
        "later": script("import sys; sys.exit(75)"),
    });
    let mut configuration = config::one_scope(bindings, json!([]));
    configuration["extensions"] = json!({"scripts": {"enabled": true}});
    apply(&suite, &configuration).unwrap();

    let outcome = |binding: &str| {
        let work = suite.work(binding, json!({}));
        let ended = suite.ended(&work);
        let executions = suite.executions(&work);
        (ended.state, executions.len(), executions[0].message.clone())
    };
    assert_eq!(outcome("calls"), ("succeeded".into(), 1, None));
    assert_eq!(outcome("fails"), ("failed".into(), 1, Some("script_failed: no luck with one two".into())));
    assert_eq!(outcome("later"), ("failed".into(), 2, Some("try_again: the script asks for another try".into())));
}
