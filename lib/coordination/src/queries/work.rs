//! Works as operators see them.

use conduit_api::views::WorkView;
use conduit_api::{UnixMicros, WorkId};
use conduit_store::{Read, Row, column_id, named_params};

use super::{Filter, List, Listed, Window, document, optional_at, optional_id};
use crate::error::Result;

pub(super) const LIST: List = List {
    doing: "listing Works",
    columns: "x.*, (SELECT json_group_array(key) FROM (SELECT key FROM work_key k WHERE k.work_id = x.id ORDER BY key)) AS keys",
    table: "work",
    work: ("parent_work_id", "work_parent"),
    at: "created_at_us",
    weight: "length(coalesce(x.outcome, ''))",
};
const GET: &str = "
    SELECT w.*, (SELECT json_group_array(key) FROM (SELECT key FROM work_key k WHERE k.work_id = w.id ORDER BY key)) AS keys
      FROM work w WHERE w.id = :id";

/// Works, newest first. A filter by Work finds the children of that Work.
pub fn list(r: &Read<'_>, filter: Filter<'_>, window: Window<'_>) -> Result<Listed<WorkView>> {
    LIST.page(r, filter, window, view)
}

/// One Work.
pub fn get(r: &Read<'_>, id: &WorkId) -> Result<Option<WorkView>> {
    Ok(r.optional("reading a Work", GET, named_params! { ":id": id.as_str() }, view)?)
}

fn view(row: &Row<'_>) -> rusqlite::Result<WorkView> {
    let outcome = row.get::<_, Option<String>>("outcome")?.is_some();
    Ok(WorkView {
        id: column_id(row, "id")?,
        scope_id: column_id(row, "scope_id")?,
        binding: row.get("binding")?,
        title: row.get("title")?,
        state: row.get("state")?,
        blocked_reason: row.get("blocked_reason")?,
        parent_work_id: optional_id(row, "parent_work_id")?,
        created_event_id: column_id(row, "created_event_id")?,
        keys: document(row, "keys")?,
        epoch: row.get("epoch")?,
        failures: row.get("failures")?,
        created_at: UnixMicros(row.get("created_at_us")?),
        updated_at: UnixMicros(row.get("updated_at_us")?),
        finished_at: optional_at(row, "finished_at_us")?,
        outcome: if outcome { Some(document(row, "outcome")?) } else { None },
        revision: row.get("revision")?,
    })
}
