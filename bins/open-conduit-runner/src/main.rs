//! Supervises one attempt. Everything it does is in `conduit_kernel::runner`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    conduit_kernel::runner::main()
}
