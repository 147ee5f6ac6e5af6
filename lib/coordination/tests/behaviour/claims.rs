//! Claims: fair turns between scopes, room, the same cost at any size, and what a new scheduler takes over.

use std::time::Instant;

use crate::support::{Host, SECOND, START, said, scope};
use conduit_coordination::executions::{self, SegmentEnd};
use conduit_coordination::work;
use conduit_store::Now;
use serde_json::json;

#[test]
fn a_busy_scope_cannot_starve_another() {
    let mut host = Host::new();
    for _ in 0..20 {
        host.create("busy", &[]);
    }
    host.pass(SECOND);
    for _ in 0..3 {
        host.create("calm", &[]);
    }
    host.create("demo", &[]);
    let turns: Vec<String> = (0..8).map(|_| host.claim().unwrap().scope.as_str().to_owned()).collect();
    assert_eq!(turns, ["busy", "calm", "demo", "busy", "calm", "busy", "calm", "busy"]);
}

#[test]
fn within_a_scope_the_work_that_was_due_first_is_claimed_first() {
    let mut host = Host::new();
    let mut works = Vec::new();
    for _ in 0..4 {
        works.push(host.create("demo", &[]));
        host.pass(SECOND);
    }
    let claimed: Vec<_> = (0..4).map(|_| host.claim().unwrap().work).collect();
    assert_eq!(claimed, works);
}

#[test]
fn a_scope_without_room_is_passed_over_and_comes_back_into_turn() {
    let mut host = Host::new();
    for name in ["busy", "busy", "calm"] {
        host.create(name, &[]);
    }
    let room = |full: &'static str| move |asked: &conduit_api::ScopeId| asked.as_str() != full;
    assert_eq!(host.claim_where(room("busy")).unwrap().scope, scope("calm"));
    assert_eq!(host.claim_where(room("busy")), None);
    let (now, any) = (host.now, |_: &conduit_api::ScopeId| true);
    assert!(host.store.read(|r| executions::any_due(r, any, now)).unwrap());
    assert!(!host.store.read(|r| executions::any_due(r, room("busy"), now)).unwrap());
    assert_eq!(host.claim().unwrap().scope, scope("busy"));
}

#[test]
fn the_next_due_time_is_that_of_the_first_work_that_is_not_due_yet() {
    let mut host = Host::new();
    host.create("demo", &[]);
    let (early, late) = (host.now, host.now.plus(7 * SECOND));
    let due = |host: &mut Host, now: Now| host.store.read(|r| executions::next_ready_at(r, now)).unwrap();
    assert_eq!(due(&mut host, early), None, "what is due is no longer awaited");
    assert_eq!(due(&mut host, early.plus(-1)), Some(early.wall.0));
    host.now = late;
    host.create("calm", &[]);
    assert_eq!(due(&mut host, early), Some(late.wall.0));
}

/// K01: whatever the rows of a Work say, a second live execution cannot be written.
#[test]
fn a_work_with_a_live_execution_cannot_be_claimed_again() {
    let mut host = Host::new();
    let work = host.create("demo", &[]);
    host.run();
    host.write(|tx, _| Ok(tx.execute("testing", "UPDATE work SET state = 'ready'", [])?)).unwrap();
    let claim = executions::Claim { owner: "first", generation: 1, lease_us: SECOND };
    let now = host.now;
    let refused = host.store.write(|tx| executions::claim_next(tx, "", &claim, |_| true, now));
    assert!(matches!(refused, Err(conduit_coordination::Error::Store(_))), "{refused:?}");
    assert_eq!(host.number(&format!("SELECT count(*) FROM execution WHERE work_id = '{work}'")), 1);
}

/// Writes `count` ready Works of one scope at once.
fn fill(host: &mut Host, count: i64) {
    const FILL: &str = "
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
        INSERT INTO work (id, scope_id, binding, state, created_event_id, ready_at_us, created_at_us, updated_at_us)
        SELECT 'wrk_' || substr('00000000000000000000000000' || i, -26), CASE WHEN i % 100 = 0 THEN 'calm' ELSE 'busy' END,
               'b', 'ready', (SELECT id FROM event LIMIT 1), :at + i, :at, :at FROM n";
    let at = host.now.wall.0;
    host.write(|tx, _| {
        let params = conduit_store::named_params! { ":count": count, ":at": at };
        Ok(tx.execute("testing", FILL, params)?)
    })
    .unwrap();
    host.pass(count);
}

/// The quickest of several claims, which leaves out what else the machine does meanwhile.
fn quickest_claim(ready: i64) -> std::time::Duration {
    let mut host = Host::new();
    host.accept(&said("demo.seed"));
    fill(&mut host, ready);
    let quickest = (0..15).map(|_| {
        let began = Instant::now();
        host.claim().unwrap();
        began.elapsed()
    });
    quickest.min().unwrap()
}

#[test]
fn a_hundred_thousand_ready_works_do_not_slow_a_claim() {
    let (small, large) = (quickest_claim(1_000), quickest_claim(100_000));
    assert!(large < small * 4, "{small:?} with a thousand, {large:?} with a hundred thousand");
}

/// T02, T12
#[test]
fn a_recovered_execution_has_a_higher_epoch_a_new_owner_and_what_it_had_declared() {
    let mut host = Host::new();
    let work = host.create("demo", &[]);
    let old = host.run();
    host.declare(&old, "outcome", &json!({"status": "succeeded"}));
    host.owner = "second";
    let left = host.store.read(|r| executions::left_by_others(r, "second")).unwrap().orphans;
    assert_eq!(left.iter().map(|orphan| (&orphan.left, orphan.running)).collect::<Vec<_>>(), [(&old, true)]);
    assert_eq!(host.store.read(|r| executions::left_by_others(r, "first")).unwrap(), executions::Left::default());
    let new = host.write(|tx, now| executions::recover(tx, &old.execution, "second", SECOND, now)).unwrap();
    assert_eq!((new.epoch, new.attempt, new.segment, new.owner.as_str()), (old.epoch + 1, 1, 1, "second"));
    assert!(host.try_complete(&old, &SegmentEnd::Succeeded, false).is_err(), "the old epoch ends nothing");
    assert_eq!(host.texts("SELECT epoch FROM declaration"), [new.epoch.to_string()]);
    host.complete(&new, &SegmentEnd::Stopped);
    assert_eq!(host.state(&work), "succeeded");
}

/// T02: each recovery counts, and so does the claim that follows.
#[test]
fn epochs_only_grow_over_claims_recoveries_and_resumes() {
    let mut host = Host::new();
    host.create("demo", &[]);
    let mut claimed = host.run();
    let mut epochs = vec![claimed.epoch];
    for owner in ["second", "third"] {
        host.owner = owner;
        claimed = host.write(|tx, now| executions::recover(tx, &claimed.execution, owner, SECOND, now)).unwrap();
        epochs.push(claimed.epoch);
    }
    host.wait(&claimed, &json!({"mode": "any", "predicates": [{"type": "demo.never"}], "timeout_s": 1}), true);
    host.pass(SECOND);
    assert_eq!(host.fire(), 1);
    let resumed = host.run();
    assert!(resumed.resumed);
    epochs.push(resumed.epoch);
    host.complete(&resumed, &SegmentEnd::Lost { started: false });
    host.pass(SECOND);
    epochs.push(host.run().epoch);
    assert_eq!(epochs, [1, 2, 3, 4, 5]);
}

/// T05
#[test]
fn a_scheduler_renews_its_own_leases_and_no_others() {
    let mut host = Host::new();
    for _ in 0..2 {
        host.create("demo", &[]);
    }
    let mine = host.run();
    host.owner = "second";
    host.run();
    host.pass(100 * SECOND);
    let renewed = host.write(|tx, now| executions::renew(tx, "first", 900 * SECOND, now)).unwrap();
    assert_eq!(renewed, 1);
    let end = host.number(&format!("SELECT lease_boot_us FROM execution WHERE id = '{}'", mine.execution));
    assert_eq!(end, START.boot_us + 1000 * SECOND);
}

#[test]
fn the_owner_of_a_key_is_found_in_its_own_scope_only() {
    let mut host = Host::new();
    let here = host.create("demo", &["k"]);
    let there = host.create("calm", &["k"]);
    for (name, owner) in [("demo", Some(here)), ("calm", Some(there)), ("busy", None)] {
        let found = host.store.read(|r| work::owner_of_key(r, &scope(name), "k")).unwrap();
        assert_eq!(found, owner);
    }
}

/// T02
#[test]
fn taking_an_execution_over_revokes_its_token_in_the_same_transaction() {
    let mut host = Host::new();
    host.create("demo", &[]);
    let running = host.run();
    assert_eq!(host.live_tokens(&running.work), 1);
    host.write(|tx, now| executions::recover(tx, &running.execution, "second", 900 * SECOND, now)).unwrap();
    assert_eq!(host.live_tokens(&running.work), 0);
}
