//! The programs that `up` keeps running, and where they are.

use std::path::{Path, PathBuf};

use conduit_api::places::Places;
use conduit_api::{ApiError, Code};

/// What a program of the suite is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Scheduler,
    Endpointd,
    Management,
}

impl Role {
    /// In the order in which they are started.
    pub const ALL: [Self; 3] = [Self::Endpointd, Self::Scheduler, Self::Management];

    /// File name of the program.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Scheduler => "open-conduitd",
            Self::Endpointd => "open-conduit-endpointd",
            Self::Management => "open-conduit-management",
        }
    }

    /// Name under which its socket is passed.
    pub const fn descriptor(self) -> &'static str {
        match self {
            Self::Scheduler => "doorbell",
            Self::Endpointd => "endpointd",
            Self::Management => "management",
        }
    }

    /// Whether it is started by the first connection to its socket and may end by itself.
    pub const fn on_demand(self) -> bool {
        matches!(self, Self::Management)
    }

    /// The socket that is bound for it.
    pub fn socket(self, places: &Places) -> PathBuf {
        match self {
            Self::Scheduler => places.doorbell_socket(),
            Self::Endpointd => places.endpointd_socket(),
            Self::Management => places.management_socket(),
        }
    }

    /// Where it says that it is ready. No longer than the longest socket, so that the path budget is the same.
    pub fn notify_socket(self, places: &Places) -> PathBuf {
        places.runtime.join(match self {
            Self::Scheduler => "scheduler.note",
            Self::Endpointd => "endpointd.note",
            Self::Management => "management.note",
        })
    }
}

/// A folder that holds the suite's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The folder of this process's own program: the suite is installed, and built, in one folder.
    ///
    /// `unavailable` when the own program cannot be found; otherwise as [`Programs::within`].
    pub fn beside_own() -> Result<Self, ApiError> {
        let own = std::env::current_exe().map_err(|error| {
            ApiError::new(Code::Unavailable, format!("this program cannot tell where it is: {error}"))
        })?;
        Self::within(own.parent().unwrap_or(Path::new("/")))
    }

    /// Refuses a folder in which a program is missing with `executable_unavailable`, naming it.
    pub fn within(folder: &Path) -> Result<Self, ApiError> {
        let missing: Vec<&str> =
            Role::ALL.iter().map(|role| role.program()).filter(|name| !folder.join(name).is_file()).collect();
        if missing.is_empty() {
            return Ok(Self { folder: folder.to_owned() });
        }
        Err(ApiError::new(
            Code::ExecutableUnavailable,
            format!(
                "{} is missing in {}; install the whole suite in one folder (`cargo build` makes all of it)",
                missing.join(", "),
                folder.display()
            ),
        ))
    }

    pub fn path(&self, role: Role) -> PathBuf {
        self.folder.join(role.program())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("open-conduitd"), "").unwrap();
        let error = Programs::within(dir.path()).unwrap_err();
        assert_eq!(error.code, Code::ExecutableUnavailable);
        assert!(error.message.starts_with("open-conduit-endpointd, open-conduit-management is missing"), "{error}");
    }
}
