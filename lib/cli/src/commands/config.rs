//! `open-conduit config`

use std::path::PathBuf;

use conduit_api::error::Diagnostic;
use conduit_api::limits::BODY_BYTES_MAX;
use conduit_api::views::{ConfigReply, ConfigRequest, ConfigSetRequest, ConfigView};
use conduit_client::input;
use serde_json::value::RawValue;

use crate::connect::Connection;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Show, check and change the configuration
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Show the active generation, with every text of an executor's part redacted
    Show,
    /// Print one value of the active generation, with every text of an executor's part redacted
    Get {
        /// Where it stands, as in /scopes/demo/operations
        pointer: String,
    },
    /// Put one value in the place of another, in the file too, and make that the next generation
    Set {
        /// Where it is to stand, as in /scopes/demo/enabled; - adds to a list
        pointer: String,
        /// The value, as JSON
        value: String,
        /// Refuse unless this generation is active
        #[arg(long, value_name = "N")]
        expected_generation: Option<i64>,
    },
    /// Check a configuration; nothing is changed
    Validate {
        /// The file, or - for standard input
        file: PathBuf,
    },
    /// Make a configuration the next generation
    Apply {
        /// The file, or - for standard input
        file: PathBuf,
        /// Refuse unless this generation is active
        #[arg(long, value_name = "N")]
        expected_generation: Option<i64>,
    },
}

pub fn run(args: &ConfigArgs, connection: &Connection, out: &mut Output) -> Result<Exit> {
    match &args.command {
        ConfigCommand::Show => out.one(&connection.client()?.get::<ConfigView>("/v1/config")?)?,
        ConfigCommand::Get { pointer } => {
            let view: ConfigView = connection.client()?.get("/v1/config")?;
            let value = view.config.pointer(pointer);
            let value =
                value.ok_or_else(|| Failure::Usage(format!("the active generation has nothing at `{pointer}`")))?;
            out.shaped(value, |value, _| format!("{value:#}\n"))?;
        }
        ConfigCommand::Set { pointer, value, expected_generation } => {
            let value = serde_json::from_str(value)
                .map_err(|error| Failure::Usage(format!("the value is not JSON ({error}); a text needs its quotes")))?;
            let request =
                ConfigSetRequest { pointer: pointer.clone(), value, expected_generation: *expected_generation };
            active(&connection.client()?.post("/v1/config/set", &request)?, out)?;
        }
        ConfigCommand::Validate { file } => {
            let request = ConfigRequest { config: read(file)?, expected_generation: None };
            let reply: ConfigReply = connection.client()?.post("/v1/config/validate", &request)?;
            if !reply.valid {
                return Err(Failure::Faults(reply.diagnostics));
            }
            out.shaped(&reply, |reply, _| format!("valid  {}\n", reply.config_hash.as_deref().unwrap_or_default()))?;
            warn(&reply, out)?;
        }
        ConfigCommand::Apply { file, expected_generation } => {
            let request = ConfigRequest { config: read(file)?, expected_generation: *expected_generation };
            active(&connection.client()?.post("/v1/config/apply", &request)?, out)?;
        }
    }
    Ok(Exit::Done)
}

fn active(reply: &ConfigReply, out: &mut Output) -> Result<()> {
    out.shaped(reply, |reply, _| format!("generation {} is active\n", reply.generation))?;
    warn(reply, out)
}

/// Says each grant warning with the commands that mend it, in their order; under `--json` they stand in the answer too (S06).
fn warn(reply: &ConfigReply, out: &mut Output) -> Result<()> {
    for warning in &reply.warnings {
        out.remark(&format!("warning: {}", warning.message))?;
        warning.commands.iter().try_for_each(|command| out.remark(&format!("  {command}")))?;
    }
    Ok(())
}

/// The document as it is spelt: the server tells its faults by where they stand. Faults that keep it from being sent have
/// the codes of docs/configuration.md: `document_too_large`, `invalid_json`.
fn read(file: &std::path::Path) -> Result<Box<RawValue>> {
    let argument = if file.as_os_str() == "-" { "-".to_owned() } else { format!("@{}", file.display()) };
    let (origin, bytes) = input::bytes(&argument)?;
    document(&origin, &bytes)
}

fn document(origin: &str, bytes: &[u8]) -> Result<Box<RawValue>> {
    let fault = |code: &str, remedy: String| {
        Failure::Faults(vec![Diagnostic { pointer: String::new(), code: code.to_owned(), remedy }])
    };
    if bytes.len() > BODY_BYTES_MAX {
        return Err(fault("document_too_large", format!("make {origin} smaller than {BODY_BYTES_MAX} bytes")));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let what =
            format!("write one JSON document in UTF-8; reading {origin} stopped at line {line}, column {column}");
        fault("invalid_json", what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C01
    #[test]
    fn what_cannot_be_sent_has_the_code_that_the_page_gives() {
        let code = |bytes: &[u8]| match document("the file x", bytes) {
            Err(Failure::Faults(faults)) => faults[0].code.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(code(b"{\"version\": 1,}"), "invalid_json");
        assert_eq!(code(&vec![b' '; BODY_BYTES_MAX + 1]), "document_too_large");
    }
}
