//! The lease guard: who may still speak for an execution (T05).

use conduit_api::{ExecutionId, ScopeId};
use rusqlite::named_params;

use crate::clock::Now;
use crate::error::{Error, Result};
use crate::tx::Read;

/// What a caller claims to hold: one execution, at one epoch, under one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    pub execution: ExecutionId,
    pub epoch: i64,
    /// The scheduler instance that took the lease.
    pub owner: String,
}

/// How much has to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// A token speaks: the execution runs, its lease has not expired, its Work runs in this scope, and nothing is declared.
    Authority { scope: ScopeId },
    /// The scheduler that holds the role lock speaks for an execution that it claimed: epoch and owner match, and the segment has not ended.
    Ownership,
}

/// What the rows say about an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub state: String,
    pub epoch: i64,
    pub owner: Option<String>,
    pub lease_boot_id: Option<String>,
    pub lease_boot_us: Option<i64>,
    pub work_state: String,
    pub scope: String,
    pub declared: bool,
}

const HELD: &str = "
    SELECT e.state, e.epoch, e.owner, e.lease_boot_id, e.lease_boot_us, w.state AS work_state, w.scope_id,
           EXISTS (SELECT 1 FROM declaration d WHERE d.execution_id = e.id AND d.epoch = e.epoch) AS declared
      FROM execution e JOIN work w ON w.id = e.work_id
     WHERE e.id = :execution";

/// The rules, in the order in which they are asked: check 5 of T05. The names are for records (T06).
pub mod rule {
    pub const NO_EXECUTION: &str = "there is no such execution";
    pub const EPOCH: &str = "the epoch was superseded";
    pub const OWNER: &str = "another owner holds the lease";
    pub const NOT_RUNNING: &str = "the execution is not running";
    pub const EXPIRED: &str = "the lease has expired";
    pub const WORK_NOT_RUNNING: &str = "the Work is not running";
    pub const SCOPE: &str = "the Work is in another scope";
    pub const DECLARED: &str = "the segment has declared";

    /// Those that a token's authority is held against.
    pub const OF_AUTHORITY: [&str; 8] =
        [NO_EXECUTION, EPOCH, OWNER, NOT_RUNNING, EXPIRED, WORK_NOT_RUNNING, SCOPE, DECLARED];
}

/// Decides from the rows alone. Errors: `authority_released`, `forbidden` (T06).
pub fn decide(fence: &Fence, demand: &Demand, held: &Held, now: Now) -> Result<()> {
    let lost = |why| Err(Error::LeaseLost { why });
    if held.epoch != fence.epoch {
        return lost(rule::EPOCH);
    }
    if held.owner.as_deref() != Some(fence.owner.as_str()) {
        return lost(rule::OWNER);
    }
    match demand {
        Demand::Ownership if matches!(held.state.as_str(), "claimed" | "running" | "orphaned") => Ok(()),
        Demand::Ownership => lost("the segment has ended"),
        Demand::Authority { scope } => {
            if held.state != "running" {
                return lost(rule::NOT_RUNNING);
            }
            if held.lease_boot_id.as_deref() != Some(now.boot_id)
                || held.lease_boot_us.is_none_or(|end| now.boot_us >= end)
            {
                return lost(rule::EXPIRED);
            }
            if held.work_state != "running" {
                return lost(rule::WORK_NOT_RUNNING);
            }
            if held.scope != scope.as_str() {
                return lost(rule::SCOPE);
            }
            if held.declared {
                return Err(Error::AuthorityReleased);
            }
            Ok(())
        }
    }
}

/// Reads the rows and decides.
pub(crate) fn guard(tx: &Read<'_>, fence: &Fence, demand: &Demand, now: Now) -> Result<()> {
    let held =
        tx.optional("reading a lease", HELD, named_params! { ":execution": fence.execution.as_str() }, |row| {
            Ok(Held {
                state: row.get("state")?,
                epoch: row.get("epoch")?,
                owner: row.get("owner")?,
                lease_boot_id: row.get("lease_boot_id")?,
                lease_boot_us: row.get("lease_boot_us")?,
                work_state: row.get("work_state")?,
                scope: row.get("scope_id")?,
                declared: row.get("declared")?,
            })
        })?;
    held.map_or(Err(Error::LeaseLost { why: rule::NO_EXECUTION }), |held| decide(fence, demand, &held, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::UnixMicros;

    const NOW: Now = Now { wall: UnixMicros(1_000), boot_us: 500, boot_id: "this boot" };

    fn fence() -> Fence {
        Fence { execution: ExecutionId::from_parts(1, 1), epoch: 3, owner: "a".into() }
    }
    fn held() -> Held {
        Held {
            state: "running".into(),
            epoch: 3,
            owner: Some("a".into()),
            lease_boot_id: Some("this boot".into()),
            lease_boot_us: Some(501),
            work_state: "running".into(),
            scope: "demo".into(),
            declared: false,
        }
    }
    fn ask(held: &Held, now: Now) -> Result<()> {
        decide(&fence(), &Demand::Authority { scope: "demo".parse().unwrap() }, held, now)
    }

    /// T05
    #[test]
    fn authority_holds_only_while_every_fact_of_the_lease_holds() {
        assert!(ask(&held(), NOW).is_ok());
        let broken = [
            Held { state: "claimed".into(), ..held() },
            Held { state: "parked".into(), ..held() },
            Held { epoch: 4, ..held() },
            Held { owner: Some("b".into()), ..held() },
            Held { owner: None, ..held() },
            Held { lease_boot_id: Some("another boot".into()), ..held() },
            Held { lease_boot_us: None, ..held() },
            Held { work_state: "waiting".into(), ..held() },
            Held { scope: "other".into(), ..held() },
        ];
        for held in broken {
            assert_eq!(ask(&held, NOW).unwrap_err().code().as_str(), "forbidden", "{held:?}");
        }
    }

    /// What breaks each rule and no other; whoever explains a decision reads the rules in the order of [`rule::OF_AUTHORITY`].
    fn broken(rule: &str, held: &mut Held) {
        match rule {
            rule::EPOCH => held.epoch = 4,
            rule::OWNER => held.owner = Some("b".into()),
            rule::NOT_RUNNING => held.state = "claimed".into(),
            rule::EXPIRED => held.lease_boot_us = Some(500),
            rule::WORK_NOT_RUNNING => held.work_state = "waiting".into(),
            rule::SCOPE => held.scope = "other".into(),
            rule::DECLARED => held.declared = true,
            unknown => panic!("{unknown} is broken by no row"),
        }
    }

    fn said(refused: Result<()>) -> &'static str {
        match refused.unwrap_err() {
            Error::LeaseLost { why } => why,
            Error::AuthorityReleased => rule::DECLARED,
            other => panic!("{other}"),
        }
    }

    /// T05, T06: the order in which the rules are listed is the order in which they are asked.
    #[test]
    fn each_rule_of_the_lease_wins_over_every_later_one_that_is_broken_too() {
        let (first, rules) = rule::OF_AUTHORITY.split_first().unwrap();
        assert_eq!(*first, rule::NO_EXECUTION, "without a row there is nothing else to ask");
        for (at, earlier) in rules.iter().enumerate() {
            let mut one = held();
            broken(earlier, &mut one);
            assert_eq!(said(ask(&one, NOW)), *earlier);
            for later in &rules[at + 1..] {
                let mut both = one.clone();
                broken(later, &mut both);
                assert_eq!(said(ask(&both, NOW)), *earlier, "{later} is broken as well");
            }
        }
    }

    /// T05
    #[test]
    fn a_lease_ends_at_its_instant_and_no_step_of_the_wall_clock_moves_it() {
        assert!(ask(&held(), Now { boot_us: 500, ..NOW }).is_ok());
        assert!(ask(&held(), Now { boot_us: 501, ..NOW }).is_err());
        for step in [-3_600_000_000, 3_600_000_000] {
            assert!(ask(&held(), Now { wall: NOW.wall.plus(step), ..NOW }).is_ok());
        }
    }

    /// T06
    #[test]
    fn a_declared_segment_is_released_and_a_superseded_one_is_not_told_so() {
        let declared = Held { declared: true, ..held() };
        assert!(matches!(ask(&declared, NOW), Err(Error::AuthorityReleased)));
        assert!(matches!(ask(&Held { epoch: 4, ..declared }, NOW), Err(Error::LeaseLost { .. })));
    }

    #[test]
    fn the_scheduler_may_finish_what_it_claimed_after_a_declaration_but_not_twice() {
        let owner = |held: &Held| decide(&fence(), &Demand::Ownership, held, NOW);
        assert!(owner(&Held { declared: true, lease_boot_us: Some(0), ..held() }).is_ok());
        assert!(owner(&Held { state: "claimed".into(), ..held() }).is_ok());
        assert!(owner(&Held { state: "orphaned".into(), ..held() }).is_ok());
        assert!(owner(&Held { state: "succeeded".into(), ..held() }).is_err());
        assert!(owner(&Held { epoch: 4, ..held() }).is_err());
    }
}
