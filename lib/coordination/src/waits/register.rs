//! Registering a declared wait: its rows, its timeout, and what the look back found (T12).

use conduit_api::toolbelt::{WaitInput, WaitMode};
use conduit_api::{WaitId, WorkId};
use conduit_store::{Now, Write, mint, named_params};
use serde_json::Value;

use super::{decide, settle};
use crate::error::Result;
use crate::executions::Claimed;

const INSERT: &str = "
    INSERT INTO wait (id, work_id, execution_id, scope_id, mode, state, watermark, timeout_at_us, unmatched, created_at_us)
    VALUES (:id, :work, :execution, :scope, :mode, 'pending', :watermark, :timeout, :unmatched, :at)";
const PREDICATE: &str = "
    INSERT INTO wait_predicate (wait_id, position, scope_id, type, subject, correlation_key, work_id, source, data, open)
    VALUES (:wait, :position, :scope, :type, :subject, :key, :work, :source, :data, 1)";

/// Registers a wait whose look back, in this very transaction, found `seen` after its watermark, which defaults to
/// `told`. A wait that is met already makes the Work ready at once.
pub(crate) fn register(
    tx: &Write<'_>,
    claimed: &Claimed,
    input: &WaitInput,
    seen: &[Option<i64>],
    told: i64,
    now: Now,
) -> Result<WaitId> {
    let id: WaitId = mint(now);
    let watermark = input.watermark.unwrap_or(told);
    let timeout = input
        .timeout_s
        .map(|s| now.wall.0.saturating_add(i64::try_from(s).unwrap_or(i64::MAX).saturating_mul(1_000_000)));
    let mode = match input.mode {
        WaitMode::Any => "any",
        WaitMode::All => "all",
    };
    let unmatched = decide::unmatched_at_first(input.mode, input.predicates.len());
    tx.execute("registering a wait", INSERT, named_params! {
        ":id": id.as_str(), ":work": claimed.work.as_str(), ":execution": claimed.execution.as_str(), ":scope": claimed.scope.as_str(),
        ":mode": mode, ":watermark": watermark, ":timeout": timeout, ":unmatched": i64::try_from(unmatched).unwrap_or(i64::MAX), ":at": now.wall.0,
    })?;
    for (position, predicate) in input.predicates.iter().enumerate() {
        tx.execute("registering a predicate", PREDICATE, named_params! {
            ":wait": id.as_str(), ":position": i64::try_from(position).unwrap_or(i64::MAX), ":scope": claimed.scope.as_str(), ":type": predicate.kind,
            ":subject": decide::subject(predicate, &claimed.work), ":key": predicate.correlation_key,
            ":work": predicate.work_id.as_ref().map(WorkId::as_str), ":source": predicate.source,
            ":data": Value::Object(predicate.data.clone()).to_string(),
        })?;
    }
    for (position, seq) in seen.iter().enumerate() {
        if let Some(seq) = *seq
            && settle::matched(tx, &id, i64::try_from(position).unwrap_or(i64::MAX), seq, now)?
        {
            break; // the losers ended with it
        }
    }
    Ok(id)
}
