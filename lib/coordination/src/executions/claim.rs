//! Claims: a ready Work gets an execution and a lease.

use conduit_api::{EventId, ExecutionId, ScopeId, WorkId};
use conduit_store::{Fence, Fenced, Now, Read, Row, RowResult, Write, column_id, mint, named_params};

use crate::error::Result;
use crate::inputs;
use crate::work::{self, Event};

/// What the scheduler brings to a claim.
#[derive(Debug, Clone)]
pub struct Claim<'a> {
    /// This scheduler instance.
    pub owner: &'a str,
    /// The active generation, which the attempt pins.
    pub generation: i64,
    pub lease_us: i64,
}

/// An execution that this scheduler holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub execution: ExecutionId,
    pub work: WorkId,
    pub scope: ScopeId,
    pub binding: String,
    pub generation: i64,
    pub attempt: i64,
    pub epoch: i64,
    pub segment: i64,
    /// A parked execution that goes on, not a new attempt.
    pub resumed: bool,
    pub owner: String,
}

impl Claimed {
    pub fn fence(&self) -> Fence {
        Fence { execution: self.execution.clone(), epoch: self.epoch, owner: self.owner.clone() }
    }
}

// Indexes are named where the planner, which has no statistics, would rather read every ready Work.
const NEXT: &str = "
    SELECT id, binding, epoch, attempts, created_event_id FROM work INDEXED BY work_ready
     WHERE scope_id = :scope AND state = 'ready' AND ready_at_us <= :now ORDER BY ready_at_us, id LIMIT 1";
const PARKED: &str = "
    SELECT id, binding, generation, attempt, segment, cause_event_id FROM execution INDEXED BY execution_work
     WHERE work_id = :work AND state = 'parked'";
const COUNT: &str = "UPDATE work SET epoch = :epoch, attempts = :attempts WHERE id = :id";
const RESUME: &str = "
    UPDATE execution SET state = 'claimed', epoch = :epoch, segment = :segment, owner = :owner, lease_boot_id = :boot,
                         lease_boot_us = :lease, attempt_id = NULL, acknowledged = :acknowledged, cause_event_id = :cause, revision = revision + 1
     WHERE id = :id AND state = 'parked'";
const INSERT: &str = "
    INSERT INTO execution (id, work_id, scope_id, binding, generation, attempt, epoch, segment, state, owner, lease_boot_id,
                           lease_boot_us, acknowledged, cause_event_id, created_at_us)
    VALUES (:id, :work, :scope, :binding, :generation, :attempt, :epoch, 1, 'claimed', :owner, :boot, :lease, :acknowledged, :cause, :at)";
const NEXT_DUE: &str =
    "SELECT min(ready_at_us) FROM work INDEXED BY work_due WHERE state = 'ready' AND ready_at_us > :now";
const READY_SCOPE: &str = "
    SELECT scope_id FROM work INDEXED BY work_ready WHERE state = 'ready' AND scope_id > :after ORDER BY scope_id LIMIT 1";

/// The scope after `after`, in name order, that has a ready Work (due or not).
pub(crate) fn next_ready_scope(r: &Read<'_>, after: &str) -> Result<Option<ScopeId>> {
    Ok(r.optional("looking for ready Works", READY_SCOPE, named_params! { ":after": after }, |row| {
        column_id(row, "scope_id")
    })?)
}

/// When the next ready Work that is not due yet becomes due.
pub fn next_ready_at(r: &Read<'_>, now: Now) -> Result<Option<i64>> {
    Ok(r.one("looking for due Works", NEXT_DUE, named_params! { ":now": now.wall.0 }, |row| row.get(0))?)
}

const DUE: &str = "
    SELECT EXISTS (SELECT 1 FROM work INDEXED BY work_ready WHERE scope_id = :scope AND state = 'ready' AND ready_at_us <= :now)";

/// Whether a scope that `may` take another execution has a due Work.
pub fn any_due(r: &Read<'_>, mut may: impl FnMut(&ScopeId) -> bool, now: Now) -> Result<bool> {
    let mut at = String::new();
    while let Some(scope) = next_ready_scope(r, &at)? {
        if may(&scope) {
            let params = named_params! { ":scope": scope.as_str(), ":now": now.wall.0 };
            if r.one("looking for due Works", DUE, params, |row| row.get(0))? {
                return Ok(true);
            }
        }
        at = scope.as_str().to_owned();
    }
    Ok(false)
}

/// Claims the oldest due Work of `scope`; `None` when there is none. The claim is the first write of a segment (T02).
pub(crate) fn claim_in(tx: &Write<'_>, scope: &ScopeId, claim: &Claim<'_>, now: Now) -> Result<Option<Claimed>> {
    let next =
        tx.optional("claiming a Work", NEXT, named_params! { ":scope": scope.as_str(), ":now": now.wall.0 }, |row| {
            Ok((
                column_id::<WorkId>(row, "id")?,
                row.get::<_, String>("binding")?,
                row.get::<_, i64>("epoch")?,
                row.get::<_, i64>("attempts")?,
                column_id::<EventId>(row, "created_event_id")?,
            ))
        })?;
    let Some((work, binding, epoch, attempts, created)) = next else { return Ok(None) };
    let parked =
        tx.optional("looking for a parked execution", PARKED, named_params! { ":work": work.as_str() }, |row| {
            Ok((
                column_id::<ExecutionId>(row, "id")?,
                row.get::<_, String>("binding")?,
                row.get::<_, i64>("generation")?,
                row.get::<_, i64>("attempt")?,
                row.get::<_, i64>("segment")?,
                column_id::<EventId>(row, "cause_event_id")?,
            ))
        })?;
    let epoch = epoch + 1;
    work::set_state(tx, &work, Event::Claimed, now.wall.0, None, now)?;
    let lease = now.boot_us + claim.lease_us;
    let known = inputs::newest_known(tx, &work)?; // a segment that is told of nothing new has seen all of it
    let claimed = if let Some((execution, binding, generation, attempt, segment, cause)) = parked {
        let (acknowledged, cause) = inputs::deliver(tx, &work, &execution)?.unwrap_or((known, cause));
        tx.execute("resuming an execution", RESUME, named_params! {
            ":id": execution.as_str(), ":epoch": epoch, ":segment": segment + 1, ":owner": claim.owner, ":boot": now.boot_id,
            ":lease": lease, ":acknowledged": acknowledged, ":cause": cause.as_str(),
        })?;
        let owner = claim.owner.to_owned();
        Claimed {
            execution,
            work,
            scope: scope.clone(),
            binding,
            generation,
            attempt,
            epoch,
            segment: segment + 1,
            resumed: true,
            owner,
        }
    } else {
        let execution: ExecutionId = mint(now);
        let attempt = attempts + 1;
        let (acknowledged, cause) = inputs::deliver(tx, &work, &execution)?.unwrap_or((known, created));
        tx.execute("claiming a Work", INSERT, named_params! {
            ":id": execution.as_str(), ":work": work.as_str(), ":scope": scope.as_str(), ":binding": binding,
            ":generation": claim.generation, ":attempt": attempt, ":epoch": epoch, ":owner": claim.owner, ":boot": now.boot_id,
            ":lease": lease, ":acknowledged": acknowledged, ":cause": cause.as_str(), ":at": now.wall.0,
        })?;
        let (generation, owner) = (claim.generation, claim.owner.to_owned());
        Claimed {
            execution,
            work,
            scope: scope.clone(),
            binding,
            generation,
            attempt,
            epoch,
            segment: 1,
            resumed: false,
            owner,
        }
    };
    let attempts = if claimed.resumed { attempts } else { claimed.attempt };
    tx.execute(
        "counting a claim",
        COUNT,
        named_params! { ":id": claimed.work.as_str(), ":epoch": epoch, ":attempts": attempts },
    )?;
    Ok(Some(claimed))
}

/// Claims one due Work, taking scopes in turn from behind `after`: `may` says whether a scope has room for another.
///
/// Returns the claim and the scope whose turn it was, which is where the next call goes on: a busy scope cannot starve another.
pub fn claim_next(
    tx: &Write<'_>,
    after: &str,
    claim: &Claim<'_>,
    mut may: impl FnMut(&ScopeId) -> bool,
    now: Now,
) -> Result<Option<Claimed>> {
    let mut at = after.to_owned();
    let mut wrapped = false;
    loop {
        match next_ready_scope(tx, &at)? {
            Some(scope) if !(wrapped && scope.as_str() > after) => {
                at = scope.as_str().to_owned();
                if may(&scope)
                    && let Some(claimed) = claim_in(tx, &scope, claim, now)?
                {
                    return Ok(Some(claimed));
                }
            }
            _ if wrapped => return Ok(None),
            _ => {
                wrapped = true;
                at.clear();
            }
        }
    }
}

const STARTED: &str = "
    UPDATE execution SET state = 'running', attempt_id = :attempt, started_at_us = coalesce(started_at_us, :at),
                         deadline_boot_us = :deadline, deadline_at_us = :deadline_at, revision = revision + 1
     WHERE id = :id AND epoch = :epoch AND state = 'claimed' AND stop_reason IS NULL";

/// The segment crosses the launch boundary in this very transaction, to end by `deadline_boot_us`; `false` when
/// somebody asked to stop it before that: nothing may start then.
pub fn started(tx: &Fenced<'_>, attempt: &str, deadline_boot_us: i64) -> Result<bool> {
    let now = tx.now();
    Ok(tx.execute(
        "starting an execution",
        STARTED,
        named_params! {
            ":id": tx.held().execution.as_str(), ":epoch": tx.held().epoch, ":attempt": attempt, ":at": now.wall.0,
            ":deadline": deadline_boot_us, ":deadline_at": now.wall.0 + (deadline_boot_us - now.boot_us),
        },
    )? == 1)
}

const BYPASSED: &str = "
    UPDATE execution SET bypassed_at_us = coalesce(bypassed_at_us, :at), revision = revision + 1
     WHERE id = :id AND epoch = :epoch AND state = 'claimed'";

/// Records that the start gates were not asked about the Work, whose execution is about to start; the first time stands.
/// `false` when it had left `claimed`.
pub fn start_bypassed(tx: &Fenced<'_>) -> Result<bool> {
    let params = named_params! {
        ":id": tx.held().execution.as_str(), ":epoch": tx.held().epoch, ":at": tx.now().wall.0,
    };
    Ok(tx.execute("recording a start past bypassed gates", BYPASSED, params)? == 1)
}

const LAUNCHED: &str = "
    SELECT EXISTS (SELECT 1 FROM execution INDEXED BY execution_work WHERE work_id = :work AND started_at_us IS NOT NULL)";

/// Whether an attempt of the Work ever crossed the launch boundary.
pub fn was_launched(r: &Read<'_>, work: &WorkId) -> Result<bool> {
    Ok(r.one("looking for a launch", LAUNCHED, named_params! { ":work": work.as_str() }, |row| row.get(0))?)
}

const RENEW: &str = "
    UPDATE execution SET lease_boot_us = :lease WHERE owner = :owner AND lease_boot_id = :boot AND state IN ('claimed', 'running')";

/// Renews every lease that `owner` holds; returns how many.
pub fn renew(tx: &Write<'_>, owner: &str, lease_us: i64, now: Now) -> Result<usize> {
    Ok(tx.execute(
        "renewing leases",
        RENEW,
        named_params! { ":owner": owner, ":boot": now.boot_id, ":lease": now.boot_us + lease_us },
    )?)
}

/// An execution that an earlier scheduler left in the middle of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// As the earlier scheduler held it: its token is good until [`recover`].
    pub left: Claimed,
    /// Whether its segment had crossed the launch boundary.
    pub running: bool,
    pub attempt_id: Option<String>,
    pub deadline_boot_us: Option<i64>,
}

/// What earlier schedulers left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Left {
    pub orphans: Vec<Orphan>,
    /// IDs of rows that cannot be read: nothing is done about them, and the others are taken over all the same.
    pub damaged: Vec<String>,
}

const LEFT: &str = "
    SELECT id, work_id, scope_id, binding, generation, attempt, epoch, segment, coalesce(owner, '') AS owner, state, attempt_id,
           deadline_boot_us
      FROM execution
     WHERE state IN ('claimed', 'running', 'orphaned') AND (owner IS NULL OR owner <> :owner) ORDER BY id";

/// What earlier schedulers left; only the holder of the scheduler's role lock may ask, for it alone knows that they are gone.
pub fn left_by_others(r: &Read<'_>, owner: &str) -> Result<Left> {
    let orphan = |row: &Row<'_>| -> RowResult<Orphan> {
        Ok(Orphan {
            left: held(row)?,
            running: row.get::<_, String>("state")? != "claimed",
            attempt_id: row.get("attempt_id")?,
            deadline_boot_us: row.get("deadline_boot_us")?,
        })
    };
    let rows = r.all("looking for what was left", LEFT, named_params! { ":owner": owner }, |row| {
        Ok((row.get::<_, String>("id")?, orphan(row)))
    })?;
    let mut left = Left::default();
    for (id, row) in rows {
        match row {
            Ok(orphan) => left.orphans.push(orphan),
            Err(_) => left.damaged.push(id),
        }
    }
    Ok(left)
}

/// The claim that a row of `execution` tells of.
fn held(row: &Row<'_>) -> RowResult<Claimed> {
    let segment = row.get("segment")?;
    Ok(Claimed {
        execution: column_id(row, "id")?,
        work: column_id(row, "work_id")?,
        scope: column_id(row, "scope_id")?,
        binding: row.get("binding")?,
        generation: row.get("generation")?,
        attempt: row.get("attempt")?,
        epoch: row.get("epoch")?,
        segment,
        resumed: segment > 1,
        owner: row.get("owner")?,
    })
}

const TAKE_OVER: &str = "
    UPDATE execution SET epoch = :epoch, owner = :owner, lease_boot_id = :boot, lease_boot_us = :lease, revision = revision + 1
     WHERE id = :id AND state IN ('claimed', 'running', 'orphaned')";
const EPOCH: &str =
    "SELECT max(e.epoch, w.epoch) + 1 FROM execution e JOIN work w ON w.id = e.work_id WHERE e.id = :id";
const WORK_EPOCH: &str = "UPDATE work SET epoch = :epoch WHERE id = (SELECT work_id FROM execution WHERE id = :id)";
/// An unapplied declaration survives recovery, and so does its release of authority (T12).
const CARRY: &str = "
    UPDATE declaration SET epoch = :epoch WHERE execution_id = :id AND applied_at_us IS NULL";
/// Nothing of the old epoch counts, its token neither.
const REVOKE: &str = "UPDATE token SET revoked_at_us = :at WHERE execution_id = :id AND revoked_at_us IS NULL";
const HELD: &str = "
    SELECT id, work_id, scope_id, binding, generation, attempt, epoch, segment, owner FROM execution WHERE id = :id";

/// Takes over an execution that an earlier scheduler left: a new epoch, so that nothing of the old one counts (T02). A
/// process that lives gets its new token in the same transaction; until then it speaks with the old one (E06).
pub fn recover(tx: &Write<'_>, execution: &ExecutionId, owner: &str, lease_us: i64, now: Now) -> Result<Claimed> {
    let id = execution.as_str();
    let epoch: i64 = tx.one("reading an epoch", EPOCH, named_params! { ":id": id }, |row| row.get(0))?;
    tx.execute(
        "taking an execution over",
        TAKE_OVER,
        named_params! {
            ":id": id, ":epoch": epoch, ":owner": owner, ":boot": now.boot_id, ":lease": now.boot_us + lease_us,
        },
    )?;
    tx.execute("taking an execution over", WORK_EPOCH, named_params! { ":id": id, ":epoch": epoch })?;
    tx.execute("revoking tokens", REVOKE, named_params! { ":id": id, ":at": now.wall.0 })?;
    tx.execute("keeping a declaration", CARRY, named_params! { ":id": id, ":epoch": epoch })?;
    Ok(tx.one("reading an execution", HELD, named_params! { ":id": id }, held)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::{StateDir, Store};

    /// A hundred thousand ready Works cost a claim what ten cost it: each query seeks in a partial index, none sorts.
    #[test]
    fn looking_for_the_next_work_reads_one_row_of_its_index() {
        let base = tempfile::tempdir().unwrap();
        let mut store = Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap();
        for (sql, seek) in [
            (NEXT, "work_ready (scope_id=? AND ready_at_us<?)"),
            (DUE, "work_ready (scope_id=? AND ready_at_us<?)"),
            (READY_SCOPE, "work_ready (scope_id>?)"),
            (NEXT_DUE, "work_due (ready_at_us>?)"),
        ] {
            let values = [":scope", ":now", ":after"].iter().fold(sql.to_owned(), |sql, name| sql.replace(name, "1"));
            let explain = format!("EXPLAIN QUERY PLAN {values}");
            let plan = store.read(|r| r.all("testing", &explain, [], |row| row.get::<_, String>("detail"))).unwrap();
            assert!(plan.iter().any(|step| step.contains(seek)), "{plan:?}");
            assert!(!plan.iter().any(|step| step.contains("TEMP")), "{plan:?}");
        }
    }
}
