//! The scheduler daemon. Everything it does is in `conduit_scheduler`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    conduit_scheduler::main()
}
