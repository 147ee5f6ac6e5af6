//! Waits as operators see them, each with its predicates and what matched them.

use conduit_api::toolbelt::{Predicate, WaitMode};
use conduit_api::views::{PredicateView, WaitView};
use conduit_api::{UnixMicros, WaitId};
use conduit_store::{Read, Row, column_id, named_params};

use super::{Filter, List, Listed, Window, document, optional_at, optional_id};
use crate::error::Result;

pub(super) const LIST: List = List {
    doing: "listing waits",
    columns: "x.*",
    table: "wait",
    work: ("work_id", "wait_work"),
    at: "created_at_us",
    weight: "(SELECT sum(length(p.data) + 256) FROM wait_predicate p WHERE p.wait_id = x.id)",
};
const GET: &str = "SELECT * FROM wait WHERE id = :id";
const PREDICATES: &str = "
    SELECT p.type, p.correlation_key, p.work_id, p.source, p.data, e.id AS matched_event_id
      FROM wait_predicate p LEFT JOIN event e ON e.seq = p.matched_seq WHERE p.wait_id = :wait ORDER BY p.position";

/// Waits, newest first.
pub fn list(r: &Read<'_>, filter: Filter<'_>, window: Window<'_>) -> Result<Listed<WaitView>> {
    let mut listed = LIST.page(r, filter, window, view)?;
    for wait in &mut listed.items {
        wait.predicates = predicates(r, &wait.id)?;
    }
    Ok(listed)
}

/// One Wait.
pub fn get(r: &Read<'_>, id: &WaitId) -> Result<Option<WaitView>> {
    let found = r.optional("reading a wait", GET, named_params! { ":id": id.as_str() }, view)?;
    found.map(|wait| Ok(WaitView { predicates: predicates(r, id)?, ..wait })).transpose()
}

/// The wait without its predicates, which are rows of their own.
fn view(row: &Row<'_>) -> rusqlite::Result<WaitView> {
    Ok(WaitView {
        id: column_id(row, "id")?,
        work_id: column_id(row, "work_id")?,
        execution_id: column_id(row, "execution_id")?,
        scope_id: column_id(row, "scope_id")?,
        mode: if row.get::<_, String>("mode")? == "all" { WaitMode::All } else { WaitMode::Any },
        state: row.get("state")?,
        watermark: row.get("watermark")?,
        timeout_at: optional_at(row, "timeout_at_us")?,
        predicates: Vec::new(),
        created_at: UnixMicros(row.get("created_at_us")?),
        finished_at: optional_at(row, "finished_at_us")?,
    })
}

fn predicates(r: &Read<'_>, wait: &WaitId) -> Result<Vec<PredicateView>> {
    Ok(r.all("reading predicates", PREDICATES, named_params! { ":wait": wait.as_str() }, |row| {
        Ok(PredicateView {
            predicate: Predicate {
                kind: row.get("type")?,
                correlation_key: row.get("correlation_key")?,
                work_id: optional_id(row, "work_id")?,
                source: row.get("source")?,
                data: document(row, "data")?,
            },
            matched_event_id: optional_id(row, "matched_event_id")?,
        })
    })?)
}
