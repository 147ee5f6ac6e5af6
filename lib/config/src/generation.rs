//! Generations: their rows in the store, and their bytes in owner-only, digest-named files.
//!
//! The store keeps a hash and a redacted snapshot; what an executor is given does not enter it
//! here. The kernel keeps it from a segment's admission to its end.

use conduit_api::ScopeId;
use conduit_store::{Now, Read, StateDir, Write, column_id, digest, named_params};

use crate::catalogue::Catalogue;
use crate::error::{Error, Result};
use crate::model::Config;
use crate::parse::{self, Checked};
use crate::recorded;
use crate::snapshot::Snapshot;

const ACTIVE_NUMBER: &str = "SELECT number FROM generation ORDER BY number DESC LIMIT 1";
const HASH: &str = "SELECT config_hash FROM generation WHERE number = :number";
const INSERT: &str = "
    INSERT INTO generation (number, config_hash, snapshot, published_at_us, published_by)
    VALUES (:number, :hash, :snapshot, :now, :actor)";
const SCOPES: &str = "SELECT id FROM scope ORDER BY id";
const SCOPE_DELETE: &str = "DELETE FROM scope WHERE id = :id";
const SCOPE_UPSERT: &str = "
    INSERT INTO scope (id, enabled, generation, created_at_us, updated_at_us)
    VALUES (:id, :enabled, :number, :now, :now)
    ON CONFLICT (id) DO UPDATE SET enabled = :enabled, generation = :number, updated_at_us = :now";
/// Works that have not ended, from the counts, so that it costs the same at any size.
const UNFINISHED: &str = "
    SELECT coalesce(sum(n), 0) FROM work_count
     WHERE scope_id = :id AND state NOT IN ('succeeded', 'failed', 'cancelled')";

/// The number of the active generation; `None` before the first.
pub(crate) fn active_number(read: &Read<'_>) -> conduit_store::Result<Option<i64>> {
    read.optional("reading the active generation", ACTIVE_NUMBER, [], |row| row.get(0))
}

/// Loads generation `number`. Error: as for [`committed`].
pub(crate) fn load(read: &Read<'_>, state: &StateDir, number: i64, catalogue: &Catalogue) -> Result<Snapshot> {
    Ok(Snapshot::new(number, committed(read, state, number, catalogue)?))
}

/// Reads generation `number`: its bytes, verified against its hash, its lists resolved against `catalogue`, and the
/// playbooks that were recorded for its bindings. No executor is asked.
///
/// Errors: `state_unavailable` when there is no such generation, or its bytes are missing or altered; `internal` when
/// they cannot be read at this moment.
pub(crate) fn committed(read: &Read<'_>, state: &StateDir, number: i64, catalogue: &Catalogue) -> Result<Checked> {
    let mut checked = parse::trusted(&bytes(read, state, number)?, catalogue)
        .map_err(|faults| Error::GenerationDamaged { generation: number, why: Error::Invalid(faults).to_string() })?;
    recorded::apply(&mut checked.config, recorded::read(read, number)?);
    Ok(checked)
}

/// The bytes of generation `number`, verified against its hash. Error: as for [`committed`].
pub(crate) fn bytes(read: &Read<'_>, state: &StateDir, number: i64) -> Result<Vec<u8>> {
    let damaged = |why: &str| Error::GenerationDamaged { generation: number, why: why.to_owned() };
    let hash: Option<String> =
        read.optional("reading a generation", HASH, named_params! { ":number": number }, |row| row.get(0))?;
    let hash = hash.ok_or_else(|| damaged("the store has no such generation"))?;
    let bytes = std::fs::read(state.generation_file(&hash)).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => damaged("its bytes are missing"),
        // What cannot be read at this moment is not damaged: nothing may be put in its place (C05).
        _ => conduit_store::error::doing_io("reading the bytes of a generation")(error).into(),
    })?;
    if digest::hex(&digest::sha256(&bytes)) != hash {
        return Err(damaged("its bytes were altered"));
    }
    Ok(bytes)
}

/// A generation about to become active; its bytes are on disk already.
pub(crate) struct Publication<'p> {
    pub candidate: &'p Checked,
    /// The generation that has to be active still.
    pub replaces: Option<i64>,
    /// Its configuration, when that can be read: a scope that is the same in both keeps its row.
    pub previous: Option<&'p Config>,
    pub actor: &'p str,
    pub now: Now,
}

/// Makes a generation active, with its scopes, and returns its number.
///
/// Errors: `generation_conflict` when another became active meanwhile; `scope_in_use`.
pub(crate) fn publish(tx: &Write<'_>, publication: &Publication<'_>) -> Result<i64> {
    let Publication { candidate, replaces, previous, actor, now } = *publication;
    let current = active_number(tx)?;
    if current != replaces {
        let (expected, current) = (replaces.unwrap_or_default(), current.unwrap_or_default());
        return Err(Error::GenerationConflict { expected, current });
    }
    refuse_scope_in_use(tx, &candidate.config)?;
    let number = current.unwrap_or_default() + 1;
    let snapshot = recorded::snapshot(&candidate.config)?;
    tx.execute(
        "publishing a generation",
        INSERT,
        named_params! { ":number": number, ":hash": candidate.hash, ":snapshot": snapshot, ":now": now.wall.0, ":actor": actor },
    )?;
    for id in removed_scopes(tx, &candidate.config)? {
        tx.execute("removing a scope", SCOPE_DELETE, named_params! { ":id": id.as_str() })?;
    }
    for (id, scope) in &candidate.config.scopes {
        if previous.and_then(|config| config.scopes.get(id)) != Some(scope) {
            tx.execute(
                "recording a scope",
                SCOPE_UPSERT,
                named_params! { ":id": id.as_str(), ":enabled": scope.enabled, ":number": number, ":now": now.wall.0 },
            )?;
        }
    }
    Ok(number)
}

/// Error: `scope_in_use` when a scope that `config` no longer has has Work which has not ended.
pub(crate) fn refuse_scope_in_use(read: &Read<'_>, config: &Config) -> Result<()> {
    for id in removed_scopes(read, config)? {
        let works: i64 =
            read.one("counting the Work of a scope", UNFINISHED, named_params! { ":id": id.as_str() }, |row| {
                row.get(0)
            })?;
        if works > 0 {
            return Err(Error::ScopeInUse { scope: id.to_string(), works });
        }
    }
    Ok(())
}

fn removed_scopes(read: &Read<'_>, config: &Config) -> Result<Vec<ScopeId>> {
    let known: Vec<ScopeId> = read.all("reading the scopes", SCOPES, [], |row| column_id(row, "id"))?;
    Ok(known.into_iter().filter(|id| !config.scopes.contains_key(id)).collect())
}
