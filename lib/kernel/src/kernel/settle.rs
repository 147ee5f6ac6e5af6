//! How an attempt ended: the last evidence, the terminal transaction, and what is thrown away after it.

use conduit_api::AttemptId;
use conduit_store::digest::hex;
use conduit_store::{Clock, Now, Write, failpoint};

use crate::attempt::{AttemptState, Event, Evidence, Reason, Resolution, resolve, store};
use crate::bundle;
use crate::error::{Error, Result, bundling};
use crate::evidence;
use crate::kernel::{Conclusion, Ending, Kernel};
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
}
