//! The configuration: what is active, whether another would do, and making it active (C01, C06).

use conduit_api::UnixMicros;
use conduit_api::views::{ConfigReply, ConfigRequest, ConfigView};
use conduit_daemon::http::Reply;
use conduit_store::{Clock, Read, named_params};

use crate::ask::{Ask, invalid};
use crate::error::{Error, Result};
use crate::host::Host;

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
pub(crate) fn validate(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request = request(ask)?;
    host.refresh()?;
    let generation = active_number(host)?;
    let reply = match host.config.validate(request.config.get().as_bytes()) {
        Ok(checked) => ConfigReply {
            valid: true,
            warnings: host.config.warnings(&checked.config),
            config_hash: Some(checked.hash),
            generation,
            diagnostics: Vec::new(),
        },
        Err(diagnostics) => {
            ConfigReply { valid: false, config_hash: None, generation, diagnostics, warnings: Vec::new() }
        }
    };
    Ok(Reply::json(200, &reply))
}

/// Saves the configuration and publishes it as the next generation. The same configuration again changes nothing.
///
/// Errors: `invalid_config` with every diagnostic, `generation_conflict`, `scope_in_use`, `config_file_unavailable`.
pub(crate) fn apply(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let request = request(ask)?;
    host.refresh()?;
    let bytes = request.config.get().as_bytes();
    let actor = ask.operator.actor();
    let applied = host.config.apply(&mut host.store, bytes, request.expected_generation, &actor, Clock.now())?;
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
