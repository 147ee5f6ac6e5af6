//! The spawner of toolbelt endpoints. Everything it does is in `conduit_endpoint::spawner`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    conduit_endpoint::spawner::main()
}
