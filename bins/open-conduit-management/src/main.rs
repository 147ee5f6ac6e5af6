//! The management server. Everything it does is in `conduit_management`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    conduit_management::main()
}
