//! Replay: the same request, asked again, gets the same answer (T14).
//!
//! The fence comes before the look-up: after a declaration even a committed request ID gets `authority_released`.

use conduit_api::ExecutionId;
use conduit_store::digest::{Sha256Digest, canonical_json, sha256_parts};
use conduit_store::{Now, Read, Write, named_params};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Digest of what was asked for.
pub(crate) fn request_digest(operation: &str, input: &Map<String, Value>) -> Sha256Digest {
    sha256_parts("toolbelt-request-1", &[operation.as_bytes(), &canonical_json(&Value::Object(input.clone()))])
}

const FIND: &str = "
    SELECT request_digest, output FROM replay
     WHERE execution_id = :execution AND operation = :operation AND request_id = :request";
const STORE: &str = "
    INSERT INTO replay (execution_id, operation, request_id, request_digest, output, created_at_us)
    VALUES (:execution, :operation, :request, :digest, :output, :at)";

/// The committed answer to this request, if there is one. Error: `request_conflict` when another body was asked before.
pub(crate) fn find(
    r: &Read<'_>,
    execution: &ExecutionId,
    operation: &str,
    request_id: &str,
    input: &Map<String, Value>,
) -> Result<Option<Value>> {
    let params = named_params! { ":execution": execution.as_str(), ":operation": operation, ":request": request_id };
    let found = r.optional("looking a request up", FIND, params, |row| {
        Ok((row.get::<_, Vec<u8>>("request_digest")?, row.get::<_, String>("output")?))
    })?;
    match found {
        None => Ok(None),
        Some((asked, _)) if asked != request_digest(operation, input) => Err(Error::RequestConflict),
        Some((_, output)) => serde_json::from_str(&output)
            .map(Some)
            .map_err(|_| Error::operation(conduit_api::Code::Internal, "the recorded answer cannot be read")),
    }
}

/// Records an answer in the transaction that makes it true.
pub(crate) fn store(
    tx: &Write<'_>,
    execution: &ExecutionId,
    operation: &str,
    request_id: &str,
    input: &Map<String, Value>,
    output: &Value,
    now: Now,
) -> Result<()> {
    put(tx, execution, operation, request_id, &request_digest(operation, input), output, now)
}

/// Records an answer to the request with this digest.
pub(crate) fn put(
    tx: &Write<'_>,
    execution: &ExecutionId,
    operation: &str,
    request_id: &str,
    digest: &Sha256Digest,
    output: &Value,
    now: Now,
) -> Result<()> {
    tx.execute(
        "recording an answer",
        STORE,
        named_params! {
            ":execution": execution.as_str(), ":operation": operation, ":request": request_id, ":digest": digest,
            ":output": output.to_string(), ":at": now.wall.0,
        },
    )?;
    Ok(())
}
