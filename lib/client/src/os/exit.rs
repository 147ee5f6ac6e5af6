//! Exit codes: what a script can tell apart without reading text.

use conduit_api::Code;

use crate::error::ClientError;

/// How `os` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Refused = 1,
    Usage = 2,
    Released = 3,
    Unavailable = 4,
    Internal = 5,
}

impl Exit {
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Refused, Self::Usage, Self::Released, Self::Unavailable, Self::Internal];

    /// What the code means, as `--help` has it.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused: the same call will be refused again",
            Self::Usage => "usage: arguments, input or environment are wrong; nothing was sent",
            Self::Released => "released: this segment has declared a wait or an outcome; finish and leave",
            Self::Unavailable => "unavailable: no answer for now; the same call with the same --request-id may succeed",
            Self::Internal => "internal: a fault of the host, or an answer that makes no sense",
        }
    }

    /// The exit code of a call that failed.
    pub fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Refused { body, .. } if body.code == Code::AuthorityReleased.as_str() => Self::Released,
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
    pub(super) fn table() -> String {
        let mut text = String::from("Exit codes:\n");
        for exit in Self::ALL {
            text.push_str(&format!("  {}  {}\n", exit as u8, exit.meaning()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::ApiError;

    fn refused(code: Code) -> Exit {
        let body = Box::new(ApiError::new(code, "no").envelope("req").error);
        Exit::of(&ClientError::Refused { body, status: code.status() })
    }

    #[test]
    fn every_code_of_the_api_has_the_exit_code_of_its_kind() {
        for code in Code::ALL {
            let expected = match code {
                Code::AuthorityReleased => Exit::Released,
                Code::Internal => Exit::Internal,
                _ if code.retry() == conduit_api::Retry::SameRequest => Exit::Unavailable,
                _ => Exit::Refused,
            };
            assert_eq!(refused(*code), expected, "{code}");
        }
    }

    #[test]
    fn the_help_lists_every_exit_code() {
        assert!(Exit::ALL.iter().all(|exit| Exit::table().contains(exit.meaning())));
    }
}
