//! The toolbelt as a process of an execution reaches it: its own socket, its own token.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use conduit_api::Code;
use conduit_api::http::{TOOLBELT_CALL, TOOLBELT_GUIDANCE, env};
use conduit_api::limits::REQUEST_ID_BYTES_MAX;
use conduit_api::toolbelt::{CallRequest, CallResponse, WaitInput, operation};
use serde_json::{Map, Value};

use super::failure::{Failure, Result};
use crate::blocking::Client;
use crate::call::{Answer, Call, Method, request_id};
use crate::credential::Credential;
use crate::error::ClientError;

/// Operations that a lost answer is asked for again by itself: the host answers the copy as it answered the
/// original (T14). A second `wait` or `declare_outcome` would be told that authority is released.
const ASKED_AGAIN: [&str; 3] = [operation::EMIT, operation::CREATE_WORK, operation::READ_CONTEXT];

/// How long after a refusal a rotated token may come to stand in its file.
const ROTATION_TIME_MAX: Duration = Duration::from_secs(2);
const ROTATION_PAUSE: Duration = Duration::from_millis(20);

/// What a request is called: the caller's name for it, or a new one.
pub struct Name {
    id: String,
    chosen: bool,
}

impl Name {
    /// Errors: usage when the chosen name is empty, too long, or not printable ASCII without spaces.
    pub fn of(chosen: Option<String>) -> Result<Self> {
        match chosen {
            None => Ok(Self { id: request_id()?, chosen: false }),
            Some(id)
                if id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX || !id.bytes().all(|b| b.is_ascii_graphic()) =>
            {
                Err(Failure::Usage(format!(
                    "a request ID has 1 to {REQUEST_ID_BYTES_MAX} printable ASCII characters and no spaces"
                )))
            }
            Some(id) => Ok(Self { id, chosen: true }),
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }
}

/// What a call came to.
pub struct Answered {
    pub request_id: String,
    pub replayed: bool,
    pub output: Value,
    /// The Wait that was declared for the caller: its authority has ended (T17, G03).
    pub declared: Option<WaitInput>,
}

pub struct Toolbelt {
    client: Client,
}

impl Toolbelt {
    /// The toolbelt that `OS_ENDPOINT` and `OS_TOKEN_FILE` name. Errors: usage.
    pub fn of_process() -> Result<Self> {
        let endpoint = variable(env::ENDPOINT)?;
        let credential = Credential::from_file(variable(env::TOKEN_FILE)?)?;
        Ok(Self { client: Client::new(endpoint, credential)? })
    }

    /// Makes one call.
    pub fn call(&self, operation: &str, input: Map<String, Value>, name: &Name) -> Result<Answered> {
        // A read is on record only when the caller named it; else it would leave a replay record for nothing.
        let named = name.chosen || operation != operation::READ_CONTEXT;
        let body = CallRequest {
            operation: operation.to_owned(),
            request_id: named.then(|| name.id.clone()),
            input,
            scope_id: None,
            work_id: None,
            execution_id: None,
        };
        let call = Call::new(Method::Post, TOOLBELT_CALL)?
            .json(&body)?
            .request_id(&name.id)
            .replayable(ASKED_AGAIN.contains(&operation));
        let CallResponse { replayed, output, declared } = self.send(&call)?.read()?;
        Ok(Answered { request_id: name.id.clone(), replayed, output, declared })
    }

    /// What the token's grants let this process ask for, and how (E02).
    pub fn guidance(&self, name: &Name) -> Result<Value> {
        let call = Call::new(Method::Get, TOOLBELT_GUIDANCE)?.request_id(&name.id);
        Ok(self.send(&call)?.read()?)
    }

    /// A call refused with the token at hand is made once more when the file holds another by now, or comes to hold one in
    /// a moment: a host that takes an execution over ends the old token first, and then writes the new one (E04).
    fn send(&self, call: &Call) -> Result<Answer, ClientError> {
        match self.client.send(call) {
            Err(refusal) if refusal.code() == Code::Forbidden.as_str() && rotated(&self.client) => {
                self.client.send(call)
            }
            answer => answer,
        }
    }
}

/// Reads the token file until it holds another token than `client` has, for a bounded time; whether it did. A file that
/// cannot be read is what is left of an execution that ended: nothing comes any more.
fn rotated(client: &Client) -> bool {
    let end = Instant::now() + ROTATION_TIME_MAX;
    loop {
        match client.reload_credential() {
            Ok(false) if Instant::now() < end => std::thread::sleep(ROTATION_PAUSE),
            Ok(changed) => return changed,
            Err(_) => return false,
        }
    }
}

fn variable(name: &str) -> Result<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty()).ok_or_else(|| {
        Failure::Usage(format!("{name} is not set; `os` works inside an execution, which its host gives this variable"))
    })
}
