//! `open-conduit health`

use conduit_api::views::HealthView;
use conduit_client::Client;

use crate::exit::Exit;
use crate::failure::Result;
use crate::output::Output;

/// Shows the suite; a degraded one is `unavailable` to a script.
pub fn run(client: &Client, out: &mut Output) -> Result<Exit> {
    let view: HealthView = client.get("/v1/health")?;
    out.one(&view)?;
    Ok(if view.status == "ok" { Exit::Done } else { Exit::Unavailable })
}
