//! One file per group of routes. A handler parses, makes one transaction, and shapes the reply.

pub(crate) mod approvals;
pub(crate) mod artifacts;
pub(crate) mod config;
pub(crate) mod doubts;
pub(crate) mod events;
pub(crate) mod executions;
pub(crate) mod explain;
pub(crate) mod extensions;
pub(crate) mod gates;
pub(crate) mod health;
pub(crate) mod packages;
pub(crate) mod scopes;
pub(crate) mod waits;
pub(crate) mod work;

use serde::Deserialize;

/// The body of an order that needs no words: `{}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}
