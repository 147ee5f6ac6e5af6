//! What a failed attempt means for its Work: a pure decision.

use conduit_config::Retry;

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
    /// The host could not start it: the spawner is away, the disk is full. It says nothing about the Work.
    Host,
    /// The attempt cannot be made: a missing executable, an impossible endpoint. Trying again changes nothing.
    Impossible,
}

/// How long a fault of the host is given to pass. No number of them fails a Work: what was accepted is not lost.
const HOST: Retry = Retry { attempts: u32::MAX, backoff_ms: 1_000, backoff_max_ms: 60_000 };

impl Failure {
    /// Whether it counts against the attempts that the Work's binding allows.
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Host)
    }
}

/// Decides. `failures` counts this one; where the host is at fault, it counts attempts. A process whose effects are unknown
/// is never repeated by itself (K01).
pub fn decide(policy: Retry, failures: i64, failure: Failure) -> Verdict {
    let policy = if failure == Failure::Host { HOST } else { policy };
    match failure {
        Failure::Impossible => Verdict::Fail,
        Failure::Unknown => Verdict::HoldAmbiguous,
        Failure::Process | Failure::NeverStarted if failures >= i64::from(policy.attempts) => Verdict::Fail,
        Failure::Process | Failure::NeverStarted | Failure::Host => {
            let after_ms = policy.backoff_after(u32::try_from(failures).unwrap_or(u32::MAX));
            Verdict::Again { after_us: i64::try_from(after_ms.saturating_mul(1000)).unwrap_or(i64::MAX) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Retry = Retry { attempts: 4, backoff_ms: 100, backoff_max_ms: 250 };

    #[test]
    fn a_failing_process_is_tried_again_with_growing_pauses_until_its_attempts_are_used() {
        let verdicts: Vec<_> = (1..=4).map(|n| decide(POLICY, n, Failure::Process)).collect();
        let again = |ms: i64| Verdict::Again { after_us: ms * 1000 };
        assert_eq!(verdicts, [again(100), again(200), again(250), Verdict::Fail]);
        assert_eq!(decide(Retry { attempts: u32::MAX, ..POLICY }, 1 << 31, Failure::Process), again(250));
    }

    #[test]
    fn a_fault_of_the_host_never_fails_a_work_and_is_given_ever_more_time_to_pass_up_to_a_minute() {
        let pauses: Vec<_> = [1, 2, 99].into_iter().map(|n| decide(POLICY, n, Failure::Host)).collect();
        assert_eq!(pauses, [1, 2, 60].map(|seconds| Verdict::Again { after_us: seconds * 1_000_000 }));
    }

    /// K01
    #[test]
    fn what_may_have_happened_is_held_and_what_cannot_happen_is_not_tried() {
        assert_eq!(decide(POLICY, 1, Failure::Unknown), Verdict::HoldAmbiguous);
        assert_eq!(decide(POLICY, 1, Failure::Impossible), Verdict::Fail);
        assert_eq!(decide(POLICY, 1, Failure::NeverStarted), Verdict::Again { after_us: 100_000 });
    }
}
