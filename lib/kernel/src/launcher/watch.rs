//! A launched runner, watched until it ends.
use conduit_api::AttemptId;
use crate::error::Result;
use crate::launcher::Unit;
/// A runner that was launched or adopted.
#[derive(Debug)]
pub struct Launched { pub attempt: AttemptId, unit: Option<Unit> }
impl Launched {
    /// Who it is; `None` while an adopted runner has not said so.
    pub fn unit(&self) -> Option<&Unit> { self.unit.as_ref() }
    /// Completes when the runner has ended, and reaps it. May be awaited again.
    pub async fn exited(&self) -> Result<()> { unreachable!("written next") }
}
