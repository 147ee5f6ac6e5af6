//! Why a command did not do what it was asked, and how that is said.

use std::io::Write;

use conduit_api::error::{Envelope, ErrorBody};
use conduit_api::{Code, Retry};

use super::exit::Exit;
use crate::error::ClientError;
use crate::input::Unusable;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Arguments, input or environment are wrong; nothing was sent.
    #[error("{0}")]
    Usage(String),
    /// The answer came and holds nothing at the pointer.
    #[error("{0}")]
    Nothing(String),
    #[error(transparent)]
    Call(#[from] ClientError),
}

impl From<Unusable> for Failure {
    fn from(input: Unusable) -> Self {
        Self::Usage(input.to_string())
    }
}

impl Failure {
    fn code(&self) -> &str {
        match self {
            Self::Usage(_) => Code::InvalidRequest.as_str(),
            Self::Nothing(_) => Code::NotFound.as_str(),
            Self::Call(error) => error.code(),
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Nothing(_) => Exit::Refused,
            Self::Call(error) => Exit::of(error),
        }
    }

    /// Writes the failure to standard error: a sentence, and the request ID where the call can be made again under
    /// it; or the error envelope under `--json`. The exit code says the rest.
    pub fn report(&self, request_id: Option<&str>, json: bool) -> Exit {
        let may_retry = matches!(self, Self::Call(error) if error.may_retry());
        let mut text = if json {
            self.envelope(request_id.unwrap_or_default(), may_retry)
        } else {
            format!("os: {}: {self}\n", self.code())
        };
        if let (false, true, Some(id)) = (json, may_retry, request_id) {
            text.push_str(&format!("request-id: {id}\n"));
        }
        // With standard error gone there is no one left to tell; the exit code still says it.
        let _ = std::io::stderr().write_all(text.as_bytes());
        self.exit()
    }

    fn envelope(&self, request_id: &str, may_retry: bool) -> String {
        let diagnostics = match self {
            Self::Call(ClientError::Refused { body, .. }) => body.diagnostics.clone(),
            Self::Usage(_) | Self::Nothing(_) | Self::Call(_) => Vec::new(),
        };
        let envelope = Envelope {
            error: ErrorBody {
                code: self.code().to_owned(),
                message: self.to_string(),
                request_id: request_id.to_owned(),
                retry: if may_retry { Retry::SameRequest } else { Retry::Never },
                diagnostics,
            },
        };
        serde_json::json!(envelope).to_string() + "\n"
    }
}
