//! Counts that cost the same at any size.

use conduit_api::ScopeId;
use conduit_store::{Read, named_params};
use serde_json::{Map, Value};

use crate::error::Result;

/// What the store holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// Works by state; a state that no Work is in is absent.
    pub work: Map<String, Value>,
    /// Executions that have not ended.
    pub executions_live: i64,
    pub events: i64,
}

const WORK: &str = "SELECT state, sum(n) FROM work_count GROUP BY state HAVING sum(n) > 0 ORDER BY state";
const WORK_OF: &str = "SELECT state, n FROM work_count WHERE scope_id = :scope AND n > 0 ORDER BY state";
const LIVE: &str = "SELECT count(*) FROM execution WHERE state IN ('claimed', 'running', 'parked', 'orphaned')";
// Rows are never deleted, so the newest sequence is their number.
const EVENTS: &str = "SELECT coalesce(max(seq), 0) FROM event";

/// Counts over all scopes.
pub fn counts(r: &Read<'_>) -> Result<Counts> {
    let work = r.all("counting Works", WORK, [], |row| Ok((row.get(0)?, Value::from(row.get::<_, i64>(1)?))))?;
    Ok(Counts {
        work: work.into_iter().collect(),
        executions_live: r.one("counting executions", LIVE, [], |row| row.get(0))?,
        events: r.one("counting Events", EVENTS, [], |row| row.get(0))?,
    })
}

/// Works of one scope by state.
pub fn work_of(r: &Read<'_>, scope: &ScopeId) -> Result<Map<String, Value>> {
    let params = named_params! { ":scope": scope.as_str() };
    let rows = r.all("counting Works", WORK_OF, params, |row| Ok((row.get(0)?, Value::from(row.get::<_, i64>(1)?))))?;
    Ok(rows.into_iter().collect())
}
