//! Why a call was not carried out: what the caller is told, and what the record says.

use std::borrow::Cow;

use conduit_api::{ApiError, Code};

use crate::budget::Exceeded;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A check of the authorization failed. The rule is for the record alone (T06).
    #[error("refused by the rule `{rule}`")]
    Refused { rule: &'static str },
    /// The credential is an operator's, and this is a run socket (E02).
    #[error("an operator credential was used on a run socket")]
    WrongCredentialClass,
    /// The request ID was used for another request (T14).
    #[error("the request ID was used for another request")]
    RequestConflict,
    /// The operation refuses its input; authority is kept.
    #[error("{0}")]
    Operation(ApiError),
    /// The execution has used up what its binding gives it; nothing of the call was done.
    #[error("{0}")]
    BudgetExceeded(Exceeded),
    /// A gate refuses the call; authority is kept (G03).
    #[error("a gate refused: {0}")]
    GateRefused(ApiError),
    #[error(transparent)]
    Coordination(#[from] conduit_coordination::Error),
    #[error(transparent)]
    Config(#[from] conduit_config::Error),
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
}

impl Error {
    /// An operation's own refusal.
    pub fn operation(code: Code, message: impl Into<String>) -> Self {
        Self::Operation(ApiError::new(code, message))
    }

    /// Which check refused, for the record.
    pub fn rule(&self) -> Option<&'static str> {
        match self {
            Self::Refused { rule } => Some(rule),
            Self::Store(conduit_store::Error::LeaseLost { why }) => Some(why),
            Self::Store(conduit_store::Error::AuthorityReleased) => Some(conduit_store::lease::rule::DECLARED),
            _ => None,
        }
    }

    /// What the record names as the reason: the check that refused, or the budget with its figures.
    pub fn reason(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::BudgetExceeded(exceeded) => Some(Cow::Owned(exceeded.to_string())),
            other => other.rule().map(Cow::Borrowed),
        }
    }

    /// How the record calls it: `toolbelt.result`.
    pub fn result(&self) -> String {
        match self {
            Self::GateRefused(_) => "gate_refused".to_owned(),
            other => other.to_api().code_text().to_owned(),
        }
    }

    /// What the caller is told.
    pub fn to_api(&self) -> ApiError {
        match self {
            Self::Refused { .. } => ApiError::forbidden(),
            Self::WrongCredentialClass => ApiError::new(
                Code::WrongCredentialClass,
                "this socket takes the execution's own token; operators use the management socket",
            ),
            Self::RequestConflict | Self::Coordination(conduit_coordination::Error::DeliveryConflict) => ApiError::new(
                Code::RequestConflict,
                "the request or delivery ID was used for another request; choose a new one",
            ),
            // Which Work it is would be told to somebody who was not given it.
            Self::Coordination(conduit_coordination::Error::KeyTaken { .. }) => {
                ApiError::new(Code::KeyTaken, "the correlation key belongs to another Work that has not ended")
            }
            Self::BudgetExceeded(exceeded) => exceeded.to_api(),
            Self::Operation(error) | Self::GateRefused(error) => error.clone(),
            Self::Coordination(conduit_coordination::Error::Store(error)) | Self::Store(error) => error.to_api(),
            Self::Coordination(error) => ApiError::new(error.code(), error.to_string()),
            Self::Config(_) => {
                ApiError::new(Code::Unavailable, "the configuration cannot be read; see the daemon's log")
            }
        }
    }
}
