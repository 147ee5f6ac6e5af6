//! The `process` launcher.
#[derive(Debug)]
pub struct ProcessLauncher {}
