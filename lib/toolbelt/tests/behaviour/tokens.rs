//! Tokens: what is kept of them, how long they live, and what supersedes them.

use conduit_coordination::executions::SegmentEnd;
use conduit_store::Now;
use conduit_toolbelt::sweep;
use serde_json::json;

use crate::support::{BUILTINS, DEADLINE_US, HOUR, Host, SECOND, emission, grants, keyed, request};

/// Every byte of every file below `dir`.
fn files(dir: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    found
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// T01
#[test]
fn the_plaintext_of_a_token_is_in_no_file_and_in_no_answer() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&["k"]);
    let token = speaker.token.clone();
    let mut said = vec![
        speaker.output(&host, &request("read_context", json!({}))).to_string(),
        speaker.output(&host, &keyed("emit", "r", emission())).to_string(),
        speaker.toolbelt.guidance(&token).unwrap().to_string(),
        format!("{:?}", speaker.call(&host, &request("nothing", json!({}))).unwrap_err()),
        format!("{:?}", speaker.toolbelt),
    ];
    speaker.output(&host, &request("wait", json!({"mode": "any", "predicates": [{"type": "demo.x"}]})));
    said.push(format!("{:?}", speaker.call(&host, &request("emit", emission())).unwrap_err()));
    assert!(speaker.toolbelt.flush_history());
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, false);
    let raw = {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(&token).unwrap()
    };
    assert_eq!(raw.len(), 32);
    let files = files(&host.state());
    let names: Vec<_> = files.iter().filter_map(|(path, _)| path.file_name()?.to_str()).collect();
    assert!(["store.db", "store.db-wal", "history.db"].iter().all(|name| names.contains(name)), "{names:?}");
    for (path, bytes) in &files {
        assert!(!holds(bytes, token.as_bytes()) && !holds(bytes, &raw), "{}", path.display());
    }
    assert!(said.iter().all(|text| !text.contains(&token)));
    let digest = conduit_toolbelt::token::digest(&token);
    assert!(files.iter().any(|(_, bytes)| holds(bytes, &digest)), "the digest is what is kept");
}

/// T02
#[test]
fn a_recovery_silences_the_old_token_before_there_is_a_new_one() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let claimed = host.recover(&speaker.claimed);
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
    let new = host.issue(&claimed, &grants());
    assert_eq!(host.number("SELECT count(*) FROM token WHERE revoked_at_us IS NULL"), 1);
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
    speaker.token = new;
    assert_eq!(speaker.output(&host, &request("read_context", json!({})))["execution"]["epoch"], json!(2));
}

/// T02: issuing again for the same epoch, as after a crash between issue and launch, leaves one token.
#[test]
fn a_token_that_is_issued_twice_for_one_claim_leaves_one_live_token() {
    let mut host = Host::new();
    host.create(&[]);
    let claimed = host.claim();
    let first = host.issue(&claimed, &grants());
    let mut speaker = host.go_on(claimed);
    speaker.output(&host, &request("read_context", json!({})));
    let lost = std::mem::replace(&mut speaker.token, first);
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
    assert_ne!(lost, speaker.token);
}

/// T02
#[test]
fn a_resumed_execution_gets_a_fresh_token_and_its_old_one_stays_refused() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    speaker.output(&host, &request("wait", json!({"mode": "any", "predicates": [{"type": "demo.x"}], "timeout_s": 1})));
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, true);
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden", "parked, it may say nothing");
    host.pass(SECOND);
    let now = host.now;
    host.store.write(|tx| conduit_coordination::waits::fire_due(tx, 10, now)).unwrap();
    let claimed = host.claim();
    assert!(claimed.resumed);
    let mut resumed = host.go_on(claimed);
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
    assert_eq!(resumed.output(&host, &request("read_context", json!({})))["execution"]["segment"], json!(2));
}

/// T02, M10
#[test]
fn the_token_of_a_cancelled_execution_is_born_revoked() {
    let mut host = Host::new();
    host.create(&[]);
    let claimed = host.claim();
    let now = host.now;
    host.store.write(|tx| conduit_coordination::work::cancel(tx, &claimed.work, "operator:local", now)).unwrap();
    let token = host.issue(&claimed, &grants());
    assert_eq!(host.number("SELECT count(*) FROM token WHERE revoked_at_us IS NULL"), 0);
    let mut toolbelt = host.toolbelt(&claimed.execution);
    let refused = toolbelt.call_at(&token, &request("read_context", json!({})), None, now).unwrap_err();
    assert_eq!(refused.code.as_str(), "forbidden");
}

/// T03
#[test]
fn a_token_works_until_the_last_microsecond_of_its_attempt_and_not_at_its_deadline() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    host.pass(DEADLINE_US - 1);
    speaker.output(&host, &request("read_context", json!({})));
    speaker.output(&host, &request("emit", emission()));
    host.pass(1);
    for operation in BUILTINS {
        assert_eq!(speaker.refusal(&host, &request(operation, json!({}))), "forbidden", "{operation}");
    }
    assert!(host.history(&mut speaker).iter().skip(2).all(|record| record.ends_with("the token has expired")));
}

/// T03: neither a stepped wall clock nor another boot lengthens a life.
#[test]
fn a_token_counts_its_life_in_the_time_of_its_boot() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let start = host.now;
    for step in [-HOUR, HOUR] {
        host.now = Now { wall: start.wall.plus(step), ..start };
        speaker.output(&host, &request("read_context", json!({})));
        host.now = Now { wall: start.wall.plus(step), boot_us: start.boot_us + DEADLINE_US, ..start };
        assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
    }
    host.now = Now { boot_id: "another boot", ..start };
    assert_eq!(speaker.refusal(&host, &request("read_context", json!({}))), "forbidden");
}

/// T04
#[test]
fn a_swept_token_is_refused_exactly_as_a_revoked_one() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    host.complete(&speaker.claimed, &SegmentEnd::Succeeded, false);
    let revoked = speaker.call(&host, &request("read_context", json!({}))).unwrap_err();
    let due = host.store.read(|r| sweep::next_due(r, host.now)).unwrap();
    assert_eq!(due, host.now.wall.0 + 24 * HOUR);
    host.pass(24 * HOUR - 1);
    let now = host.now;
    assert_eq!(host.store.write(|tx| sweep::sweep(tx, now)).unwrap(), 0, "not before its day is over");
    assert_eq!(host.store.write(|tx| sweep::sweep(tx, now.plus(1))).unwrap(), 1);
    assert_eq!(host.store.write(|tx| sweep::sweep(tx, now.plus(1))).unwrap(), 0);
    assert_eq!(host.number("SELECT count(*) FROM token"), 0);
    assert_eq!(speaker.call(&host, &request("read_context", json!({}))).unwrap_err(), revoked);
}

/// T04
#[test]
fn a_token_that_expired_unrevoked_is_swept_a_day_later() {
    let mut host = Host::new();
    host.speaker(&[]);
    host.pass(DEADLINE_US + 24 * HOUR - 1);
    let now = host.now;
    assert_eq!(host.store.write(|tx| sweep::sweep(tx, now)).unwrap(), 0);
    assert_eq!(host.store.write(|tx| sweep::sweep(tx, now.plus(1))).unwrap(), 1);
}

/// E02, M02
#[test]
fn an_operator_credential_is_told_that_it_is_of_the_wrong_class() {
    let mut host = Host::new();
    let mut speaker = host.speaker(&[]);
    let digest = conduit_store::digest::hex(&conduit_toolbelt::token::digest("an operator's credential"));
    host.sql(&format!("INSERT INTO operator (id, name, role, digest, created_at_us) VALUES ('opr_x', 'local', 'admin', x'{digest}', 0)"));
    speaker.token = "an operator's credential".to_owned();
    assert_eq!(speaker.refusal(&host, &request("emit", emission())), "wrong_credential_class");
    host.sql("UPDATE operator SET revoked_at_us = 1");
    assert_eq!(speaker.refusal(&host, &request("emit", emission())), "forbidden", "a revoked one is a stranger's");
}
