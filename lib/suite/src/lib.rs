//! The suite as one command: `open-conduit up` starts the same programs as systemd does, with the same protocol.
//!
//! It binds the sockets once and passes them on, keeps run sockets while the spawner restarts, starts the management
//! server on its first connection, and starts again what crashed. It opens no store: what the suite knows, it asks
//! the management socket for.
#![forbid(unsafe_code)]

mod backoff;
mod child;
pub mod demo;
mod directories;
mod keeping;
mod manager;
pub mod programs;
mod suite;
pub mod up;

pub use programs::{Programs, Role};
pub use suite::{Options, Stopped, Suite};

#[cfg(test)]
mod tests {
    /// A directory that a socket may be bound in.
    pub fn owner_only() -> tempfile::TempDir {
        use std::os::unix::fs::PermissionsExt;
        tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap()
    }
}
