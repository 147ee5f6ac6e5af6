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
    /// It did not answer, and is asked again.
    Later,
    /// The attempt has not ended.
    Unresolved,
}

/// What an ending was found to mean.
pub enum Meaning {
    /// By the executor.
    By(Means),
    /// By the plain rule, since the executor had no word, for this reason.
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
        () = stopped(host, claimed) => return Ok(Word::Later), // looked at again, and then it is decided
    };
    let failure = match answer {
        Ok(means) => return said(Meaning::By(means)),
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
