//! What can go wrong with the store and the state directory.

use std::path::{Path, PathBuf};

use conduit_api::{ApiError, Code};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The segment has declared; its authority is released (T06).
    #[error("the segment has declared; its authority is released")]
    AuthorityReleased,
    /// The lease guard did not hold; callers learn no more, logs do.
    #[error("the lease does not hold: {why}")]
    LeaseLost { why: &'static str },
    #[error("the state directory {} cannot be used while {doing}", path.display())]
    StateUnavailable {
        path: PathBuf,
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{} {why}", path.display())]
    StateUnsafe { path: PathBuf, why: &'static str },
    #[error("{what} is locked by another process")]
    Locked { what: String },
    #[error("the store has schema {found}, this release knows {known}; use the newer release")]
    Newer { found: i64, known: i64 },
    #[error("the store cannot be read while {doing}")]
    Unreadable {
        doing: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    #[error("the file of the store cannot be opened or written while {doing}")]
    Unopenable {
        doing: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    #[error("the disk is full while {doing}; nothing was written")]
    Full { doing: &'static str },
    #[error("the store was busy too long while {doing}; nothing was written")]
    Busy { doing: &'static str },
    #[error("the store failed while {doing}")]
    Sql {
        doing: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    #[error("a file of the store failed while {doing}")]
    File {
        doing: &'static str,
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The stable name of the fault.
    pub const fn code(&self) -> Code {
        match self {
            Self::AuthorityReleased => Code::AuthorityReleased,
            Self::LeaseLost { .. } => Code::Forbidden,
            Self::StateUnavailable { .. } | Self::Unopenable { .. } => Code::StateUnavailable,
            Self::StateUnsafe { .. } => Code::StateUnsafe,
            Self::Locked { .. } => Code::StateLocked,
            Self::Newer { .. } => Code::StoreNewer,
            Self::Unreadable { .. } => Code::StoreUnreadable,
            Self::Full { .. } => Code::StorageFull,
            Self::Busy { .. } => Code::StoreBusy,
            Self::Sql { .. } | Self::File { .. } => Code::Internal,
        }
    }

    /// What a caller over a socket is told: the code, and a sentence without inside paths or backend text.
    pub fn to_api(&self) -> ApiError {
        let message = match self {
            Self::AuthorityReleased => "the segment has declared a wait or an outcome; its authority is released",
            Self::LeaseLost { .. } => return ApiError::forbidden(),
            Self::StateUnavailable { .. } | Self::Unopenable { .. } => {
                "the state directory cannot be used; see the daemon's log"
            }
            Self::StateUnsafe { .. } => "the state directory is unsafe; see the daemon's log",
            Self::Locked { .. } => "another process holds the state directory; try again when it has ended",
            Self::Newer { .. } => "the store was written by a newer release; use that release",
            Self::Unreadable { .. } => "the store cannot be read; see the daemon's log",
            Self::Full { .. } => "the disk is full; free some space and try again, nothing was written",
            Self::Busy { .. } => "the store is busy; try again, nothing was written",
            Self::Sql { .. } | Self::File { .. } => "the store failed; see the daemon's log, nothing was written",
        };
        ApiError::new(self.code(), message)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        error.to_api()
    }
}

/// Names what was being done when SQLite failed: `map_err(doing("parking an execution"))`.
pub fn doing(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> Error {
    move |source| {
        use rusqlite::ErrorCode;
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Error::Full { doing },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Busy { doing },
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Error::Unreadable { doing, source },
            Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                Error::Unopenable { doing, source }
            }
            _ => Error::Sql { doing, source },
        }
    }
}

/// Names what was being done when a file failed.
pub fn doing_io(doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| if is_full(&source) { Error::Full { doing } } else { Error::File { doing, source } }
}

/// Names what was being done when `path`, a part of the state directory, failed.
pub(crate) fn doing_at(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| {
        if is_full(&source) {
            Error::Full { doing }
        } else {
            Error::StateUnavailable { path: path.to_owned(), doing, source }
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_full_disk_has_its_name_wherever_it_is_met() {
        for full in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            assert_eq!(doing_io("testing")(full.into()).code(), Code::StorageFull);
            assert_eq!(doing_at(Path::new("/s"), "testing")(full.into()).code(), Code::StorageFull);
        }
        assert_eq!(doing_at(Path::new("/s"), "testing")(io::ErrorKind::NotFound.into()).code(), Code::StateUnavailable);
    }

    #[test]
    fn only_a_store_that_is_none_or_is_damaged_is_unreadable() {
        let of = |code| doing("testing")(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)).code();
        assert_eq!(of(rusqlite::ffi::SQLITE_NOTADB), Code::StoreUnreadable);
        assert_eq!(of(rusqlite::ffi::SQLITE_CORRUPT), Code::StoreUnreadable);
        assert_eq!(of(rusqlite::ffi::SQLITE_CANTOPEN), Code::StateUnavailable);
        assert_eq!(of(rusqlite::ffi::SQLITE_READONLY), Code::StateUnavailable);
        assert_eq!(of(rusqlite::ffi::SQLITE_FULL), Code::StorageFull);
    }
}
