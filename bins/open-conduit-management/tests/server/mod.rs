//! The real program on a real socket in a directory of its own, and a client that can send what no client should.

#![allow(dead_code)] // each test program uses its part

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use conduit_config::{ConfigService, Registered};
use conduit_store::digest::sha256;
use conduit_store::{Clock, StateDir, Store, named_params};
use conduit_tests::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A configuration with the scopes `demo` (enabled), and `off` (disabled).
pub fn configuration() -> Value {
    let binding = json!({"executor": "shell", "config": {"command": ["/bin/true"], "env": {"WORD": "hush-hush"}}});
    json!({"version": 1, "scopes": {
        "demo": {"events": ["demo"], "bindings": {"survey": binding}},
        "off": {"enabled": false, "events": ["demo"]},
    }})
}

/// A running server. Dropping it ends the process.
pub struct Server {
    base: tempfile::TempDir,
    child: Child,
}

/// What the server answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub bytes: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
    /// The code of a refusal, with its status.
    #[track_caller]
    pub fn refusal(&self) -> (u16, String) {
        (self.status, self.json()["error"]["code"].as_str().expect("a code").to_owned())
    }
    pub fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case(name)).is_some();
        self.head.lines().find(|line| of(line)).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }
}

/// One request, as it goes onto the wire.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Ask {
    pub fn new(method: &str, target: &str) -> Self {
        Self { method: method.into(), target: target.into(), headers: Vec::new(), body: Vec::new() }
    }
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }
    pub fn json(self, body: &str) -> Self {
        let mut ask = self.header("content-type", "application/json");
        ask.body = body.as_bytes().to_vec();
        ask
    }
}

impl Server {
    /// Starts the server on a state directory whose first generation is [`configuration`].
    pub fn start() -> Self {
        Self::start_with(launch)
    }

    /// As [`Server::start`], with the process started by `launch`, which is told the base directory.
    pub fn start_with(launch: impl FnOnce(&Path) -> Child) -> Self {
        let base = tempfile::Builder::new().prefix("oc-m-").tempdir_in("/tmp").unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let mut store = Store::open(&state).unwrap();
        let file = base.path().join("config.json");
        std::fs::write(&file, configuration().to_string()).unwrap();
        let registry = Registered::builtins().executor("shell", |_, _| Vec::new());
        ConfigService::new(state, file, Rc::new(registry)).start(&mut store, Clock.now()).unwrap();
        drop(store);
        let child = launch(base.path());
        let server = Self { base, child };
        server.wait();
        server
    }

    fn wait(&self) {
        until("the server answers", || UnixStream::connect(self.socket()).ok());
    }

    /// Asks the server to end, and starts another on the same state.
    pub fn restart(&mut self) {
        self.stop();
        self.child = launch(self.base.path());
        self.wait();
    }

    /// Asks the server to end; whether it said that all went well.
    pub fn stop(&mut self) -> bool {
        self.ask_to_end();
        self.child.wait().unwrap().success()
    }

    pub fn ask_to_end(&self) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    }

    /// Waits until the process has ended by itself; whether it said that all went well.
    pub fn ended(&mut self) -> bool {
        until("the server ends by itself", || self.child.try_wait().unwrap()).success()
    }

    pub fn socket(&self) -> PathBuf {
        self.base.path().join("r/management.sock")
    }
    pub fn state(&self) -> PathBuf {
        self.base.path().join("s")
    }
    pub fn config_file(&self) -> PathBuf {
        self.base.path().join("config.json")
    }
    pub fn token(&self) -> String {
        std::fs::read_to_string(self.state().join("private/operator.token")).unwrap().trim().to_owned()
    }
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.base.path().join("log")).unwrap()
    }

    /// The store, as the other programs of the suite have it.
    pub fn store(&self) -> Store {
        Store::open(&StateDir::open(&self.state()).unwrap()).unwrap()
    }

    /// A named operator's credential with this role.
    pub fn operator(&self, name: &str, role: &str) -> String {
        let token = format!("credential-of-{name}");
        const INSERT: &str =
            "INSERT INTO operator (id, name, role, digest, created_at_us) VALUES (:id, :name, :role, :digest, 0)";
        let params = named_params! { ":id": format!("opr_{name}"), ":name": name, ":role": role, ":digest": sha256(token.as_bytes()) };
        self.store().write(|tx| tx.execute("testing", INSERT, params)).unwrap();
        token
    }

    /// An execution of `work` in this state, with a token that is live and one that was revoked.
    pub fn execution(&self, id: &str, work: &str, state: &str) -> [String; 2] {
        let finished = (!["claimed", "running", "parked", "orphaned"].contains(&state)).then_some(7);
        const EXECUTION: &str = "
            INSERT INTO execution (id, work_id, scope_id, binding, generation, attempt, epoch, segment, state, owner, cause_event_id,
                                   attempt_id, created_at_us, started_at_us, finished_at_us)
            SELECT :id, w.id, w.scope_id, w.binding, 1, 1, 1, 1, :state, 'test', w.created_event_id, 'att_of_' || :id, 5, 6, :finished FROM work w WHERE w.id = :work";
        const TOKEN: &str = "
            INSERT INTO token (digest, id, execution_id, work_id, scope_id, epoch, owner, binding, generation, grants, boot_id,
                               expires_boot_us, issued_at_us, expires_at_us, revoked_at_us)
            VALUES (:digest, :token, :id, :work, 'demo', 1, 'test', 'survey', 1, '{}', 'boot', 9223372036854775807, 0, 0, :revoked)";
        let tokens = ["live", "revoked"].map(|how| format!("{how}-token-of-{id}"));
        self.store()
            .write::<(), conduit_store::Error>(|tx| {
                let params = named_params! { ":id": id, ":work": work, ":state": state, ":finished": finished };
                assert_eq!(tx.execute("testing", EXECUTION, params)?, 1);
                for (token, revoked) in tokens.iter().zip([None, Some(1)]) {
                    let digest = sha256(token.as_bytes());
                    let params = named_params! { ":digest": digest, ":token": token, ":id": id, ":work": work, ":revoked": revoked };
                    tx.execute("testing", TOKEN, params)?;
                }
                Ok(())
            })
            .unwrap();
        tokens
    }

    /// Sends `ask` on a connection of its own.
    pub fn send(&self, ask: &Ask) -> Answer {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let mut head = format!("{} {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n", ask.method, ask.target);
        for (name, value) in &ask.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !ask.body.is_empty() {
            head += &format!("content-length: {}\r\n", ask.body.len());
        }
        head += "\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // A server that has refused already may not read the whole of a body that is too large.
        let _ = stream.write_all(&ask.body);
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            // A server that hangs up on a body that it will not read resets the connection behind its answer.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            ended => drop(ended.unwrap()),
        }
        let split = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer") + 4;
        let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, bytes: bytes[split..].to_vec() }
    }

    /// As [`Server::get`], for a server that may still be making its credential.
    pub fn get_when_ready(&self, target: &str) -> Answer {
        let file = self.state().join("private/operator.token");
        until("the owner's credential is on disk", || file.exists().then_some(()));
        self.get(target)
    }

    pub fn get(&self, target: &str) -> Answer {
        self.send(&Ask::new("GET", target).bearer(&self.token()))
    }

    pub fn post(&self, target: &str, body: &Value) -> Answer {
        self.send(&Ask::new("POST", target).bearer(&self.token()).json(&body.to_string()))
    }

    pub fn post_keyed(&self, target: &str, key: &str, body: &Value) -> Answer {
        let ask = Ask::new("POST", target).bearer(&self.token()).header("idempotency-key", key);
        self.send(&ask.json(&body.to_string()))
    }

    /// A new Work of the scope `demo`; its ID.
    #[track_caller]
    pub fn work(&self) -> String {
        let answer = self.post("/v1/work", &json!({"scope_id": "demo", "binding": "survey"}));
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["work"]["id"].as_str().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the server\n{}\n---", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_open-conduit-management");

/// Standard error of a server in this base directory.
pub fn log_file(base: &Path) -> File {
    File::options().create(true).append(true).open(base.join("log")).unwrap()
}

fn launch(base: &Path) -> Child {
    Command::new(PROGRAM)
        .arg("--state")
        .arg(base.join("s"))
        .arg("--runtime")
        .arg(base.join("r"))
        .arg("--config")
        .arg(base.join("config.json"))
        .stdin(Stdio::null())
        .stderr(log_file(base))
        .spawn()
        .unwrap()
}
