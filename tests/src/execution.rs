//! One execution that a test holds: its token and its socket are the test's to use, until it is let go.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use conduit_api::toolbelt::CallRequest;
use conduit_api::views::{ExecutionView, Page, WorkReply, WorkView};
use conduit_api::{ExecutionId, WorkId};
use conduit_client::{Call, Client, ClientError, Credential, Method};
use serde_json::{Value, json};

use crate::suite::Suite;
use crate::until::until;

/// The words in which a Work can end.
pub const ENDED: [&str; 3] = ["succeeded", "failed", "cancelled"];

/// A running execution, seen from outside.
#[derive(Debug)]
pub struct Execution<'s> {
    suite: &'s Suite,
    pub work: WorkId,
    pub id: ExecutionId,
    run: PathBuf,
}

impl Suite {
    /// Creates a Work of `binding` in the scope `test`.
    #[track_caller]
    pub fn work(&self, binding: &str, data: Value) -> WorkId {
        let body = json!({"scope_id": "test", "binding": binding, "data": data});
        let key = conduit_client::request_id().expect("random bytes");
        let reply: WorkReply = self.client().post_keyed("/v1/work", &body, &key).expect("creating a Work");
        reply.work.id
    }

    /// The Work as the operator sees it.
    #[track_caller]
    pub fn work_view(&self, work: &WorkId) -> WorkView {
        self.client().get(&format!("/v1/work/{work}")).expect("reading a Work")
    }

    /// Waits until `work` has ended, in whatever way.
    #[track_caller]
    pub fn ended(&self, work: &WorkId) -> WorkView {
        let client = self.client();
        until(&format!("{work} ends"), || {
            let view: WorkView = client.get(&format!("/v1/work/{work}")).ok()?;
            ENDED.contains(&view.state.as_str()).then_some(view)
        })
    }

    /// The executions of `work`, newest first.
    #[track_caller]
    pub fn executions(&self, work: &WorkId) -> Vec<ExecutionView> {
        let page: Page<ExecutionView> =
            self.client().get(&format!("/v1/executions?work_id={work}")).expect("listing executions");
        page.items
    }

    /// Creates a Work of `binding`, and waits until its execution runs and its endpoint is complete.
    #[track_caller]
    pub fn hold(&self, binding: &str) -> Execution<'_> {
        let work = self.work(binding, json!({}));
        self.running(&work)
    }

    /// Waits until `work` has a running execution with a token on disk.
    #[track_caller]
    pub fn running(&self, work: &WorkId) -> Execution<'_> {
        let client = self.client();
        until(&format!("{work} runs"), || {
            let page: Page<ExecutionView> = client.get(&format!("/v1/executions?work_id={work}")).ok()?;
            let id = page.items.into_iter().find(|execution| execution.state == "running")?.id;
            let run = self.run_directory(&id)?;
            run.join("token/token").is_file().then(|| Execution { suite: self, work: work.clone(), id, run })
        })
    }

    /// The run directory whose file `execution` names `execution` (E01).
    pub fn run_directory(&self, execution: &ExecutionId) -> Option<PathBuf> {
        let named = |run: &PathBuf| {
            std::fs::read_to_string(run.join("execution")).is_ok_and(|text| text.trim() == execution.as_str())
        };
        self.run_directories().into_iter().find(named)
    }

    pub fn run_directories(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.places().runs()).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

impl Execution<'_> {
    pub fn socket(&self) -> PathBuf {
        self.run.join("toolbelt.sock")
    }

    pub fn token_file(&self) -> PathBuf {
        self.run.join("token/token")
    }

    pub fn run_directory(&self) -> &std::path::Path {
        &self.run
    }

    /// The token as it stands in the file now.
    pub fn token(&self) -> String {
        std::fs::read_to_string(self.token_file()).unwrap_or_default().trim().to_owned()
    }

    /// A client of the execution's socket with the token that stands in its file now.
    #[track_caller]
    pub fn client(&self) -> Client {
        let credential = Credential::from_file(self.token_file()).expect("the token file is readable");
        Client::new(self.socket(), credential).expect("making a client")
    }

    /// A client of the execution's socket with another token.
    #[track_caller]
    pub fn client_with(&self, token: &str) -> Client {
        let file = self.suite.home().join(conduit_client::request_id().expect("random bytes"));
        std::fs::write(&file, token).expect("writing a token");
        let credential = Credential::from_file(&file).expect("the token file is readable");
        Client::new(self.socket(), credential).expect("making a client")
    }

    /// Asks for `operation` with the execution's own token.
    pub fn call(&self, operation: &str, input: Value) -> Result<Value, ClientError> {
        call(&self.client(), operation, input)
    }

    /// Runs `os` with `args`, as the execution's process would.
    pub fn os(&self, args: &[&str]) -> Output {
        Command::new(self.suite.programs().join("os"))
            .args(args)
            .env(conduit_api::http::env::ENDPOINT, self.socket())
            .env(conduit_api::http::env::TOKEN_FILE, self.token_file())
            .stdin(Stdio::null())
            .output()
            .expect("running os")
    }

    /// Lets the process of a [`crate::config::hold`] binding end by itself, with exit status 0.
    #[track_caller]
    pub fn release(&self, segment: i64) {
        let pipe = self.suite.home().join("hold").join(format!("{}.{segment}", self.id));
        until("the held process waits at its pipe", || pipe.exists().then_some(()));
        drop(std::fs::OpenOptions::new().write(true).open(&pipe).expect("opening the pipe"));
    }
}

/// Asks the server behind `client` for a toolbelt operation; the output, or what was refused.
pub fn call(client: &Client, operation: &str, input: Value) -> Result<Value, ClientError> {
    let request_id = conduit_client::request_id()?;
    call_as(client, operation, input, &request_id)
}

/// As [`call`], with the request ID chosen.
pub fn call_as(client: &Client, operation: &str, input: Value, request_id: &str) -> Result<Value, ClientError> {
    let input = input.as_object().cloned().unwrap_or_default();
    let request = CallRequest {
        operation: operation.to_owned(),
        request_id: Some(request_id.to_owned()),
        input,
        scope_id: None,
        work_id: None,
        execution_id: None,
    };
    let call = Call::new(Method::Post, conduit_api::http::TOOLBELT_CALL)?.json(&request)?.request_id(request_id);
    let answer: Value = client.send(&call.replayable(true))?.read()?;
    Ok(answer["output"].clone())
}
