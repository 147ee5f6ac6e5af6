//! Break-glass: times in which gates are not asked, by an administrator's word, for an hour at most.
//!
//! A bypass ends by the boot clock, so that no step of the wall clock keeps gates open, and with the boot itself. Each is
//! told in an Event of every scope that it concerns, in the transaction that makes it true.

use conduit_api::views::BypassView;
use conduit_api::{BypassId, ScopeId, UnixMicros};
use conduit_store::{Now, Read, Row, Write, column_id, named_params};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::events::{self, NewEvent, kind, source};

/// Longest bypass, in seconds.
pub const SECONDS_MAX: u64 = 3600;
/// How many bypasses are shown.
const SHOWN_MAX: i64 = 50;
/// How long a bypass is shown, and kept.
pub const KEEP_US: i64 = 90 * 86_400 * 1_000_000;
/// Rows that one sweep removes.
const SWEPT_MAX: i64 = 500;

/// A bypass that is to hold from now on.
#[derive(Debug, Clone)]
pub struct NewBypass<'b> {
    pub id: BypassId,
    /// Every scope, when there is none.
    pub scope: Option<&'b ScopeId>,
    pub seconds: u64,
    pub reason: &'b str,
    /// `operator:<name>`
    pub actor: &'b str,
}

const INSERT: &str = "
    INSERT INTO gate_bypass (id, scope_id, actor, reason, boot_id, until_boot_us, until_us, created_at_us)
    VALUES (:id, :scope, :actor, :reason, :boot, :until_boot, :until, :at)";
const HOLDS: &str = "
    SELECT EXISTS (SELECT 1 FROM gate_bypass INDEXED BY gate_bypass_standing
                    WHERE restored_at_us IS NULL AND until_boot_us > :now AND boot_id = :boot
                      AND (scope_id IS NULL OR scope_id = :scope))";
const STANDING: &str = "
    SELECT id, scope_id FROM gate_bypass INDEXED BY gate_bypass_standing
     WHERE restored_at_us IS NULL AND until_boot_us > :now AND boot_id = :boot";
const RESTORE: &str = "UPDATE gate_bypass SET restored_at_us = :at, restored_by = :actor WHERE id = :id";
const NEWEST: &str = "
    SELECT *, restored_at_us IS NULL AND until_boot_us > :now AND boot_id = :boot AS holds
      FROM gate_bypass INDEXED BY gate_bypass_created WHERE created_at_us > :since ORDER BY created_at_us DESC, id DESC LIMIT :limit";
const GET: &str = "
    SELECT *, restored_at_us IS NULL AND until_boot_us > :now AND boot_id = :boot AS holds FROM gate_bypass WHERE id = :id";
/// What holds stays, whatever the wall clock says of its age.
const SWEEP: &str = "
    DELETE FROM gate_bypass WHERE id IN (
        SELECT id FROM gate_bypass INDEXED BY gate_bypass_created
         WHERE created_at_us <= :before AND NOT (restored_at_us IS NULL AND until_boot_us > :now AND boot_id = :boot)
         LIMIT :rows)";
const OLDEST: &str = "SELECT min(created_at_us) FROM gate_bypass";

/// Begins a bypass, and tells it in each of `scopes` that it concerns. Error: `invalid_request` for a time that is not
/// between a second and an hour.
pub fn begin<'s>(
    tx: &Write<'_>,
    new: &NewBypass<'_>,
    scopes: impl IntoIterator<Item = &'s ScopeId>,
    now: Now,
) -> Result<()> {
    if !(1..=SECONDS_MAX).contains(&new.seconds) {
        return Err(Error::Invalid { why: format!("a bypass holds for 1 to {SECONDS_MAX} seconds") });
    }
    let micros = i64::try_from(new.seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let until = now.wall.0.saturating_add(micros);
    tx.execute("beginning a bypass", INSERT, named_params! {
        ":id": new.id.as_str(), ":scope": new.scope.map(ScopeId::as_str), ":actor": new.actor, ":reason": new.reason,
        ":boot": now.boot_id, ":until_boot": now.boot_us.saturating_add(micros), ":until": until, ":at": now.wall.0,
    })?;
    let data = Map::from_iter([
        ("bypass_id".to_owned(), Value::from(new.id.as_str())),
        ("reason".to_owned(), Value::from(new.reason)),
        ("until".to_owned(), Value::from(UnixMicros(until).to_string())),
    ]);
    tell(tx, &new.id, kind::GATES_BYPASSED, new.scope, scopes, new.actor, &data, now)
}

/// Ends every bypass that holds, and tells it; returns how many there were.
pub fn restore<'s>(
    tx: &Write<'_>,
    actor: &str,
    scopes: impl IntoIterator<Item = &'s ScopeId> + Clone,
    now: Now,
) -> Result<usize> {
    let params = named_params! { ":now": now.boot_us, ":boot": now.boot_id };
    let standing = tx
        .all("looking for bypasses", STANDING, params, |row| Ok((column_id::<BypassId>(row, "id")?, scope_of(row)?)))?;
    for (id, scope) in &standing {
        let params = named_params! { ":id": id.as_str(), ":actor": actor, ":at": now.wall.0 };
        tx.execute("ending a bypass", RESTORE, params)?;
        let data = Map::from_iter([("bypass_id".to_owned(), Value::from(id.as_str()))]);
        tell(tx, id, kind::GATES_RESTORED, scope.as_ref(), scopes.clone(), actor, &data, now)?;
    }
    Ok(standing.len())
}

#[allow(clippy::too_many_arguments)] // one private sentence with two callers
fn tell<'s>(
    tx: &Write<'_>,
    id: &BypassId,
    kind: &str,
    only: Option<&ScopeId>,
    scopes: impl IntoIterator<Item = &'s ScopeId>,
    actor: &str,
    data: &Map<String, Value>,
    now: Now,
) -> Result<()> {
    for scope in scopes.into_iter().filter(|scope| only.is_none_or(|only| only == *scope)) {
        let delivery = format!("{id}.{scope}.{kind}");
        let event = NewEvent { actor: Some(actor), ..NewEvent::new(scope, kind, source::ACTION, &delivery, data) };
        events::accept_core(tx, &event, now)?;
    }
    Ok(())
}

/// Whether gates are not asked about `scope` at this moment.
pub fn holds(r: &Read<'_>, scope: &ScopeId, now: Now) -> Result<bool> {
    let params = named_params! { ":now": now.boot_us, ":boot": now.boot_id, ":scope": scope.as_str() };
    Ok(r.one("looking for bypasses", HOLDS, params, |row| row.get(0))?)
}

/// The bypasses of the last 90 days, ended ones too, newest first.
pub fn newest(r: &Read<'_>, now: Now) -> Result<Vec<BypassView>> {
    let since = now.wall.0 - KEEP_US;
    let params = named_params! { ":now": now.boot_us, ":boot": now.boot_id, ":limit": SHOWN_MAX, ":since": since };
    Ok(r.all("listing bypasses", NEWEST, params, view)?)
}

/// One bypass.
pub fn get(r: &Read<'_>, id: &BypassId, now: Now) -> Result<Option<BypassView>> {
    let params = named_params! { ":now": now.boot_us, ":boot": now.boot_id, ":id": id.as_str() };
    Ok(r.optional("reading a bypass", GET, params, view)?)
}

/// Deletes bypasses that are over and began at least [`KEEP_US`] ago; returns how many.
pub fn sweep(tx: &Write<'_>, now: Now) -> Result<usize> {
    let params = named_params! {
        ":before": now.wall.0 - KEEP_US, ":now": now.boot_us, ":boot": now.boot_id, ":rows": SWEPT_MAX,
    };
    Ok(tx.execute("sweeping bypasses", SWEEP, params)?)
}

/// When a sweep may have something to do next.
pub fn next_due(r: &Read<'_>, now: Now) -> Result<i64> {
    let oldest: Option<i64> = r.one("looking for old bypasses", OLDEST, [], |row| row.get(0))?;
    Ok(oldest.map_or(now.wall.0, |at| at.min(now.wall.0)) + KEEP_US)
}

fn scope_of(row: &Row<'_>) -> rusqlite::Result<Option<ScopeId>> {
    row.get::<_, Option<String>>("scope_id")?.is_some().then(|| column_id(row, "scope_id")).transpose()
}

fn view(row: &Row<'_>) -> rusqlite::Result<BypassView> {
    Ok(BypassView {
        id: column_id(row, "id")?,
        scope_id: scope_of(row)?,
        actor: row.get("actor")?,
        reason: row.get("reason")?,
        holds: row.get("holds")?,
        until: UnixMicros(row.get("until_us")?),
        created_at: UnixMicros(row.get("created_at_us")?),
        restored_at: row.get::<_, Option<i64>>("restored_at_us")?.map(UnixMicros),
        restored_by: row.get("restored_by")?,
    })
}
