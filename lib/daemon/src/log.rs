//! Structured logs: to journald when stderr is connected to it, otherwise lines on stderr.
//!
//! IDs are fields; tokens, secrets and bodies are never logged. The filter is `OPEN_CONDUIT_LOG`, as in
//! `info,conduit_store=debug`.

use std::os::unix::fs::MetadataExt;

use conduit_api::{ApiError, Code};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Names the filter.
pub const FILTER_VARIABLE: &str = "OPEN_CONDUIT_LOG";
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// How lines on stderr look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line for people
    #[default]
    Human,
    /// One JSON object on a line
    Json,
}

impl LogFormat {
    /// The value as an argument has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

/// Sets up the log of this process, once. `program` is the identifier that journald shows.
///
/// Refuses a filter that cannot be read with `invalid_request`.
pub fn init(program: &str, format: LogFormat) -> Result<(), ApiError> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(text) => text.parse::<Targets>().map_err(|error| {
            ApiError::new(Code::InvalidRequest, format!("{FILTER_VARIABLE} is not a log filter: {error}"))
        })?,
        Err(_) => Targets::new().with_default(tracing::Level::INFO),
    };
    let registry = tracing_subscriber::registry();
    let stderr = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let journal = stderr_is_the_journal().then(tracing_journald::layer).and_then(Result::ok);
    let set = match (journal, format) {
        (Some(layer), _) => registry
            .with(layer.with_syslog_identifier(program.to_owned()).with_field_prefix(None).with_filter(filter))
            .try_init(),
        (None, LogFormat::Human) => registry
            .with(stderr.compact().with_timer(Stamp(program.to_owned())).with_target(false).with_filter(filter))
            .try_init(),
        (None, LogFormat::Json) => {
            registry.with(stderr.json().flatten_event(true).with_current_span(true).with_filter(filter)).try_init()
        }
    };
    set.map_err(|error| ApiError::new(Code::Internal, format!("the log could not be set up: {error}")))
}

/// What a line for people begins with: the programs of a suite that runs in the foreground share one terminal.
struct Stamp(String);

impl FormatTime for Stamp {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        SystemTime.format_time(writer)?;
        write!(writer, " {}", self.0)
    }
}

/// Whether stderr is the stream that `JOURNAL_STREAM` names, as `systemd.exec(5)` says how to tell.
fn stderr_is_the_journal() -> bool {
    let stderr = std::fs::metadata("/proc/self/fd/2").map(|meta| (meta.dev(), meta.ino())).ok();
    stderr.is_some() && std::env::var(JOURNAL_STREAM).ok().as_deref().and_then(stream) == stderr
}

/// `device:inode`, in decimal.
fn stream(text: &str) -> Option<(u64, u64)> {
    let (device, inode) = text.split_once(':')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_stream_is_a_device_and_an_inode() {
        assert_eq!(stream("8:1234"), Some((8, 1234)));
        assert_eq!(stream("8"), None);
        assert_eq!(stream("a:b"), None);
    }

    #[test]
    fn a_filter_names_targets_and_levels() {
        assert!("info,conduit_store=debug".parse::<Targets>().is_ok());
        assert!("info,conduit_store=loud".parse::<Targets>().is_err());
    }
}
