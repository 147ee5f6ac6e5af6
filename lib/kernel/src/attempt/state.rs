//! States of an attempt. Live work and recovery move through the same [`AttemptState::after`].

use conduit_api::Code;
use serde::{Deserialize, Serialize};

use crate::launcher::Unit;

/// Why an attempt was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    Cancel,
    Deadline,
}

impl StopReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Deadline => "deadline",
        }
    }
    /// What an attempt that was stopped for this reason ends as.
    pub const fn terminal(self) -> Terminal {
        match self {
            Self::Cancel => Terminal::Cancelled,
            Self::Deadline => Terminal::TimedOut,
        }
    }
}

/// How the main process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ProcessEnd {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
    },
    /// It never started; the runner says why.
    NotStarted {
        code: String,
        message: String,
    },
}

impl ProcessEnd {
    /// Code and sentence for the record of a failure.
    pub fn describe(&self) -> (Code, String) {
        match self {
            Self::Exited { code } => (Code::ProcessFailed, format!("the process ended with status {code}")),
            Self::Signalled { signal } => (Code::ProcessFailed, format!("the process was ended by signal {signal}")),
            Self::NotStarted { code, message } => (code.parse().unwrap_or(Code::Internal), message.clone()),
        }
    }
}

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terminal {
    /// The main process exited with status 0.
    Succeeded,
    Failed {
        end: ProcessEnd,
    },
    TimedOut,
    Cancelled,
    /// Nobody can say how it ended, but nothing of it lives.
    Lost,
}

impl Terminal {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed { .. } => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Why an attempt is in its state. Stable names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// The operation was admitted; nothing has started.
    Admitted = "admitted";
    /// The boundary was crossed: a runner may exist from now on.
    Dispatched = "dispatched";
    /// The runner was seen alive.
    Launched = "launched";
    /// A runner of this attempt was found alive after a restart.
    Adopted = "adopted";
    /// Someone asked for it to stop.
    StopAsked = "stop_asked";
    /// It was cancelled before it was dispatched: nothing ever started.
    Withdrawn = "withdrawn";
    /// The runner's result says how it ended, and that its process tree is gone.
    Result = "result";
    /// It was stopped as intended; the runner left no result, and nothing of it lives.
    StoppedWithoutResult = "stopped_without_result";
    /// No runner ever wrote start evidence, and none lives.
    NoStartEvidence = "no_start_evidence";
    /// The runner ended without a result, and nothing of it lives.
    NoResult = "no_result";
    /// The machine restarted before there was a result.
    Rebooted = "rebooted";
    /// The result is not the result of this attempt, or is damaged.
    ResultInvalid = "result_invalid";
    /// The runner is gone, but processes that it started live.
    Survivors = "survivors";
}

/// One attempt. `Dispatching` is on disk before the boundary is crossed: intent, act, outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptState {
    Admitted,
    Dispatching {
        boot_id: String,
    },
    Running {
        unit: Unit,
    },
    Stopping {
        reason: StopReason,
        unit: Option<Unit>,
        boot_id: String,
    },
    /// The runner is gone, something that it started may live; `intent` is what it converges to.
    Orphaned {
        intent: Option<StopReason>,
        boot_id: String,
    },
    Ended {
        terminal: Terminal,
    },
}

/// What happens to an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Dispatched {
        boot_id: String,
    },
    Started {
        unit: Unit,
    },
    StopAsked {
        reason: StopReason,
    },
    /// Evidence says how it ended.
    Ended {
        terminal: Terminal,
    },
    /// The runner is gone without a result, and something that it started lives.
    Survived,
}

impl Event {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Dispatched { .. } => "dispatched",
            Self::Started { .. } => "started",
            Self::StopAsked { .. } => "stop_asked",
            Self::Ended { .. } => "ended",
            Self::Survived => "survived",
        }
    }
}

impl AttemptState {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Dispatching { .. } => "dispatching",
            Self::Running { .. } => "running",
            Self::Stopping { .. } => "stopping",
            Self::Orphaned { .. } => "orphaned",
            Self::Ended { terminal } => terminal.as_str(),
        }
    }

    /// The boot in which it was dispatched.
    pub fn boot_id(&self) -> Option<&str> {
        match self {
            Self::Admitted | Self::Ended { .. } => None,
            Self::Dispatching { boot_id } | Self::Stopping { boot_id, .. } | Self::Orphaned { boot_id, .. } => {
                Some(boot_id)
            }
            Self::Running { unit } => Some(&unit.boot_id),
        }
    }

    /// Why it was asked to stop, if it was.
    pub const fn stop_intent(&self) -> Option<StopReason> {
        match self {
            Self::Stopping { reason, .. } => Some(*reason),
            Self::Orphaned { intent, .. } => *intent,
            Self::Admitted | Self::Dispatching { .. } | Self::Running { .. } | Self::Ended { .. } => None,
        }
    }

    /// The attempt after `event`; `None` for a pair that is not written here.
    pub fn after(self, event: Event) -> Option<Self> {
        use AttemptState::{Admitted, Dispatching, Ended, Orphaned, Running, Stopping};
        match (self, event) {
            (Admitted, Event::Dispatched { boot_id }) => Some(Dispatching { boot_id }),
            // Nothing has started, so stopping is ending.
            (Admitted, Event::StopAsked { reason }) => Some(Ended { terminal: reason.terminal() }),
            (Dispatching { .. } | Running { .. }, Event::Started { unit }) => Some(Running { unit }),
            (Stopping { reason, boot_id, .. }, Event::Started { unit }) => {
                Some(Stopping { reason, unit: Some(unit), boot_id })
            }
            (Dispatching { boot_id }, Event::StopAsked { reason }) => Some(Stopping { reason, unit: None, boot_id }),
            (Running { unit }, Event::StopAsked { reason }) => {
                Some(Stopping { reason, boot_id: unit.boot_id.clone(), unit: Some(unit) })
            }
            (Orphaned { boot_id, .. }, Event::StopAsked { reason }) => Some(Orphaned { intent: Some(reason), boot_id }),
            (Dispatching { boot_id } | Orphaned { intent: None, boot_id }, Event::Survived) => {
                Some(Orphaned { intent: None, boot_id })
            }
            (Running { unit }, Event::Survived) => Some(Orphaned { intent: None, boot_id: unit.boot_id }),
            (Stopping { reason, boot_id, .. } | Orphaned { intent: Some(reason), boot_id }, Event::Survived) => {
                Some(Orphaned { intent: Some(reason), boot_id })
            }
            // From `lost` too: late evidence corrects a pessimistic answer (K10).
            (
                Dispatching { .. }
                | Running { .. }
                | Stopping { .. }
                | Orphaned { .. }
                | Ended { terminal: Terminal::Lost },
                Event::Ended { terminal },
            ) => Some(Ended { terminal }),
            (Admitted | Dispatching { .. } | Running { .. } | Stopping { .. } | Orphaned { .. } | Ended { .. }, _) => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit { pid: 7, start_ticks: 42, boot_id: "boot".into() }
    }

    fn states() -> Vec<AttemptState> {
        let boot_id = || "boot".to_owned();
        vec![
            AttemptState::Admitted,
            AttemptState::Dispatching { boot_id: boot_id() },
            AttemptState::Running { unit: unit() },
            AttemptState::Stopping { reason: StopReason::Cancel, unit: None, boot_id: boot_id() },
            AttemptState::Orphaned { intent: None, boot_id: boot_id() },
            AttemptState::Orphaned { intent: Some(StopReason::Cancel), boot_id: boot_id() },
            AttemptState::Ended { terminal: Terminal::Succeeded },
            AttemptState::Ended { terminal: Terminal::Cancelled },
            AttemptState::Ended { terminal: Terminal::Lost },
        ]
    }

    /// K01, K10: every pair of a state and an event, row by row; `-` is refused.
    #[test]
    fn an_attempt_moves_only_as_written() {
        let events = [
            Event::Dispatched { boot_id: "boot".into() },
            Event::Started { unit: unit() },
            Event::StopAsked { reason: StopReason::Deadline },
            Event::Ended { terminal: Terminal::Succeeded },
            Event::Survived,
        ];
        let table = [
            ["dispatching", "-", "timed_out", "-", "-"],
            ["-", "running", "stopping", "succeeded", "orphaned"],
            ["-", "running", "stopping", "succeeded", "orphaned"],
            ["-", "stopping", "-", "succeeded", "orphaned"],
            ["-", "-", "orphaned", "succeeded", "orphaned"],
            ["-", "-", "orphaned", "succeeded", "orphaned"],
            ["-", "-", "-", "-", "-"],
            ["-", "-", "-", "-", "-"],
            ["-", "-", "-", "succeeded", "-"],
        ];
        for (state, row) in states().into_iter().zip(table) {
            for (event, expected) in events.iter().zip(row) {
                let next = state.clone().after(event.clone());
                assert_eq!(next.as_ref().map_or("-", AttemptState::as_str), expected, "{state:?} after {event:?}");
            }
        }
    }

    /// K01
    #[test]
    fn nothing_but_admitted_is_ever_dispatched() {
        for state in states().into_iter().skip(1) {
            assert_eq!(state.after(Event::Dispatched { boot_id: "boot".into() }), None);
        }
    }

    /// K10
    #[test]
    fn an_orphan_keeps_what_it_was_asked_to_become() {
        let stopping = AttemptState::Stopping { reason: StopReason::Deadline, unit: None, boot_id: "boot".into() };
        let orphan = stopping.after(Event::Survived).unwrap();
        let expected = AttemptState::Orphaned { intent: Some(StopReason::Deadline), boot_id: "boot".into() };
        assert_eq!(orphan, expected);
        assert_eq!(orphan.after(Event::Survived), Some(expected));
    }

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let mut names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}
