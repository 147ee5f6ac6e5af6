//! What `/proc` says about processes.
use std::os::fd::OwnedFd;
#[derive(Debug, Default)]
pub struct Survivors { pub(crate) alive: Vec<(u32, OwnedFd)> }
