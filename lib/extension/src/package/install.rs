//! Installing and removing packages: what is checked, and how bytes and row come to say the same.
//!
//! The bytes of a package lie in `packages/<name>/<digest>`, so another version never replaces what runs: it is copied
//! beside it, the row names it in one commit, and then the rest goes. A crash leaves at most bytes that no row names.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use conduit_api::{ApiError, Code, Version};
use conduit_store::digest::{Sha256Digest, hex};
use conduit_store::{Now, StateDir};
use conduit_toolbelt::packages::Installed;
use conduit_toolbelt::registry::{OperationSpec, Registration, Registry, SettingsSchema, grown_from};
use serde_json::json;

use super::manifest::{self, MANIFEST_BYTES_MAX, Manifest, refuse};
use super::tree;

/// A package that may be installed.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub manifest: Manifest,
    text: String,
    pub digest: Sha256Digest,
    /// The version that it takes the place of.
    pub replaces: Option<Version>,
}

/// Where the bytes of a package lie.
pub fn place(state: &Path, name: &str, digest: &Sha256Digest) -> PathBuf {
    home(state, name).join(hex(digest))
}

fn home(state: &Path, name: &str) -> PathBuf {
    state.join("packages").join(name)
}

/// Looks at the package in the directory `source` (T16, S04, G01).
///
/// Errors: `package_refused`; `invalid` and `conflict` for what it registers beside `release` and what is `installed`.
pub fn check(source: &Path, release: &[Registration], installed: &[Installed]) -> Result<Candidate, ApiError> {
    if !source.is_absolute() {
        return Err(refuse("its directory is named by an absolute path"));
    }
    let digest = tree::digest(source).map_err(refuse)?;
    let bytes = std::fs::read(source.join(manifest::FILE))
        .map_err(|error| refuse(format!("{} cannot be read: {}", manifest::FILE, error.kind())))?;
    let manifest = Manifest::read(bytes.get(..MANIFEST_BYTES_MAX + 1).unwrap_or(&bytes))?;
    let program = source.join(&manifest.program.path);
    let executable = std::fs::symlink_metadata(&program).is_ok_and(|meta| {
        use std::os::unix::fs::MetadataExt as _;
        meta.is_file() && meta.mode() & 0o100 != 0
    });
    if !executable {
        return Err(refuse("`program.path` is no executable file of the package"));
    }
    let registration = manifest.registration();
    check_schemas(&registration)?;
    let others = installed.iter().filter(|other| other.name != manifest.name).map(|other| other.registration.clone());
    let all = release.iter().cloned().chain(others).chain([registration]).collect();
    let (_, refused) = Registry::new(all);
    if let Some(fault) = refused.into_iter().find(|refused| refused.registration == manifest.name) {
        return Err(ApiError::new(fault.code(), fault.to_string()));
    }
    let older = installed.iter().find(|older| older.name == manifest.name && older.digest != digest);
    if let Some(older) = older {
        check_growth(older, &manifest)?;
    }
    let text = String::from_utf8(bytes).map_err(|_| refuse("its manifest is not UTF-8"))?;
    Ok(Candidate { replaces: older.map(|older| older.version), manifest, text, digest })
}

/// Every schema is one.
fn check_schemas(registration: &Registration) -> Result<(), ApiError> {
    if let Some(schema) = &registration.settings
        && let Some(why) = SettingsSchema::new(schema.clone()).fault()
    {
        return Err(refuse(format!("the schema of its settings cannot be used: {why}")));
    }
    let mut specs = registration.operations.clone();
    let actions = registration.actions.iter().cloned();
    specs.extend(actions.map(|action| OperationSpec::new(action.name, action.summary, action.input)));
    let alone =
        Registry::new(vec![Registration { operations: specs.clone(), actions: Vec::new(), ..registration.clone() }]).0;
    for spec in &specs {
        let Some(known) = alone.operation(&spec.name) else { continue }; // what it breaks is told by the registry
        if let Err(why) = known.violations(&json!({})) {
            return Err(refuse(format!("the input schema of `{}` cannot be used: {why}", spec.name)));
        }
    }
    for spec in &registration.executors {
        if let Some(why) = SettingsSchema::new(spec.config.clone()).fault() {
            return Err(refuse(format!("the schema of `config` of `{}` cannot be used: {why}", spec.name)));
        }
    }
    Ok(())
}

/// A newer version has every toolset of the older one, each with all that it had (S04).
fn check_growth(older: &Installed, newer: &Manifest) -> Result<(), ApiError> {
    if newer.version <= older.version {
        let (new, old) = (newer.version, older.version);
        return Err(refuse(format!("{new} is not newer than {old}, which is installed; remove that first")));
    }
    for old in &older.registration.toolsets {
        match newer.provides.toolsets.iter().find(|new| new.name == old.name) {
            None => return Err(refuse(format!("it has no toolset `{}`, which {} has", old.name, older.version))),
            Some(new) => grown_from(old, new).map_err(refuse)?,
        }
    }
    Ok(())
}

impl Candidate {
    /// Copies the bytes to their place, unless they are there. Error: `package_refused` when they are not the ones that
    /// were looked at; `storage_full`, `state_unavailable`.
    pub fn copy(&self, state: &StateDir, source: &Path) -> Result<(), ApiError> {
        let home = home(state.path(), &self.manifest.name);
        let unwritten = |error: &std::io::Error| {
            let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
            let code = if full { Code::StorageFull } else { Code::StateUnavailable };
            ApiError::new(code, format!("the package cannot be written to the state directory: {}", error.kind()))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&home).map_err(|error| unwritten(&error))?;
        let target = place(state.path(), &self.manifest.name, &self.digest);
        if tree::digest(&target).is_ok_and(|there| there == self.digest) {
            return Ok(());
        }
        tree::remove(&target).map_err(|error| unwritten(&error))?;
        let coming = home.join("coming");
        tree::remove(&coming).map_err(|error| unwritten(&error))?;
        let copied = match tree::copy(source, &coming) {
            Ok(copied) if copied == self.digest => Ok(()),
            Ok(_) => Err(refuse("its files changed while it was installed")),
            Err(tree::Fault::Io { source, .. }) => Err(unwritten(&source)),
            Err(other) => Err(refuse(other)),
        };
        if let Err(refused) = copied {
            // A part of a package is of no use, and may be what fills the disk.
            tree::remove(&coming).map_err(|error| unwritten(&error))?;
            return Err(refused);
        }
        let settled = std::fs::rename(&coming, &target).and_then(|()| std::fs::File::open(&home)?.sync_all());
        settled.map_err(|error| unwritten(&error))
    }

    /// The row, once the bytes are in their place.
    pub fn installed(&self, actor: &str, now: Now) -> Installed {
        Installed {
            name: self.manifest.name.clone(),
            version: self.manifest.version,
            manifest: self.text.clone(),
            registration: self.manifest.registration(),
            digest: self.digest,
            installed_at: now.wall,
            installed_by: actor.to_owned(),
            failing: None,
        }
    }
}

/// Removes the bytes of `name` that no row names: all of them, or all but those of `kept`. What cannot be removed is told,
/// and is in nobody's way.
pub fn clear(state: &StateDir, name: &str, kept: Option<&Sha256Digest>) {
    let home = home(state.path(), name);
    let kept = kept.map(|digest| place(state.path(), name, digest));
    let entries = std::fs::read_dir(&home).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(|path| Some(path) != kept.as_ref()) {
        if let Err(error) = tree::remove(&path) {
            tracing::warn!(package = name, %error, "old bytes of a package stay");
        }
    }
    if kept.is_none()
        && let Err(error) = tree::remove(&home)
    {
        tracing::warn!(package = name, %error, "the directory of a package stays");
    }
}
