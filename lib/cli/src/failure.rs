//! Why a command did not do what it was asked, and how that is said.

use std::io::{ErrorKind, Write};

use conduit_api::error::{Diagnostic, Envelope, ErrorBody};
use conduit_api::{Code, Retry};
use conduit_client::input::Unusable;
use conduit_client::{ClientError, Loss};

use crate::exit::Exit;
use crate::table::clean;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Arguments, input or environment are wrong; nothing was sent.
    #[error("{0}")]
    Usage(String),
    /// A call that failed; `request_id` names an order that can be given again without doing it twice.
    #[error("{error}")]
    Call { error: Box<ClientError>, request_id: Option<String> },
    /// A configuration that was looked at and has faults.
    #[error("the configuration has faults")]
    Faults(Vec<Diagnostic>),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Call { error: Box::new(error), request_id: None }
    }
}

impl From<Unusable> for Failure {
    fn from(input: Unusable) -> Self {
        Self::Usage(input.to_string())
    }
}

impl Failure {
    /// The failure of an order that was named `request_id`.
    pub fn keyed(request_id: &str) -> impl FnOnce(ClientError) -> Self {
        move |error| Self::Call { error: Box::new(error), request_id: Some(request_id.to_owned()) }
    }

    fn call(&self) -> Option<&ClientError> {
        match self {
            Self::Call { error, .. } => Some(error),
            Self::Usage(_) | Self::Faults(_) => None,
        }
    }

    fn code(&self) -> &str {
        match (self, self.call()) {
            (_, Some(error)) => error.code(),
            (Self::Faults(_), None) => Code::InvalidConfig.as_str(),
            (_, None) => Code::InvalidRequest.as_str(),
        }
    }

    fn exit(&self) -> Exit {
        match (self, self.call()) {
            (_, Some(error)) => Exit::of(error),
            (Self::Faults(_), None) => Exit::Refused,
            (_, None) => Exit::Usage,
        }
    }

    fn diagnostics(&self) -> &[Diagnostic] {
        match (self, self.call()) {
            (Self::Faults(diagnostics), _) => diagnostics,
            (_, Some(ClientError::Refused { body, .. })) => &body.diagnostics,
            _ => &[],
        }
    }

    /// The name under which an order that may have been carried out can be given again without doing it twice.
    fn request_id(&self) -> Option<&str> {
        match self {
            Self::Call { error, request_id } => match **error {
                ClientError::AnswerLost { .. } => request_id.as_deref(),
                ClientError::Refused { .. } if error.may_retry() => request_id.as_deref(),
                _ => None, // nothing was sent, or the same order will be refused again
            },
            Self::Usage(_) | Self::Faults(_) => None,
        }
    }

    /// Writes the failure to standard error: a sentence, the faults of a configuration, and what helps; or the error
    /// envelope under `--json`. A reader who has left is no failure.
    pub fn report(&self, json: bool) -> Exit {
        if matches!(self.call(), Some(ClientError::Output(error)) if error.kind() == ErrorKind::BrokenPipe) {
            return Exit::Done;
        }
        let text = if json { self.envelope() } else { self.sentences() };
        // With standard error gone there is no one left to tell; the exit code still says it.
        let _ = std::io::stderr().write_all(text.as_bytes());
        self.exit()
    }

    fn sentences(&self) -> String {
        let mut text = format!("open-conduit: {}: {}\n", self.code(), clean(&self.message()));
        for fault in self.diagnostics() {
            let place = if fault.pointer.is_empty() { "the whole document" } else { &fault.pointer };
            text += &format!("  {}  {}: {}\n", clean(place), fault.code, clean(&fault.remedy));
        }
        if let Some(id) = self.request_id() {
            text += &format!("Give the same order again with --request-id {id}; it is carried out once.\n");
        }
        text
    }

    fn message(&self) -> String {
        match self.call() {
            // The library speaks of request IDs; an operator's command has one only where it can be used again.
            Some(ClientError::AnswerLost { why: Loss::Late(time), .. }) => {
                format!("no answer came within {} s; what was asked may have been done", time.as_secs())
            }
            _ => self.to_string(),
        }
    }

    fn envelope(&self) -> String {
        let called = self.call().and_then(ClientError::request_id);
        let may_retry = self.call().is_some_and(ClientError::may_retry);
        let envelope = Envelope {
            error: ErrorBody {
                code: self.code().to_owned(),
                message: self.message(),
                request_id: self.request_id().or(called).unwrap_or_default().to_owned(),
                retry: if may_retry { Retry::SameRequest } else { Retry::Never },
                diagnostics: self.diagnostics().to_vec(),
            },
        };
        serde_json::json!(envelope).to_string() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_client::Unreachable;

    fn unreachable(why: Unreachable) -> Failure {
        ClientError::Unavailable { socket: "/run/x.sock".into(), why }.into()
    }

    #[test]
    fn the_three_commonest_first_mistakes_are_told_with_what_helps() {
        let away = unreachable(Unreachable::NotRunning);
        assert!(away.sentences().contains("open-conduit up") && away.exit() == Exit::Unavailable);
        let foreign = unreachable(Unreachable::NotAllowed);
        assert!(foreign.sentences().contains("another user") && foreign.exit() == Exit::Usage);
        let long = unreachable(Unreachable::PathTooLong { bytes: 140 });
        assert!(long.sentences().contains("shorter directory") && long.exit() == Exit::Usage);
    }

    #[test]
    fn a_lost_answer_to_a_named_order_says_how_to_give_it_again() {
        let lost = ClientError::AnswerLost { request_id: "req_1".into(), why: Loss::Ended("reset".into()) };
        let failure = Failure::keyed("mine")(lost);
        assert!(failure.sentences().contains("--request-id mine"));
        assert!(failure.envelope().contains(r#""request_id":"mine""#));
    }

    #[test]
    fn the_faults_of_a_configuration_are_told_one_on_a_line() {
        let fault = |pointer: &str| Diagnostic {
            pointer: pointer.into(),
            code: "null_value".into(),
            remedy: "leave it out".into(),
        };
        let failure = Failure::Faults(vec![fault(""), fault("/scopes")]);
        assert_eq!(failure.sentences().lines().count(), 3);
        assert_eq!(failure.exit(), Exit::Refused);
    }
}
