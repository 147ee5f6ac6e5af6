//! What the kernel refuses, and what a caller may conclude from a refusal (K07).

use std::path::PathBuf;

use conduit_api::{ApiError, AttemptId, Code, JobId};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which part refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Kernel,
    Launcher,
}

/// Whether the operation is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commitment {
    NotCommitted,
    Committed,
    Unknown,
}

/// What may be done with the refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    Never,
    SameRequest,
    /// Look at what became of the attempt first.
    ReconcileFirst,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
    /// The request breaks a rule that `why` names.
    #[error("the operation cannot be admitted: {why}")]
    InvalidRequest { why: String },
    #[error("the executable {} cannot be run: {why}", path.display())]
    ExecutableUnavailable { path: PathBuf, why: String },
    #[error("the working directory {} cannot be used: {why}", path.display())]
    WorkingDirectoryUnavailable { path: PathBuf, why: String },
    /// The request ID was used for another request (K02).
    #[error("the request ID belongs to {job}, which asked for something else; use a new request ID")]
    Conflict { job: JobId },
    #[error("there is no attempt {attempt}")]
    UnknownAttempt { attempt: AttemptId },
    /// The transition is not one that the attempt's state has.
    #[error("{attempt} is {state}; `{event}` cannot follow")]
    IllegalTransition { attempt: AttemptId, state: &'static str, event: &'static str },
    /// A runner has, or had, this bundle: it is never given to a second one (K01).
    #[error("{attempt} was launched before; it is never launched again")]
    AlreadyLaunched { attempt: AttemptId },
    #[error("the bundle of {attempt} failed while {doing}")]
    Bundle {
        attempt: AttemptId,
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// Launching failed; that is no proof that nothing started.
    #[error("the runner of {attempt} could not be launched")]
    Launch {
        attempt: AttemptId,
        #[source]
        source: std::io::Error,
    },
    /// A process could not be looked at or signalled.
    #[error("a process failed while {doing}")]
    Process {
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// A row of the registry does not say what it has to.
    #[error("the registry's record of {attempt} is damaged: {why}")]
    Damaged { attempt: AttemptId, why: String },
}

impl Error {
    /// The stable name of the fault.
    pub fn code(&self) -> Code {
        match self {
            Self::Store(error) => error.code(),
            Self::InvalidRequest { .. } => Code::InvalidRequest,
            Self::ExecutableUnavailable { .. } => Code::ExecutableUnavailable,
            Self::WorkingDirectoryUnavailable { .. } => Code::WorkingDirectoryUnavailable,
            Self::Conflict { .. } => Code::IdempotencyConflict,
            Self::UnknownAttempt { .. } => Code::NotFound,
            Self::IllegalTransition { .. } | Self::AlreadyLaunched { .. } => Code::IllegalState,
            Self::Bundle { source, .. } if is_full(source) => Code::StorageFull,
            Self::Bundle { .. } | Self::Launch { .. } | Self::Process { .. } | Self::Damaged { .. } => Code::Internal,
        }
    }

    pub const fn origin(&self) -> Origin {
        match self {
            Self::Launch { .. } | Self::Process { .. } => Origin::Launcher,
            Self::Store(_)
            | Self::InvalidRequest { .. }
            | Self::ExecutableUnavailable { .. }
            | Self::WorkingDirectoryUnavailable { .. }
            | Self::Conflict { .. }
            | Self::UnknownAttempt { .. }
            | Self::IllegalTransition { .. }
            | Self::AlreadyLaunched { .. }
            | Self::Bundle { .. }
            | Self::Damaged { .. } => Origin::Kernel,
        }
    }

    pub const fn commitment(&self) -> Commitment {
        match self {
            Self::InvalidRequest { .. }
            | Self::ExecutableUnavailable { .. }
            | Self::WorkingDirectoryUnavailable { .. }
            | Self::Conflict { .. }
            | Self::UnknownAttempt { .. } => Commitment::NotCommitted,
            Self::Bundle { .. }
            | Self::Launch { .. }
            | Self::IllegalTransition { .. }
            | Self::AlreadyLaunched { .. }
            | Self::Damaged { .. } => Commitment::Committed,
            Self::Store(_) | Self::Process { .. } => Commitment::Unknown,
        }
    }

    pub fn retry(&self) -> RetryClass {
        match self {
            Self::Launch { .. } | Self::Process { .. } | Self::AlreadyLaunched { .. } => RetryClass::ReconcileFirst,
            Self::Store(_) | Self::Bundle { .. } => match self.code().retry() {
                conduit_api::Retry::SameRequest => RetryClass::SameRequest,
                conduit_api::Retry::Never => RetryClass::Never,
            },
            Self::InvalidRequest { .. }
            | Self::ExecutableUnavailable { .. }
            | Self::WorkingDirectoryUnavailable { .. }
            | Self::Conflict { .. }
            | Self::UnknownAttempt { .. }
            | Self::IllegalTransition { .. }
            | Self::Damaged { .. } => RetryClass::Never,
        }
    }

    /// The attempt that the refusal is about, once there is one.
    pub const fn attempt(&self) -> Option<&AttemptId> {
        match self {
            Self::UnknownAttempt { attempt }
            | Self::IllegalTransition { attempt, .. }
            | Self::AlreadyLaunched { attempt }
            | Self::Bundle { attempt, .. }
            | Self::Launch { attempt, .. }
            | Self::Damaged { attempt, .. } => Some(attempt),
            Self::Store(_)
            | Self::InvalidRequest { .. }
            | Self::ExecutableUnavailable { .. }
            | Self::WorkingDirectoryUnavailable { .. }
            | Self::Conflict { .. }
            | Self::Process { .. } => None,
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

impl From<Error> for ApiError {
    /// The code, and the kernel's sentence where it names only what the caller named.
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error.into(),
            Error::Bundle { .. } | Error::Launch { .. } | Error::Process { .. } | Error::Damaged { .. } => {
                Self::new(error.code(), "the kernel failed; see the daemon's log")
            }
            Error::InvalidRequest { .. }
            | Error::ExecutableUnavailable { .. }
            | Error::WorkingDirectoryUnavailable { .. }
            | Error::Conflict { .. }
            | Error::UnknownAttempt { .. }
            | Error::IllegalTransition { .. }
            | Error::AlreadyLaunched { .. } => Self::new(error.code(), error.to_string()),
        }
    }
}

/// Names what was being done to a bundle when a file failed.
pub(crate) fn bundling(attempt: &AttemptId, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    let attempt = attempt.clone();
    move |source| Error::Bundle { attempt, doing, source }
}

/// What the system said about a file, for people, without its path.
pub(crate) fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "it is not there".to_owned(),
        kind => kind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K07
    #[test]
    fn a_failed_launch_says_that_the_operation_is_on_record_and_must_be_looked_at_first() {
        let attempt = AttemptId::from_parts(1, 2);
        let error = Error::Launch { attempt: attempt.clone(), source: std::io::Error::other("x") };
        assert_eq!(error.origin(), Origin::Launcher);
        assert_eq!(error.commitment(), Commitment::Committed);
        assert_eq!(error.retry(), RetryClass::ReconcileFirst);
        assert_eq!(error.attempt(), Some(&attempt));
    }

    /// K07
    #[test]
    fn a_full_disk_keeps_its_name_and_may_be_tried_again() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = bundling(&AttemptId::from_parts(1, 2), "staging")(full);
        assert_eq!(error.code(), Code::StorageFull);
        assert_eq!(error.retry(), RetryClass::SameRequest);
    }
}
