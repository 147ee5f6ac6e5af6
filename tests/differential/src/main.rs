//! Compares the toolbelt's decisions with the reference model's on random histories (T19).
#![forbid(unsafe_code)]

mod compare;
mod history;
mod model;
mod random;
mod real;

use std::process::ExitCode;

use clap::Parser;

/// Compare the toolbelt with its reference model on random histories
#[derive(Debug, Parser)]
#[command(name = "differential", about, long_about = None)]
struct Args {
    /// Histories
    #[arg(long, default_value_t = 10_000)]
    histories: u64,
    /// Chooses the histories [default: other ones each time]
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let found = compare::run(args.histories, seed);
    for failure in &found.failures {
        eprintln!("differential: {failure}");
    }
    println!("{found}");
    if found.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
