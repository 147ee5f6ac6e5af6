//! The program `open-conduit`: how an operator runs, watches and steers a suite.
//!
//! One command is one question or order to the management server; one view makes both the table for people and the
//! document of `--json`. Answers go to standard output; remarks, hints and errors to standard error. Nothing here
//! opens the store: what the suite knows, the server is asked for.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod connect;
mod exit;
mod failure;
mod output;
mod show;
mod table;
mod tree;
mod when;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use connect::Connection;
pub use exit::Exit;
use failure::{Failure, Result};
use output::Output;

/// Runs `open-conduit` with the arguments and the environment of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error).into(),
    };
    match &cli.command {
        Command::Up(args) if !cli.names_a_server() => conduit_suite::up::up(args),
        Command::Demo(args) if !cli.names_a_server() => conduit_suite::demo::demo(args),
        command => match operate(&cli, command) {
            Ok(exit) => exit,
            Err(failure) => failure.report(cli.json),
        }
        .into(),
    }
}

/// Prints what the parser has to say; `--help` and `--version` are answers, all else is a usage error.
///
/// Whether they are to be JSON is asked of the words themselves, since the parser has given none.
fn usage(error: &clap::Error) -> Exit {
    if error.use_stderr() && std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json") {
        let message = error.to_string();
        // Up to the first empty line: what follows is the usage, which `--help` has.
        let said = message.strip_prefix("error: ").unwrap_or(&message).split("\n\n").next().unwrap_or_default();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        return Failure::Usage(said).report(true);
    }
    match (error.print(), error.use_stderr()) {
        (Ok(()), false) => Exit::Done,
        (Err(_), false) => Exit::Internal,
        (_, true) => Exit::Usage,
    }
}

/// Runs a command that talks to the management server.
fn operate(cli: &Cli, command: &Command) -> Result<Exit> {
    let connection = Connection::resolve(cli)?;
    ask(cli, command, &connection).map_err(|failure| connection.explain(failure))
}

fn ask(cli: &Cli, command: &Command, connection: &Connection) -> Result<Exit> {
    let mut out = Output::of_process(cli.json);
    let exit = match command {
        Command::Up(_) | Command::Demo(_) => {
            return Err(Failure::Usage(
                "this command starts a suite; it takes no --json, --endpoint or --token-file".into(),
            ));
        }
        Command::Health => commands::health::run(&connection.client()?, &mut out)?,
        Command::Scopes(args) => commands::scopes::run(args, &connection.client()?, &mut out)?,
        Command::Work(args) => commands::work::run(args, connection, &mut out)?,
        Command::Events(args) => commands::events::run(args, &connection.client()?, &mut out)?,
        Command::Executions(args) => commands::executions::run(args, &connection.client()?, &mut out)?,
        Command::Waits(args) => commands::waits::run(args, &connection.client()?, &mut out)?,
        Command::Artifacts(args) => commands::artifacts::run(args, &connection.client()?, &mut out)?,
        Command::Emit(args) => commands::emit::run(args, connection, &mut out)?,
        Command::Approvals(args) => commands::approvals::run(args, &connection.client()?, &mut out)?,
        Command::Approve(args) => commands::approvals::approve(args, &connection.client()?, &mut out)?,
        Command::Deny(args) => commands::approvals::deny(args, &connection.client()?, &mut out)?,
        Command::Doubts(args) => commands::doubts::run(args, &connection.client()?, &mut out)?,
        Command::Explain(args) => commands::explain::explain(args, &connection.client()?, &mut out)?,
        Command::CanI(args) => commands::explain::can_i(args, &connection.client()?, &mut out)?,
        Command::Gates(args) => commands::gates::run(args, connection, &mut out)?,
        Command::Config(args) => commands::config::run(args, connection, &mut out)?,
        Command::Extension(args) => commands::extension::run(args, connection, &mut out)?,
        Command::Package(args) => commands::package::run(args, &connection.client()?, &mut out)?,
    };
    out.flush()?;
    Ok(exit)
}
