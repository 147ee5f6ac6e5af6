//! Artifacts as operators see them; their bytes are files.

use conduit_api::views::ArtifactView;
use conduit_api::{ArtifactId, UnixMicros};
use conduit_store::{Read, Row, column_id, named_params};

use super::{Filter, List, Listed, Window};
use crate::error::Result;

pub(super) const LIST: List = List {
    doing: "listing artifacts",
    columns: "x.*",
    table: "artifact",
    work: ("work_id", "artifact_work"),
    at: "created_at_us",
    weight: "0",
};
const GET: &str = "SELECT * FROM artifact WHERE id = :id";

/// Artifacts, newest first. An Artifact has no state to filter by: such a filter excludes nothing.
pub fn list(r: &Read<'_>, filter: Filter<'_>, window: Window<'_>) -> Result<Listed<ArtifactView>> {
    LIST.page(r, Filter { state: None, ..filter }, window, view)
}

/// One Artifact.
pub fn get(r: &Read<'_>, id: &ArtifactId) -> Result<Option<ArtifactView>> {
    Ok(r.optional("reading an artifact", GET, named_params! { ":id": id.as_str() }, view)?)
}

fn view(row: &Row<'_>) -> rusqlite::Result<ArtifactView> {
    Ok(ArtifactView {
        id: column_id(row, "id")?,
        execution_id: column_id(row, "execution_id")?,
        work_id: column_id(row, "work_id")?,
        scope_id: column_id(row, "scope_id")?,
        segment: row.get("segment")?,
        name: row.get("name")?,
        media_type: row.get("media_type")?,
        digest: row.get("digest")?,
        bytes: row.get("bytes")?,
        dropped_bytes: row.get("dropped_bytes")?,
        created_at: UnixMicros(row.get("created_at_us")?),
    })
}
