//! What can go wrong with a configuration and its generations.

use std::path::PathBuf;

use conduit_api::error::{Diagnostic, with_causes};
use conduit_api::{ApiError, Code};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the configuration has faults: {}", list(.0))]
    Invalid(Vec<Diagnostic>),
    #[error("the configuration file {} has faults: {}", path.display(), list(diagnostics))]
    FileInvalid { path: PathBuf, diagnostics: Vec<Diagnostic> },
    #[error("generation {current} is active, not {expected}; read the configuration again and repeat the change")]
    GenerationConflict { expected: i64, current: i64 },
    #[error(
        "the scope `{scope}` has Work that has not ended ({works} in all); finish or cancel it before the scope goes"
    )]
    ScopeInUse { scope: String, works: i64 },
    #[error("the configuration file {} cannot be used while {doing}", path.display())]
    File {
        path: PathBuf,
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "the configuration file {} is mounted by itself and cannot be replaced; mount its directory instead",
        path.display()
    )]
    FileMounted { path: PathBuf },
    #[error("the value cannot be put there: {why}")]
    NoPlace { why: String },
    #[error(
        "the configuration file has changes that were not applied; apply it with `open-conduit config apply`, or undo them first"
    )]
    FileDiffers,
    #[error("no generation is active yet; start the scheduler on this state directory first")]
    NoGeneration,
    #[error("generation {generation} cannot be used: {why}")]
    GenerationDamaged { generation: i64, why: String },
    #[error("generation {generation} cannot be used ({committed}), nor can the configuration file {} ({file}); repair the file and start again", path.display())]
    NothingUsable { generation: i64, committed: String, path: PathBuf, file: String },
    #[error(transparent)]
    Store(#[from] conduit_store::Error),
}

impl Error {
    /// The stable name of the fault.
    pub const fn code(&self) -> Code {
        match self {
            Self::Invalid(_) | Self::FileInvalid { .. } | Self::NothingUsable { .. } => Code::InvalidConfig,
            Self::GenerationConflict { .. } => Code::GenerationConflict,
            Self::ScopeInUse { .. } => Code::ScopeInUse,
            Self::File { .. } | Self::FileMounted { .. } => Code::ConfigFileUnavailable,
            Self::NoPlace { .. } => Code::InvalidRequest,
            Self::FileDiffers => Code::ConfigFileDiffers,
            Self::NoGeneration => Code::Unavailable,
            Self::GenerationDamaged { .. } => Code::StateUnavailable,
            Self::Store(error) => error.code(),
        }
    }

    /// What a caller over a socket is told: no path that it did not name, no text of the system.
    pub fn to_api(&self) -> ApiError {
        let message = match self {
            Self::Invalid(diagnostics) | Self::FileInvalid { diagnostics, .. } => {
                let message = "the configuration has faults; nothing was changed";
                let error = ApiError::new(self.code(), message);
                return ApiError { diagnostics: diagnostics.clone(), ..error };
            }
            Self::Store(error) => return error.to_api(),
            Self::GenerationConflict { .. }
            | Self::ScopeInUse { .. }
            | Self::NoPlace { .. }
            | Self::FileDiffers
            | Self::NoGeneration => self.to_string(),
            Self::File { doing, .. } => {
                format!(
                    "the configuration file cannot be used while {doing}; see the log, the generation did not change"
                )
            }
            Self::FileMounted { .. } => {
                "the configuration file is mounted by itself and cannot be replaced; mount its directory instead".into()
            }
            Self::GenerationDamaged { .. } | Self::NothingUsable { .. } => {
                "the active generation cannot be used; restart the scheduler, its log says why".into()
            }
        };
        ApiError::new(self.code(), message)
    }

    /// What ends a start, in whole, for the log of the program: paths and causes too.
    pub fn at_start(&self) -> ApiError {
        let message = match self {
            Self::Store(_) => self.to_string(), // it says its causes itself
            _ => with_causes(self),
        };
        ApiError { message, ..self.to_api() }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        error.to_api()
    }
}

/// The first faults in one line, for logs and terminals.
fn list(diagnostics: &[Diagnostic]) -> String {
    const SHOWN_MAX: usize = 8;
    let mut lines: Vec<String> =
        diagnostics.iter().take(SHOWN_MAX).map(|d| format!("{} at `{}` ({})", d.code, d.pointer, d.remedy)).collect();
    if diagnostics.len() > SHOWN_MAX {
        lines.push(format!("and {} more", diagnostics.len() - SHOWN_MAX));
    }
    lines.join("; ")
}
