//! What the drill's executions do. They never give up a call because a daemon is away: they ask again with the same
//! request ID until they are answered, and write down what was acknowledged.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conduit_api::Code;
use conduit_api::http::env::{ENDPOINT, TOKEN_FILE};
use conduit_api::toolbelt::ContextView;
use conduit_client::{Client, ClientError, Credential};
use serde_json::{Value, json};

use super::journal::{Fact, note};
use crate::execution::call_as;

/// How long a call is asked again before it counts as refused for good.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a rotated token may take to its file after the old one was refused; `os` waits as long.
const ROTATION: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// Pretended work between two calls, so that a kill meets executions in the middle.
const LABOUR: Duration = Duration::from_millis(60);

type Result<T> = std::result::Result<T, String>;

/// Plays one segment in `role`: `parent`, `child` or `linger`.
pub fn play(role: &str, journal: &Path) -> Result<()> {
    if role == "linger" {
        // Held until somebody cancels it.
        note_start(journal)?;
        loop {
            std::thread::park();
        }
    }
    let mut segment = Segment::begin(journal)?;
    let played = match role {
        "parent" => parent(&mut segment),
        "child" => child(&mut segment),
        _ => Err(format!("no role is called {role}")),
    };
    if let Err(why) = &played {
        let line = format!("{} segment {}: {why}", segment.execution, segment.number);
        note(journal, Fact::Refused, &line).map_err(|e| e.to_string())?;
    }
    played
}

/// Emits, makes children and waits for all of them; then waits for what never comes; then sums up.
fn parent(segment: &mut Segment) -> Result<()> {
    let context = segment.context()?;
    let Some(last) = context.waits.first() else {
        segment.emit("test.begun")?;
        let children: Vec<Value> = (0..2).map(|n| segment.create(n)).collect::<Result<_>>()?;
        segment.emit("test.delegated")?;
        let predicates: Vec<Value> =
            children.iter().map(|work| json!({"type": "core.work.finished", "work_id": work})).collect();
        return segment.declare("wait", json!({"mode": "all", "predicates": predicates, "timeout_s": 600}));
    };
    if context.waits.len() == 1 {
        if last.state != "matched" || last.matches.len() != 2 {
            return Err(format!("the wait for two children ended {} with {}", last.state, last.matches.len()));
        }
        segment.emit("test.gathered")?;
        let never = json!([{"type": "test.never"}]);
        return segment.declare("wait", json!({"mode": "any", "predicates": never, "timeout_s": 1}));
    }
    if last.state != "timed_out" {
        return Err(format!("the wait for nothing ended {}", last.state));
    }
    segment.emit("test.done")?;
    segment.declare("declare_outcome", json!({"status": "succeeded", "data": {"children": 2}}))
}

fn child(segment: &mut Segment) -> Result<()> {
    let context = segment.context()?;
    if context.work.parent_work_id.is_none() {
        return Err("a child knows its parent".into());
    }
    segment.emit("test.child.begun")?;
    segment.emit("test.child.done")?;
    segment.declare("declare_outcome", json!({"status": "succeeded"}))
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| format!("the environment has no {name}"))
}

/// Swears that a process of this segment began.
fn note_start(journal: &Path) -> Result<(String, String)> {
    let (execution, segment) = (variable("OPEN_CONDUIT_EXECUTION_ID")?, variable("OPEN_CONDUIT_SEGMENT")?);
    let line = format!("{execution} {segment} {} {}", variable("OPEN_CONDUIT_ATTEMPT")?, std::process::id());
    note(journal, Fact::Started, &line).map_err(|e| e.to_string())?;
    Ok((execution, segment))
}

struct Segment {
    client: Client,
    socket: PathBuf,
    token_file: PathBuf,
    token: String,
    journal: PathBuf,
    execution: String,
    number: String,
    calls: u32,
}

impl Segment {
    fn begin(journal: &Path) -> Result<Self> {
        let (execution, number) = note_start(journal)?;
        let (socket, token_file) = (PathBuf::from(variable(ENDPOINT)?), PathBuf::from(variable(TOKEN_FILE)?));
        let token = std::fs::read_to_string(&token_file).map_err(|e| format!("reading the token: {e}"))?;
        let credential = Credential::from_file(&token_file).map_err(|e| e.to_string())?;
        let client = Client::new(&socket, credential).map_err(|e| e.to_string())?;
        Ok(Self { client, socket, token_file, token, journal: journal.to_owned(), execution, number, calls: 0 })
    }

    fn context(&mut self) -> Result<ContextView> {
        let output = self.call("read_context", json!({}))?;
        serde_json::from_value(output).map_err(|e| format!("read_context: {e}"))
    }

    fn emit(&mut self, kind: &str) -> Result<()> {
        std::thread::sleep(LABOUR);
        let marker = format!("{}.{}.{}", self.execution, self.number, self.calls);
        let output = self.call("emit", json!({"type": kind, "data": {"marker": marker}}))?;
        self.note(Fact::Emitted, output["event_id"].as_str().unwrap_or_default())
    }

    fn create(&mut self, n: u32) -> Result<Value> {
        let output = self.call("create_work", json!({"binding": "child", "data": {"n": n}}))?;
        self.note(Fact::Created, output["work_id"].as_str().unwrap_or_default())?;
        Ok(output["work_id"].clone())
    }

    /// Declares. That authority is released already is the answer to a declaration whose answer was lost.
    fn declare(&mut self, operation: &str, input: Value) -> Result<()> {
        match self.call(operation, input) {
            Err(why) if why.starts_with(Code::AuthorityReleased.as_str()) => Ok(()),
            other => other.map(drop),
        }
    }

    fn note(&self, fact: Fact, line: &str) -> Result<()> {
        note(&self.journal, fact, line).map_err(|e| e.to_string())
    }

    /// Asks until there is an answer. After `forbidden` it does as `os` does: another token in the file, at once or in a
    /// moment, is tried once.
    fn call(&mut self, operation: &str, input: Value) -> Result<Value> {
        self.calls += 1;
        let request_id = format!("{}.{}.{}", self.execution, self.number, self.calls);
        let end = Instant::now() + PATIENCE;
        let mut refused = false;
        loop {
            self.reload()?;
            let error = match call_as(&self.client, operation, input.clone(), &request_id) {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let forbidden = error.code() == Code::Forbidden.as_str();
            if forbidden && !refused && self.rotates()? {
                refused = true;
                continue;
            }
            refused = false;
            if !error.may_retry() || Instant::now() >= end {
                return Err(format!("{} on {operation} {request_id}: {}", error.code(), chain(&error)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for another token in the file, for as long as `os` does.
    fn rotates(&self) -> Result<bool> {
        let end = Instant::now() + ROTATION;
        while std::fs::read_to_string(&self.token_file).map_err(|e| format!("reading the token: {e}"))? == self.token {
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(true)
    }

    /// Takes up a rotated token, and asks once with the superseded one.
    fn reload(&mut self) -> Result<()> {
        let now = std::fs::read_to_string(&self.token_file).map_err(|e| format!("reading the token: {e}"))?;
        if now == self.token {
            return Ok(());
        }
        let file = self.journal.join(format!("old-{}", std::process::id()));
        std::fs::write(&file, &self.token).map_err(|e| e.to_string())?;
        let old = Credential::from_file(&file).and_then(|old| Client::new(&self.socket, old));
        let answer = match call_as(&old.map_err(|e| e.to_string())?, "read_context", json!({}), "superseded") {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.code().to_owned(),
        };
        self.note(Fact::Rotated, &format!("{} {answer}", self.execution))?;
        self.token = now;
        self.client.reload_credential().map(drop).map_err(|e| e.to_string())
    }
}

fn chain(error: &ClientError) -> String {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}
