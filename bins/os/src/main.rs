//! The toolbelt's command line. Everything it does is in `conduit_client::os`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    conduit_client::os::main().into()
}
