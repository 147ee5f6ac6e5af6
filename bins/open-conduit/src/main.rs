//! The operator's command. What each subcommand does is in the library that its variant names.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use conduit_suite::demo::{DemoArgs, demo};
use conduit_suite::up::{UpArgs, up};

/// Run and watch agent work on a machine that you own
#[derive(Debug, Parser)]
#[command(name = "open-conduit", version)]
enum Command {
    Up(UpArgs),
    Demo(DemoArgs),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Up(args) => up(&args),
        Command::Demo(args) => demo(&args),
    }
}
