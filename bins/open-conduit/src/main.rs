//! The operator's command. Everything it does is in `conduit_cli`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    conduit_cli::main()
}
