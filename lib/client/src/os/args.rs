//! The command line of `os`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use conduit_api::toolbelt::{OutcomeStatus, Predicate};

use super::exit::Exit;
use super::wait::{predicate, seconds};

/// Ask the host of this execution for outcomes
///
/// Runs inside an execution, which finds its own socket in OS_ENDPOINT and its token in the file OS_TOKEN_FILE.
/// JSON is given as an argument, as @FILE, or as - for standard input. Errors go to standard error, as
/// `os: CODE: MESSAGE`, or as a JSON error envelope under --json.
#[derive(Debug, Parser)]
#[command(name = "os", version, after_help = Exit::table())]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print the whole answer as one JSON document
    #[arg(long, global = true)]
    pub json: bool,
    /// Name the request; under the same name a lost answer can be asked for again
    #[arg(long, global = true, value_name = "ID")]
    pub request_id: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Emit an event; prints its ID
    Emit(EmitArgs),
    /// Create a child Work; prints its ID
    CreateWork(CreateWorkArgs),
    /// Declare what to wait for; authority is released and the segment should end
    Wait(WaitArgs),
    /// Declare how the Work ended; authority is released and the segment should end
    Outcome(OutcomeArgs),
    /// Show what this execution may know
    Context(ContextArgs),
    /// Call any operation by name; prints its output
    Call(CallArgs),
    /// Show what this execution may ask for, and how
    Guidance,
}

#[derive(Debug, Args)]
pub struct EmitArgs {
    /// Type of the event, as in demo.survey.counted
    #[arg(value_name = "TYPE")]
    pub kind: String,
    /// Data of the event: a JSON object, @FILE, or -
    #[arg(value_name = "JSON")]
    pub document: Option<String>,
    /// One of the correlation keys that this Work owns
    #[arg(long, allow_hyphen_values = true)]
    pub key: Option<String>,
    /// Name of the schema that the data follows
    #[arg(long, allow_hyphen_values = true)]
    pub schema: Option<String>,
    /// Name of this delivery; the same one is accepted once
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub delivery: Option<String>,
}

#[derive(Debug, Args)]
pub struct CreateWorkArgs {
    /// Binding that the child runs under
    pub binding: String,
    /// What the child is to know: a JSON object, @FILE, or -
    #[arg(value_name = "JSON")]
    pub document: Option<String>,
    /// A title for people
    #[arg(long, allow_hyphen_values = true)]
    pub title: Option<String>,
    /// Correlation key that the child owns; may be repeated
    #[arg(long = "key", value_name = "KEY", allow_hyphen_values = true)]
    pub keys: Vec<String>,
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// The whole wait: a JSON object, @FILE, or -
    #[arg(conflicts_with_all = ["predicates", "all", "any", "timeout", "watermark"])]
    #[arg(value_name = "JSON")]
    pub document: Option<String>,
    /// An event to wait for: TYPE[,work=ID][,key=KEY][,source=SOURCE]; may be repeated
    ///
    /// A TYPE alone is heard only on the keys that this Work owns (`os context /work/keys`): without keys such a wait can
    /// only time out. Name the Work or the key that the event is about.
    #[arg(long = "for", value_name = "EVENT", value_parser = predicate)]
    pub predicates: Vec<Predicate>,
    /// Wait until every event has come
    #[arg(long, conflicts_with = "any")]
    pub all: bool,
    /// Wait until one of the events has come (the default)
    #[arg(long)]
    pub any: bool,
    /// End the wait unmatched after this time, as in 30s, 5m, 2h or 1d
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub timeout: Option<u64>,
    /// Count events accepted after this sequence
    #[arg(long, value_name = "SEQUENCE")]
    pub watermark: Option<i64>,
}

#[derive(Debug, Args)]
pub struct OutcomeArgs {
    pub status: Status,
    /// Data of the outcome: a JSON object, @FILE, or -
    #[arg(value_name = "JSON")]
    pub document: Option<String>,
    /// A sentence for people
    #[arg(long, allow_hyphen_values = true)]
    pub summary: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Status {
    Succeeded,
    Failed,
}

impl From<Status> for OutcomeStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Succeeded => Self::Succeeded,
            Status::Failed => Self::Failed,
        }
    }
}

#[derive(Debug, Args)]
pub struct ContextArgs {
    /// JSON pointer into the context, as in /work/id; a segment * stands for every element
    ///
    /// Each value is printed on a line of its own, text without quotes; with --json as JSON, and with a * as an array.
    pub pointer: Option<String>,
}

#[derive(Debug, Args)]
pub struct CallArgs {
    /// Name of the operation, as in emit
    pub operation: String,
    /// Input of the operation: a JSON object, @FILE, or -
    #[arg(value_name = "JSON")]
    pub document: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_text_may_begin_with_a_hyphen() {
        for line in [
            ["os", "outcome", "failed", "--summary", "-x"].as_slice(),
            &["os", "emit", "a.b", "--key", "-x", "--schema", "-s"],
            &["os", "create-work", "b", "--title", "-x: 3", "--key", "--y"],
        ] {
            Cli::try_parse_from(line).unwrap();
        }
    }
}
