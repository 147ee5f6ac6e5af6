//! Budgets: what one execution may use up. The bounds are its binding's, pinned in its token; what is used up is
//! counted in the transaction that uses it, and calls in the process that serves its socket.
//!
//! An execution whose binding bounds nothing has no row here and pays nothing.

use std::fmt;

use conduit_api::toolbelt::operation;
use conduit_api::{ApiError, Code, ExecutionId};
use conduit_config::{Budget, OnExceeded};
use conduit_store::{Now, Read, Write, named_params};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::token::{Grants, TokenRecord};

/// How long a worker is idle before it ends, in seconds.
const QUIET_S: u64 = 10;
/// A minute, in microseconds.
const MINUTE_US: u64 = 60 * 1_000_000;

/// One of the things that are bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bounded {
    CallsPerMinute,
    Emissions,
    Children,
    Bytes,
}

impl Bounded {
    pub const ALL: [Self; 4] = [Self::CallsPerMinute, Self::Emissions, Self::Children, Self::Bytes];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CallsPerMinute => "calls_per_minute",
            Self::Emissions => "emissions",
            Self::Children => "children",
            Self::Bytes => "bytes",
        }
    }

    const fn limit(self, budget: &Budget) -> Option<u64> {
        match self {
            Self::CallsPerMinute => budget.calls_per_minute,
            Self::Emissions => budget.emissions,
            Self::Children => budget.children,
            Self::Bytes => budget.bytes,
        }
    }
}

/// A call that asks for more than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    pub bounded: Bounded,
    pub limit: u64,
    pub used: u64,
    pub wanted: u64,
    /// Seconds until a call is free again; `None` for what does not come back.
    pub wait_s: Option<u64>,
    /// Whether the Work is to be held.
    pub hold: bool,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bounded, limit, used, wanted, .. } = self;
        write!(f, "the budget `{}` has no room: {wanted} more on {used} of {limit}", bounded.name())
    }
}

impl Exceeded {
    /// What the caller is told: `call_rate_exceeded` for what comes back, `budget_exceeded` for all else.
    pub fn to_api(&self) -> ApiError {
        match (self.hold, self.wait_s) {
            (true, _) => {
                ApiError::new(Code::BudgetExceeded, format!("{self}; the Work is held until an operator retries it"))
            }
            (false, None) => ApiError::new(
                Code::BudgetExceeded,
                format!("{self}; a declaration (`wait`, `declare_outcome`) costs nothing"),
            ),
            (false, Some(seconds)) => ApiError {
                retry_after_s: Some(seconds),
                ..ApiError::new(Code::CallRateExceeded, format!("{self}; there is room again in {seconds} s"))
            },
        }
    }
}

/// What an execution has used up, or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    pub emissions: u64,
    pub children: u64,
    pub bytes: u64,
}

impl Spent {
    /// The bytes of `input`, as JSON.
    pub fn on_input(input: &Map<String, Value>) -> Self {
        let bytes = serde_json::to_vec(input).map_or(0, |bytes| bytes.len());
        Self { bytes: u64::try_from(bytes).unwrap_or(u64::MAX), ..Self::default() }
    }

    const fn of(&self, bounded: Bounded) -> Option<u64> {
        match bounded {
            Bounded::CallsPerMinute => None,
            Bounded::Emissions => Some(self.emissions),
            Bounded::Children => Some(self.children),
            Bounded::Bytes => Some(self.bytes),
        }
    }

    const fn and(&self, more: &Self) -> Self {
        Self {
            emissions: self.emissions.saturating_add(more.emissions),
            children: self.children.saturating_add(more.children),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }
}

const SPENT: &str = "SELECT emissions, children, bytes FROM spent WHERE execution_id = :execution";
const SPEND: &str = "
    INSERT INTO spent (execution_id, emissions, children, bytes) VALUES (:execution, :emissions, :children, :bytes)
    ON CONFLICT (execution_id) DO UPDATE SET emissions = :emissions, children = :children, bytes = :bytes";
const GIVE_BACK: &str = "UPDATE spent SET bytes = max(0, bytes - :bytes) WHERE execution_id = :execution";
const GRANTS: &str = "SELECT grants FROM token WHERE execution_id = :execution ORDER BY epoch DESC LIMIT 1";

/// Charges an execution for what is done in this transaction. Error: `budget_exceeded`, and then nothing may be committed.
pub(crate) fn charge(tx: &Write<'_>, token: &TokenRecord, more: &Spent) -> Result<()> {
    let budget = &token.grants.budget;
    if budget.emissions.is_none() && budget.children.is_none() && budget.bytes.is_none() {
        return Ok(());
    }
    let before = spent(tx, &token.execution)?;
    let after = before.and(more);
    for bounded in Bounded::ALL {
        if let (Some(limit), Some(used)) = (bounded.limit(budget), after.of(bounded))
            && used > limit
            && Some(used) != before.of(bounded)
        {
            let used_before = before.of(bounded).unwrap_or_default();
            return Err(Error::BudgetExceeded(Exceeded {
                bounded,
                limit,
                used: used_before,
                wanted: used - used_before,
                wait_s: None,
                hold: budget.on_exceeded == OnExceeded::Hold,
            }));
        }
    }
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let Spent { emissions, children, bytes } = after;
    tx.execute(
        "charging an execution",
        SPEND,
        named_params! {
            ":execution": token.execution.as_str(), ":emissions": number(emissions), ":children": number(children),
            ":bytes": number(bytes),
        },
    )?;
    Ok(())
}

/// Frees the bytes of a request that was not carried out.
pub(crate) fn give_back(tx: &Write<'_>, execution: &ExecutionId, bytes: u64) -> Result<()> {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let params = named_params! { ":execution": execution.as_str(), ":bytes": bytes };
    tx.execute("giving a budget back", GIVE_BACK, params)?;
    Ok(())
}

/// What an execution has used up so far.
fn spent(r: &Read<'_>, execution: &ExecutionId) -> conduit_store::Result<Spent> {
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    let params = named_params! { ":execution": execution.as_str() };
    let found = r.optional("reading what an execution used up", SPENT, params, |row| {
        Ok(Spent {
            emissions: number(row.get("emissions")?),
            children: number(row.get("children")?),
            bytes: number(row.get("bytes")?),
        })
    })?;
    Ok(found.unwrap_or_default())
}

/// The bounds that a call of `operation` is held against, as they stand: each with its figures, and whether there is room for one
/// more; `None` where that depends on the moment or the input.
pub(crate) fn outlook(r: &Read<'_>, execution: &ExecutionId, operation: &str) -> Result<Vec<(String, Option<bool>)>> {
    if matches!(operation, operation::WAIT | operation::DECLARE_OUTCOME) {
        return Ok(Vec::new());
    }
    let (budget, spent) = state(r, execution)?;
    let concerns = |bounded| match bounded {
        Bounded::CallsPerMinute => true,
        Bounded::Emissions => operation == operation::EMIT,
        Bounded::Children => operation == operation::CREATE_WORK,
        Bounded::Bytes => operation != operation::READ_CONTEXT,
    };
    let mut found = Vec::new();
    for bounded in Bounded::ALL.into_iter().filter(|bounded| concerns(*bounded)) {
        let Some(limit) = bounded.limit(&budget) else { continue };
        let name = bounded.name();
        let (figures, room) = match (bounded, spent.of(bounded)) {
            (Bounded::Emissions | Bounded::Children, Some(used)) => (format!("{used} of {limit}"), Some(used < limit)),
            (_, Some(used)) => (format!("{used} of {limit}"), None),
            (_, None) => (format!("{limit} at once"), None),
        };
        found.push((format!("the budget `{name}` has no room ({figures})"), room));
    }
    Ok(found)
}

/// The bounds of an execution as its newest token pins them, and what it has used of them.
pub(crate) fn state(r: &Read<'_>, execution: &ExecutionId) -> conduit_store::Result<(Budget, Spent)> {
    let params = named_params! { ":execution": execution.as_str() };
    let grants = r.optional("reading a token's grants", GRANTS, params, |row| row.get::<_, String>("grants"))?;
    // Grants that cannot be read grant nothing, and bound nothing.
    let grants: Grants = grants.and_then(|grants| serde_json::from_str(&grants).ok()).unwrap_or_default();
    Ok((grants.budget, spent(r, execution)?))
}

/// The budget of an execution, with what is used and what is left; `null` when nothing is bounded. `calls` made lately are known
/// to the process alone that serves its socket.
pub fn view(r: &Read<'_>, execution: &ExecutionId, calls: Option<u64>) -> conduit_store::Result<Value> {
    let (budget, spent) = state(r, execution)?;
    if budget.is_unlimited() {
        return Ok(Value::Null);
    }
    let mut view = Map::from_iter([("on_exceeded".to_owned(), json!(budget.on_exceeded))]);
    for bounded in Bounded::ALL {
        let Some(limit) = bounded.limit(&budget) else { continue };
        let shown = match spent.of(bounded).or(calls) {
            Some(used) => json!({"limit": limit, "used": used, "remaining": limit.saturating_sub(used)}),
            None => json!({"limit": limit}),
        };
        view.insert(bounded.name().to_owned(), shown);
    }
    Ok(Value::Object(view))
}

/// How many calls an execution made lately: a bucket that holds a minute's calls and fills again all the time. So of a limit of
/// N at most 2 N go through in one minute, and N in the long run. It is of one process; a new one begins with what comes back in
/// [`QUIET_S`], and with one call at least, so that a worker that ended for being idle gives nothing away.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// What has gone out of the bucket, in calls times [`MINUTE_US`].
    gone: u64,
    seen_boot_us: i64,
}

impl Rate {
    /// The calls that are out of the bucket at `now`.
    pub fn used(&self, budget: &Budget, now: Now) -> u64 {
        let since = u64::try_from(now.boot_us.saturating_sub(self.seen_boot_us)).unwrap_or(0);
        let limit = budget.calls_per_minute.unwrap_or(0);
        self.gone.saturating_sub(since.saturating_mul(limit)).div_ceil(MINUTE_US)
    }

    /// Takes one call out. Error: `budget_exceeded` when there is none left.
    pub fn take(&mut self, budget: &Budget, now: Now) -> Result<()> {
        let Some(limit) = budget.calls_per_minute else { return Ok(()) };
        if self.seen_boot_us == 0 {
            let full = limit.saturating_mul(MINUTE_US);
            let back = limit.saturating_mul(QUIET_S * 1_000_000).max(MINUTE_US);
            (self.gone, self.seen_boot_us) = (full.saturating_sub(back), now.boot_us);
        }
        let since = u64::try_from(now.boot_us.saturating_sub(self.seen_boot_us)).unwrap_or(0);
        self.seen_boot_us = self.seen_boot_us.max(now.boot_us);
        // In the time since, `limit` calls came back for each minute.
        self.gone = self.gone.saturating_sub(since.saturating_mul(limit));
        let full = limit.saturating_mul(MINUTE_US);
        let after = self.gone.saturating_add(MINUTE_US);
        if after > full {
            let missing_us = (after - full).div_ceil(limit.max(1));
            let wait_s = missing_us.div_ceil(1_000_000).max(1);
            return Err(Error::BudgetExceeded(Exceeded {
                bounded: Bounded::CallsPerMinute,
                limit,
                used: self.gone.div_ceil(MINUTE_US),
                wanted: 1,
                wait_s: Some(wait_s),
                hold: budget.on_exceeded == OnExceeded::Hold,
            }));
        }
        self.gone = after;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::UnixMicros;

    fn at(seconds: i64) -> Now {
        Now { wall: UnixMicros(0), boot_us: 1_000_000_000 + seconds * 1_000_000, boot_id: "boot" }
    }

    fn taken(rate: &mut Rate, limit: u64, second: i64) -> Option<u64> {
        let budget = Budget { calls_per_minute: Some(limit), ..Budget::default() };
        match rate.take(&budget, at(second)) {
            Ok(()) => None,
            Err(Error::BudgetExceeded(exceeded)) => exceeded.wait_s,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_minutes_calls_are_there_at_once_and_come_back_as_time_goes_by() {
        let mut rate = Rate::default();
        assert_eq!(taken(&mut rate, 6, -100), None);
        assert_eq!(taken(&mut rate, 6, -100), Some(10), "a new process begins with what comes back in ten seconds");
        assert_eq!([(); 6].map(|()| taken(&mut rate, 6, 0)), [None; 6]);
        assert_eq!(taken(&mut rate, 6, 0), Some(10));
        assert_eq!(taken(&mut rate, 6, 9), Some(1), "what is refused costs nothing");
        assert_eq!(taken(&mut rate, 6, 10), None);
        assert_eq!(taken(&mut rate, 6, 10), Some(10));
        assert_eq!([(); 6].map(|()| taken(&mut rate, 6, 100)), [None; 6]);
        assert_eq!(taken(&mut rate, 6, 100), Some(10));
        assert_eq!(taken(&mut rate, 6, 50), Some(10), "a clock that went back gives nothing");
    }

    #[test]
    fn the_largest_rate_of_a_configuration_is_counted_exactly() {
        let mut rate = Rate::default();
        assert_eq!(taken(&mut rate, 1_000_000, -100), None);
        for _ in 0..1_000_000 {
            assert_eq!(taken(&mut rate, 1_000_000, 0), None);
        }
        assert_eq!(taken(&mut rate, 1_000_000, 0), Some(1));
        assert_eq!(Rate::default().take(&Budget::default(), at(0)).ok(), Some(()), "nothing is bounded");
    }
}
