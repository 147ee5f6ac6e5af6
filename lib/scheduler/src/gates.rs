//! Start gates: asked about a Work until an attempt of it was launched (G06). A claim that they keep from starting ends at once.

use conduit_api::{ApiError, Code};
use conduit_coordination::executions::{self, Claimed, SegmentEnd};
use conduit_extension::StartCall;
use conduit_extension::host::StartGated;
use conduit_store::lease::Demand;

use crate::host::{Host, Live};
use crate::segment::Ended;
use crate::turn;

/// What keeps a claimed segment from being started, if anything does. What cannot be looked up is tried again like any
/// fault of the host.
pub async fn before_start(host: &Host, live: &Live, claimed: &Claimed) -> Option<Ended> {
    let extensions = host.extensions.get()?;
    let looked = host.store.borrow_mut().read(|r| {
        let snapshot = host.active(r)?;
        let asked =
            extensions.has_start_gates(&snapshot, &claimed.scope) && !executions::was_launched(r, &claimed.work)?;
        Ok::<_, turn::Error>(asked.then_some(snapshot))
    });
    let snapshot = match looked {
        Ok(None) => return None,
        Ok(Some(snapshot)) => snapshot,
        Err(error) => {
            tracing::error!(execution = %claimed.execution, %error, "it cannot be looked up whether a gate has to be asked");
            let told = ApiError::new(Code::Internal, "the host could not look up whether a start gate has to be asked");
            return Some(Ended::not_started(told, None));
        }
    };
    let call = StartCall::new(claimed.work.clone(), claimed.scope.clone(), claimed.binding.clone());
    let gated = tokio::select! {
        gated = extensions.ask_to_start(&call, &snapshot) => gated,
        () = live.stop.notified() => return Some(Ended::before_staging(SegmentEnd::Stopped)),
    };
    match gated {
        StartGated::Through => None,
        StartGated::Bypassed => record_bypassed(host, claimed),
        StartGated::Parked { gate, wait } => {
            tracing::info!(work = %claimed.work, gate, "a start gate has the Work wait");
            Some(Ended::before_staging(SegmentEnd::GateParked(wait)))
        }
        StartGated::Refused { gate, message } => {
            tracing::warn!(work = %claimed.work, gate, message, "a start gate refused the Work");
            Some(Ended::before_staging(SegmentEnd::GateRefused { message }))
        }
    }
}

/// Has the execution say that its Work started past gates that were not asked; what cannot say so does not start.
fn record_bypassed(host: &Host, claimed: &Claimed) -> Option<Ended> {
    let recorded =
        host.store.borrow_mut().fenced(&claimed.fence(), &Demand::Ownership, host.now(), executions::start_bypassed);
    match recorded {
        Ok(_) => None, // one that has left `claimed` was stopped, and does not start either
        Err(error) => {
            tracing::error!(execution = %claimed.execution, %error, "a start past bypassed gates cannot be recorded");
            let told = ApiError::new(Code::Internal, "the host could not record that start gates were bypassed");
            Some(Ended::not_started(told, None))
        }
    }
}
