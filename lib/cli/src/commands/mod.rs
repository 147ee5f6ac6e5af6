//! One file per group of commands. A command is one call and one view.

pub mod approvals;
pub mod artifacts;
pub mod config;
pub mod doubts;
pub mod emit;
pub mod events;
pub mod executions;
pub mod explain;
pub mod extension;
pub mod gates;
pub mod health;
pub mod package;
pub mod scopes;
pub mod waits;
pub mod work;

use conduit_api::views::Page;
use conduit_api::{ScopeId, WorkId};
use conduit_client::{Client, path};
use serde::de::DeserializeOwned;

use crate::failure::Result;

/// Which page of a list.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct PageArgs {
    /// At most this many
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on where an earlier page ended
    #[arg(long)]
    cursor: Option<String>,
}

/// What a list is narrowed to.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct FilterArgs {
    /// Only of this scope
    #[arg(long)]
    scope: Option<ScopeId>,
    /// Only of this Work, as in wrk_...
    #[arg(long, value_name = "WORK")]
    work: Option<WorkId>,
    #[command(flatten)]
    page: PageArgs,
}

/// Asks for one page, newest first.
fn page<T: DeserializeOwned>(client: &Client, list: &str, filter: &FilterArgs, state: Option<&str>) -> Result<Page<T>> {
    let limit = filter.page.limit.map(|limit| limit.to_string());
    let target = path::with_query(
        list,
        &[
            ("scope_id", filter.scope.as_ref().map(ScopeId::as_str)),
            ("work_id", filter.work.as_ref().map(WorkId::as_str)),
            ("state", state),
            ("limit", limit.as_deref()),
            ("cursor", filter.page.cursor.as_deref()),
        ],
    );
    Ok(client.get(&target)?)
}

/// The body of an order that needs no words.
fn nothing() -> serde_json::Value {
    serde_json::json!({})
}
