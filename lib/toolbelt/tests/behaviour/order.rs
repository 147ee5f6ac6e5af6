//! The order of the checks, what a refusal says, and what a configuration revokes.

use std::cell::Cell;

use conduit_api::{ApiError, ExecutionId, WorkId};
use conduit_store::{Now, TimeSource};
use serde_json::json;

use crate::support::{BUILTINS, HOUR, Host, configuration, emission, keyed, request};

/// T05, T06: everything is wrong at once; each repair uncovers the next rule, and the caller cannot tell them apart.
#[test]
fn each_check_refuses_in_its_order_and_the_caller_learns_nothing_of_which() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let (token, execution) = (speaker.token.clone(), speaker.claimed.execution.clone());
    let mut closed = configuration();
    closed["scopes"]["demo"]["enabled"] = json!(false);
    host.publish(&closed);
    host.sql("UPDATE token SET revoked_at_us = 1, expires_boot_us = 0, grants = '{\"operations\":[\"read_context\"],\"events\":[],\"delegates\":[]}'");
    host.sql("UPDATE execution SET epoch = 9, owner = 'scheduler_other', state = 'claimed', lease_boot_us = 0");
    host.sql("UPDATE work SET state = 'waiting', scope_id = 'other'");
    host.sql("INSERT INTO declaration (execution_id, epoch, kind, body, declared_at_us) SELECT id, 1, 'outcome', '{}', 0 FROM execution");
    speaker.toolbelt = host.toolbelt(&ExecutionId::from_parts(5, 5));
    speaker.token = "forged".to_owned();
    let mut call = request("nothing", emission());
    call.scope_id = Some("other".parse().unwrap());
    call.work_id = Some(WorkId::from_parts(5, 5));
    call.execution_id = Some(ExecutionId::from_parts(5, 5));

    let mut refusals: Vec<ApiError> = Vec::new();
    let mut expect = |host: &Host, speaker: &mut crate::support::Speaker, call: &_, rule: &str| {
        refusals.push(speaker.call(host, call).unwrap_err());
        let record = host.history(speaker).pop().unwrap();
        assert_eq!(record, format!("toolbelt.rejected {} forbidden {rule}", call_name(call)), "{rule}");
    };
    expect(&host, &mut speaker, &call, "the token is unknown");
    speaker.token = token;
    expect(&host, &mut speaker, &call, "the token is revoked");
    host.sql("UPDATE token SET revoked_at_us = NULL");
    expect(&host, &mut speaker, &call, "the token has expired");
    host.sql(&format!("UPDATE token SET expires_boot_us = {}", host.now.boot_us + HOUR));
    expect(&host, &mut speaker, &call, "the token is of another execution than the socket");
    speaker.toolbelt = host.toolbelt(&execution);
    expect(&host, &mut speaker, &call, "the call asserts another scope");
    call.scope_id = Some("demo".parse().unwrap());
    expect(&host, &mut speaker, &call, "the call asserts another Work");
    call.work_id = Some(speaker.claimed.work.clone());
    expect(&host, &mut speaker, &call, "the call asserts another execution");
    call.execution_id = Some(execution);
    expect(&host, &mut speaker, &call, "the operation is not declared in the scope");
    call.operation = "emit".to_owned();
    expect(&host, &mut speaker, &call, "the operation is not in the token's allowlist");
    host.sql("UPDATE token SET grants = '{\"operations\":[\"emit\"],\"events\":[\"demo.survey\"],\"delegates\":[]}'");
    expect(&host, &mut speaker, &call, "the configuration does not allow the operation now");
    host.publish(&configuration());
    expect(&host, &mut speaker, &call, "the epoch was superseded");
    host.sql("UPDATE execution SET epoch = 1");
    expect(&host, &mut speaker, &call, "another owner holds the lease");
    host.sql("UPDATE execution SET owner = 'scheduler_first'");
    expect(&host, &mut speaker, &call, "the execution is not running");
    host.sql("UPDATE execution SET state = 'running'");
    expect(&host, &mut speaker, &call, "the lease has expired");
    host.sql(&format!("UPDATE execution SET lease_boot_us = {}", host.now.boot_us + HOUR));
    expect(&host, &mut speaker, &call, "the Work is not running");
    host.sql("UPDATE work SET state = 'running'");
    expect(&host, &mut speaker, &call, "the Work is in another scope");
    host.sql("UPDATE work SET scope_id = 'demo'");
    assert_eq!(speaker.refusal(&host, &call), "authority_released");
    host.sql("DELETE FROM declaration");
    speaker.output(&host, &call);
    assert_eq!(refusals.len(), 16);
    assert!(refusals.iter().all(|refused| *refused == ApiError::forbidden()), "{refusals:?}");
    assert_eq!(
        host.number("SELECT count(*) FROM event WHERE execution_id IS NOT NULL"),
        1,
        "only the last was carried out"
    );
}

/// T05, T06: whether a request is well formed is nobody's business who may not make it.
#[test]
fn a_malformed_request_is_told_so_only_where_it_would_be_carried_out() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let malformed = |operation: &str| {
        [keyed(operation, &"r".repeat(200), input_of(operation)), request(operation, json!({"stray": 1}))]
    };
    let said = |host: &Host, speaker: &mut crate::support::Speaker, code: &str| {
        for call in BUILTINS.iter().flat_map(|operation| malformed(operation)) {
            assert_eq!(speaker.refusal(host, &call), code, "{call:?}");
        }
    };
    said(&host, &mut speaker, "invalid_request");
    let token = std::mem::replace(&mut speaker.token, "forged".to_owned());
    said(&host, &mut speaker, "forbidden");
    speaker.token = token;
    speaker.output(&host, &request("declare_outcome", json!({"status": "succeeded"})));
    said(&host, &mut speaker, "authority_released");
    host.recover(&speaker.claimed);
    said(&host, &mut speaker, "forbidden");
}

/// A clock that is read once before the store's lock is waited for, and says `later` from then on.
struct Waiting {
    first: Cell<Option<Now>>,
    later: Now,
}

impl TimeSource for Waiting {
    fn now(&self) -> Now {
        self.first.take().unwrap_or(self.later)
    }
}

/// T03, T05: what expires while a call waits for the store's lock has expired.
#[test]
fn a_wait_for_the_store_makes_no_token_and_no_lease_live_longer() {
    for expire in ["UPDATE token SET expires_boot_us = ", "UPDATE execution SET lease_boot_us = "] {
        for operation in BUILTINS {
            let mut host = Host::new();
            let mut speaker = host.speaker(&[]);
            let before = host.now;
            host.pass(HOUR);
            host.sql("UPDATE execution SET lease_boot_us = 9223372036854775807");
            host.sql("UPDATE token SET expires_boot_us = 9223372036854775807");
            host.sql(&format!("{expire}{}", host.now.boot_us));
            let time = Waiting { first: Cell::new(Some(before)), later: host.now };
            let call = request(operation, input_of(operation));
            let called = speaker.toolbelt.call_at(&speaker.token, &call, None, time);
            if operation == "read_context" && expire.contains("token") {
                continue; // a read waits for nobody
            }
            assert_eq!(called.unwrap_err(), ApiError::forbidden(), "{operation}: {expire}");
        }
    }
}

/// T05: looks are recorded like calls.
#[test]
fn a_look_at_what_may_be_called_is_recorded_whether_it_is_answered_or_not() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let token = speaker.token.clone();
    speaker.toolbelt.guidance(&token).unwrap();
    speaker.toolbelt.serving("forged", "git.credential").unwrap_err();
    assert_eq!(
        host.history(&mut speaker),
        ["toolbelt.called guidance ok", "toolbelt.rejected serving forbidden the token is unknown"]
    );
}

fn call_name(call: &conduit_api::toolbelt::CallRequest) -> &str {
    &call.operation
}

/// T05: every operation, reads included, passes the lease guard in its own transaction.
#[test]
fn no_operation_passes_once_the_lease_is_gone() {
    for operation in BUILTINS {
        let mut host = Host::new();
        let mut speaker = host.speaker(&[]);
        let token = speaker.token.clone();
        speaker.toolbelt.guidance(&token).unwrap();
        speaker.toolbelt.serving(&token, "git.credential").unwrap();
        host.recover(&speaker.claimed);
        assert_eq!(speaker.refusal(&host, &request(operation, input_of(operation))), "forbidden", "{operation}");
        assert_eq!(speaker.toolbelt.guidance(&token).unwrap_err(), ApiError::forbidden());
        assert_eq!(speaker.toolbelt.serving(&token, "git.credential").unwrap_err(), ApiError::forbidden());
    }
}

fn input_of(operation: &str) -> serde_json::Value {
    match operation {
        "emit" => emission(),
        "create_work" => json!({"binding": "child"}),
        "wait" => json!({"mode": "any", "predicates": [{"type": "demo.x"}]}),
        "declare_outcome" => json!({"status": "succeeded"}),
        _ => json!({}),
    }
}

/// T05: the lease ends at its instant, though the token would live on.
#[test]
fn a_call_is_refused_from_the_instant_at_which_its_lease_ends() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let end = host.now.boot_us + 30;
    host.sql(&format!("UPDATE execution SET lease_boot_us = {end}"));
    host.pass(29);
    speaker.output(&host, &request("read_context", json!({})));
    host.pass(1);
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
}

/// T05, E03
#[test]
fn right_assertions_narrow_nothing_and_a_token_of_another_socket_is_refused() {
    let mut host = Host::new();
    let mut one = host.speaker(&[]);
    let mut two = host.speaker(&[]);
    let mut call = request("read_context", json!({}));
    call.scope_id = Some(one.claimed.scope.clone());
    call.work_id = Some(one.claimed.work.clone());
    call.execution_id = Some(one.claimed.execution.clone());
    one.output(&host, &call);
    two.token.clone_from(&one.token);
    assert_eq!(two.refusal(&host, &request("read_context", json!({}))), "forbidden");
}

/// T06: whoever has declared is told so; a superseded epoch is not, even if it had declared.
#[test]
fn a_released_segment_is_told_so_for_every_operation_and_a_superseded_one_is_not() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.output(&host, &keyed("emit", "before", emission()));
    speaker.output(&host, &request("declare_outcome", json!({"status": "succeeded"})));
    for operation in BUILTINS {
        assert_eq!(
            speaker.refusal(&host, &request(operation, input_of(operation))),
            "authority_released",
            "{operation}"
        );
    }
    assert_eq!(
        speaker.refusal(&host, &keyed("emit", "before", emission())),
        "authority_released",
        "the fence comes before the replay"
    );
    let records = host.history(&mut speaker);
    assert_eq!(records[0], "toolbelt.called emit ok");
    assert!(
        records[2..].iter().all(|record| record.ends_with("authority_released the segment has declared")),
        "{records:?}"
    );
    host.recover(&speaker.claimed);
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
}

/// T06: what no token opened is recorded under the socket that it came through.
#[test]
fn a_strangers_call_is_recorded_under_its_socket() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.token = "not a token".into();
    speaker.refusal(&host, &request("emit", emission()));
    host.history(&mut speaker);
    let history =
        conduit_store::history::History::open(&conduit_store::StateDir::open(&host.state()).unwrap()).unwrap();
    let records = history.of_execution(speaker.claimed.execution.as_str(), 10).unwrap();
    assert_eq!(records, [("toolbelt.rejected".into(), "emit".into(), "forbidden".into())]);
}

/// T07
#[test]
fn a_generation_revokes_and_restores_with_the_next_call_in_every_process() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let mut other_process = host.toolbelt(&speaker.claimed.execution);
    let read = request("read_context", json!({}));
    speaker.output(&host, &request("emit", emission()));
    other_process.call_at(&speaker.token, &read, None, host.now).unwrap();

    let mut narrowed = configuration();
    let without_emit = json!(["create_work", "wait", "declare_outcome", "read_context"]);
    narrowed["scopes"]["demo"]["operations"] = without_emit.clone();
    narrowed["scopes"]["demo"]["bindings"]["parent"]["operations"] = without_emit;
    host.publish(&narrowed);
    assert_eq!(speaker.refusal(&host, &request("emit", emission())), "forbidden");
    speaker.output(&host, &read);

    let mut disabled = configuration();
    disabled["scopes"]["demo"]["enabled"] = json!(false);
    host.publish(&disabled);
    assert_eq!(speaker.refusal(&host, &read), "forbidden");
    assert_eq!(other_process.call_at(&speaker.token, &read, None, host.now).unwrap_err(), ApiError::forbidden());

    host.publish(&configuration());
    speaker.output(&host, &request("emit", emission()));
    other_process.call_at(&speaker.token, &read, None, host.now).unwrap();
}

/// T07, T08: the ceiling for event families is the current one too.
#[test]
fn a_generation_that_narrows_the_families_of_a_scope_narrows_the_next_emission() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.output(&host, &request("emit", emission()));
    let mut narrowed = configuration();
    narrowed["scopes"]["demo"]["events"] = json!(["demo.other"]);
    narrowed["scopes"]["demo"]["bindings"]["parent"]["events"] = json!([]);
    host.publish(&narrowed);
    assert_eq!(speaker.refusal(&host, &request("emit", emission())), "event_not_allowed");
}
