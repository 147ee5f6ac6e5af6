//! What the suite costs, as ratios against floors that the same run measures on the same machine.
//!
//! A floor and what is compared with it take turns in short blocks, so that both meet the same machine. Everything
//! measured is the real suite: real programs, real sockets, a real disk. Nothing here decides whether the suite is
//! right; `docs/performance.md` says what the numbers mean.
#![forbid(unsafe_code)]

mod cpu;
mod exchange;
mod extensions;
mod floors;
mod measures;
mod package;
mod roundtrip;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::table::Table;

/// Measure the suite against the floors of this machine
#[derive(Debug, Parser)]
#[command(name = "conduit-bench", about, long_about = None)]
struct Args {
    /// Folder with the suite's programs, built with --release [default: beside this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// A tenth of the samples: quick, and not to be quoted
    #[arg(long)]
    quick: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Parts that the benchmark plays itself, in processes of their own.
#[derive(Debug, Subcommand)]
enum Part {
    /// Answer each request with its own body
    #[command(hide = true)]
    Echo { socket: PathBuf },
    /// Commit one row at a time until the time is over
    #[command(hide = true)]
    Writer { database: PathBuf, millis: u64 },
    /// Write down when this process began to run
    #[command(hide = true)]
    Stamp { folder: PathBuf },
    /// Speak the extension protocol, with as many operations
    #[command(hide = true)]
    Package { name: String, operations: usize },
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// Turns that floors and measures take.
    turns: usize,
    /// Samples of one latency in one turn.
    samples: usize,
    /// Samples of what costs a process, in one turn.
    spawns: usize,
    /// Length of one turn of a rate.
    rate: Duration,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.part {
        Some(Part::Echo { socket }) => floors::echo_server(&socket),
        Some(Part::Writer { database, millis }) => floors::writer(&database, Duration::from_millis(millis)),
        Some(Part::Stamp { folder }) => floors::stamp(&folder),
        Some(Part::Package { name, operations }) => package::serve(&name, operations),
        None => bench(args.bin_dir, args.quick).map(|table| print!("{table}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conduit-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a measure returns: any error ends the run, as a number that is missing a part is none.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn bench(bin_dir: Option<PathBuf>, quick: bool) -> Result<Table> {
    let effort = if quick {
        Effort { turns: 2, samples: 50, spawns: 5, rate: Duration::from_millis(400) }
    } else {
        Effort { turns: 10, samples: 200, spawns: 20, rate: Duration::from_millis(1500) }
    };
    let mut table = Table::default();
    if let Some(folder) = &bin_dir {
        conduit_tests::programs::check(folder)?;
    }
    measures::all(bin_dir.as_ref(), effort, &mut table)?;
    extensions::all(bin_dir.as_ref(), effort, &mut table)?;
    if quick {
        table.remark("quick run: too few samples to quote");
    }
    Ok(table)
}
