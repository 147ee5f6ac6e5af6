//! Packages: what is installed, and putting one in or out (X01).
//!
//! They go through this server rather than through the state directory by hand: it has the operator's role and name, and one
//! writer decides. It runs as the operator's own user on the same machine, so a path says all that a copy of the bytes would.

use std::path::Path;
use std::rc::Rc;

use conduit_api::views::{PackageFailure, PackageLimits, PackageRequest, PackageView, Page};
use conduit_api::{Code, Version};
use conduit_config::ConfigService;
use conduit_daemon::http::Reply;
use conduit_extension::package::install::{self, Candidate};
use conduit_extension::package::manifest::Manifest;
use conduit_store::Clock;
use conduit_store::digest::hex;
use conduit_toolbelt::packages::{self, Installed};
use conduit_toolbelt::registry::Registration;

use super::Nothing;
use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::{Active, Host};

/// Every installed package. There are few, so there is one page.
pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    ask.page("packages", &[])?;
    let items = host.read(|r, active| {
        packages::all(r)?.iter().map(|package| view(package, active.enables(r, &package.name)?)).collect::<Result<_>>()
    })?;
    Ok(Reply::json(200, &Page::<PackageView> { items, next: None }))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let name: String = ask.id("package")?;
    let found = host.read(|r, active| {
        let enabled = active.enables(r, &name)?;
        packages::find(r, &name)?.map(|package| view(&package, enabled)).transpose()
    })?;
    Ok(Reply::json(200, &found.ok_or_else(|| Error::not_found("package"))?))
}

/// Whether the package in a directory would be installed, and what it is. Nothing is changed.
///
/// Errors: `package_refused`, `invalid`, `conflict`.
pub(crate) fn check(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: PackageRequest = ask.body()?;
    let candidate = candidate(host, &request)?;
    let enabled = host.read(|r, active| active.enables(r, &candidate.manifest.name))?;
    let package = candidate.installed(&ask.operator.actor(), Clock.now());
    let replaces = candidate.replaces;
    let shown = PackageView { installed_at: None, installed_by: None, replaces, ..view(&package, enabled)? };
    Ok(Reply::json(200, &shown))
}

/// Installs the package in a directory. What is installed already, byte by byte, is left as it is.
///
/// Errors: those of [`check`]; `package_in_use` when another version is enabled, or the active generation names what this one
/// lacks; `storage_full`.
pub(crate) fn install(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request: PackageRequest = ask.body()?;
    let candidate = candidate(host, &request)?;
    let name = candidate.manifest.name.clone();
    if host.store.read(|r| packages::find(r, &name))?.is_none_or(|known| known.digest != candidate.digest) {
        host.read(|r, active| refuse_in_use(r, active, &name))?;
    }
    candidate.copy(&host.state, Path::new(&request.path))?;
    let new = candidate.installed(&ask.operator.actor(), Clock.now());
    let config = Rc::clone(&host.config);
    let installed = host.write(|tx, active| {
        let known = packages::find(tx, &name)?;
        if let Some(known) = known.as_ref().filter(|known| known.digest == new.digest) {
            return Ok(known.clone());
        }
        refuse_in_use(tx, active, &name)?;
        if known.is_some() {
            refuse_named(tx, &config, &name, Some(new.registration.clone()))?;
        }
        packages::put(tx, &new)?;
        Ok(new)
    })?;
    install::clear(&host.state, &name, Some(&installed.digest));
    host.refresh()?;
    let enabled = host.read(|r, active| active.enables(r, &name))?;
    let shown = PackageView { replaces: candidate.replaces, ..view(&installed, enabled)? };
    Ok(Reply::json(200, &shown))
}

/// Removes a package. Errors: `not_found`; `package_in_use` while a generation in use enables it, or the active one names
/// anything of it.
pub(crate) fn remove(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let name: String = ask.id("package")?;
    let Nothing {} = ask.body()?;
    let config = Rc::clone(&host.config);
    let removed = host.write(|tx, active| {
        let found = packages::find(tx, &name)?.ok_or_else(|| Error::not_found("package"))?;
        refuse_in_use(tx, active, &name)?;
        refuse_named(tx, &config, &name, None)?;
        packages::remove(tx, &name)?;
        Ok(found)
    })?;
    install::clear(&host.state, &name, None);
    host.refresh()?;
    Ok(Reply::json(200, &view(&removed, false)?))
}

/// Since when the package cannot be used, if it cannot.
pub(crate) fn failure(package: &Installed) -> Option<PackageFailure> {
    let (since, why) = package.failing.clone()?;
    Some(PackageFailure { name: package.name.clone(), since, why })
}

fn candidate(host: &mut Host, request: &PackageRequest) -> Result<Candidate> {
    let installed = host.store.read(packages::all)?;
    let candidate = install::check(Path::new(&request.path), &conduit_release::bundled(), &installed)?;
    if request.digest.as_ref().is_some_and(|looked_at| *looked_at != hex(&candidate.digest)) {
        return Err(Error::new(
            Code::PackageRefused,
            "the package is refused: its files changed since it was looked at",
        ));
    }
    Ok(candidate)
}

/// Neither the active generation nor one that an execution which has not ended is pinned to may enable the package: its
/// operations and gates do not change under who uses them.
fn refuse_in_use(r: &conduit_store::Read<'_>, active: &mut Active<'_>, name: &str) -> Result<()> {
    if active.enables(r, name)? {
        let message =
            format!("the active generation enables `{name}`; disable it in `extensions`, and apply that first");
        return Err(Error::new(Code::PackageInUse, message));
    }
    for generation in packages::pinned_generations(r)? {
        if active.pinned(r, generation)?.registers(name) {
            let message =
                format!("executions that have not ended may use `{name}`; cancel them, or wait for their end");
            return Err(Error::new(Code::PackageInUse, message));
        }
    }
    Ok(())
}

/// The active configuration has to stay one with `replacement` in the place of the package, or with nothing there: it may name
/// what it does not enable, and the next start holds all of it against what is installed.
fn refuse_named(
    r: &conduit_store::Read<'_>,
    config: &ConfigService,
    name: &str,
    replacement: Option<Registration>,
) -> Result<()> {
    let others = packages::all(r)?.into_iter().filter(|package| package.name != name);
    let registry = conduit_release::registry_with(others.map(|other| other.registration).chain(replacement).collect());
    let faults = config.faults_under(r, &conduit_release::references(&registry))?;
    let Some(first) = faults.first() else { return Ok(()) };
    let (count, pointer) = (faults.len(), &first.pointer);
    let message = format!(
        "the active generation names what `{name}` has, in {count} places, the first at {pointer}; take that out and apply it first"
    );
    Err(Error::new(Code::PackageInUse, message))
}

fn view(package: &Installed, enabled: bool) -> Result<PackageView> {
    let manifest = Manifest::read(package.manifest.as_bytes())?;
    let registration = &package.registration;
    let version: Version = package.version;
    Ok(PackageView {
        name: package.name.clone(),
        version,
        summary: registration.summary.clone(),
        operations: registration.operations.iter().map(|spec| spec.name.clone()).collect(),
        toolsets: registration.toolsets.iter().map(|toolset| toolset.name.clone()).collect(),
        actions: registration.actions.iter().map(|action| action.name.clone()).collect(),
        executors: registration.executors.iter().map(|executor| executor.name.clone()).collect(),
        permissions: manifest.needs.iter().map(|permission| permission.as_str().to_owned()).collect(),
        limits: PackageLimits {
            memory_mib: manifest.limits.memory_mib,
            files: manifest.limits.files,
            file_mib: manifest.limits.file_mib,
        },
        digest: hex(&package.digest),
        enabled,
        installed_at: Some(package.installed_at),
        installed_by: Some(package.installed_by.clone()),
        replaces: None,
        failing: failure(package),
    })
}
