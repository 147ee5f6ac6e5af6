//! The states of a Work, and the moves between them.

use crate::error::{Error, Result};

/// Why a Work is held back beside `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockedReason {
    /// An operator cancelled its execution; it waits for a retry.
    OperatorCancelled,
    /// An execution had started and the host cannot say how it ended; only an operator may say that it is safe to go on.
    AmbiguousDispatch,
    /// A start gate refused it; it waits for a retry (G06).
    Gate,
    /// Its execution asked for more than its budget; it waits for a retry.
    BudgetExceeded,
}

impl BlockedReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OperatorCancelled => "operator_cancelled",
            Self::AmbiguousDispatch => "ambiguous_dispatch",
            Self::Gate => "gate",
            Self::BudgetExceeded => "budget_exceeded",
        }
    }
}

/// Where a Work stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Ready,
    Running,
    Waiting,
    Blocked(BlockedReason),
    Succeeded,
    Failed,
    Cancelled,
}

/// What can happen to a Work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The scheduler claimed it, or resumed its parked execution.
    Claimed,
    /// Its segment registered a wait.
    Waits,
    /// A wait ended, or someone woke it.
    Woken,
    /// Its attempt failed and will be tried again, or was interrupted.
    TriesAgain,
    Held(BlockedReason),
    /// An operator let it go on.
    Retried,
    Succeeds,
    Fails,
    Cancels,
}

impl State {
    /// The states in which a Work has ended.
    pub const ENDED: [&'static str; 3] = ["succeeded", "failed", "cancelled"];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Blocked(_) => "blocked",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Reads a state back from its row; `None` for a pair that no row may hold.
    pub fn from_row(state: &str, reason: Option<&str>) -> Option<Self> {
        Some(match (state, reason) {
            ("ready", None) => Self::Ready,
            ("running", None) => Self::Running,
            ("waiting", None) => Self::Waiting,
            ("succeeded", None) => Self::Succeeded,
            ("failed", None) => Self::Failed,
            ("cancelled", None) => Self::Cancelled,
            ("blocked", Some("operator_cancelled")) => Self::Blocked(BlockedReason::OperatorCancelled),
            ("blocked", Some("ambiguous_dispatch")) => Self::Blocked(BlockedReason::AmbiguousDispatch),
            ("blocked", Some("gate")) => Self::Blocked(BlockedReason::Gate),
            ("blocked", Some("budget_exceeded")) => Self::Blocked(BlockedReason::BudgetExceeded),
            _ => return None,
        })
    }

    /// The state after `event`. A pair not written here is `illegal_state`.
    pub fn after(self, event: Event) -> Result<Self> {
        use State::{Blocked, Cancelled, Failed, Ready, Running, Succeeded, Waiting};
        match (self, event) {
            (Ready, Event::Claimed) => Ok(Running),
            (Running, Event::Waits) => Ok(Waiting),
            (Waiting, Event::Woken) | (Running, Event::TriesAgain) => Ok(Ready),
            (Ready | Running | Waiting, Event::Held(reason)) => Ok(Blocked(reason)),
            (Blocked(_) | Failed | Cancelled, Event::Retried) => Ok(Ready),
            (Running, Event::Succeeds) => Ok(Succeeded),
            (Running | Ready, Event::Fails) => Ok(Failed),
            (Ready | Running | Waiting | Blocked(_), Event::Cancels) => Ok(Cancelled),
            (state, _) => Err(Error::IllegalState {
                what: "Work",
                state: state.as_str().to_owned(),
                remedy: if state.has_ended() { "it has ended" } else { "this cannot be done now" },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 10] = [
        State::Ready,
        State::Running,
        State::Waiting,
        State::Blocked(BlockedReason::OperatorCancelled),
        State::Blocked(BlockedReason::AmbiguousDispatch),
        State::Blocked(BlockedReason::Gate),
        State::Blocked(BlockedReason::BudgetExceeded),
        State::Succeeded,
        State::Failed,
        State::Cancelled,
    ];

    #[test]
    fn every_state_reads_back_from_its_row() {
        for state in STATES {
            let reason = if let State::Blocked(reason) = state { Some(reason.as_str()) } else { None };
            assert_eq!(State::from_row(state.as_str(), reason), Some(state));
        }
        assert_eq!(State::from_row("blocked", None), None);
    }

    #[test]
    fn only_a_ready_work_is_claimed_and_an_ended_one_never_runs_on_by_itself() {
        for state in STATES {
            assert_eq!(state.after(Event::Claimed).is_ok(), state == State::Ready);
            if state.has_ended() {
                for event in
                    [Event::Waits, Event::Woken, Event::TriesAgain, Event::Succeeds, Event::Fails, Event::Cancels]
                {
                    assert!(state.after(event).is_err(), "{state:?} {event:?}");
                }
            }
        }
    }

    #[test]
    fn what_succeeded_is_not_retried() {
        assert!(State::Succeeded.after(Event::Retried).is_err());
        assert_eq!(State::Blocked(BlockedReason::OperatorCancelled).after(Event::Retried).unwrap(), State::Ready);
    }
}
