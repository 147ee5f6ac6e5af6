//! `os` as a whole program, against a real server on a real Unix socket.

#[allow(dead_code)] // the client's own tests use the rest of it
#[path = "../../../lib/client/tests/server/mod.rs"]
mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use server::{Reply, Server};
use tempfile::TempDir;

const EVENT: &str = "evt_00000000000000000000000001";
const WORK: &str = "wrk_00000000000000000000000002";

/// An execution's run directory, and `os` in its environment.
struct Run {
    dir: TempDir,
}

impl Run {
    fn new() -> Self {
        let run = Self { dir: tempfile::tempdir().unwrap() };
        run.rotate("first");
        run
    }
    fn socket(&self) -> PathBuf {
        self.dir.path().join("toolbelt.sock")
    }
    fn token_file(&self) -> PathBuf {
        self.dir.path().join("token")
    }
    fn rotate(&self, token: &str) {
        std::fs::write(self.token_file(), token).unwrap();
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_os"));
        command
            .args(args)
            .env_clear()
            .env("OS_ENDPOINT", self.socket())
            .env("OS_TOKEN_FILE", self.token_file())
            .stdin(Stdio::null());
        command
    }
    fn os(&self, args: &[&str]) -> Ended {
        Ended::of(self.command(args).output().unwrap())
    }
}

/// How the program ended, and what it said.
#[derive(Debug)]
struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().expect("os was not killed");
        Self { code, out: text(output.stdout), err: text(output.stderr) }
    }
    fn printed(&self) -> &str {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        &self.out
    }
    fn refused(&self, code: i32) -> &str {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{self:?}");
        &self.err
    }
}

fn done(output: Value) -> Reply {
    Reply::Json(200, json!({"replayed": false, "output": output}))
}

fn refusal(status: u16, code: &str, retry: &str) -> Reply {
    Reply::Json(
        status,
        json!({"error": {"code": code, "message": "so it is", "request_id": "req_server", "retry": retry}}),
    )
}

fn emitted() -> Reply {
    done(json!({"event_id": EVENT, "sequence": 7}))
}

/// X05
#[test]
fn emit_sends_an_event_and_prints_its_id() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| emitted());
    let ended = run.os(&[
        "emit",
        "demo.survey.counted",
        r#"{"n":3}"#,
        "--key",
        "pr/7",
        "--schema",
        "demo.count",
        "--delivery",
        "d-1",
    ]);
    assert_eq!(ended.printed(), format!("{EVENT}\n"));

    let seen = server.only();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/v1/toolbelt/call"));
    assert_eq!(seen.header("authorization"), "Bearer first");
    assert_eq!(seen.body["operation"], "emit");
    assert_eq!(seen.body["request_id"], seen.header("x-request-id"));
    assert_eq!(
        seen.body["input"],
        json!({"type": "demo.survey.counted", "data": {"n": 3}, "schema": "demo.count", "correlation_key": "pr/7",
               "delivery_id": "d-1"})
    );
}

/// X05
#[test]
fn create_work_sends_what_the_child_is_to_know_and_prints_its_id() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| done(json!({"work_id": WORK, "event_id": EVENT})));
    let ended =
        run.os(&["create-work", "count", r#"{"dir":"lib"}"#, "--title", "Count lib", "--key", "a", "--key", "b"]);
    assert_eq!(ended.printed(), format!("{WORK}\n"));
    assert_eq!(server.only().body["operation"], "create_work");
    assert_eq!(
        server.only().body["input"],
        json!({"binding": "count", "title": "Count lib", "data": {"dir": "lib"}, "keys": ["a", "b"]})
    );
}

/// X05
#[test]
fn wait_is_written_with_flags_or_as_one_document() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| done(json!({"declared": "wait"})));
    let finished = format!("core.work.finished,work={WORK}");
    assert_eq!(
        run.os(&["wait", "--for", &finished, "--for", "demo.go,key=k,source=core.manual", "--all", "--timeout", "2m"])
            .printed(),
        ""
    );
    let document = json!({"mode": "any", "predicates": [{"type": "demo.go", "data": {"/n": 1}}], "watermark": 4});
    assert_eq!(run.os(&["wait", &document.to_string()]).printed(), "");

    let inputs: Vec<Value> = server.seen().iter().map(|seen| seen.body["input"].clone()).collect();
    let flags = json!({"mode": "all", "timeout_s": 120, "predicates": [
        {"type": "core.work.finished", "work_id": WORK},
        {"type": "demo.go", "correlation_key": "k", "source": "core.manual"}]});
    assert_eq!(inputs, [flags, document]);
}

/// X05
#[test]
fn outcome_declares_how_the_work_ended() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| done(json!({"declared": "outcome"})));
    assert_eq!(run.os(&["outcome", "failed", r#"{"at":2}"#, "--summary", "No luck"]).printed(), "");
    assert_eq!(server.only().body["operation"], "declare_outcome");
    assert_eq!(server.only().body["input"], json!({"status": "failed", "summary": "No luck", "data": {"at": 2}}));
}

/// X05
#[test]
fn context_gives_a_script_the_value_that_it_points_at() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| {
        done(json!({"work": {"id": WORK, "keys": []}, "inputs": [
            {"data": {"dir": "a b", "n": 1}}, {"data": {"n": 2}}, {"data": {"dir": "c", "n": [3]}}]}))
    });
    assert_eq!(run.os(&["context", "/work/id"]).printed(), format!("{WORK}\n"));
    assert_eq!(run.os(&["context", "/inputs/*/data/dir"]).printed(), "a b\nc\n");
    assert_eq!(run.os(&["context", "/inputs/*/data/n"]).printed(), "1\n2\n[3]\n");
    assert_eq!(run.os(&["context", "/work/keys/*"]).printed(), "");
    assert_eq!(run.os(&["context", "/inputs/*/data/dir", "--json"]).printed(), "[\"a b\",\"c\"]\n");
    assert_eq!(run.os(&["context", "/work/id", "--json"]).printed(), format!("\"{WORK}\"\n"));
    assert!(run.os(&["context"]).printed().contains(&format!("\"id\": \"{WORK}\"")));
    assert_eq!(run.os(&["context", "/work/none"]).refused(1), "os: not_found: there is nothing at /work/none\n");
    assert!(run.os(&["context", "work"]).refused(2).starts_with("os: invalid_request: a pointer starts with `/`"));

    // A read leaves no replay record behind unless its caller names it.
    assert!(server.seen().iter().all(|seen| seen.body.get("request_id").is_none()));
    run.os(&["context", "--request-id", "mine"]).printed();
    assert_eq!(server.seen().last().unwrap().body["request_id"], "mine");
}

/// X05
#[test]
fn call_reaches_any_operation_and_guidance_what_may_be_asked() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |seen| match seen.method.as_str() {
        "GET" => Reply::Json(200, json!({"operations": ["emit"]})),
        _ => done(json!({"answer": 42})),
    });
    assert_eq!(run.os(&["call", "github.comment", r#"{"pr":7}"#]).printed(), "{\n  \"answer\": 42\n}\n");
    assert_eq!(run.os(&["guidance", "--json"]).printed(), "{\"operations\":[\"emit\"]}\n");
    let seen = server.seen();
    assert_eq!((&seen[0].body["operation"], &seen[0].body["input"]), (&json!("github.comment"), &json!({"pr": 7})));
    assert_eq!(seen[1].target, "/v1/toolbelt/guidance");
}

#[test]
fn json_prints_the_whole_answer_with_its_request_id() {
    let run = Run::new();
    let _server = Server::start(&run.socket(), |_| emitted());
    let ended = run.os(&["emit", "demo.x", "--json", "--request-id", "req-7"]);
    let answer: Value = serde_json::from_str(ended.printed()).unwrap();
    assert_eq!(answer, json!({"request_id": "req-7", "replayed": false, "output": {"event_id": EVENT, "sequence": 7}}));
}

#[test]
fn json_comes_from_an_argument_a_file_or_standard_input() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| emitted());
    let file = run.dir.path().join("data.json");
    std::fs::write(&file, r#"{"from":"file"}"#).unwrap();

    run.os(&["emit", "demo.x", r#"{"from":"argument"}"#]).printed();
    run.os(&["emit", "demo.x", &format!("@{}", file.display())]).printed();
    let mut child = run.command(&["emit", "demo.x", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(br#"{"from":"stdin"}"#).unwrap();
    assert!(child.wait().unwrap().success());
    run.os(&["emit", "demo.x"]).printed();

    let seen = server.seen();
    let origins: Vec<&Value> = seen.iter().map(|seen| &seen.body["input"]["data"]).collect();
    assert_eq!(
        origins,
        [&json!({"from": "argument"}), &json!({"from": "file"}), &json!({"from": "stdin"}), &json!({})]
    );
}

#[test]
fn input_that_a_careful_parser_refuses_is_never_sent() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| emitted());
    let wide = format!(r#"{{"x":"{}"}}"#, "y".repeat(1 << 20));
    let file = run.dir.path().join("wide.json");
    std::fs::write(&file, wide).unwrap();
    let wide = format!("@{}", file.display());
    for input in [r#"{"a":1,"a":2}"#, r#"{"a":null}"#, "{", "[1]", "{} {}", "-", "@/nowhere", &wide] {
        let ended = run.os(&["emit", "demo.x", input]);
        assert!(ended.refused(2).starts_with("os: invalid_request: "), "{input}: {ended:?}");
    }
    for args in [
        &["emit"][..],
        &["outcome", "perhaps"],
        &["wait"],
        &["wait", "--for", "t,colour=red"],
        &["wait", "{}", "--for", "t"],
        &["wait", r#"{"mode":"any","predicates":[],"why":1}"#],
        &["wait", "--for", "t", "--timeout", "soon"],
        &["emit", "demo.x", "--request-id", ""],
        &["dance"],
    ] {
        assert!(!run.os(args).refused(2).is_empty(), "{args:?}");
    }
    assert!(server.seen().is_empty());
}

/// T06
#[test]
fn each_kind_of_refusal_has_its_exit_code() {
    let run = Run::new();
    for (status, code, retry, exit) in [
        (422, "event_not_allowed", "never", 1),
        (403, "forbidden", "never", 1),
        (409, "request_conflict", "never", 1),
        (422, "a_code_of_tomorrow", "never", 1),
        (403, "authority_released", "never", 3),
        (503, "store_busy", "same_request", 4),
        (429, "causal_rate_exceeded", "same_request", 4),
        (500, "internal", "same_request", 5),
    ] {
        let _server = Server::start(&run.socket(), move |_| refusal(status, code, retry));
        let ended = run.os(&["emit", "demo.x", "--request-id", "mine"]);
        let may_retry = if retry == "same_request" { "request-id: mine\n" } else { "" };
        assert_eq!(ended.refused(exit), format!("os: {code}: so it is\n{may_retry}"));
    }
    let _server = Server::start(&run.socket(), |_| Reply::Raw(200, b"<html>".to_vec()));
    assert!(run.os(&["emit", "demo.x"]).refused(5).starts_with("os: internal: "));
}

#[test]
fn under_json_a_refusal_is_an_envelope_on_standard_error() {
    let run = Run::new();
    let _server = Server::start(&run.socket(), |_| refusal(503, "store_busy", "same_request"));
    let ended = run.os(&["emit", "demo.x", "--json", "--request-id", "mine"]);
    let envelope: Value = serde_json::from_str(ended.refused(4)).unwrap();
    assert_eq!(
        envelope,
        json!({"error": {"code": "store_busy", "message": "so it is", "request_id": "mine", "retry": "same_request"}})
    );
}

#[test]
fn the_help_documents_the_exit_codes() {
    let help = Run::new().os(&["--help"]);
    assert!(help.printed().contains("Exit codes:"));
    for line in ["0  done", "1  refused", "2  usage", "3  released", "4  unavailable", "5  internal"] {
        assert!(help.out.contains(line), "{line}");
    }
}

/// E04
#[test]
fn after_a_rotation_the_token_is_read_again_once() {
    let run = Run::new();
    let (path, mut first) = (run.token_file(), true);
    let server = Server::start(&run.socket(), move |_| {
        if !std::mem::take(&mut first) {
            return emitted();
        }
        rotate(&path, "second");
        refusal(403, "forbidden", "never")
    });
    assert_eq!(run.os(&["emit", "demo.x"]).printed(), format!("{EVENT}\n"));
    let seen = server.seen();
    assert_eq!(seen.iter().map(|s| s.header("authorization")).collect::<Vec<_>>(), ["Bearer first", "Bearer second"]);
    assert_eq!(seen[0].body, seen[1].body);
}

/// E04: the host ends the old token before it writes the new one.
#[test]
fn a_token_that_is_rotated_a_moment_after_the_refusal_is_taken() {
    let run = Run::new();
    let path = run.token_file();
    let server = Server::start(&run.socket(), move |seen| {
        if seen.header("authorization") == "Bearer second" {
            return emitted();
        }
        let path = path.clone();
        std::thread::spawn(move || {
            // The moment is what is tested: `os` has its refusal, and the file is still the old one.
            std::thread::sleep(std::time::Duration::from_millis(300));
            rotate(&path, "second");
        });
        refusal(403, "forbidden", "never")
    });
    assert_eq!(run.os(&["emit", "demo.x"]).printed(), format!("{EVENT}\n"));
    assert_eq!(server.seen().len(), 2);
}

/// E04, T06
#[test]
fn a_refusal_without_a_rotation_stands_and_a_second_one_too() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| refusal(403, "forbidden", "never"));
    assert_eq!(run.os(&["emit", "demo.x"]).refused(1), "os: forbidden: so it is\n");
    assert_eq!(server.seen().len(), 1);
    drop(server);

    let (path, mut count) = (run.token_file(), 0);
    let server = Server::start(&run.socket(), move |_| {
        count += 1;
        rotate(&path, &format!("rotated-{count}"));
        refusal(403, "forbidden", "never")
    });
    run.os(&["emit", "demo.x"]).refused(1);
    assert_eq!(server.seen().len(), 2);
}

fn rotate(path: &Path, token: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, token).unwrap();
    std::fs::rename(next, path).unwrap();
}

/// T14
#[test]
fn a_lost_answer_to_emit_and_create_work_is_asked_for_again_under_the_same_request_id() {
    for args in [&["emit", "demo.x"][..], &["create-work", "count"]] {
        let run = Run::new();
        let mut first = true;
        let server = Server::start(&run.socket(), move |_| {
            if std::mem::take(&mut first) {
                return Reply::HangUp;
            }
            Reply::Json(200, json!({"replayed": true, "output": {"event_id": EVENT, "sequence": 7, "work_id": WORK}}))
        });
        assert!(!run.os(args).printed().is_empty());
        let seen = server.seen();
        assert_eq!(seen.len(), 2);
        assert!(seen[0].body["request_id"].as_str().unwrap().starts_with("req_"));
        assert_eq!(seen[0].body, seen[1].body);
    }
}

/// T14
#[test]
fn an_answer_that_stays_lost_names_the_request_so_that_it_can_be_made_again() {
    let run = Run::new();
    let server = Server::start(&run.socket(), |_| Reply::HangUp);
    for (args, requests) in [(&["emit", "demo.x"][..], 2), (&["outcome", "succeeded"], 3), (&["wait", "--for", "t"], 4)]
    {
        let ended = run.os(args);
        let (message, id) = ended.refused(4).split_once("request-id: ").expect("the request ID is printed");
        assert!(message.starts_with("os: unavailable: the request was sent and its answer was lost"), "{message}");
        let seen = server.seen();
        assert_eq!(seen.len(), requests, "{args:?}");
        assert_eq!(seen.last().unwrap().body["request_id"], id.trim_end());
    }
}

#[test]
fn no_daemon_says_how_to_start_one() {
    let run = Run::new();
    let said = run.os(&["emit", "demo.x"]);
    assert!(said.refused(4).contains("start it with `open-conduit up`"), "{said:?}");
    drop(std::os::unix::net::UnixListener::bind(run.socket()).unwrap());
    let said = run.os(&["emit", "demo.x"]);
    assert!(said.refused(4).starts_with("os: unavailable: cannot reach "), "{said:?}");
}

#[test]
fn a_socket_path_that_is_too_long_is_named_with_its_remedy() {
    let run = Run::new();
    let long = format!("/tmp/{}", "x".repeat(120));
    let ended = Ended::of(run.command(&["context"]).env("OS_ENDPOINT", &long).output().unwrap());
    let said = ended.refused(2);
    assert!(said.starts_with("os: socket_path_too_long: ") && said.contains(&long), "{said}");
    assert!(said.contains("choose a shorter directory"), "{said}");
}

#[test]
fn outside_an_execution_the_missing_variable_or_token_is_named() {
    let run = Run::new();
    let ended = Ended::of(run.command(&["context"]).env_remove("OS_ENDPOINT").output().unwrap());
    assert!(ended.refused(2).contains("OS_ENDPOINT is not set"), "{ended:?}");
    std::fs::remove_file(run.token_file()).unwrap();
    let ended = run.os(&["context"]);
    assert!(ended.refused(2).contains(run.token_file().to_str().unwrap()), "{ended:?}");
}

/// T01
#[test]
fn the_token_is_never_printed() {
    let run = Run::new();
    for token in ["s3cr3t-token", "s3cr3t token"] {
        run.rotate(token);
        for args in [&["emit", "demo.x"][..], &["context", "--json"], &["guidance"]] {
            let ended = run.os(args);
            assert!(!format!("{ended:?}").contains("s3cr3t"), "{ended:?}");
        }
    }
}
