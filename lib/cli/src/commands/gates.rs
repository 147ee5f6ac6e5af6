//! `open-conduit gates`

use conduit_api::ScopeId;
use conduit_api::views::{BypassRequest, BypassView, GatesView};
use conduit_client::request_id;

use super::nothing;
use crate::connect::Connection;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Show gates, bypass them for a while, and restore them
#[derive(Debug, clap::Args)]
pub struct GatesArgs {
    #[command(subcommand)]
    command: Option<GatesCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum GatesCommand {
    /// Show which gates are asked, and the times in which none is
    Show,
    Bypass(BypassArgs),
    /// Have gates asked again, whoever bypassed them
    Restore,
}

/// Have no gate asked for a while; this is recorded, and takes an administrator
#[derive(Debug, clap::Args)]
struct BypassArgs {
    /// How long: 90s, 15m or 1h, at most an hour
    #[arg(long = "for", value_name = "DURATION", value_parser = seconds)]
    seconds: u64,
    /// Why; it is recorded
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    /// In this scope alone
    #[arg(long)]
    scope: Option<ScopeId>,
    /// Name the order; under the same name it is carried out once
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

/// `90s`, `15m`, `1h` in seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let read = units.iter().find_map(|(unit, size)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*size));
    read.ok_or_else(|| "use a number and a unit, as in 90s, 15m or 1h".to_owned())
}

pub fn run(args: &GatesArgs, connection: &Connection, out: &mut Output) -> Result<Exit> {
    let client = connection.client()?;
    match &args.command {
        None | Some(GatesCommand::Show) => out.one(&client.get::<GatesView>("/v1/gates")?)?,
        Some(GatesCommand::Restore) => out.one(&client.post::<_, GatesView>("/v1/gates/restore", &nothing())?)?,
        Some(GatesCommand::Bypass(args)) => {
            let request =
                BypassRequest { seconds: args.seconds, reason: args.reason.clone(), scope_id: args.scope.clone() };
            let name = args.request_id.clone().map_or_else(request_id, Ok)?;
            let bypass: BypassView =
                client.post_keyed("/v1/gates/bypass", &request, &name).map_err(Failure::keyed(&name))?;
            out.one(&bypass)?;
        }
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!([seconds("90s"), seconds("15m"), seconds("1h")], [Ok(90), Ok(900), Ok(3600)]);
        for bad in ["", "5", "h", "-1m", "1.5h", "99999999999999999999h", "10000000000000000h"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
