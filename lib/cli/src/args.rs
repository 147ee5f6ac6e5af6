//! The command line of `open-conduit`: global options and one variant for each group of commands.

use std::path::PathBuf;

use clap::Parser;
use conduit_suite::demo::DemoArgs;
use conduit_suite::up::UpArgs;

use crate::commands::{
    approvals, artifacts, config, doubts, emit, events, executions, explain, extension, gates, package, scopes, waits,
    work,
};
use crate::exit::Exit;

/// Run and watch agent work on a machine that you own
///
/// `open-conduit up` runs the suite; every other command talks to it over its management socket. JSON is given as an
/// argument, as @FILE, or as - for standard input.
#[derive(Debug, Parser)]
#[command(name = "open-conduit", version, after_help = Exit::table())]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print answers and errors as JSON, one document on a line
    #[arg(long, global = true)]
    pub json: bool,
    /// Management socket [default: $OPEN_CONDUIT_ENDPOINT, or the one of the state directory]
    #[arg(long, global = true, value_name = "SOCKET")]
    pub endpoint: Option<PathBuf>,
    /// File with the operator's credential [default: $OPEN_CONDUIT_TOKEN_FILE, or private/operator.token in the state directory]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Directory of the suite's state [default: $XDG_STATE_HOME/open-conduit, else ~/.local/state/open-conduit]
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Directory of the suite's sockets [default: as for `up`]
    #[arg(long, global = true, value_name = "DIR")]
    pub runtime: Option<PathBuf>,
}

impl Cli {
    /// Whether an option was given that only a command with a server understands.
    pub fn names_a_server(&self) -> bool {
        self.json || self.endpoint.is_some() || self.token_file.is_some()
    }
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Up(UpArgs),
    Demo(DemoArgs),
    /// Show whether the suite stands
    Health,
    Scopes(scopes::ScopesArgs),
    Work(work::WorkArgs),
    Events(events::EventsArgs),
    Executions(executions::ExecutionsArgs),
    Waits(waits::WaitsArgs),
    Artifacts(artifacts::ArtifactsArgs),
    Emit(emit::EmitArgs),
    Approvals(approvals::ApprovalsArgs),
    Approve(approvals::ApproveArgs),
    Deny(approvals::DenyArgs),
    Gates(gates::GatesArgs),
    Doubts(doubts::DoubtsArgs),
    Explain(explain::ExplainArgs),
    CanI(explain::CanIArgs),
    Config(config::ConfigArgs),
    Extension(extension::ExtensionArgs),
    Package(package::PackageArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound_and_its_help_lists_every_exit_code() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        assert!(Exit::ALL.iter().all(|exit| help.contains(exit.meaning())));
    }

    /// A list's own options never share a name with the options of every command.
    #[test]
    fn a_list_takes_the_state_directory_and_the_state_that_it_shows() {
        for list in ["work", "executions", "waits"] {
            let line = ["open-conduit", list, "list", "--state", "/x", "--in", "running"];
            assert_eq!(Cli::try_parse_from(line).unwrap().state.as_deref(), Some(std::path::Path::new("/x")));
        }
    }

    /// A command's own option would hide a global one of the same name, which `up` and `demo` mean alike.
    #[test]
    fn no_command_gives_a_global_option_another_meaning() {
        fn check(command: &clap::Command, globals: &[String]) {
            for inner in command.get_subcommands().filter(|inner| !["up", "demo", "help"].contains(&inner.get_name())) {
                for arg in inner.get_arguments().filter(|arg| !arg.is_global_set()) {
                    assert!(!globals.contains(&arg.get_id().to_string()), "{} {}", inner.get_name(), arg.get_id());
                }
                check(inner, globals);
            }
        }
        let command = Cli::command();
        let globals = command.get_arguments().filter(|arg| arg.is_global_set()).map(|arg| arg.get_id().to_string());
        check(&command, &globals.collect::<Vec<_>>());
    }

    #[test]
    fn global_options_stand_before_or_after_the_command() {
        for line in [
            ["open-conduit", "--json", "--endpoint", "/s", "work", "list"],
            ["open-conduit", "work", "list", "--json", "--endpoint", "/s"],
        ] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert!(cli.json && cli.names_a_server());
            assert_eq!(cli.endpoint.as_deref(), Some(std::path::Path::new("/s")));
        }
        let cli = Cli::try_parse_from(["open-conduit", "up", "--state", "/x"]).unwrap();
        assert!(matches!(&cli.command, Command::Up(up) if up.common.state.as_deref() == cli.state.as_deref()));
    }
}
