//! Exit codes: what a script can tell apart without reading text. Where `os` has the same case, it has the same code.

use std::process::ExitCode;

use conduit_api::Code;
use conduit_client::ClientError;

/// How `open-conduit` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Refused = 1,
    Usage = 2,
    NotFound = 3,
    Unavailable = 4,
    Internal = 5,
}

impl Exit {
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Refused, Self::Usage, Self::NotFound, Self::Unavailable, Self::Internal];

    /// What the code means, as `--help` has it.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused: the same command will be refused again; the message says why",
            Self::Usage => "usage: arguments, input or environment are wrong; nothing was sent",
            Self::NotFound => "not found: there is no such thing",
            Self::Unavailable => {
                "unavailable: no answer for now, or the suite is degraded; the same command may succeed later"
            }
            Self::Internal => "internal: a fault of the suite, or an answer that makes no sense",
        }
    }

    /// The exit code of a call that failed.
    pub fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Refused { body, .. } if body.code == Code::NotFound.as_str() => Self::NotFound,
            ClientError::Refused { body, .. } if body.code == Code::Internal.as_str() => Self::Internal,
            ClientError::Refused { .. } if error.may_retry() => Self::Unavailable,
            ClientError::Refused { .. } => Self::Refused,
            ClientError::Unavailable { .. } if error.may_retry() => Self::Unavailable,
            ClientError::Unavailable { .. } => Self::Usage,
            ClientError::AnswerLost { .. } => Self::Unavailable,
            ClientError::Credential { .. } | ClientError::BodyTooLarge { .. } | ClientError::InvalidRequest { .. } => {
                Self::Usage
            }
            ClientError::Protocol { .. } | ClientError::Output(_) | ClientError::Machine { .. } => Self::Internal,
        }
    }

    /// The list at the end of `--help`.
    pub fn table() -> String {
        let lines = Self::ALL.map(|exit| format!("  {}  {}\n", exit as u8, exit.meaning()));
        format!("Exit codes:\n{}", lines.concat())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::{ApiError, Retry};

    #[test]
    fn every_code_of_the_api_has_the_exit_code_of_its_kind() {
        for code in Code::ALL {
            let body = Box::new(ApiError::new(*code, "no").envelope("req").error);
            let expected = match code {
                Code::NotFound => Exit::NotFound,
                Code::Internal => Exit::Internal,
                _ if code.retry() == Retry::SameRequest => Exit::Unavailable,
                _ => Exit::Refused,
            };
            assert_eq!(Exit::of(&ClientError::Refused { body, status: code.status() }), expected, "{code}");
        }
    }
}
