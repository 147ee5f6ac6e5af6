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
            Finish { terminal: result.terminal(None), reason: Reason::Result }
        }
        (AttemptState::Ended { .. }, _) => Leave,
        (state, Evidence::Ended(result)) => {
            Finish { terminal: result.terminal(state.stop_intent()), reason: Reason::Result }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::{ProcessEnd, StopReason};
    use crate::bundle::Cause;

    fn ended(cause: Cause, code: i32) -> Evidence {
        Evidence::Ended(RunnerResult {
            attempt: conduit_api::AttemptId::from_parts(1, 2),
            operation_digest: String::new(),
            cause,
            end: ProcessEnd::Exited { code },
            streams: Vec::new(),
            killed: 0,
            started_at_us: 0,
            finished_at_us: 0,
        })
    }

    fn unit() -> Unit {
        Unit { pid: 7, start_ticks: 42, boot_id: "now".into() }
    }

    fn dispatched() -> [AttemptState; 5] {
        let boot_id = || "now".to_owned();
        [
            AttemptState::Dispatching { boot_id: boot_id() },
            AttemptState::Running { unit: unit() },
            AttemptState::Stopping { reason: StopReason::Cancel, unit: Some(unit()), boot_id: boot_id() },
            AttemptState::Orphaned { intent: None, boot_id: boot_id() },
            AttemptState::Orphaned { intent: Some(StopReason::Cancel), boot_id: boot_id() },
        ]
    }

    fn evidence() -> [Evidence; 6] {
        [
            ended(Cause::Ended, 0),
            Evidence::Alive(Some(unit())),
            Evidence::Surviving,
            Evidence::Absent { started: true },
            Evidence::Absent { started: false },
            Evidence::Invalid,
        ]
    }

    const fn finish(terminal: Terminal, reason: Reason) -> Resolution {
        Resolution::Finish { terminal, reason }
    }

    /// K01
    #[test]
    fn only_what_never_crossed_the_boundary_is_dispatched() {
        for evidence in evidence() {
            assert_eq!(resolve(&AttemptState::Admitted, &evidence, "now"), Resolution::Dispatch);
            for state in dispatched() {
                assert_ne!(resolve(&state, &evidence, "now"), Resolution::Dispatch);
                assert_ne!(resolve(&state, &evidence, "later"), Resolution::Dispatch);
            }
        }
    }

    /// K10
    #[test]
    fn a_result_wins_over_every_state_and_intent() {
        for state in dispatched().into_iter().chain([AttemptState::Ended { terminal: Terminal::Lost }]) {
            let resolution = resolve(&state, &ended(Cause::Ended, 0), "later");
            assert_eq!(resolution, finish(Terminal::Succeeded, Reason::Result), "{state:?}");
        }
        let ended_well = AttemptState::Ended { terminal: Terminal::Succeeded };
        assert_eq!(resolve(&ended_well, &ended(Cause::Stopped, 1), "now"), Resolution::Leave);
    }

    /// K10
    #[test]
    fn a_runner_that_was_stopped_at_its_deadline_says_stopped_and_that_means_timed_out() {
        let asked = |reason| AttemptState::Stopping { reason, unit: Some(unit()), boot_id: "now".into() };
        let resolution = |state: &AttemptState| resolve(state, &ended(Cause::Stopped, 0), "now");
        assert_eq!(resolution(&asked(StopReason::Deadline)), finish(Terminal::TimedOut, Reason::Result));
        assert_eq!(resolution(&asked(StopReason::Cancel)), finish(Terminal::Cancelled, Reason::Result));
    }

    /// K01, K10
    #[test]
    fn no_result_is_lost_unless_it_was_asked_to_stop() {
        let absent = |started| Evidence::Absent { started };
        let [dispatching, running, stopping, orphaned, orphaned_stopping] = dispatched();
        let lost = |reason| finish(Terminal::Lost, reason);
        let stopped = finish(Terminal::Cancelled, Reason::StoppedWithoutResult);
        assert_eq!(resolve(&dispatching, &absent(false), "now"), lost(Reason::NoStartEvidence));
        assert_eq!(resolve(&dispatching, &absent(true), "now"), lost(Reason::NoResult));
        assert_eq!(resolve(&running, &absent(true), "now"), lost(Reason::NoResult));
        assert_eq!(resolve(&orphaned, &absent(true), "now"), lost(Reason::NoResult));
        assert_eq!(resolve(&stopping, &absent(true), "now"), stopped);
        assert_eq!(resolve(&orphaned_stopping, &absent(true), "now"), stopped);
        for state in dispatched() {
            assert_eq!(resolve(&state, &absent(true), "later"), lost(Reason::Rebooted));
            assert_eq!(resolve(&state, &Evidence::Invalid, "now"), lost(Reason::ResultInvalid));
        }
    }

    /// K01
    #[test]
    fn what_may_live_is_neither_ended_nor_lost() {
        for state in dispatched() {
            assert_eq!(resolve(&state, &Evidence::Surviving, "now"), Resolution::Orphan);
            assert_eq!(resolve(&state, &Evidence::Alive(None), "now"), Resolution::Adopt(None));
        }
    }

    #[test]
    fn a_result_says_what_the_runner_did_before_what_the_process_said() {
        let terminal = |evidence| match resolve(&dispatched()[1], &evidence, "now") {
            Resolution::Finish { terminal, .. } => terminal,
            other => panic!("{other:?}"),
        };
        assert_eq!(terminal(ended(Cause::Stopped, 0)), Terminal::Cancelled);
        assert_eq!(terminal(ended(Cause::TimedOut, 0)), Terminal::TimedOut);
        assert_eq!(terminal(ended(Cause::Ended, 1)), Terminal::Failed { end: ProcessEnd::Exited { code: 1 } });
    }
}
