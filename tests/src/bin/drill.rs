//! The kill drill. Everything it does is in `conduit_tests::drill`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use conduit_tests::drill;

/// Kill the suite's daemons at random moments and at every failpoint while Works run, and check that all holds
#[derive(Debug, Parser)]
#[command(name = "drill", about, long_about = None)]
struct Args {
    /// Rounds, with a kill each
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Chooses what is killed, and when [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Folder with the suite's programs, built with the feature conduit-store/failpoints [default: beside this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Play one segment of an execution
    #[command(hide = true)]
    Work { role: String, journal: PathBuf },
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Part::Work { role, journal }) = args.part {
        return match drill::workload::play(&role, &journal) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("drill: seed {seed}");
    let (tally, violations) = drill::run(args.bin_dir, args.rounds, seed);
    for violation in &violations {
        eprintln!("drill: VIOLATION: {violation}");
    }
    println!(
        "drill: {} rounds, {} kills ({} at failpoints, {} rounds met no process), {} works, {} events, {} attempts, \
         {} ambiguous dispatches settled, {} superseded tokens refused, {} violations, seed {seed}",
        tally.rounds,
        tally.kills,
        tally.at_failpoints,
        tally.not_reached,
        tally.works,
        tally.events,
        tally.attempts,
        tally.ambiguous,
        tally.old_tokens_refused,
        violations.len()
    );
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
