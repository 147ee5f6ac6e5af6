//! What coordination refuses, by name.

use conduit_api::{ApiError, Code};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
    #[error("the delivery was accepted before with another content; give the new one a name of its own")]
    DeliveryConflict,
    #[error("the Event that it is to follow from does not exist in this scope")]
    UnknownCause,
    #[error("the causal chain may be {depth_max} deep")]
    CausalDepthExceeded { depth_max: i64 },
    #[error("the causal chain may grow by {per_minute} Events a minute")]
    CausalRateExceeded { per_minute: i64 },
    #[error("the correlation key belongs to {work}, which has not ended")]
    KeyTaken { work: String },
    #[error("there is no such {what}")]
    NotFound { what: &'static str },
    #[error("the {what} is {state}; {remedy}")]
    IllegalState { what: &'static str, state: String, remedy: &'static str },
    #[error("{why}")]
    Invalid { why: String },
}

impl Error {
    /// The stable name of the refusal.
    pub const fn code(&self) -> Code {
        match self {
            Self::Store(error) => error.code(),
            Self::DeliveryConflict => Code::IdempotencyConflict,
            Self::UnknownCause | Self::Invalid { .. } => Code::InvalidRequest,
            Self::CausalDepthExceeded { .. } => Code::CausalDepthExceeded,
            Self::CausalRateExceeded { .. } => Code::CausalRateExceeded,
            Self::KeyTaken { .. } => Code::KeyTaken,
            Self::NotFound { .. } => Code::NotFound,
            Self::IllegalState { .. } => Code::IllegalState,
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error.to_api(),
            other => Self::new(other.code(), other.to_string()),
        }
    }
}
