//! The end of a segment: what was declared is applied, or the failure policy decides (T12).

use conduit_api::toolbelt::{OutcomeInput, OutcomeStatus, WaitInput};
use conduit_api::{Code, EventId, WaitId, WorkId};
use conduit_config::Retry;
use conduit_store::{Fenced, column_id, named_params};
use serde_json::{Map, Value};

use super::claim::Claimed;
use super::policy::{self, Failure, Verdict};
use super::stop::StopReason;
use crate::artifacts::{self, NewArtifact};
use crate::error::{Error, Result};
use crate::waits::look_back::{LOOK_BACK_BYTES_MAX, LOOK_BACK_EVENTS_MAX};
use crate::work::{self, BlockedReason, Event};
use crate::{inputs, waits};

/// How the process of a segment ended, as far as the host can prove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentEnd {
    Succeeded,
    /// It failed, outlived its deadline, or could not be started; `retryable` whether trying again can change that.
    Failed {
        code: Code,
        message: String,
        retryable: bool,
    },
    /// The host could not start it, for a reason that has nothing to do with the Work.
    HostFault {
        code: Code,
        message: String,
    },
    /// The host stopped it.
    Stopped,
    /// A start gate has the Work wait before its first attempt (G06).
    GateParked(WaitInput),
    /// A start gate refused the Work's first attempt (G06).
    GateRefused {
        message: String,
    },
    /// The host cannot say how it ended; `started` whether its process can have begun.
    Lost {
        started: bool,
    },
}

/// What the segment declared.
#[derive(Debug, Clone, PartialEq)]
pub enum Declaration {
    Wait(WaitInput),
    Outcome(OutcomeInput),
    /// It is on record and cannot be carried out: trying again changes nothing.
    Impossible {
        code: Code,
        why: &'static str,
    },
}

/// What is to be done with a Work whose segment has ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    /// Somebody has already taken the Work in hand, and `code` says who.
    LeaveWork {
        code: Code,
    },
    Finish {
        outcome: OutcomeInput,
    },
    Wait(WaitInput),
    /// It was interrupted: the next segment is told again, and of the Event.
    GoOn,
    /// A start gate refused it: an operator has to let it go on.
    Hold {
        message: String,
    },
    Fail {
        failure: Failure,
        code: Code,
        message: String,
    },
}

/// Decides from what was asked, what was declared and what happened. A declaration stands whatever the exit status;
/// when the host could not tell what happened, the failure policy decides in its stead.
pub(crate) fn decide(stop: Option<StopReason>, declared: Option<Declaration>, end: &SegmentEnd) -> Decision {
    let fail = |failure, code, message: &str| Decision::Fail { failure, code, message: message.to_owned() };
    match stop {
        Some(StopReason::OperatorCancelled | StopReason::WorkCancelled) => {
            return Decision::LeaveWork { code: Code::OperatorCancelled };
        }
        Some(StopReason::BudgetExceeded) => return Decision::LeaveWork { code: Code::BudgetExceeded },
        Some(StopReason::Interrupted) | None => {}
    }
    match (end, declared) {
        (SegmentEnd::Lost { started: true }, _) => fail(
            Failure::Unknown,
            Code::AttemptLost,
            "the process had started and the host cannot say how it ended; look at what it did, then retry the Work",
        ),
        (SegmentEnd::Lost { started: false }, _) => {
            fail(Failure::NeverStarted, Code::AttemptLost, "the attempt was lost before its process started")
        }
        // Nothing was launched, so nothing was declared.
        (SegmentEnd::GateParked(wait), _) => Decision::Wait(wait.clone()),
        (SegmentEnd::GateRefused { message }, _) => Decision::Hold { message: message.clone() },
        (_, Some(Declaration::Outcome(outcome))) => Decision::Finish { outcome },
        (_, Some(Declaration::Wait(wait))) => Decision::Wait(wait),
        (_, Some(Declaration::Impossible { code, why })) => fail(Failure::Impossible, code, why),
        (SegmentEnd::Stopped, None) if stop == Some(StopReason::Interrupted) => Decision::GoOn,
        (SegmentEnd::Stopped, None) => fail(Failure::Process, Code::ProcessFailed, "the process was stopped"),
        (SegmentEnd::Failed { code, message, retryable }, None) => {
            let failure = if *retryable { Failure::Process } else { Failure::Impossible };
            Decision::Fail { failure, code: *code, message: message.clone() }
        }
        (SegmentEnd::HostFault { code, message }, None) => {
            Decision::Fail { failure: Failure::Host, code: *code, message: message.clone() }
        }
        (SegmentEnd::Succeeded, None) => Decision::Finish {
            outcome: OutcomeInput { status: OutcomeStatus::Succeeded, summary: None, data: Map::new() },
        },
    }
}

/// What became of the execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// The execution's state now.
    pub state: &'static str,
    /// The Work's state now.
    pub work_state: &'static str,
    /// Parked: it keeps its run directory (E06).
    pub parked: bool,
    pub wait: Option<WaitId>,
}

const ROW: &str = "SELECT stop_reason, cause_event_id, acknowledged FROM execution WHERE id = :id AND epoch = :epoch";
const DECLARED: &str =
    "SELECT kind, body FROM declaration WHERE execution_id = :id AND epoch = :epoch AND applied_at_us IS NULL";
const APPLIED: &str = "UPDATE declaration SET applied_at_us = :at WHERE execution_id = :id AND epoch = :epoch";
const REVOKE: &str = "UPDATE token SET revoked_at_us = :at WHERE execution_id = :id AND revoked_at_us IS NULL";
const END: &str = "
    UPDATE execution SET state = :state, code = :code, message = :message, owner = NULL, usage = :usage, stop_reason = NULL,
                         finished_at_us = :finished, revision = revision + 1
     WHERE id = :id AND epoch = :epoch AND state IN ('claimed', 'running', 'orphaned')";
const ORPHANED: &str = "
    UPDATE execution SET state = 'orphaned', revision = revision + 1 WHERE id = :id AND epoch = :epoch AND state = 'running'";
const COUNT_FAILURE: &str = "UPDATE work SET failures = failures + 1 WHERE id = :id";
const FAILURES: &str = "SELECT failures FROM work WHERE id = :id";

fn declaration(tx: &Fenced<'_>) -> Result<Option<Declaration>> {
    let params = named_params! { ":id": tx.held().execution.as_str(), ":epoch": tx.held().epoch };
    let found = tx.optional("reading a declaration", DECLARED, params, |row| {
        Ok((row.get::<_, String>("kind")?, row.get::<_, String>("body")?))
    })?;
    Ok(found.map(|(kind, body)| {
        let (read, code) = if kind == "wait" {
            (serde_json::from_str(&body).map(Declaration::Wait), Code::InvalidWait)
        } else {
            (serde_json::from_str(&body).map(Declaration::Outcome), Code::Internal)
        };
        let why = "the stored declaration cannot be read by this release";
        read.unwrap_or(Declaration::Impossible { code, why })
    }))
}

/// The decision about a wait that would have to look back too far.
fn too_far_back() -> Decision {
    let message = format!(
        "the wait looks back at more than {LOOK_BACK_EVENTS_MAX} Events, or {LOOK_BACK_BYTES_MAX} bytes of their data; \
         name a later watermark, or a key or a Work to hear of"
    );
    Decision::Fail { failure: Failure::Impossible, code: Code::InvalidWait, message }
}

/// The runner of the segment that `tx` is fenced to is gone and something that it started lives on: the execution holds
/// its Work and has no authority until that has ended too, and [`complete`] can say how.
pub fn orphaned(tx: &Fenced<'_>) -> Result<()> {
    let params = named_params! { ":id": tx.held().execution.as_str(), ":epoch": tx.held().epoch };
    tx.execute("marking an orphaned execution", ORPHANED, params)?;
    Ok(())
}

const DECIDED: &str = "
    SELECT stop_reason IS NOT NULL OR EXISTS (
        SELECT 1 FROM declaration d WHERE d.execution_id = x.id AND d.epoch = x.epoch AND d.applied_at_us IS NULL) AS decided
      FROM execution x WHERE x.id = :id AND x.epoch = :epoch";

/// The process of the segment that `tx` is fenced to has ended, and what that means is not known yet: its tokens end now.
pub fn silence(tx: &Fenced<'_>) -> Result<()> {
    let params = named_params! { ":id": tx.held().execution.as_str(), ":at": tx.now().wall.0 };
    tx.execute("revoking tokens", REVOKE, params)?;
    Ok(())
}

/// Whether it is settled what follows from the end of the segment that `tx` is fenced to, whatever that end means: it
/// declared something, or somebody asked to stop it (T12).
pub fn is_decided(tx: &Fenced<'_>) -> Result<bool> {
    let params = named_params! { ":id": tx.held().execution.as_str(), ":epoch": tx.held().epoch };
    Ok(tx.one("looking for a declaration", DECIDED, params, |row| row.get("decided"))?)
}

/// Ends the segment that `tx` is fenced to, in one transaction: its tokens, its outputs, its declaration, its Work.
pub fn complete(
    tx: &Fenced<'_>,
    claimed: &Claimed,
    end: &SegmentEnd,
    outputs: &[NewArtifact],
    usage: &Value,
    policy: Retry,
    resume_capable: bool,
) -> Result<Completed> {
    let now = tx.now();
    let (execution, work) = (&claimed.execution, &claimed.work);
    let (stop, cause, told): (Option<StopReason>, EventId, i64) = tx.one(
        "reading an execution",
        ROW,
        named_params! { ":id": execution.as_str(), ":epoch": claimed.epoch },
        |row| {
            Ok((
                row.get::<_, Option<String>>("stop_reason")?.as_deref().and_then(StopReason::from_row),
                column_id(row, "cause_event_id")?,
                row.get("acknowledged")?,
            ))
        },
    )?;
    artifacts::record(tx, execution, work, &claimed.scope, claimed.segment, outputs, now)?;
    tx.execute("revoking tokens", REVOKE, named_params! { ":id": execution.as_str(), ":at": now.wall.0 })?;
    let (decision, seen) = match decide(stop, declaration(tx)?, end) {
        Decision::Wait(wait) => match waits::look_back(tx, claimed, &wait, told)? {
            Some(seen) => (Decision::Wait(wait), seen),
            None => (too_far_back(), Vec::new()),
        },
        other => (other, Vec::new()),
    };
    let gated = matches!(end, SegmentEnd::GateParked(_));
    let carried_out = matches!(decision, Decision::Finish { .. } | Decision::Wait(_)) && !gated;

    // The execution's row first: `execution_single` lets the next claim in only when this one has left.
    let parks = matches!(decision, Decision::Wait(_)) && resume_capable && !gated;
    let (state, code, message) = ended_as(&decision, end, parks);
    tx.execute("ending an execution", END, named_params! {
        ":id": execution.as_str(), ":epoch": claimed.epoch, ":state": state, ":code": code.map(Code::as_str), ":message": message,
        ":usage": usage.to_string(), ":finished": (!parks).then_some(now.wall.0),
    })?;
    let mut wait = None;
    let work_state = match decision {
        Decision::LeaveWork { .. } => {
            inputs::untell(tx, work, execution)?;
            work::state_of(tx, work)?
        }
        Decision::Finish { outcome } => {
            inputs::acknowledge(tx, work, execution)?;
            let how = if outcome.status == OutcomeStatus::Succeeded { Event::Succeeds } else { Event::Fails };
            work::finish(tx, work, how, &object(&outcome)?, &cause, now)?
        }
        Decision::Wait(declared) if gated => {
            // Nobody was told of anything yet, and what could wake a segment wakes no gate.
            inputs::untell(tx, work, execution)?;
            work::set_state(tx, work, Event::Waits, now.wall.0, None, now)?;
            wait = Some(waits::register(tx, claimed, &declared, &seen, told, now)?);
            work::state_of(tx, work)?
        }
        Decision::Hold { .. } => {
            inputs::untell(tx, work, execution)?;
            work::set_state(tx, work, Event::Held(BlockedReason::Gate), now.wall.0, None, now)?
        }
        Decision::Wait(declared) => {
            inputs::acknowledge(tx, work, execution)?;
            work::set_state(tx, work, Event::Waits, now.wall.0, None, now)?;
            wait = Some(waits::register(tx, claimed, &declared, &seen, told, now)?);
            // What came to wake or interrupt it a moment too early wakes it now: the order of the two changes nothing.
            if inputs::wakes(tx, work)? && work::make_ready(tx, work, now)? {
                waits::cancel_pending(tx, work, waits::Ended::Woken, now)?;
            }
            work::state_of(tx, work)?
        }
        Decision::GoOn => {
            inputs::untell(tx, work, execution)?;
            work::set_state(tx, work, Event::TriesAgain, now.wall.0, None, now)?
        }
        Decision::Fail { failure, code, message } => {
            let count = if failure.counts() { count_failure(tx, work)? } else { claimed.attempt };
            match policy::decide(policy, count, failure) {
                Verdict::Again { after_us } => {
                    inputs::untell(tx, work, execution)?;
                    work::set_state(tx, work, Event::TriesAgain, now.wall.0.saturating_add(after_us), None, now)?
                }
                Verdict::HoldAmbiguous => {
                    inputs::untell(tx, work, execution)?;
                    work::set_state(tx, work, Event::Held(BlockedReason::AmbiguousDispatch), now.wall.0, None, now)?
                }
                Verdict::Fail => {
                    inputs::acknowledge(tx, work, execution)?;
                    let outcome = Map::from_iter([
                        ("status".to_owned(), Value::from("failed")),
                        ("code".to_owned(), Value::from(code.as_str())),
                        ("summary".to_owned(), Value::from(message)),
                    ]);
                    work::finish(tx, work, Event::Fails, &outcome, &cause, now)?
                }
            }
        }
    };
    // One that was overruled stays unapplied: its row tells it from one that was carried out.
    if carried_out {
        let params = named_params! { ":id": execution.as_str(), ":epoch": claimed.epoch, ":at": now.wall.0 };
        tx.execute("applying a declaration", APPLIED, params)?;
    }
    Ok(Completed { state, work_state: work_state.as_str(), parked: parks, wait })
}

/// State, code and message of the execution's row.
fn ended_as<'d>(
    decision: &'d Decision,
    end: &SegmentEnd,
    parks: bool,
) -> (&'static str, Option<Code>, Option<&'d str>) {
    match decision {
        Decision::LeaveWork { code } => ("cancelled", Some(*code), None),
        Decision::Finish { outcome } if outcome.status == OutcomeStatus::Failed => {
            ("failed", None, outcome.summary.as_deref())
        }
        Decision::Finish { .. } => ("succeeded", None, None),
        Decision::Wait(_) if parks => ("parked", None, None),
        Decision::Wait(_) if matches!(end, SegmentEnd::GateParked(_)) => {
            ("cancelled", Some(Code::StartGated), Some("a gate has the Work wait before it starts"))
        }
        Decision::Hold { message } => ("cancelled", Some(Code::StartGated), Some(message)),
        Decision::Wait(_) => ("succeeded", None, None),
        Decision::GoOn => ("cancelled", Some(Code::Interrupted), None),
        Decision::Fail { code, message, .. } => {
            let state = match (end, code) {
                (SegmentEnd::Lost { .. }, _) => "lost",
                (_, Code::DeadlineExceeded) => "timed_out",
                _ => "failed",
            };
            (state, Some(*code), Some(message))
        }
    }
}

/// Counts one more failure of `work`; returns how many there are now.
fn count_failure(tx: &Fenced<'_>, work: &WorkId) -> Result<i64> {
    tx.execute("counting a failure", COUNT_FAILURE, named_params! { ":id": work.as_str() })?;
    Ok(tx.one("counting failures", FAILURES, named_params! { ":id": work.as_str() }, |row| row.get(0))?)
}

fn object(outcome: &OutcomeInput) -> Result<Map<String, Value>> {
    match serde_json::to_value(outcome) {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => Err(Error::Invalid { why: "the outcome cannot be written as JSON".into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: Code, retryable: bool) -> SegmentEnd {
        SegmentEnd::Failed { code, message: "status 9".into(), retryable }
    }

    fn outcome(status: OutcomeStatus) -> Declaration {
        Declaration::Outcome(OutcomeInput { status, summary: None, data: Map::new() })
    }

    /// T12
    #[test]
    fn a_declared_outcome_stands_whatever_the_exit_status() {
        for end in [failed(Code::ProcessFailed, true), failed(Code::DeadlineExceeded, true), SegmentEnd::Stopped] {
            assert!(
                matches!(decide(None, Some(outcome(OutcomeStatus::Succeeded)), &end), Decision::Finish { .. }),
                "{end:?}"
            );
        }
    }

    /// T12
    #[test]
    fn an_observation_error_follows_the_failure_policy_even_after_a_declaration() {
        let lost = decide(None, Some(outcome(OutcomeStatus::Succeeded)), &SegmentEnd::Lost { started: true });
        assert!(matches!(lost, Decision::Fail { failure: Failure::Unknown, code: Code::AttemptLost, .. }));
    }

    /// M10
    #[test]
    fn what_an_operator_took_in_hand_is_left_to_the_operator() {
        for (stop, code) in [
            (StopReason::OperatorCancelled, Code::OperatorCancelled),
            (StopReason::WorkCancelled, Code::OperatorCancelled),
            (StopReason::BudgetExceeded, Code::BudgetExceeded),
        ] {
            assert_eq!(
                decide(Some(stop), Some(outcome(OutcomeStatus::Succeeded)), &SegmentEnd::Stopped),
                Decision::LeaveWork { code }
            );
        }
        assert_eq!(decide(Some(StopReason::Interrupted), None, &SegmentEnd::Stopped), Decision::GoOn);
    }

    #[test]
    fn a_process_that_ends_well_without_a_word_has_succeeded() {
        assert!(matches!(decide(None, None, &SegmentEnd::Succeeded), Decision::Finish { .. }));
        assert!(matches!(
            decide(None, None, &failed(Code::ProcessFailed, true)),
            Decision::Fail { failure: Failure::Process, .. }
        ));
        assert!(matches!(
            decide(None, None, &failed(Code::ExecutableUnavailable, false)),
            Decision::Fail { failure: Failure::Impossible, .. }
        ));
    }
}
