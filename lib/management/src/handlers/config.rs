//! The configuration: what is active, whether another would do, and making it active (C01, C06).

use std::cell::RefCell;
use std::rc::Rc;

use conduit_api::error::Diagnostic;
use conduit_api::host::HostValidated;
use conduit_api::views::{ConfigReply, ConfigRequest, ConfigSetRequest, ConfigView};
use conduit_api::{Code, UnixMicros};
use conduit_config::{Change, Checked, Edited};
use conduit_daemon::http::Reply;
use conduit_store::digest::Sha256Digest;
use conduit_store::{Clock, Read, named_params};
use conduit_toolbelt::packages;
use serde_json::Value;

use crate::ask::{Ask, invalid};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::routes::Waits;

/// The code of what an extension itself finds wrong with its settings.
const REFUSED_BY_EXTENSION: &str = "refused_by_extension";

/// The active generation, redacted.
pub(crate) fn get(host: &mut Host, _ask: &Ask) -> Result<Reply> {
    let view = host.read(|r, active| {
        let snapshot = active.snapshot(r)?;
        let (published_at, published_by) = published(r, snapshot.generation)?;
        Ok(ConfigView {
            generation: snapshot.generation,
            config_hash: snapshot.hash.clone(),
            published_at,
            published_by,
            config: snapshot.redacted(),
        })
    })?;
    Ok(Reply::json(200, &view))
}

fn published(r: &Read<'_>, generation: i64) -> Result<(UnixMicros, String)> {
    const PUBLISHED: &str = "SELECT published_at_us, published_by FROM generation WHERE number = :number";
    Ok(r.one("reading a generation", PUBLISHED, named_params! { ":number": generation }, |row| {
        Ok((UnixMicros(row.get(0)?), row.get(1)?))
    })?)
}

/// Whether the configuration would be accepted, with every fault or every grant warning that it has (S06). Nothing is changed.
///
/// Errors: `host_unavailable`, `extension_unavailable` when an extension that has to look at its settings cannot be asked.
pub(crate) fn validate<'h>(host: &'h RefCell<Host>, ask: &'h Ask) -> Waits<'h> {
    Box::pin(async move {
        let request = request(ask)?;
        let (generation, checked, settings) = {
            let mut host = host.borrow_mut();
            host.refresh()?;
            let checked = host.config.validate(request.config.get().as_bytes());
            let settings = checked.as_ref().map_or_else(|_| Ok(Vec::new()), |checked| settings(&mut host, checked))?;
            (active_number(&mut host)?, checked, settings)
        };
        let faults = faults(host, ask, &settings).await?;
        let reply = match checked {
            Ok(checked) if faults.is_empty() => ConfigReply {
                valid: true,
                warnings: host.borrow().config.warnings(&checked.config),
                config_hash: Some(checked.hash),
                generation,
                diagnostics: Vec::new(),
            },
            checked => {
                let diagnostics = checked.err().unwrap_or(faults);
                ConfigReply { valid: false, config_hash: None, generation, diagnostics, warnings: Vec::new() }
            }
        };
        Ok(Reply::json(200, &reply))
    })
}

/// The settings of an extension that looks at them itself.
#[derive(Debug, PartialEq)]
struct Settings {
    extension: String,
    /// Of the package's bytes, so that those that were asked are those that get the settings.
    digest: Option<Sha256Digest>,
    config: Value,
}

/// What of a configuration without faults its extensions have to look at: of those that it enables, in the order of names.
fn settings(host: &mut Host, checked: &Checked) -> Result<Vec<Settings>> {
    let installed = host.store.read(packages::digests)?;
    let asked = |name: &str| host.known.registry().registration(name).is_some_and(|one| one.validate);
    let active = checked.config.active.iter().filter(|name| asked(name));
    Ok(active
        .map(|name| Settings {
            extension: name.to_string(),
            digest: installed.iter().find(|(installed, _)| **installed == **name).map(|(_, digest)| *digest),
            config: checked.config.settings(name),
        })
        .collect())
}

/// The faults that the extensions themselves find, in the order of pointer and code.
async fn faults(host: &RefCell<Host>, ask: &Ask, settings: &[Settings]) -> Result<Vec<Diagnostic>> {
    let daemon = Rc::clone(&host.borrow().daemon);
    let mut found = Vec::new();
    for Settings { extension, config, .. } in settings {
        let HostValidated { faults } = daemon.validate(&ask.credential, extension, config).await?;
        found.extend(faults.into_iter().map(|fault| Diagnostic {
            pointer: format!("/extensions/{extension}/config{}", fault.pointer),
            code: REFUSED_BY_EXTENSION.to_owned(),
            remedy: fault.message,
        }));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Saves the configuration and publishes it as the next generation. The same configuration again changes nothing.
///
/// Errors: `invalid_config` with every diagnostic, `generation_conflict`, `scope_in_use`, `config_file_unavailable`;
/// `host_unavailable`, `extension_unavailable` when an extension that has to look at its settings cannot be asked.
pub(crate) fn apply<'h>(host: &'h RefCell<Host>, ask: &'h Ask) -> Waits<'h> {
    Box::pin(async move {
        let request = request(ask)?;
        let written = request.config.get().as_bytes();
        make_active(host, ask, &Wanted::Written(written, request.expected_generation)).await
    })
}

/// Puts one value in the place of another, in the file as it is written, and makes active what comes of it (S06).
///
/// Errors: those of [`apply`]; `config_file_differs`, and `invalid_request` when there is no such place.
pub(crate) fn set<'h>(host: &'h RefCell<Host>, ask: &'h Ask) -> Waits<'h> {
    Box::pin(async move {
        let ConfigSetRequest { pointer, value, expected_generation: expected } = ask.body()?;
        let edited = {
            let mut host = host.borrow_mut();
            host.refresh()?;
            let change = Change { pointer: &pointer, value: &value, expected };
            let Host { config, store, .. } = &mut *host;
            config.edited(store, &change)?
        };
        make_active(host, ask, &Wanted::Edited(edited)).await
    })
}

/// A configuration that is to be active.
enum Wanted<'w> {
    /// As it was sent, and the generation that has to be active.
    Written(&'w [u8], Option<i64>),
    Edited(Edited),
}

impl Wanted<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Written(bytes, _) => bytes,
            Self::Edited(edited) => edited.text.as_bytes(),
        }
    }
}

/// Checks what is wanted, has packages look at their settings in it, and publishes it.
async fn make_active(host: &RefCell<Host>, ask: &Ask, wanted: &Wanted<'_>) -> Result<Reply> {
    let looked_at = {
        let mut host = host.borrow_mut();
        host.refresh()?;
        let checked = host.config.validate(wanted.bytes()).map_err(conduit_config::Error::Invalid)?;
        settings(&mut host, &checked)?
    };
    let faults = faults(host, ask, &looked_at).await?;
    if !faults.is_empty() {
        return Err(conduit_config::Error::Invalid(faults).into());
    }
    publish(&mut host.borrow_mut(), ask, wanted, &looked_at)
}

fn publish(host: &mut Host, ask: &Ask, wanted: &Wanted<'_>, looked_at: &[Settings]) -> Result<Reply> {
    host.refresh()?;
    let checked = host.config.validate(wanted.bytes()).map_err(conduit_config::Error::Invalid)?;
    if settings(host, &checked)? != looked_at {
        let message = "a package changed while it looked at its settings; apply the configuration again";
        return Err(Error::new(Code::ExtensionUnavailable, message));
    }
    let actor = ask.operator.actor();
    let (store, now) = (&mut host.store, Clock.now());
    let applied = match wanted {
        Wanted::Written(bytes, expected) => host.config.apply(store, bytes, *expected, &actor, now)?,
        Wanted::Edited(edited) => host.config.apply_edited(store, edited, &actor, now)?,
    };
    host.ring();
    Ok(Reply::json(
        200,
        &ConfigReply {
            valid: true,
            config_hash: Some(applied.hash),
            generation: applied.generation,
            diagnostics: Vec::new(),
            warnings: applied.warnings,
        },
    ))
}

/// The body. Its `config` is left as it is spelt, so that duplicates and nulls in it are told as diagnostics.
fn request(ask: &Ask) -> Result<ConfigRequest> {
    // serde would take an array for the fields of the object, in their order.
    let is_object = ask.body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let read = if is_object { serde_json::from_slice(&ask.body) } else { Err(serde::de::Error::custom("no object")) };
    read.map_err(|error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        invalid(format!("the body is one object with `config` and maybe `expected_generation`; reading it stopped at line {line}, column {column}"))
    })
}

fn active_number(host: &mut Host) -> Result<i64> {
    host.read(|r, active| match active.snapshot(r) {
        Ok(snapshot) => Ok(snapshot.generation),
        Err(Error::Config(conduit_config::Error::NoGeneration)) => Ok(0),
        Err(error) => Err(error),
    })
}
