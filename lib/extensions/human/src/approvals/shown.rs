//! Requests as operators see them.

use conduit_api::views::ApprovalView;
use conduit_api::{ApprovalId, UnixMicros};
use conduit_coordination::Result;
use conduit_coordination::queries::{Filter, List, Listed, Window};
use conduit_store::digest::hex;
use conduit_store::{Now, Read, Row, RowResult, column_id, named_params};
use serde_json::Value;

/// The states that a list can be narrowed to.
pub const STATES: [&str; 5] = ["pending", "approved", "denied", "expired", "consumed"];

const LIST: List = List {
    doing: "listing approvals",
    columns: "x.*",
    table: "approval",
    work: ("work_id", "approval_work"),
    at: "created_at_us",
    weight: "length(x.input)",
};
const GET: &str = "SELECT * FROM approval WHERE id = :id";

/// Requests, newest first.
pub fn list(r: &Read<'_>, filter: Filter<'_>, window: Window<'_>, now: Now) -> Result<Listed<ApprovalView>> {
    LIST.page(r, filter, window, |row| view(row, now))
}

/// One request.
pub fn get(r: &Read<'_>, id: &ApprovalId, now: Now) -> Result<Option<ApprovalView>> {
    Ok(r.optional("reading an approval", GET, named_params! { ":id": id.as_str() }, |row| view(row, now))?)
}

fn view(row: &Row<'_>, now: Now) -> RowResult<ApprovalView> {
    let at = |column: &str| -> RowResult<Option<UnixMicros>> { Ok(row.get::<_, Option<i64>>(column)?.map(UnixMicros)) };
    let id = |column: &str| -> RowResult<_> {
        row.get::<_, Option<String>>(column)?.is_some().then(|| column_id(row, column)).transpose()
    };
    let (state, expires_at): (String, _) = (row.get("state")?, at("expires_at_us")?);
    // The call that waits for it ends it when it is made again; nobody can decide about it before that either.
    let over = state == "pending" && expires_at.is_some_and(|end| end <= now.wall);
    Ok(ApprovalView {
        id: column_id(row, "id")?,
        state: if over { "expired".to_owned() } else { state },
        scope_id: column_id(row, "scope_id")?,
        binding: row.get("binding")?,
        work_id: column_id(row, "work_id")?,
        execution_id: id("execution_id")?,
        operation: row.get("operation")?,
        input: serde_json::from_str(&row.get::<_, String>("input")?).unwrap_or(Value::Null),
        call_digest: hex(&row.get::<_, Vec<u8>>("call_digest")?),
        reach: row.get("reach")?,
        until: at("until_us")?,
        note: row.get("note")?,
        actor: row.get("actor")?,
        used_execution_id: id("used_execution_id")?,
        used_request_id: row.get("used_request_id")?,
        created_at: UnixMicros(row.get("created_at_us")?),
        expires_at,
        decided_at: at("decided_at_us")?,
        revision: row.get("revision")?,
    })
}
