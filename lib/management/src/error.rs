//! What a handler refuses, until the edge turns it into a reply and, where the host is at fault, a line in the log.

use conduit_api::error::with_causes;
use conduit_api::{ApiError, Code, Retry};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
    #[error(transparent)]
    Config(#[from] conduit_config::Error),
    #[error(transparent)]
    Coordination(#[from] conduit_coordination::Error),
    #[error(transparent)]
    Toolbelt(#[from] conduit_toolbelt::Error),
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// The bytes of an artifact cannot be shown; callers learn no path.
    #[error("the bytes of the artifact {digest} cannot be shown")]
    Artifact { digest: String, source: std::io::Error },
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self::Refused(ApiError::new(code, message))
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no such {what}"))
    }

    /// What the caller is told. A fault of the host is logged here, once, with its causes.
    pub(crate) fn into_api(self, request_id: &str) -> ApiError {
        let told = self.told();
        if told.code.status() >= 500 {
            let error: &dyn std::error::Error = &self;
            let retry = told.code.retry() == Retry::SameRequest;
            tracing::error!(request_id, code = %told.code, retry, error, "a request failed");
        }
        told
    }

    /// What ends the program: its log says it once, with causes, when the program does.
    pub(crate) fn fatal(&self) -> ApiError {
        ApiError::new(self.told().code, with_causes(self))
    }

    fn told(&self) -> ApiError {
        match self {
            Self::Store(error) => error.to_api(),
            Self::Config(error) => error.to_api(),
            Self::Coordination(conduit_coordination::Error::Store(error)) => error.to_api(),
            Self::Coordination(error) => ApiError::new(error.code(), error.to_string()),
            Self::Toolbelt(error) => error.to_api(),
            Self::Refused(error) => error.clone(),
            Self::Artifact { .. } => ApiError::new(
                Code::ArtifactUnavailable,
                "the bytes of the artifact are missing or altered; see the management server's log",
            ),
        }
    }
}
