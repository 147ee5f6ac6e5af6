//! What a failed attempt means for its Work: a pure decision.

/// How often and how soon an attempt is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, at least 1.
    pub attempts: i64,
    pub backoff_us: i64,
    pub backoff_max_us: i64,
}

/// What is done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Tried again after this many microseconds.
    Again { after_us: i64 },
    /// The Work fails.
    Fail,
    /// Held until an operator says that going on is safe.
    HoldAmbiguous,
}

/// Why an attempt did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The process failed, or outlived its deadline.
    Process,
    /// The host lost sight of the attempt, and can prove that its process never started.
    NeverStarted,
    /// The host lost sight of a process that had started: what it did is unknown.
    Unknown,
    /// The attempt cannot be made: a missing executable, an impossible endpoint. Trying again changes nothing.
    Impossible,
}

/// Decides. `failures` counts this one. A process whose effects are unknown is never repeated by itself (K01).
pub fn decide(policy: RetryPolicy, failures: i64, failure: Failure) -> Verdict {
    match failure {
        Failure::Impossible => Verdict::Fail,
        Failure::Unknown => Verdict::HoldAmbiguous,
        Failure::Process | Failure::NeverStarted if failures >= policy.attempts => Verdict::Fail,
        Failure::Process | Failure::NeverStarted => {
            let doublings = u32::try_from((failures - 1).clamp(0, 30)).unwrap_or(30);
            let after = policy.backoff_us.saturating_mul(1_i64 << doublings);
            Verdict::Again { after_us: after.min(policy.backoff_max_us) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy { attempts: 4, backoff_us: 100, backoff_max_us: 250 };

    #[test]
    fn a_failing_process_is_tried_again_with_growing_pauses_until_its_attempts_are_used() {
        let verdicts: Vec<_> = (1..=4).map(|n| decide(POLICY, n, Failure::Process)).collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Again { after_us: 100 },
                Verdict::Again { after_us: 200 },
                Verdict::Again { after_us: 250 },
                Verdict::Fail,
            ]
        );
        assert_eq!(
            decide(RetryPolicy { attempts: i64::MAX, ..POLICY }, 1 << 40, Failure::Process),
            Verdict::Again { after_us: 250 }
        );
    }

    /// K01
    #[test]
    fn what_may_have_happened_is_held_and_what_cannot_happen_is_not_tried() {
        assert_eq!(decide(POLICY, 1, Failure::Unknown), Verdict::HoldAmbiguous);
        assert_eq!(decide(POLICY, 1, Failure::Impossible), Verdict::Fail);
        assert_eq!(decide(POLICY, 1, Failure::NeverStarted), Verdict::Again { after_us: 100 });
    }
}
