//! `emit`, `create_work` and `read_context`: what the host assigns, what it refuses, and what it shows.

use conduit_api::WorkId;
use conduit_coordination::executions::SegmentEnd;
use serde_json::{Value, json};

use crate::support::{BUILTINS, Host, SECOND, SECRET, Speaker, configuration, emission, keyed, request};

fn emit_on(key: &str) -> conduit_api::toolbelt::CallRequest {
    request("emit", json!({"type": "demo.survey.seen", "correlation_key": key}))
}

/// T08
#[test]
fn the_host_assigns_source_work_execution_and_cause() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["k"]);
    let output = speaker.output(&host, &emit_on("k"));
    let row = "SELECT source || ' ' || work_id || ' ' || execution_id || ' ' || cause_id || ' ' || depth || ' ' || coalesce(actor, 'nobody')
                 FROM event WHERE type = 'demo.survey.seen'";
    let input = host.text("SELECT id FROM event WHERE type = 'core.work.created'");
    let (execution, work) = (&speaker.claimed.execution, &speaker.claimed.work);
    assert_eq!(host.text(row), format!("execution:{execution} {work} {execution} {input} 1 nobody"));
    assert_eq!(output["event_id"], json!(host.text("SELECT id FROM event ORDER BY seq DESC")));
}

/// T12
#[test]
fn the_scheduler_hears_of_an_emission_that_a_route_or_a_wait_is_for_and_of_no_other() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let mut rings = |host: &mut Host, kind: &str| {
        host.sql("UPDATE event SET route = 'unmatched'");
        let called = speaker.call(host, &request("emit", json!({"type": kind}))).unwrap();
        let pending = host.number("SELECT count(*) FROM event WHERE route IS NULL") == 1;
        assert_eq!(pending, called.ring, "{kind}: it rings for what is to be routed");
        called.ring
    };
    assert!(!rings(&mut host, "demo.survey.seen"), "nobody wants it");
    let mut routed = configuration();
    routed["scopes"]["demo"]["routes"] =
        json!([{"match": {"type": "demo.survey.seen"}, "effect": "start", "binding": "child"}]);
    host.publish(&routed);
    assert!(rings(&mut host, "demo.survey.seen"), "a route does");
    assert!(!rings(&mut host, "demo.survey.other"));
    let mut waiter = host.speaker(&[]);
    let wait = json!({"mode": "any", "predicates": [{"type": "demo.survey.other", "source": "core.manual"}]});
    waiter.output(&host, &request("wait", wait));
    host.complete(&waiter.claimed, &SegmentEnd::Succeeded, false);
    assert!(rings(&mut host, "demo.survey.other"), "a wait may");
}

/// T08
#[test]
fn whatever_a_caller_forges_is_named_and_refused_and_authority_is_kept() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["k"]);
    let before = host.rows();
    for field in ["source", "parent", "target"] {
        for value in [json!("core.manual"), json!(7), json!({"id": "x"}), json!([]), json!(false)] {
            for (operation, mut input) in [("emit", emission()), ("create_work", json!({"binding": "child"}))] {
                input[field] = value.clone();
                let refused = speaker.call(&host, &keyed(operation, "r", input)).unwrap_err();
                assert_eq!(refused.code.as_str(), "forged_attribution", "{operation} {field} {value}");
                assert!(refused.message.contains(field), "{}", refused.message);
            }
        }
    }
    for field in ["work_id", "execution_id", "cause", "actor", "scope"] {
        let mut input = emission();
        input[field] = json!("x");
        assert_eq!(speaker.refusal(&host, &request("emit", input)), "invalid_request", "{field}");
    }
    assert_eq!(host.rows(), before, "nothing was written");
    speaker.output(&host, &keyed("emit", "r", emission()));
}

/// T08
#[test]
fn only_families_that_are_declared_and_allowed_are_emitted() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    for kind in [
        "core.work.finished",
        "core",
        "demo",
        "demo.surveyor.seen",
        "demo.other",
        "other.x",
        "demo.survey.",
        "demo..survey",
        "",
    ] {
        assert_eq!(speaker.refusal(&host, &request("emit", json!({"type": kind}))), "event_not_allowed", "{kind}");
    }
    for kind in ["demo.survey", "demo.survey.seen", "demo.survey.a.b"] {
        speaker.output(&host, &request("emit", json!({"type": kind})));
    }
}

/// T08
#[test]
fn a_key_is_emitted_on_only_by_the_work_that_owns_it() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["mine"]);
    let mut other = host.speaker(&["theirs"]);
    for key in ["theirs", "nobodys"] {
        assert_eq!(speaker.refusal(&host, &emit_on(key)), "key_not_owned", "{key}");
    }
    speaker.output(&host, &emit_on("mine"));
    other.output(&host, &emit_on("theirs"));
    assert_eq!(speaker.refusal(&host, &emit_on("")), "invalid_request");
    assert_eq!(speaker.refusal(&host, &emit_on(&"k".repeat(300))), "invalid_request");
}

/// A speaker whose segment works on what the one before it created: each is one step deeper.
fn deeper(host: &mut Host, speaker: &mut Speaker) -> Speaker {
    speaker.output(host, &request("create_work", json!({"binding": "child"})));
    let claimed = host.claim();
    host.go_on(claimed)
}

/// T08
#[test]
fn a_chain_of_works_that_beget_works_ends_at_the_depth_that_its_root_pinned() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let mut raised = configuration();
    for depth in 1..=4 {
        speaker = deeper(&mut host, &mut speaker);
        assert_eq!(host.number("SELECT max(depth) FROM event"), depth);
        // Pinned by the first Event that followed from the root: a later generation does not move it.
        raised["limits"]["causal_depth_max"] = json!(10 + depth);
        host.publish(&raised);
    }
    for (operation, input) in [("create_work", json!({"binding": "child"})), ("emit", emission())] {
        assert_eq!(speaker.refusal(&host, &request(operation, input)), "causal_depth_exceeded", "{operation}");
    }
    let mut fresh = host.speaker(&[]);
    for _ in 0..5 {
        fresh = deeper(&mut host, &mut fresh);
    }
}

/// T08
#[test]
fn a_chain_grows_by_so_many_events_a_minute_and_the_next_minute_has_room_again() {
    let mut host = Host::new();
    let minute = 60 * SECOND;
    host.pass(minute - host.now.boot_us.rem_euclid(minute));
    let mut speaker = host.speaker(&[]);
    for n in 0..6 {
        let operation = if n % 2 == 0 { ("emit", emission()) } else { ("create_work", json!({"binding": "child"})) };
        speaker.output(&host, &request(operation.0, operation.1));
    }
    let refused = speaker.call(&host, &keyed("emit", "again", emission())).unwrap_err();
    assert_eq!((refused.code.as_str(), refused.code.status()), ("causal_rate_exceeded", 429));
    host.pass(minute - 1);
    assert_eq!(speaker.refusal(&host, &keyed("emit", "again", emission())), "causal_rate_exceeded");
    host.pass(1);
    speaker.output(&host, &keyed("emit", "again", emission()));
}

/// T09
#[test]
fn a_child_and_its_creation_are_one_and_its_id_is_stable_for_its_request() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let call =
        keyed("create_work", "first", json!({"binding": "child", "title": "t", "data": {"n": 1}, "keys": ["c"]}));
    let output = speaker.output(&host, &call);
    let child: WorkId = output["work_id"].as_str().unwrap().parse().unwrap();
    let row = format!(
        "SELECT parent_work_id || ' ' || binding || ' ' || state || ' ' || created_event_id FROM work WHERE id = '{child}'"
    );
    assert_eq!(
        host.text(&row),
        format!("{} child ready {}", speaker.claimed.work, output["event_id"].as_str().unwrap())
    );
    let event = format!("SELECT type || ' ' || source || ' ' || data FROM event WHERE work_id = '{child}'");
    assert_eq!(host.text(&event), r#"core.work.created core {"n":1}"#);

    let again = speaker.call(&host, &call).unwrap();
    assert!(again.response.replayed && !again.ring);
    assert_eq!(again.response.output, output);
    // Even when the record of the answer is gone, the same request names the same child.
    host.sql("DELETE FROM replay");
    assert_eq!(speaker.output(&host, &call)["work_id"], output["work_id"]);
    assert_eq!(host.number("SELECT count(*) FROM work WHERE binding = 'child'"), 1);
    let other = speaker.output(&host, &keyed("create_work", "second", json!({"binding": "child"})));
    assert_ne!(other["work_id"], output["work_id"]);
}

/// T09
#[test]
fn a_child_that_cannot_have_its_key_leaves_no_trace() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["taken"]);
    let before = host.rows();
    let refused = speaker
        .call(&host, &keyed("create_work", "r", json!({"binding": "child", "keys": ["free", "taken"]})))
        .unwrap_err();
    assert_eq!(refused.code.as_str(), "key_taken");
    assert!(!refused.message.contains("wrk_"), "a foreign Work is not named: {}", refused.message);
    assert_eq!(host.rows(), before);
    speaker.output(&host, &keyed("create_work", "r", json!({"binding": "child", "keys": ["free", "free"]})));
}

/// T09
#[test]
fn only_bindings_that_may_be_delegated_to_and_still_exist_get_children() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    for binding in ["foreign", "parent", "nothing"] {
        assert_eq!(
            speaker.refusal(&host, &request("create_work", json!({"binding": binding}))),
            "unknown_binding",
            "{binding}"
        );
    }
    let mut without = configuration();
    let bindings = without["scopes"]["demo"]["bindings"].as_object_mut().unwrap();
    bindings.remove("child");
    bindings["parent"]["delegates"] = json!([]);
    host.publish(&without);
    assert_eq!(speaker.refusal(&host, &request("create_work", json!({"binding": "child"}))), "unknown_binding");
}

/// T10
#[test]
fn a_context_shows_the_work_its_inputs_grants_and_waits_and_no_secret() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["b", "a"]);
    speaker.output(&host, &request("wait", json!({"mode": "any", "predicates": [{"type": "demo.x"}], "timeout_s": 1})));
    host.complete(&speaker.claimed, &conduit_coordination::executions::SegmentEnd::Succeeded, true);
    host.pass(SECOND);
    let now = host.now;
    host.store.write(|tx| conduit_coordination::waits::fire_due(tx, 10, now)).unwrap();
    let claimed = host.claim();
    let mut speaker = host.go_on(claimed);
    let context = speaker.output(&host, &request("read_context", json!({})));
    assert_eq!(context["scope_id"], json!("demo"));
    let work = &context["work"];
    assert_eq!(
        (&work["id"], &work["title"], &work["binding"]),
        (&json!(speaker.claimed.work), &json!("a survey"), &json!("parent"))
    );
    assert_eq!(work["keys"], json!(["a", "b"]));
    let execution = &context["execution"];
    assert_eq!((&execution["segment"], &execution["epoch"], &execution["attempt"]), (&json!(2), &json!(2), &json!(1)));
    let kinds: Vec<&Value> = context["inputs"].as_array().unwrap().iter().map(|input| &input["type"]).collect();
    assert_eq!(kinds, ["core.work.created", "core.wait.timed_out"]);
    assert_eq!(execution["acknowledged"], context["inputs"][1]["sequence"]);
    assert_eq!((&context["inputs_total"], &context["waits"][0]["state"]), (&json!(2), &json!("timed_out")));
    assert_eq!(context["grants"]["operations"].as_array().unwrap().len(), BUILTINS.len());
    assert_eq!(
        (&context["grants"]["events"], &context["grants"]["delegates"]),
        (&json!(["demo.survey"]), &json!(["child"]))
    );
    let digest = conduit_store::digest::hex(&conduit_toolbelt::token::digest(&speaker.token));
    let text = context.to_string();
    for hidden in [speaker.token.as_str(), digest.as_str(), SECRET, "scheduler_first"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
}

/// T10, C07: what the configuration has taken away since the segment began is not shown as something to call.
#[test]
fn a_context_shows_the_grants_that_the_configuration_allows_still() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let mut narrowed = configuration();
    let operations = json!(["read_context", "emit"]);
    narrowed["scopes"]["demo"]["operations"] = operations.clone();
    narrowed["scopes"]["demo"]["events"] = json!(["demo.survey.seen", "demo.other"]);
    let bindings = narrowed["scopes"]["demo"]["bindings"].as_object_mut().unwrap();
    bindings.remove("child");
    bindings["parent"] = json!({"executor": "shell", "config": {"env": SECRET}, "operations": operations});
    host.publish(&narrowed);
    let grants = speaker.output(&host, &request("read_context", json!({})))["grants"].clone();
    assert_eq!(
        grants,
        json!({"operations": ["emit", "read_context"], "events": ["demo.survey.seen"], "delegates": []})
    );
}

/// T10: a context is bounded in bytes too, and says what it leaves out.
#[test]
fn a_context_shows_the_newest_data_within_its_bound_and_counts_the_rest() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let work = speaker.claimed.work.to_string();
    host.sql(
        "WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 300)
         INSERT INTO event (id, scope_id, type, source, delivery_id, request_digest, root_id, depth, data, accepted_at_us, route)
         SELECT printf('evt_%026d', n), 'demo', 'demo.x', 'test', n, x'', 'root', 0,
                json_object('n', n, 'text', printf('%.262144c', 'x')), 0, 'wake' FROM n",
    );
    host.sql(&format!(
        "INSERT INTO work_input (work_id, seq, state) SELECT '{work}', seq, 'delivered' FROM event WHERE source = 'test'"
    ));
    for wait in 1..=16 {
        host.sql(&format!(
            "INSERT INTO wait (id, work_id, execution_id, scope_id, mode, state, watermark, unmatched, created_at_us, finished_at_us)
             SELECT printf('wai_%026d', {wait}), '{work}', id, 'demo', 'all', 'matched', 0, 0, {wait}, 1 FROM execution"
        ));
        host.sql(&format!(
            "INSERT INTO wait_predicate (wait_id, position, scope_id, type, subject, data, open, matched_seq)
             SELECT printf('wai_%026d', {wait}), seq, 'demo', 'demo.x', 'own:', '{{}}', 0, seq FROM event WHERE source = 'test'"
        ));
    }
    let context = speaker.output(&host, &request("read_context", json!({})));
    assert!(context.to_string().len() < 9 << 20, "{}", context.to_string().len());
    let inputs = context["inputs"].as_array().unwrap();
    assert_eq!((inputs.len(), &context["inputs_total"]), (256, &json!(301)));
    assert_eq!((&inputs[255]["data"]["n"], &inputs[255]["truncated"]), (&json!(300), &Value::Null));
    assert_eq!((&inputs[0]["data"], &inputs[0]["truncated"]), (&Value::Null, &json!(true)));
    let waits = context["waits"].as_array().unwrap();
    assert_eq!(waits.len(), 16);
    assert!(waits.iter().all(|wait| wait["matches_total"] == 300));
    let matches: Vec<usize> = waits.iter().map(|wait| wait["matches"].as_array().unwrap().len()).collect();
    assert_eq!(matches[..5], [300, 300, 300, 124, 0]);
    assert_eq!(
        (&waits[0]["matches"][0]["data"]["n"], &waits[0]["matches"][299]["truncated"]),
        (&json!(1), &json!(true))
    );
}

/// T10: what the segment has not been told of is not in its context.
#[test]
fn a_context_shows_no_input_that_is_only_queued() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let mut other = host.speaker(&[]);
    other.output(&host, &request("emit", emission()));
    host.sql(&format!(
        "INSERT INTO work_input (work_id, seq, state) SELECT '{}', max(seq), 'queued' FROM event",
        speaker.claimed.work
    ));
    let context = speaker.output(&host, &request("read_context", json!({})));
    assert_eq!((context["inputs"].as_array().unwrap().len(), &context["inputs_total"]), (1, &json!(1)));
}

#[test]
fn input_that_is_no_input_of_the_operation_is_named_and_nothing_happens() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let before = host.rows();
    for (operation, input) in [
        ("emit", json!({})),
        ("emit", json!({"type": 5})),
        ("emit", json!({"type": "demo.survey.x", "data": []})),
        ("emit", json!({"type": "demo.survey.x", "schema": "plain"})),
        ("emit", json!({"type": "demo.survey.x", "delivery_id": ""})),
        ("create_work", json!({"title": "x"})),
        ("create_work", json!({"binding": "child", "keys": [""]})),
        ("create_work", json!({"binding": "child", "keys": vec!["k"; 65]})),
        ("wait", json!({"mode": "some", "predicates": [{"type": "demo.x"}]})),
        ("wait", json!({"mode": "any", "predicates": []})),
        ("wait", json!({"mode": "any", "predicates": [{"type": "demo.x"}], "timeout_s": 0})),
        ("declare_outcome", json!({"status": "maybe"})),
        ("read_context", json!({"all": true})),
    ] {
        assert_eq!(
            speaker.refusal(&host, &request(operation, input.clone())),
            "invalid_request",
            "{operation} {input}"
        );
    }
    for id in ["", "two words", "tab\t", &"x".repeat(129)] {
        assert_eq!(speaker.refusal(&host, &keyed("emit", id, emission())), "invalid_request", "{id:?}");
    }
    assert_eq!(host.rows(), before);
    speaker.output(&host, &request("read_context", json!({})));
}

/// E02
#[test]
fn guidance_describes_what_is_granted_and_allowed_now_and_nothing_else() {
    let mut host = Host::new();
    let speaker = host.speaker(&[]);
    let mut toolbelt = host.toolbelt(&speaker.claimed.execution);
    let names = |guidance: &Value| -> Vec<String> {
        let operations = guidance["operations"].as_array().unwrap();
        operations.iter().map(|operation| operation["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut all: Vec<String> = BUILTINS.map(str::to_owned).into();
    all.sort();
    let mut shown = names(&toolbelt.guidance(&speaker.token).unwrap());
    shown.sort();
    assert_eq!(shown, all);
    let mut narrowed = configuration();
    for place in ["/scopes/demo/operations", "/scopes/demo/bindings/parent/operations"] {
        *narrowed.pointer_mut(place).unwrap() = json!(["emit"]);
    }
    host.publish(&narrowed);
    assert_eq!(names(&toolbelt.guidance(&speaker.token).unwrap()), ["emit"]);
    let serving = toolbelt.serving(&speaker.token, "git.credential").unwrap();
    assert_eq!(serving, json!({"capability": "git.credential", "operations": []}));
}
