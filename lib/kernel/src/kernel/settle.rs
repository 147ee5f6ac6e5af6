//! How an attempt ended: the last evidence, the terminal transaction, and what is thrown away after it.

use conduit_api::AttemptId;
use conduit_store::digest::hex;
use conduit_store::{Clock, Now, Store, Write, failpoint};

use crate::attempt::{AttemptState, Event, Evidence, Reason, Resolution, StopReason, resolve, store};
use crate::bundle;
use crate::error::{Error, Result, bundling};
use crate::evidence;
use crate::kernel::{Conclusion, Ending, Kernel, Tidied};
use crate::proc::{self, Survivors};

impl Kernel {
    /// Gathers what is left of an attempt whose runner has ended; what outlived it without a result is killed.
    ///
    /// Changes no row, so that it can be done outside a transaction, and again. Error: `illegal_state` while the
    /// runner lives.
    pub async fn settle(&self, attempt: &AttemptId) -> Result<Ending> {
        failpoint!("kernel.settling");
        let (bundle, boot_id) = (self.bundle(attempt), Clock.now().boot_id);
        let gathered = evidence::gather(&bundle, attempt, None, boot_id).map_err(bundling(attempt, "reading it"))?;
        let mut ending = Ending {
            outputs: evidence::outputs(&bundle, &gathered),
            evidence: gathered,
            survivors: Survivors::default(),
        };
        match &ending.evidence {
            Evidence::Alive(_) => {
                let (state, event) = ("running", "ended");
                return Err(Error::IllegalTransition { attempt: attempt.clone(), state, event });
            }
            // A result says that the tree is gone.
            Evidence::Ended(_) => return Ok(ending),
            Evidence::Absent { .. } | Evidence::Invalid | Evidence::Surviving => {}
        }
        let target = match evidence::started(&bundle) {
            // Numbers of another boot mean nothing in this one.
            Ok(Some(unit)) if unit.boot_id == boot_id => bundle::read(&bundle.target()).unwrap_or_else(|error| {
                tracing::warn!(%attempt, %error, "the record of the main process cannot be read; going by the marker");
                None
            }),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%attempt, %error, "the start evidence cannot be read; going by the marker");
                None
            }
        };
        let survivors = proc::lay_to_rest(attempt, target.as_ref()).await;
        ending.survivors = survivors.map_err(|source| Error::Process { doing: "looking for survivors", source })?;
        if !ending.survivors.is_empty() {
            tracing::warn!(%attempt, pids = ?ending.survivors.pids(), "processes outlive their runner and their SIGKILL");
            ending.evidence = Evidence::Surviving;
        }
        Ok(ending)
    }

    /// Puts the ending on record: state, reservation, outputs and event in one transaction. Doing so twice is doing so
    /// once. A result wins over an earlier `lost` (K10).
    pub fn conclude(&self, tx: &Write<'_>, attempt: &AttemptId, ending: &Ending, now: Now) -> Result<Conclusion> {
        let record = store::load(tx, attempt)?;
        let foreign = match &ending.evidence {
            Evidence::Ended(result) => result.operation_digest != hex(&record.operation_digest()),
            _ => false,
        };
        let (evidence, outputs) =
            if foreign { (&Evidence::Invalid, [].as_slice()) } else { (&ending.evidence, ending.outputs.as_slice()) };
        let record = match resolve(&record.state, evidence, now.boot_id) {
            Resolution::Leave => record,
            Resolution::Finish { terminal, reason } => {
                store::transition(tx, record, Event::Ended { terminal }, reason, outputs, now)?
            }
            Resolution::Orphan if matches!(record.state, AttemptState::Orphaned { .. }) => record,
            Resolution::Orphan => store::transition(tx, record, Event::Survived, Reason::Survivors, &[], now)?,
            Resolution::Dispatch | Resolution::Adopt(_) => {
                let (state, event) = (record.state.as_str(), "ended");
                return Err(Error::IllegalTransition { attempt: attempt.clone(), state, event });
            }
        };
        failpoint!("kernel.concluding");
        Ok(self.conclusion(record))
    }

    /// Removes the bundle of a concluded attempt, once its outputs are kept elsewhere. Doing so twice is doing so once.
    pub fn forget_bundle(&self, attempt: &AttemptId) -> Result<()> {
        failpoint!("kernel.concluded");
        match std::fs::remove_dir_all(self.bundle(attempt).dir()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(bundling(attempt, "removing it")(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Clears what an earlier daemon left: withdraws attempts that never crossed the boundary, and removes the bundles
    /// of attempts that have ended or are not on record. Returns how many of each; one that cannot be cleared away is told,
    /// and keeps no other from it.
    ///
    /// For a start, before anything is admitted, by a caller that admits interrupted work anew and keeps outputs before
    /// it concludes. Doing so twice is doing so once.
    pub fn tidy(&self, store: &mut Store, now: Now) -> Result<Tidied> {
        let mut tidied = Tidied::default();
        let stale = store.read(store::admitted)?;
        let mut count = |attempt: &AttemptId, done: Result<()>, number: fn(&mut Tidied) -> &mut usize| match done {
            Ok(()) => *number(&mut tidied) += 1,
            Err(error) => {
                tracing::error!(%attempt, %error, "what is left of an attempt cannot be cleared away");
                tidied.failed += 1;
            }
        };
        for attempt in &stale {
            let withdrawn = store.write(|tx| self.record_stop(tx, attempt, StopReason::Cancel, now)).map(drop);
            count(attempt, withdrawn, |tidied| &mut tidied.withdrawn);
        }
        let reading = |source| Error::Process { doing: "listing bundles", source };
        for entry in std::fs::read_dir(&self.settings.attempts).map_err(reading)? {
            let name = entry.map_err(reading)?.file_name();
            let Some(attempt) = name.to_str().and_then(|name| name.parse::<AttemptId>().ok()) else { continue };
            match store.read(|read| store::is_unresolved(read, &attempt)) {
                Ok(true) => {}
                Ok(false) => count(&attempt, self.forget_bundle(&attempt), |tidied| &mut tidied.bundles),
                Err(error) => count(&attempt, Err(error), |tidied| &mut tidied.bundles),
            }
        }
        Ok(tidied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::Terminal;
    use crate::bundle::OutputFact;
    use crate::kernel::Stopping;
    use crate::kernel::fixture::{Fixture, request};

    fn ending(evidence: Evidence) -> Ending {
        Ending { evidence, outputs: Vec::new(), survivors: Survivors::default() }
    }

    fn conclude(host: &mut Fixture, attempt: &AttemptId, ending: &Ending) -> Conclusion {
        host.store.write(|tx| host.kernel.conclude(tx, attempt, ending, Clock.now())).unwrap()
    }

    fn stop(host: &mut Fixture, attempt: &AttemptId, reason: StopReason) -> Stopping {
        host.store.write(|tx| host.kernel.record_stop(tx, attempt, reason, Clock.now())).unwrap()
    }

    /// K01, K10
    #[test]
    fn an_orphan_holds_its_slot_until_nothing_of_it_lives_and_then_becomes_what_it_was_asked_to() {
        for (asked, terminal) in [(None, Terminal::Lost), (Some(StopReason::Deadline), Terminal::TimedOut)] {
            let mut host = Fixture::new();
            let attempt = host.dispatched("1");
            for _ in 0..2 {
                let orphaned = conclude(&mut host, &attempt, &ending(Evidence::Surviving));
                assert_eq!((orphaned.terminal, orphaned.state.as_str()), (None, "orphaned"));
                assert_eq!(host.reservation(&attempt), "held_orphaned");
            }
            if let Some(reason) = asked {
                assert_eq!(stop(&mut host, &attempt, reason), Stopping::Asked);
            }
            let ended = conclude(&mut host, &attempt, &ending(Evidence::Absent { started: true }));
            assert_eq!(ended.terminal, Some(terminal));
            assert_eq!(host.reservation(&attempt), "released");
        }
    }

    /// K01
    #[test]
    fn every_transition_leaves_an_event_and_repeating_a_step_leaves_none() {
        let mut host = Fixture::new();
        let attempt = host.dispatched("1");
        for _ in 0..2 {
            stop(&mut host, &attempt, StopReason::Cancel);
        }
        for _ in 0..2 {
            conclude(&mut host, &attempt, &ending(Evidence::Absent { started: false }));
        }
        let expected = [
            ("admitted", "admitted"),
            ("dispatching", "dispatched"),
            ("stopping", "stop_asked"),
            ("cancelled", "stopped_without_result"),
        ];
        let expected: Vec<_> = expected.iter().map(|(s, r)| ((*s).to_owned(), (*r).to_owned())).collect();
        assert_eq!(host.history(&attempt), expected);
    }

    /// K01
    #[test]
    fn what_is_stopped_before_the_boundary_has_ended_and_is_never_dispatched() {
        let mut host = Fixture::new();
        let attempt = host.admit(&request("1")).unwrap().attempt;
        let staged = host.kernel.stage(&mut host.store, &attempt).unwrap();
        assert_eq!(stop(&mut host, &attempt, StopReason::Cancel), Stopping::Withdrawn);
        assert_eq!(stop(&mut host, &attempt, StopReason::Cancel), Stopping::Ended(Terminal::Cancelled));
        let refused = host.store.write(|tx| host.kernel.dispatch(tx, &staged, Clock.now())).unwrap_err();
        assert_eq!(refused.code(), conduit_api::Code::IllegalState);
        assert_eq!(host.reservation(&attempt), "released");
    }

    /// K01
    #[test]
    fn what_was_not_dispatched_cannot_be_concluded() {
        let mut host = Fixture::new();
        let attempt = host.admit(&request("1")).unwrap().attempt;
        let absent = ending(Evidence::Absent { started: false });
        let refused = host.store.write(|tx| host.kernel.conclude(tx, &attempt, &absent, Clock.now())).unwrap_err();
        assert_eq!(refused.code(), conduit_api::Code::IllegalState);
    }

    /// K10
    #[test]
    fn a_result_of_another_operation_is_not_believed_and_its_outputs_are_not_kept() {
        let mut host = Fixture::new();
        let attempt = host.dispatched("1");
        let result = bundle::RunnerResult {
            attempt: attempt.clone(),
            operation_digest: "0".repeat(64),
            cause: bundle::Cause::Ended,
            end: crate::attempt::ProcessEnd::Exited { code: 0 },
            streams: Vec::new(),
            killed: 0,
            started_at_us: 0,
            finished_at_us: 0,
        };
        let output =
            OutputFact { name: "stdout".into(), path: "/x".into(), digest: String::new(), bytes: 1, dropped_bytes: 0 };
        let forged = Ending { outputs: vec![output], ..ending(Evidence::Ended(result)) };
        let concluded = conclude(&mut host, &attempt, &forged);
        assert_eq!((concluded.terminal, concluded.reason), (Some(Terminal::Lost), Reason::ResultInvalid));
        assert_eq!(concluded.outputs, []);
    }

    #[test]
    fn an_unknown_attempt_is_not_found() {
        let mut host = Fixture::new();
        let attempt = AttemptId::from_parts(1, 2);
        let refused = host.store.read(|read| host.kernel.adopt(read, &attempt)).unwrap_err();
        assert_eq!(refused.code(), conduit_api::Code::NotFound);
    }

    /// K10
    #[test]
    fn a_start_withdraws_what_was_never_dispatched_and_removes_bundles_that_nobody_needs() {
        let mut host = Fixture::new();
        let stale = host.admit(&request("1")).unwrap().attempt;
        drop(host.kernel.stage(&mut host.store, &stale).unwrap());
        let ended = host.dispatched("2");
        conclude(&mut host, &ended, &ending(Evidence::Absent { started: false }));
        let live = host.dispatched("3");
        let attempts = host.base.path().join("state/attempts");
        std::fs::create_dir(attempts.join(AttemptId::from_parts(1, 2).as_str())).unwrap();
        for expected in [Tidied { withdrawn: 1, bundles: 3, failed: 0 }, Tidied::default()] {
            assert_eq!(host.kernel.tidy(&mut host.store, Clock.now()).unwrap(), expected);
        }
        assert_eq!(host.history(&stale).last().unwrap(), &("cancelled".to_owned(), "withdrawn".to_owned()));
        let left: Vec<_> = std::fs::read_dir(attempts).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [live.as_str()]);
    }

    /// K10
    #[test]
    fn one_attempt_that_cannot_be_cleared_away_keeps_no_other_from_it() {
        let mut host = Fixture::new();
        let damaged = host.admit(&request("1")).unwrap().attempt;
        let stale = host.admit(&request("2")).unwrap().attempt;
        let attempts = host.base.path().join("state/attempts");
        let unneeded = attempts.join(AttemptId::from_parts(1, 3).as_str());
        std::fs::write(attempts.join(AttemptId::from_parts(1, 2).as_str()), "not a directory").unwrap();
        std::fs::create_dir(&unneeded).unwrap();
        const DAMAGE: &str = "UPDATE attempt SET reason = 'nonsense' WHERE id = :id";
        let damage =
            |tx: &Write<'_>| tx.execute("testing", DAMAGE, conduit_store::named_params! { ":id": damaged.as_str() });
        host.store.write(damage).unwrap();
        let tidied = host.kernel.tidy(&mut host.store, Clock.now()).unwrap();
        assert_eq!(tidied, Tidied { withdrawn: 1, bundles: 1, failed: 2 });
        assert!(!unneeded.exists());
        assert_eq!(host.history(&stale).last().unwrap(), &("cancelled".to_owned(), "withdrawn".to_owned()));
    }
}
