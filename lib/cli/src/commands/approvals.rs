//! `open-conduit approvals`, `approve` and `deny`

use conduit_api::views::{ApprovalView, ApproveRequest, DenyRequest, Reach};
use conduit_api::{ApprovalId, UnixMicros};
use conduit_client::Client;

use super::{FilterArgs, page};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// List and show what waits for an operator's approval
#[derive(Debug, clap::Args)]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    command: Option<ApprovalsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum ApprovalsCommand {
    /// List requests, newest first: the pending ones, or those in another state
    List(ListArgs),
    /// Show one request
    Get(OneArgs),
}

#[derive(Debug, Default, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only in this state: pending, approved, denied, expired or consumed
    #[arg(long = "in", value_name = "STATE", conflicts_with = "all")]
    in_state: Option<String>,
    /// In every state
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The request, as in apr_...
    approval: ApprovalId,
}

/// Let a call or a start through that waits for approval
#[derive(Debug, clap::Args)]
pub struct ApproveArgs {
    /// The request, as in apr_...
    approval: ApprovalId,
    /// How far it goes: once, execution, work, or until with --until
    #[arg(long = "for", value_name = "REACH", default_value = "once", value_parser = reach)]
    reach: Reach,
    /// The end of an approval until a time, as in 2026-11-30T19:19:08Z
    #[arg(long, value_name = "TIME")]
    until: Option<UnixMicros>,
    /// A word about why
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    note: Option<String>,
}

/// Refuse a call or a start that waits for approval, or withdraw an approval
#[derive(Debug, clap::Args)]
pub struct DenyArgs {
    /// The request, as in apr_...
    approval: ApprovalId,
    /// A word about why; the caller is told
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    note: Option<String>,
}

fn reach(text: &str) -> Result<Reach, String> {
    let found = Reach::ALL.into_iter().find(|reach| reach.as_str() == text);
    found.ok_or_else(|| format!("use one of {}", Reach::ALL.map(Reach::as_str).join(", ")))
}

pub fn run(args: &ApprovalsArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        None => list(&ListArgs::default(), client, out)?,
        Some(ApprovalsCommand::List(args)) => list(args, client, out)?,
        Some(ApprovalsCommand::Get(args)) => out.one(&client.get::<ApprovalView>(&at(&args.approval, ""))?)?,
    }
    Ok(Exit::Done)
}

fn at(approval: &ApprovalId, order: &str) -> String {
    format!("/v1/approvals/{approval}{order}")
}

fn list(args: &ListArgs, client: &Client, out: &mut Output) -> Result<()> {
    let state = if args.all { None } else { Some(args.in_state.as_deref().unwrap_or("pending")) };
    out.page(&page::<ApprovalView>(client, "/v1/approvals", &args.filter, state)?)
}

pub fn approve(args: &ApproveArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    // `--until TIME` says enough.
    let reach = if args.until.is_some() && args.reach == Reach::Once { Reach::Until } else { args.reach };
    if (reach == Reach::Until) != args.until.is_some() {
        return Err(Failure::Usage(
            "an approval until a time is given with --until TIME, and with no other --for".into(),
        ));
    }
    let request = ApproveRequest { reach, until: args.until, note: args.note.clone() };
    out.one(&client.post::<_, ApprovalView>(&at(&args.approval, "/approve"), &request)?)?;
    Ok(Exit::Done)
}

pub fn deny(args: &DenyArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    let request = DenyRequest { note: args.note.clone() };
    out.one(&client.post::<_, ApprovalView>(&at(&args.approval, "/deny"), &request)?)?;
    Ok(Exit::Done)
}
