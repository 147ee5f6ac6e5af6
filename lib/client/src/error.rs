//! What can go wrong between a caller and a server, told apart by what the caller may do about it.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use conduit_api::error::ErrorBody;
use conduit_api::limits::{BODY_BYTES_MAX, SOCKET_PATH_BYTES_MAX};
use conduit_api::{ApiError, Code, Retry};

pub type Result<T, E = ClientError> = std::result::Result<T, E>;

/// A call that has no answer, or not the wanted one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with a refusal.
    #[error("{}", body.message)]
    Refused { body: Box<ErrorBody>, status: u16 },
    /// No server was reached: nothing was sent.
    #[error("cannot reach {}: {why}", socket.display())]
    Unavailable { socket: PathBuf, why: Unreachable },
    /// The request was sent, or may have been, and its answer did not come. Only the same request ID is safe.
    #[error("the request was sent and its answer was lost: {why}; the same request ID may be used again")]
    AnswerLost { request_id: String, why: Loss },
    /// The server answered with something that is not of this API.
    #[error("the server's answer cannot be understood: {what}")]
    Protocol { what: String },
    /// The file that holds the credential cannot be read, or holds no credential.
    #[error("cannot use the credential in {}: {why}", path.display())]
    Credential { path: PathBuf, why: String },
    /// The body is larger than any server of the suite takes: nothing was sent.
    #[error("the request has a body of {bytes} bytes, and at most {BODY_BYTES_MAX} are accepted")]
    BodyTooLarge { bytes: usize },
    /// The request cannot be written as HTTP or JSON: nothing was sent.
    #[error("the request cannot be sent: {what}")]
    InvalidRequest { what: String },
    /// The answer came, and the caller's own output did not take it.
    #[error("cannot write the answer: {0}")]
    Output(#[source] io::Error),
    /// The machine refused something that a client needs.
    #[error("{doing} failed: {source}")]
    Machine { doing: &'static str, source: io::Error },
}

/// Why no server was reached.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// ENOENT or ECONNREFUSED.
    #[error("nothing is serving there; start it with `open-conduit up`")]
    NotRunning,
    /// EACCES or EPERM.
    #[error("it belongs to another user; run this as the user who runs the suite")]
    NotAllowed,
    #[error("the path has {bytes} bytes and a socket path at most {SOCKET_PATH_BYTES_MAX}; choose a shorter directory")]
    PathTooLong { bytes: usize },
    /// EAGAIN: the queue of the socket is full.
    #[error("too many callers are waiting there; try again")]
    Busy,
    #[error("{0}")]
    Other(String),
}

/// How an answer was lost.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    #[error("the connection ended ({0})")]
    Ended(String),
    #[error("there was none within {} s", .0.as_secs())]
    Late(Duration),
}

impl Unreachable {
    /// Reads what connect(2) said.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Self::NotRunning,
            ErrorKind::PermissionDenied => Self::NotAllowed,
            ErrorKind::WouldBlock => Self::Busy,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl ClientError {
    /// The stable code: the server's own, or the one that fits what the client saw.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { body, .. } => &body.code,
            Self::Unavailable { why: Unreachable::PathTooLong { .. }, .. } => Code::SocketPathTooLong.as_str(),
            Self::Unavailable { .. } | Self::AnswerLost { .. } => Code::Unavailable.as_str(),
            Self::Credential { .. } | Self::InvalidRequest { .. } => Code::InvalidRequest.as_str(),
            Self::BodyTooLarge { .. } => Code::BodyTooLarge.as_str(),
            Self::Protocol { .. } | Self::Output(_) | Self::Machine { .. } => Code::Internal.as_str(),
        }
    }

    /// A refusal as it stands, for whoever passes it on, an extension's own code included; `None` when there is none.
    ///
    /// A code of the host's under another status than its own is an extension's: extensions choose their words freely (T13).
    pub fn refusal(&self) -> Option<ApiError> {
        let Self::Refused { body, status } = self else { return None };
        let error = match body.code.parse::<Code>() {
            Ok(code) if code.status() == *status => ApiError::new(code, body.message.clone()),
            _ => ApiError::of_extension(body.code.clone(), body.message.clone()),
        };
        Some(ApiError { diagnostics: body.diagnostics.clone(), ..error })
    }

    /// The request ID, when the server or this client may have it on record.
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Refused { body, .. } => Some(&body.request_id),
            Self::AnswerLost { request_id, .. } => Some(request_id),
            Self::Unavailable { .. }
            | Self::Protocol { .. }
            | Self::Credential { .. }
            | Self::BodyTooLarge { .. }
            | Self::InvalidRequest { .. }
            | Self::Output(_)
            | Self::Machine { .. } => None,
        }
    }

    /// Whether the same request, with the same request ID, may succeed later.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Refused { body, .. } => body.retry == Retry::SameRequest,
            Self::Unavailable { why, .. } => match why {
                Unreachable::NotRunning | Unreachable::Busy | Unreachable::Other(_) => true,
                Unreachable::NotAllowed | Unreachable::PathTooLong { .. } => false,
            },
            Self::AnswerLost { .. } => true,
            Self::Protocol { .. }
            | Self::Credential { .. }
            | Self::BodyTooLarge { .. }
            | Self::InvalidRequest { .. }
            | Self::Output(_)
            | Self::Machine { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_pass_may_be_tried_again() {
        let at = |why| ClientError::Unavailable { socket: "/s".into(), why };
        assert!(at(Unreachable::NotRunning).may_retry() && at(Unreachable::Busy).may_retry());
        assert!(!at(Unreachable::NotAllowed).may_retry());
        assert_eq!(at(Unreachable::PathTooLong { bytes: 200 }).code(), "socket_path_too_long");
    }

    /// T13: an extension may choose a word that the host has too; it stays the extension's own, under 422.
    #[test]
    fn a_refusal_is_passed_on_as_it_stands_whoever_has_the_word() {
        let refused = |code: &str, status| {
            let body = ErrorBody {
                code: code.into(),
                message: "no".into(),
                retry: Retry::Never,
                request_id: "r".into(),
                diagnostics: Vec::new(),
            };
            let error = ClientError::Refused { body: Box::new(body), status }.refusal().unwrap();
            (error.code_text().to_owned(), error.code.status(), error.own_code.is_some())
        };
        assert_eq!(refused("forbidden", 403), ("forbidden".into(), 403, false));
        for taken in ["forbidden", "not_found", "internal", "out_of_gas"] {
            assert_eq!(refused(taken, 422), (taken.into(), 422, true));
        }
    }

    #[test]
    fn what_the_kernel_said_is_told_apart_by_what_helps() {
        let of = |errno| Unreachable::of(&io::Error::from_raw_os_error(errno));
        let (eperm, enoent, eagain, eacces, econnrefused) = (1, 2, 11, 13, 111);
        assert!(matches!(of(enoent), Unreachable::NotRunning));
        assert!(matches!(of(econnrefused), Unreachable::NotRunning));
        assert!(matches!(of(eacces), Unreachable::NotAllowed));
        assert!(matches!(of(eperm), Unreachable::NotAllowed));
        assert!(matches!(of(eagain), Unreachable::Busy));
    }

    #[test]
    fn the_three_commonest_first_mistakes_say_what_to_do() {
        let says = |why| ClientError::Unavailable { socket: "/run/x.sock".into(), why }.to_string();
        assert!(
            says(Unreachable::NotRunning)
                .contains("/run/x.sock: nothing is serving there; start it with `open-conduit up`")
        );
        assert!(says(Unreachable::NotAllowed).contains("another user"));
        assert!(says(Unreachable::PathTooLong { bytes: 140 }).contains("140 bytes"));
    }
}
