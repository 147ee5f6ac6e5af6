//! The toolbelt of one execution, served on its own socket. Everything it does is in `conduit_endpoint::worker`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    conduit_endpoint::worker::main()
}
