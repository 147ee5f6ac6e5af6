//! What is done about an attempt: a pure decision from its state and the evidence.

use crate::attempt::state::{AttemptState, Reason, Terminal};
use crate::bundle::RunnerResult;
use crate::launcher::Unit;

/// What the files, the lock and `/proc` say about an attempt, gathered just before deciding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// A complete result, bound to this attempt; its process tree was proven gone.
    Ended(RunnerResult),
    /// A runner lives; without a unit it has not said yet who it is.
    Alive(Option<Unit>),
    /// No runner lives and there is no result, but processes that it started do.
    Surviving,
    /// Nothing lives and there is no result. `started`: whether a runner left start evidence.
    Absent { started: bool },
    /// Nothing lives, and what stands in the place of the result cannot be believed.
    Invalid,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// It never crossed the boundary: stage it and dispatch it.
    Dispatch,
    /// Watch its runner.
    Adopt(Option<Unit>),
    Finish {
        terminal: Terminal,
        reason: Reason,
    },
    /// Keep its slot until nothing of it lives.
    Orphan,
    /// It has ended, and no evidence says otherwise.
    Leave,
}

/// Decides from evidence alone. Only what never crossed the boundary is dispatched (K01); a result wins over every
/// intent and over an earlier `lost` (K10). `boot_id` names the present boot.
pub fn resolve(attempt: &AttemptState, evidence: &Evidence, boot_id: &str) -> Resolution {
    use Resolution::{Adopt, Finish, Leave, Orphan};
    match (attempt, evidence) {
        (AttemptState::Admitted, _) => Resolution::Dispatch,
        (AttemptState::Ended { terminal: Terminal::Lost }, Evidence::Ended(result)) => {
            Finish { terminal: result.terminal(), reason: Reason::Result }
        }
        (AttemptState::Ended { .. }, _) => Leave,
        (_, Evidence::Ended(result)) => Finish { terminal: result.terminal(), reason: Reason::Result },
        (_, Evidence::Alive(unit)) => Adopt(unit.clone()),
        (_, Evidence::Surviving) => Orphan,
        (_, Evidence::Invalid) => Finish { terminal: Terminal::Lost, reason: Reason::ResultInvalid },
        (state, Evidence::Absent { .. }) if state.boot_id() != Some(boot_id) => {
            Finish { terminal: Terminal::Lost, reason: Reason::Rebooted }
        }
        // It was asked to stop, and it is gone: that is what was asked for.
        (
            AttemptState::Stopping { reason, .. } | AttemptState::Orphaned { intent: Some(reason), .. },
            Evidence::Absent { .. },
        ) => Finish { terminal: reason.terminal(), reason: Reason::StoppedWithoutResult },
        (_, Evidence::Absent { started: true }) => Finish { terminal: Terminal::Lost, reason: Reason::NoResult },
        (_, Evidence::Absent { started: false }) => {
            Finish { terminal: Terminal::Lost, reason: Reason::NoStartEvidence }
        }
    }
}
