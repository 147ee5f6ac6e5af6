//! What the end of a process means for its Work: by the plain rule, or by the word of the executor that planned it.
//!
//! An executor of an extension is asked once the kernel's conclusion is on record, and only if the answer can decide
//! anything: what the segment declared, and what an operator asked for, goes before it (T12). Until it has answered the
//! execution has no token, and nothing of the scheduler's waits. One that does not answer within [`ASKED_FOR`] loses its word.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::AttemptId;
use conduit_coordination::artifacts::NewArtifact;
use conduit_coordination::executions::{self, Claimed, SegmentEnd};
use conduit_extension::{Ended, Failure, SegmentEnd as Means, by_exit_status};
use conduit_kernel::{Conclusion, Ending, Reason, Terminal};
use conduit_store::lease::Demand;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::host::Host;
use crate::outputs;
use crate::segment::Fault;
use crate::start::Bound;

/// How long an executor is asked about one ending, in the life of one scheduler, before the plain rule holds.
pub const ASKED_FOR: Duration = Duration::from_secs(120);

/// Since when an executor has been asked about an ending.
#[derive(Debug, Default)]
pub struct Asking(Cell<Option<Instant>>);

/// What an executor says about an ending.
pub enum Word {
    /// It means this; the outputs are the ones on record.
    Said { meaning: Meaning, outputs: Vec<NewArtifact> },
    /// It did not answer, and is asked again after a pause.
    Later,
    /// Somebody asked to stop the execution meanwhile: it is looked at again at once, and then it is decided.
    Stopped,
    /// The attempt has not ended.
    Unresolved,
}

/// What an ending was found to mean.
pub enum Meaning {
    /// By the executor.
    By(Means),
    /// By the plain rule: the executor was not asked, or had no word for this reason.
    Plain(Option<String>),
}

/// Puts the conclusion on record, and then asks the executor what it means.
pub async fn ask(
    host: &Host,
    claimed: &Claimed,
    bound: &Bound,
    attempt: &AttemptId,
    ending: &Ending,
    asking: &Asking,
) -> Result<Word, Fault> {
    let concluded = host.store.borrow_mut().fenced(&claimed.fence(), &Demand::Ownership, host.now(), |tx| {
        let conclusion = host.kernel.conclude(tx, attempt, ending, tx.now())?;
        executions::silence(tx)?;
        Ok::<_, Fault>((conclusion, executions::is_decided(tx)?))
    });
    let (conclusion, decided) = concluded?;
    let Some(terminal) = &conclusion.terminal else { return Ok(Word::Unresolved) };
    let keeping = conduit_store::error::doing_io("keeping outputs");
    let kept = outputs::keep(&host.state, &conclusion.outputs).map_err(keeping)?;
    let said = |meaning| Ok(Word::Said { meaning, outputs: kept.clone() });
    if decided {
        return said(Meaning::Plain(None));
    }
    let ended = Ended {
        config: bound.binding.config.clone(),
        execution_id: claimed.execution.clone(),
        work_id: claimed.work.clone(),
        scope_id: claimed.scope.clone(),
        binding: claimed.binding.clone(),
        attempt: claimed.attempt,
        segment: claimed.segment,
        terminal: terminal.clone(),
        outputs: outputs::told(&host.state, &conclusion.outputs),
    };
    let answer = tokio::select! {
        answer = bound.executor.interpret(&ended) => answer,
        () = stopped(host, claimed) => return Ok(Word::Stopped),
    };
    let failure = match answer {
        Ok(Some(means)) => return said(Meaning::By(means)),
        Ok(None) => return said(Meaning::Plain(None)),
        Err(failure) => failure,
    };
    let name = bound.executor.name();
    tracing::warn!(execution = %claimed.execution, executor = name, %failure, "an executor did not say what an ending means");
    let since = asking.0.get().unwrap_or_else(Instant::now);
    asking.0.set(Some(since));
    match failure {
        Failure::Refused(refusal) => said(Meaning::Plain(Some(refusal.code))),
        Failure::Unavailable(_) | Failure::Failed(_) if since.elapsed() < ASKED_FOR => Ok(Word::Later),
        Failure::Unavailable(_) | Failure::Failed(_) => said(Meaning::Plain(Some("executor_unavailable".into()))),
    }
}

/// Ends when somebody asks to stop the execution; never, for one that is not followed.
pub async fn stopped(host: &Host, claimed: &Claimed) {
    let stop = host.live.borrow().get(&claimed.execution).map(|live| Rc::clone(&live.stop));
    match stop {
        Some(stop) => stop.notified().await,
        None => std::future::pending().await,
    }
}

/// What the kernel's conclusion means for the Work, and what is kept of how it came to that. Of an attempt whose binding
/// cannot be looked up (`bound`) nobody can say.
pub fn of(conclusion: &Conclusion, terminal: &Terminal, bound: bool, said: Option<&Meaning>) -> (SegmentEnd, Value) {
    let mut usage = json!({ "attempt": conclusion.reason.as_str() });
    let means = match said {
        _ if !bound => Means::Lost,
        Some(Meaning::By(means)) => {
            usage["meaning"] = json!("executor");
            means.clone()
        }
        Some(Meaning::Plain(Some(why))) => {
            usage["meaning"] = json!("exit_status");
            usage["executor"] = json!(why);
            match by_exit_status(terminal) {
                Means::Failed { code, message, retryable } => Means::Failed {
                    code,
                    message: format!("{message}; its executor did not say what that means"),
                    retryable,
                },
                other => other,
            }
        }
        Some(Meaning::Plain(None)) | None => by_exit_status(terminal),
    };
    let end = match means {
        Means::Succeeded => SegmentEnd::Succeeded,
        Means::Failed { code, message, retryable } => SegmentEnd::Failed { code, message, retryable },
        Means::Cancelled => SegmentEnd::Stopped,
        Means::Lost => SegmentEnd::Lost { started: conclusion.reason != Reason::NoStartEvidence },
    };
    (end, usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start;
    use crate::testing::{World, operation};
    use conduit_api::{ApiError, Code};
    use conduit_extension::{
        Answer, EndCall, Executor, Extension, Invocation, Invoked, OperationError, Phase, Provided, SegmentContext,
        Transport,
    };
    use conduit_kernel::{BaseEnvironment, OperationRequest};
    use conduit_store::{Clock, Write};
    use conduit_toolbelt::registry::{ExecutorSpec, ExecutorTransport, Registration};

    /// An executor that runs nothing and answers as it is told, or never.
    struct Judge(Option<Result<Means, Failure>>);

    impl Executor for Judge {
        fn name(&self) -> &str {
            "judge"
        }
        fn transport(&self) -> Transport {
            Transport::None
        }
        fn resume_capable(&self, _: &Value) -> bool {
            false
        }
        fn plan<'a>(
            &'a self,
            _: &'a Value,
            _: &'a SegmentContext,
            _: Phase,
        ) -> Answer<'a, Result<OperationRequest, ApiError>> {
            Box::pin(async { Err(ApiError::new(Code::ExecutorRefused, "it runs nothing")) })
        }
        fn interprets(&self) -> bool {
            true
        }
        fn interpret<'a>(&'a self, _: &'a Ended) -> Answer<'a, Result<Option<Means>, Failure>> {
            Box::pin(async {
                match &self.0 {
                    Some(said) => said.clone().map(Some),
                    None => std::future::pending().await,
                }
            })
        }
    }

    /// An extension whose executor takes everything for a success.
    struct Sure;

    impl Extension for Sure {
        fn registration(&self) -> Registration {
            Registration::new("sure", conduit_api::Version::new(1, 0, 0), "Sure")
        }
        fn invoke<'a>(&'a self, _: &'a Invocation) -> Answer<'a, Result<Invoked, Failure>> {
            Box::pin(async { Err(Failure::Failed("it has no operations".into())) })
        }
        fn interpret<'a>(&'a self, _: &'a EndCall) -> Answer<'a, Result<Means, Failure>> {
            Box::pin(async { Ok(Means::Succeeded) })
        }
    }

    fn sure() -> Provided {
        let spec = ExecutorSpec {
            name: "sure".into(),
            summary: "Takes everything for a success".into(),
            config: json!({"type": "object"}),
            transport: ExecutorTransport::None,
            resume_capable: false,
            playbook_field: None,
        };
        Provided::new(spec, Some(Rc::new(Sure)), json!({}), BaseEnvironment::of_home("/".as_ref()))
    }

    /// A world with one running execution, whose attempt ended without a trace.
    struct Scene {
        world: World,
        claimed: Claimed,
        attempt: AttemptId,
        ending: Ending,
        asking: Asking,
    }

    impl Scene {
        async fn new() -> Self {
            let world = World::new();
            let claimed = world.claimed();
            let request = operation();
            let kernel = &world.host.kernel;
            let admitted = world.host.store.borrow_mut().write(|tx| kernel.admit(tx, &request, Clock.now()));
            let attempt = admitted.unwrap().attempt;
            let staged = kernel.stage(&mut world.host.store.borrow_mut(), &attempt).unwrap();
            let started = world.host.store.borrow_mut().fenced(&claimed.fence(), &Demand::Ownership, Clock, |tx| {
                kernel.dispatch(tx, &staged, tx.now())?;
                Ok::<_, Fault>(executions::started(tx, attempt.as_str(), tx.now().boot_us)?)
            });
            assert!(started.unwrap());
            drop(staged);
            let ending = kernel.settle(&attempt).await.unwrap();
            Self { world, claimed, attempt, ending, asking: Asking::default() }
        }

        async fn ask(&self, judge: Result<Means, Failure>) -> Word {
            self.put_before(Rc::new(Judge(Some(judge)))).await
        }

        async fn put_before(&self, executor: Rc<dyn Executor>) -> Word {
            let bound = Bound { executor, ..start::bound(&self.world.host, &self.claimed).unwrap() };
            let host = &self.world.host;
            ask(host, &self.claimed, &bound, &self.attempt, &self.ending, &self.asking).await.unwrap()
        }
    }

    fn meaning(word: Word) -> Meaning {
        match word {
            Word::Said { meaning, .. } => meaning,
            Word::Later | Word::Stopped => panic!("nothing is said"),
            Word::Unresolved => panic!("it has not ended"),
        }
    }

    fn away() -> Result<Means, Failure> {
        Err(Failure::Unavailable("away".into()))
    }

    /// X01, K10
    #[tokio::test]
    async fn an_executor_is_asked_about_what_is_on_record_and_its_word_changes_nothing_of_that() {
        let scene = Scene::new().await;
        assert!(matches!(scene.ask(away()).await, Word::Later));
        assert_eq!(scene.world.number("SELECT count(*) FROM attempt WHERE finished_at_us IS NOT NULL"), 1);
        assert_eq!(scene.world.number("SELECT count(*) FROM execution WHERE state = 'running'"), 1);
        assert!(matches!(meaning(scene.ask(Ok(Means::Succeeded)).await), Meaning::By(Means::Succeeded)));
        assert_eq!(scene.world.number("SELECT count(*) FROM attempt WHERE state = 'lost'"), 1);
    }

    /// X01
    #[tokio::test]
    async fn one_that_does_not_answer_for_two_minutes_or_refuses_loses_its_word() {
        let scene = Scene::new().await;
        let refused = Err(Failure::Refused(OperationError::new("no_idea", "It has no idea")));
        assert!(matches!(meaning(scene.ask(refused).await), Meaning::Plain(Some(why)) if why == "no_idea"));
        assert!(matches!(scene.ask(away()).await, Word::Later));
        assert!(matches!(scene.ask(Err(Failure::Failed("it hung".into()))).await, Word::Later));
        scene.asking.0.set(Instant::now().checked_sub(ASKED_FOR));
        assert!(matches!(meaning(scene.ask(away()).await), Meaning::Plain(Some(why)) if why == "executor_unavailable"));
    }

    /// T12, M10
    #[tokio::test]
    async fn what_an_operator_or_the_process_has_settled_no_executor_is_asked_about() {
        let scene = Scene::new().await;
        let cancel = |tx: &Write<'_>| executions::cancel(tx, &scene.claimed.execution, "operator:local", Clock.now());
        scene.world.host.store.borrow_mut().write(cancel).unwrap();
        assert!(matches!(meaning(scene.ask(Ok(Means::Succeeded)).await), Meaning::Plain(None)));

        let scene = Scene::new().await;
        scene.world.sql(
            "INSERT INTO declaration (execution_id, epoch, kind, body, declared_at_us)
             SELECT id, epoch, 'outcome', '{\"status\":\"failed\"}', 1 FROM execution",
        );
        assert!(matches!(meaning(scene.ask(Ok(Means::Succeeded)).await), Meaning::Plain(None)));
    }

    /// X01, T12, M10
    #[tokio::test]
    async fn a_stop_while_an_executor_is_asked_ends_the_question_however_often_it_failed_before() {
        let scene = Scene::new().await;
        let host = &scene.world.host;
        let live = Rc::new(crate::host::Live::new(scene.claimed.scope.clone()));
        host.live.borrow_mut().insert(scene.claimed.execution.clone(), Rc::clone(&live));
        for _ in 0..3 {
            assert!(matches!(scene.ask(away()).await, Word::Later));
        }
        live.stop.notify_one();
        assert!(matches!(scene.put_before(Rc::new(Judge(None))).await, Word::Stopped));
        let cancel = |tx: &Write<'_>| executions::cancel(tx, &scene.claimed.execution, "operator:local", Clock.now());
        host.store.borrow_mut().write(cancel).unwrap();
        assert!(matches!(meaning(scene.ask(away()).await), Meaning::Plain(None)));
    }

    /// X01, K10
    #[tokio::test]
    async fn the_record_names_no_executor_that_was_not_asked() {
        let scene = Scene::new().await;
        let found = meaning(scene.put_before(Rc::new(sure())).await);
        let conclusion =
            scene.world.host.store.borrow_mut().fenced(&scene.claimed.fence(), &Demand::Ownership, Clock, |tx| {
                Ok::<_, Fault>(scene.world.host.kernel.conclude(tx, &scene.attempt, &scene.ending, tx.now())?)
            });
        let conclusion = conclusion.unwrap();
        let terminal = conclusion.terminal.clone().unwrap();
        assert_eq!(terminal, Terminal::Lost);
        let (end, usage) = of(&conclusion, &terminal, true, Some(&found));
        assert!(matches!(end, SegmentEnd::Lost { .. }), "{end:?}");
        assert!(usage.get("meaning").is_none() && usage.get("executor").is_none(), "{usage}");
    }

    /// X01
    #[test]
    fn the_record_says_whose_word_decided() {
        let conclusion = |terminal: &Terminal| Conclusion {
            state: conduit_kernel::AttemptState::Ended { terminal: terminal.clone() },
            reason: Reason::Result,
            terminal: Some(terminal.clone()),
            outputs: Vec::new(),
        };
        let failed = Terminal::Failed { end: conduit_kernel::ProcessEnd::Exited { code: 3 } };
        let of = |said: Option<Meaning>| of(&conclusion(&failed), &failed, true, said.as_ref());
        let (end, usage) = of(Some(Meaning::By(Means::Succeeded)));
        assert_eq!((end, &usage["meaning"]), (SegmentEnd::Succeeded, &json!("executor")));
        let (end, usage) = of(Some(Meaning::Plain(Some("executor_unavailable".into()))));
        let SegmentEnd::Failed { code, message, retryable } = end else { panic!("{end:?}") };
        assert_eq!((code, retryable), (Code::ProcessFailed, true));
        assert!(message.ends_with("its executor did not say what that means"), "{message}");
        assert_eq!((&usage["meaning"], &usage["executor"]), (&json!("exit_status"), &json!("executor_unavailable")));
        let (_, usage) = of(None);
        assert!(usage.get("meaning").is_none() && usage.get("executor").is_none());
    }
}
