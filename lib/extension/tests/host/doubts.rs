//! An operator's word about a request of which nobody knows whether it was carried out.

use conduit_api::views::{DoubtOutcome, DoubtResolveRequest, DoubtView};
use conduit_coordination::queries::Window;
use conduit_extension::{Failure, Invoked};
use conduit_store::Clock;
use conduit_toolbelt::doubts;
use serde_json::{Value, json};

use crate::support::{Speaker, World, locally};

fn word(speaker: &Speaker, id: &str, outcome: DoubtOutcome, output: Option<Value>) -> DoubtResolveRequest {
    let (execution_id, operation) = (speaker.claimed.execution.clone(), "lab.once".to_owned());
    DoubtResolveRequest { execution_id, operation, request_id: id.to_owned(), outcome, output }
}

/// The code of a refusal, or nothing.
fn resolve(world: &mut World, word: &DoubtResolveRequest) -> Option<String> {
    let resolved = world.store.write(|tx| doubts::resolve(tx, word, "operator:local", Clock.now()));
    resolved.err().map(|error| error.result())
}

fn listed(world: &mut World, window: Window<'_>) -> (Vec<DoubtView>, Option<conduit_coordination::queries::Key>) {
    let listed = world.store.read(|r| doubts::list(r, window)).unwrap();
    (listed.items, listed.next)
}

/// T14, M06: done is replayed, not done may be made again, and each word is told with who said it.
#[tokio::test]
async fn what_was_done_is_replayed_and_what_was_not_may_be_made_again() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|_| async { Err(Failure::Failed("it crashed".into())) });
        for id in ["was", "was-not", "silent"] {
            assert_eq!(speaker.refusal(&host, "lab.once", id, 1).await, "in_doubt");
        }
        lab.does(|_| async { Ok(Invoked::Output(json!("ran"))) });
        assert_eq!(resolve(&mut world, &word(&speaker, "was", DoubtOutcome::Done, Some(json!({"n": 7})))), None);
        assert_eq!(resolve(&mut world, &word(&speaker, "was-not", DoubtOutcome::NotDone, None)), None);
        assert_eq!(resolve(&mut world, &word(&speaker, "silent", DoubtOutcome::Done, None)), None);

        let was = speaker.call(&host, "lab.once", "was", 1).await.unwrap();
        assert!(was.replayed && was.output == json!({"n": 7}));
        assert_eq!(speaker.refusal(&host, "lab.once", "was", 2).await, "request_conflict");
        assert!(speaker.call(&host, "lab.once", "silent", 1).await.unwrap().output.is_null());
        let was_not = speaker.call(&host, "lab.once", "was-not", 1).await.unwrap();
        assert!(!was_not.replayed && was_not.output == json!("ran"));
        assert!(world.intents().is_empty());
        let told = world.texts(
            "store.db",
            "SELECT actor || ' ' || source || ' ' || data FROM event WHERE type = 'core.request.resolved' ORDER BY seq",
        );
        let of = |outcome: &str, id: &str| {
            format!(
                r#"operator:local core.action {{"operation":"lab.once","outcome":"{outcome}","request_id":"{id}"}}"#
            )
        };
        assert_eq!(told, [of("done", "was"), of("not_done", "was-not"), of("done", "silent")]);
    })
    .await;
}

/// T14: only a doubt is resolved, and once.
#[tokio::test]
async fn what_is_not_in_doubt_is_not_resolved() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        let done = |id: &str| word(&speaker, id, DoubtOutcome::Done, None);
        assert_eq!(resolve(&mut world, &done("nothing")).as_deref(), Some("illegal_state"));
        speaker.call(&host, "lab.once", "answered", 1).await.unwrap();
        assert_eq!(resolve(&mut world, &done("answered")).as_deref(), Some("illegal_state"));
        lab.does(|_| async { Err(Failure::Failed("it crashed".into())) });
        assert_eq!(speaker.refusal(&host, "lab.once", "doubted", 1).await, "in_doubt");
        let both = word(&speaker, "doubted", DoubtOutcome::NotDone, Some(json!(1)));
        assert_eq!(resolve(&mut world, &both).as_deref(), Some("invalid_request"));
        world.sql("UPDATE intent SET state = 'running'");
        assert_eq!(resolve(&mut world, &done("doubted")).as_deref(), Some("illegal_state"), "a handler may be at it");
        world.sql("UPDATE intent SET state = 'in_doubt'");
        assert_eq!(resolve(&mut world, &done("doubted")), None);
        assert_eq!(resolve(&mut world, &done("doubted")).as_deref(), Some("illegal_state"));
    })
    .await;
}

/// M09: newest first, each once, whatever the page.
#[tokio::test]
async fn doubts_are_listed_newest_first_and_each_on_one_page() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|_| async { Err(Failure::Failed("it crashed".into())) });
        for id in ["a", "b", "c", "d"] {
            assert_eq!(speaker.refusal(&host, "lab.once", id, 1).await, "in_doubt");
        }
        world.sql("UPDATE intent SET began_at_us = CASE request_id WHEN 'a' THEN 1 WHEN 'd' THEN 3 ELSE 2 END");
        let mut seen = Vec::new();
        let mut before = None;
        loop {
            let (items, next) = listed(&mut world, Window { before: before.as_ref(), limit: 1 });
            seen.extend(items.into_iter().map(|doubt| doubt.request_id));
            before = next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, ["d", "c", "b", "a"]);
    })
    .await;
}

/// T15: of an execution that has ended nobody can ask again, so that no record of a request is left behind.
#[tokio::test]
async fn no_answer_is_kept_for_an_execution_that_has_ended() {
    locally(async {
        let (mut world, lab, host) = World::lab();
        let speaker = world.speaker();
        lab.does(|_| async { Err(Failure::Failed("it crashed".into())) });
        assert_eq!(speaker.refusal(&host, "lab.once", "r", 1).await, "in_doubt");
        let state = world.state();
        lab.does(move |_| {
            let conn = rusqlite::Connection::open(state.join("store.db")).unwrap();
            conn.execute_batch("UPDATE execution SET state = 'succeeded', finished_at_us = 1").unwrap();
            async { Ok(Invoked::Output(json!("late"))) }
        });
        assert_eq!(speaker.call(&host, "lab.do", "late", 1).await.unwrap().output, json!("late"));
        assert_eq!(resolve(&mut world, &word(&speaker, "r", DoubtOutcome::Done, None)), None);
        assert_eq!((world.count("replay"), world.count("intent")), (0, 0));
    })
    .await;
}

/// T14: of an operation that no release and no package has any more too: the intent itself says whether it may run again.
#[tokio::test]
async fn what_was_left_behind_of_an_operation_that_is_gone_is_in_doubt_however_much_of_it_there_is() {
    let (mut world, _, host) = World::lab();
    let speaker = world.speaker();
    let execution = &speaker.claimed.execution;
    let many = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1201)
         INSERT INTO intent (execution_id, operation, request_id, request_digest, host, idempotent, state, began_at_us)
         SELECT '{execution}', 'gone.once', 'r' || i, zeroblob(32), 'a host that has ended', 0, 'running', 1 FROM n"
    );
    assert_eq!(world.sql(&many), 1201);
    assert_eq!(host.settle_left_behind().unwrap().doubted, 1201);
    assert_eq!(world.texts("store.db", "SELECT DISTINCT state FROM intent"), ["in_doubt"]);
}
