//! Toolsets only grow: an operation that a release once granted by name of a role stays granted (S04).

use super::registration::Toolset;

/// A newer version of a toolset lost an operation, or moved the version in which one joined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the toolset `{toolset}` had `{operation}` since {since}, and has to keep it")]
pub struct Shrunk {
    pub toolset: String,
    pub operation: String,
    pub since: conduit_api::Version,
}

/// Whether `new` has all that `old` had, with the versions that it recorded. Error: the first operation that it lost.
pub fn grown_from(old: &Toolset, new: &Toolset) -> Result<(), Shrunk> {
    match old.operations.iter().find(|member| !new.operations.contains(member)) {
        None => Ok(()),
        Some(lost) => Err(Shrunk { toolset: old.name.clone(), operation: lost.operation.clone(), since: lost.since }),
    }
}
