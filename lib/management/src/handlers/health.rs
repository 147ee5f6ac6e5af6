//! Whether the suite stands.

use conduit_api::views::HealthView;
use conduit_coordination::queries::health;
use conduit_daemon::http::Reply;
use conduit_store::lock::role_is_held;

use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::Host;

/// `ok`, or `degraded` while a part is away: what was accepted is safe, and waits for it.
pub(crate) fn get(host: &mut Host, _ask: &Ask) -> Result<Reply> {
    let scheduler = role_is_held(&host.state, "scheduler");
    let endpointd = role_is_held(&host.state, "endpointd");
    let (counts, active, packages_failing) = host.read(|r, active| {
        let snapshot = match active.snapshot(r) {
            // Before its first start the scheduler has published nothing, and health says so instead of failing.
            Err(Error::Config(conduit_config::Error::NoGeneration)) => None,
            other => Some(other?),
        };
        // One that the active generation does not enable is asked nothing, and could never be well again.
        let enabled = |name: &str| snapshot.as_ref().is_some_and(|snapshot| snapshot.registers(name));
        let packages = conduit_toolbelt::packages::all(r)?.into_iter().filter(|package| enabled(&package.name));
        let failing: Vec<_> = packages.filter_map(|package| super::packages::failure(&package)).collect();
        Ok((health::counts(r)?, snapshot, failing))
    })?;
    let whole = scheduler && endpointd && active.is_some() && packages_failing.is_empty();
    Ok(Reply::json(
        200,
        &HealthView {
            status: if whole { "ok" } else { "degraded" }.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: active.as_ref().map_or(0, |snapshot| snapshot.generation),
            config_hash: active.as_ref().map(|snapshot| snapshot.hash.clone()).unwrap_or_default(),
            scheduler,
            endpointd,
            work: counts.work,
            executions_live: counts.executions_live,
            events: counts.events,
            packages_failing,
        },
    ))
}
