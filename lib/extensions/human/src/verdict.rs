//! What a call meets: pure. An approval lets through the very call that it was given for, as often as it says and no more.

use conduit_api::views::Reach;
use conduit_api::{ExecutionId, UnixMicros};

/// The open request of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    Pending {
        /// Exclusive.
        expires_at: Option<UnixMicros>,
    },
    Approved {
        reach: Reach,
        until: Option<UnixMicros>,
        /// Whom it let through first.
        used_by: Option<ExecutionId>,
    },
    Denied {
        note: Option<String>,
    },
}

/// What becomes of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Let through; the approval goes on.
    Through,
    /// Let through; from now on the approval is this execution's.
    Take,
    /// Let through, this once.
    Consume,
    /// It waits on the request that is there.
    Park,
    /// Nobody decided in time: the request is over, and the caller is told so once.
    Expire,
    /// Refused, with the operator's note.
    Deny { note: Option<String> },
    /// The approval is over: a new request is made.
    AskAnew,
}

/// Decides about a call of `execution`, or about the start of a Work when there is none, at the time `now`.
pub fn decide(standing: Standing, execution: Option<&ExecutionId>, now: UnixMicros) -> Verdict {
    match standing {
        Standing::Pending { expires_at: Some(at) } if at <= now => Verdict::Expire,
        Standing::Pending { .. } => Verdict::Park,
        Standing::Denied { note } => Verdict::Deny { note },
        Standing::Approved { reach: Reach::Until, until, .. } if until.is_none_or(|until| until <= now) => {
            Verdict::AskAnew
        }
        Standing::Approved { reach, used_by, .. } => match (reach, execution, used_by) {
            // Start gates are asked until an attempt was launched; it is one start, however often that is.
            (_, None, _) | (Reach::Work | Reach::Until, _, _) => Verdict::Through,
            (Reach::Once, Some(_), _) => Verdict::Consume,
            (Reach::Execution, Some(_), None) => Verdict::Take,
            (Reach::Execution, Some(execution), Some(used_by)) if *execution == used_by => Verdict::Through,
            (Reach::Execution, Some(_), Some(_)) => Verdict::AskAnew,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMicros = UnixMicros(100);

    fn approved(reach: Reach, until: Option<i64>, used_by: Option<ExecutionId>) -> Standing {
        Standing::Approved { reach, until: until.map(UnixMicros), used_by }
    }

    /// G07
    #[test]
    fn an_approval_reaches_as_far_as_it_says() {
        let (one, other) = (ExecutionId::from_parts(1, 1), ExecutionId::from_parts(1, 2));
        let about_one = |standing| decide(standing, Some(&one), NOW);
        assert_eq!(about_one(approved(Reach::Once, None, None)), Verdict::Consume);
        assert_eq!(about_one(approved(Reach::Execution, None, None)), Verdict::Take);
        assert_eq!(about_one(approved(Reach::Execution, None, Some(one.clone()))), Verdict::Through);
        assert_eq!(about_one(approved(Reach::Execution, None, Some(other))), Verdict::AskAnew);
        assert_eq!(about_one(approved(Reach::Work, None, None)), Verdict::Through);
        assert_eq!(about_one(approved(Reach::Until, Some(101), None)), Verdict::Through);
        assert_eq!(about_one(approved(Reach::Until, Some(100), None)), Verdict::AskAnew, "its end is exclusive");
        assert_eq!(about_one(approved(Reach::Until, None, None)), Verdict::AskAnew, "no end is none");
    }

    /// G06, G07
    #[test]
    fn a_request_parks_until_it_is_decided_or_over_and_a_start_uses_no_approval_up() {
        let one = ExecutionId::from_parts(1, 1);
        let pending = |at: Option<i64>| Standing::Pending { expires_at: at.map(UnixMicros) };
        assert_eq!(decide(pending(Some(101)), Some(&one), NOW), Verdict::Park);
        assert_eq!(decide(pending(Some(100)), Some(&one), NOW), Verdict::Expire);
        assert_eq!(decide(pending(None), None, NOW), Verdict::Park);
        let note = Some("no".to_owned());
        assert_eq!(decide(Standing::Denied { note: note.clone() }, None, NOW), Verdict::Deny { note });
        for reach in [Reach::Once, Reach::Execution, Reach::Work] {
            assert_eq!(decide(approved(reach, None, None), None, NOW), Verdict::Through);
        }
    }
}
