//! Events as operators see them, and the whole of a causal chain.

use conduit_api::limits::CHAIN_EVENTS_MAX;
use conduit_api::views::{ChainView, EventView};
use conduit_api::{EventId, UnixMicros};
use conduit_store::{Read, Row, column_id, named_params};

use super::{Filter, List, Listed, Window, document, optional_id};
use crate::error::Result;

/// Bytes of data that one chain shows.
const CHAIN_BYTES_MAX: i64 = 32 << 20;

pub(super) const LIST: List = List {
    doing: "listing Events",
    columns: "x.*",
    table: "event",
    work: ("work_id", "event_work"),
    at: "seq",
    weight: "length(CAST(x.data AS BLOB))",
};
const GET: &str = "SELECT * FROM event WHERE id = :id";
const CHAIN: &str = "
    SELECT * FROM (
        SELECT *, sum(length(data)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - length(data) AS weight_before
          FROM (SELECT * FROM event WHERE root_id = (SELECT root_id FROM event WHERE id = :id) ORDER BY seq LIMIT :limit))
     WHERE weight_before < :bytes ORDER BY seq";
const CHAIN_COUNT: &str = "
    SELECT count(*) FROM (SELECT 1 FROM event WHERE root_id = (SELECT root_id FROM event WHERE id = :id) LIMIT :limit)";

/// Events, newest first. An Event has no state to filter by: such a filter excludes nothing.
pub fn list(r: &Read<'_>, filter: Filter<'_>, window: Window<'_>) -> Result<Listed<EventView>> {
    LIST.page(r, Filter { state: None, ..filter }, window, view)
}

/// One Event.
pub fn get(r: &Read<'_>, id: &EventId) -> Result<Option<EventView>> {
    Ok(r.optional("reading an Event", GET, named_params! { ":id": id.as_str() }, view)?)
}

/// Every Event of the causal chain that `id` stands in, in acceptance order, within bounds.
pub fn chain(r: &Read<'_>, id: &EventId) -> Result<Option<ChainView>> {
    let limit = i64::try_from(CHAIN_EVENTS_MAX).unwrap_or(i64::MAX);
    let params = named_params! { ":id": id.as_str(), ":limit": limit, ":bytes": CHAIN_BYTES_MAX };
    let events = r.all("reading a causal chain", CHAIN, params, view)?;
    let Some(root_id) = events.first().map(|event| event.root_id.clone()) else { return Ok(None) };
    let params = named_params! { ":id": id.as_str(), ":limit": limit.saturating_add(1) };
    let count: i64 = r.one("counting a causal chain", CHAIN_COUNT, params, |row| row.get(0))?;
    let truncated = count > i64::try_from(events.len()).unwrap_or(i64::MAX);
    Ok(Some(ChainView { root_id, events, truncated }))
}

fn view(row: &Row<'_>) -> rusqlite::Result<EventView> {
    Ok(EventView {
        id: column_id(row, "id")?,
        sequence: row.get("seq")?,
        scope_id: column_id(row, "scope_id")?,
        kind: row.get("type")?,
        source: row.get("source")?,
        delivery_id: row.get("delivery_id")?,
        correlation_key: row.get("correlation_key")?,
        work_id: optional_id(row, "work_id")?,
        execution_id: optional_id(row, "execution_id")?,
        cause_id: optional_id(row, "cause_id")?,
        root_id: column_id(row, "root_id")?,
        depth: row.get("depth")?,
        actor: row.get("actor")?,
        schema: row.get("schema")?,
        data: document(row, "data")?,
        accepted_at: UnixMicros(row.get("accepted_at_us")?),
        route: row.get("route")?,
    })
}
