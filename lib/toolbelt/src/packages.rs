//! Installed packages, as the store has them (X01): what each registers, and the digest of its bytes.
//!
//! Rows only. What a package is, how it is installed and how it runs is `conduit_extension::package`.

use conduit_api::{UnixMicros, Version};
use conduit_store::digest::Sha256Digest;
use conduit_store::{Now, Read, Result, Row, RowResult, Write, column_id, column_json, named_params};

use crate::registry::Registration;

/// One installed package.
#[derive(Debug, Clone, PartialEq)]
pub struct Installed {
    pub name: String,
    pub version: Version,
    /// The manifest as it was installed: JSON.
    pub manifest: String,
    /// What the manifest registers.
    pub registration: Registration,
    /// Digest of every file of the package.
    pub digest: Sha256Digest,
    pub installed_at: UnixMicros,
    /// Who installed it.
    pub installed_by: String,
    /// Since when it cannot be used, and why.
    pub failing: Option<(UnixMicros, String)>,
}

const LIST: &str = "SELECT * FROM package";
const FIND: &str = "SELECT * FROM package WHERE name = :name";
const PUT: &str = "
    INSERT INTO package (name, version, manifest, registration, digest, installed_at_us, installed_by)
    VALUES (:name, :version, :manifest, :registration, :digest, :at, :by)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, manifest = excluded.manifest,
        registration = excluded.registration, digest = excluded.digest, installed_at_us = excluded.installed_at_us,
        installed_by = excluded.installed_by, failing_since_us = NULL, failure = NULL";
const DELETE: &str = "DELETE FROM package WHERE name = :name";
const FAILING: &str = "
    UPDATE package SET failing_since_us = coalesce(failing_since_us, :at), failure = :why
     WHERE name = :name AND digest = :digest";
const RECOVERED: &str = "
    UPDATE package SET failing_since_us = NULL, failure = NULL WHERE name = :name AND failing_since_us IS NOT NULL";
const PINNED: &str = "
    SELECT DISTINCT generation FROM execution WHERE state IN ('claimed', 'running', 'parked', 'orphaned')";

/// Every installed package, in the order of names.
pub fn all(r: &Read<'_>) -> Result<Vec<Installed>> {
    r.all("listing packages", LIST, [], installed)
}

/// The package `name`, if it is installed.
pub fn find(r: &Read<'_>, name: &str) -> Result<Option<Installed>> {
    r.optional("looking a package up", FIND, named_params! { ":name": name }, installed)
}

/// Puts a package on record, in the place of an earlier version.
pub fn put(tx: &Write<'_>, package: &Installed) -> Result<()> {
    // Data that was read from JSON is written as JSON.
    let registration = serde_json::to_string(&package.registration).unwrap_or_default();
    tx.execute(
        "installing a package",
        PUT,
        named_params! {
            ":name": package.name, ":version": package.version.to_string(), ":manifest": package.manifest,
            ":registration": registration, ":digest": package.digest, ":at": package.installed_at.0,
            ":by": package.installed_by,
        },
    )?;
    Ok(())
}

/// Takes a package off the record; `false` when there is none of this name.
pub fn remove(tx: &Write<'_>, name: &str) -> Result<bool> {
    Ok(tx.execute("removing a package", DELETE, named_params! { ":name": name })? == 1)
}

/// Notes that the package with these bytes cannot be used; since when stays what it was.
pub fn failing(tx: &Write<'_>, name: &str, digest: &Sha256Digest, why: &str, now: Now) -> Result<()> {
    let params = named_params! { ":name": name, ":digest": digest, ":why": why, ":at": now.wall.0 };
    tx.execute("noting that a package fails", FAILING, params)?;
    Ok(())
}

/// Notes that a package works.
pub fn recovered(tx: &Write<'_>, name: &str) -> Result<()> {
    tx.execute("noting that a package works", RECOVERED, named_params! { ":name": name })?;
    Ok(())
}

/// The generations that executions which have not ended are pinned to.
pub fn pinned_generations(r: &Read<'_>) -> Result<Vec<i64>> {
    r.all("listing pinned generations", PINNED, [], |row| row.get(0))
}

/// The digests alone, by name: what tells whether anything else is installed now.
pub fn digests(r: &Read<'_>) -> Result<Vec<(String, Sha256Digest)>> {
    r.all("listing packages", LIST, [], |row| Ok((row.get("name")?, row.get("digest")?)))
}

fn installed(row: &Row<'_>) -> RowResult<Installed> {
    let since: Option<i64> = row.get("failing_since_us")?;
    let why: Option<String> = row.get("failure")?;
    Ok(Installed {
        name: row.get("name")?,
        version: column_id(row, "version")?,
        manifest: row.get("manifest")?,
        registration: column_json(row, "registration")?,
        digest: row.get("digest")?,
        installed_at: UnixMicros(row.get("installed_at_us")?),
        installed_by: row.get("installed_by")?,
        failing: since.map(UnixMicros).zip(why),
    })
}
