//! Executions as operators see them.

use conduit_api::views::ExecutionView;
use conduit_api::{ExecutionId, UnixMicros};
use conduit_store::{Read, Row, column_id, named_params};
use serde_json::Value;

use super::{Filter, List, Listed, Window, document, optional_at};
use crate::error::Result;

pub(super) const LIST: List = List {
    doing: "listing executions",
    columns: "x.*",
    table: "execution",
    work: ("work_id", "execution_work"),
    at: "created_at_us",
    weight: "length(coalesce(x.message, '')) + length(coalesce(x.usage, ''))",
};
const GET: &str = "SELECT * FROM execution WHERE id = :id";

/// Executions, newest first.
pub fn list(r: &Read<'_>, filter: Filter<'_>, window: Window<'_>) -> Result<Listed<ExecutionView>> {
    LIST.page(r, filter, window, view)
}

/// One Execution.
pub fn get(r: &Read<'_>, id: &ExecutionId) -> Result<Option<ExecutionView>> {
    Ok(r.optional("reading an execution", GET, named_params! { ":id": id.as_str() }, view)?)
}

fn view(row: &Row<'_>) -> rusqlite::Result<ExecutionView> {
    let usage = row.get::<_, Option<String>>("usage")?.is_some();
    let usage: Option<Value> = if usage { Some(document(row, "usage")?) } else { None };
    Ok(ExecutionView {
        id: column_id(row, "id")?,
        work_id: column_id(row, "work_id")?,
        scope_id: column_id(row, "scope_id")?,
        binding: row.get("binding")?,
        generation: row.get("generation")?,
        attempt: row.get("attempt")?,
        epoch: row.get("epoch")?,
        segment: row.get("segment")?,
        state: row.get("state")?,
        attempt_id: row.get("attempt_id")?,
        created_at: UnixMicros(row.get("created_at_us")?),
        gates_bypassed_at: optional_at(row, "bypassed_at_us")?,
        started_at: optional_at(row, "started_at_us")?,
        finished_at: optional_at(row, "finished_at_us")?,
        deadline_at: optional_at(row, "deadline_at_us")?,
        code: row.get("code")?,
        message: row.get("message")?,
        usage: usage.filter(|usage| !usage.is_null()),
        revision: row.get("revision")?,
    })
}
