//! Generations: their rows in the store, and their bytes in owner-only, digest-named files.
//!
//! The store keeps a hash and a redacted snapshot; what an executor is given never enters it (design §9.20).

use conduit_store::{Read, StateDir, digest, named_params};

use crate::error::{Error, Result};
use crate::parse;
use crate::snapshot::Snapshot;

const ACTIVE_NUMBER: &str = "SELECT number FROM generation ORDER BY number DESC LIMIT 1";
const HASH: &str = "SELECT config_hash FROM generation WHERE number = :number";

/// The number of the active generation; `None` before the first.
pub(crate) fn active_number(read: &Read<'_>) -> Result<Option<i64>> {
    Ok(read.optional("reading the active generation", ACTIVE_NUMBER, [], |row| row.get(0))?)
}

/// Loads generation `number`: its bytes, verified against its hash, parsed without asking a registry.
///
/// Error: `state_unavailable` when there is no such generation, or its bytes are missing or altered.
pub(crate) fn load(read: &Read<'_>, state: &StateDir, number: i64) -> Result<Snapshot> {
    let damaged = |why: String| Error::GenerationDamaged { generation: number, why };
    let bytes = bytes(read, state, number)?;
    let checked = parse::trusted(&bytes).map_err(|faults| damaged(Error::Invalid(faults).to_string()))?;
    Ok(Snapshot::new(number, checked))
}

/// The bytes of generation `number`, verified against its hash. Error: as for [`load`].
pub(crate) fn bytes(read: &Read<'_>, state: &StateDir, number: i64) -> Result<Vec<u8>> {
    let damaged = |why: &str| Error::GenerationDamaged { generation: number, why: why.to_owned() };
    let hash: Option<String> =
        read.optional("reading a generation", HASH, named_params! { ":number": number }, |row| row.get(0))?;
    let hash = hash.ok_or_else(|| damaged("the store has no such generation"))?;
    let bytes = std::fs::read(state.generation_file(&hash)).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => damaged("its bytes are missing"),
        _ => damaged("its bytes cannot be read"),
    })?;
    if digest::hex(&digest::sha256(&bytes)) != hash {
        return Err(damaged("its bytes were altered"));
    }
    Ok(bytes)
}
