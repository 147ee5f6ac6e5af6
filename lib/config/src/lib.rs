//! What the operator configured: the model, its strict reading, and the generations that were ever active.
//!
//! [`parse`] turns bytes into a [`Checked`] configuration or into every fault that it has (C01). A [`Snapshot`] is a
//! configuration that was published as a generation; [`SnapshotCache`] hands out the active one for the price of one
//! query. [`ConfigService`] starts from what was committed and publishes what is applied (C05, C06). Nothing here
//! starts a process, and nothing here knows what an executor does: a [`Registry`] is asked.
#![forbid(unsafe_code)]

mod budget;
mod cache;
mod catalogue;
mod document;
mod edit;
mod error;
mod fields;
mod file;
mod generation;
mod grant;
mod model;
mod parse;
mod playbook;
mod recorded;
mod registry;
mod rule;
mod service;
mod snapshot;
mod warnings;

pub use budget::{Budget, OnExceeded};
pub use cache::SnapshotCache;
pub use catalogue::{Catalogue, Listing, Member, Toolset};
pub use error::{Error, Result};
pub use fields::{Field, Kind, Presence, Text};
pub use grant::GrantList;
pub use model::{Binding, Config, Effect, Extension, Limits, Match, Pattern, Retry, Route, Scope};
pub use parse::{Checked, TABLES, parse};
pub use playbook::{Playbook, Unreadable};
pub use registry::{Named, Registered, Registry};
pub use rule::{FAULTS_MAX, Rule};
pub use service::{Applied, Change, ConfigService, DEFAULT_CONFIG, Edited, Origin, Started};
pub use snapshot::Snapshot;
pub use warnings::grant_warnings;
