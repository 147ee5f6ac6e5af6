//! Artifacts: results that outlive the process that made them, by digest.

use conduit_api::{ArtifactId, ExecutionId, ScopeId, WorkId};
use conduit_store::{Now, Write, mint, named_params};

use crate::error::Result;

/// One retained output of a segment. The bytes lie in `artifacts/<digest>` before the row is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewArtifact {
    pub name: String,
    pub media_type: String,
    /// SHA-256, lower-case hex.
    pub digest: String,
    pub bytes: i64,
    /// What the stream had beyond the retained bytes.
    pub dropped_bytes: i64,
}

const INSERT: &str = "
    INSERT INTO artifact (id, execution_id, work_id, scope_id, segment, name, media_type, digest, bytes, dropped_bytes, created_at_us)
    VALUES (:id, :execution, :work, :scope, :segment, :name, :media, :digest, :bytes, :dropped, :at)
    ON CONFLICT (execution_id, segment, name) DO NOTHING";

/// Records the outputs of a segment; recording them again changes nothing.
pub fn record(
    tx: &Write<'_>,
    execution: &ExecutionId,
    work: &WorkId,
    scope: &ScopeId,
    segment: i64,
    outputs: &[NewArtifact],
    now: Now,
) -> Result<()> {
    for output in outputs {
        tx.execute(
            "recording an artifact",
            INSERT,
            named_params! {
                ":id": mint::<ArtifactId>(now).as_str(), ":execution": execution.as_str(), ":work": work.as_str(),
                ":scope": scope.as_str(), ":segment": segment, ":name": output.name, ":media": output.media_type,
                ":digest": output.digest, ":bytes": output.bytes, ":dropped": output.dropped_bytes, ":at": now.wall.0,
            },
        )?;
    }
    Ok(())
}
