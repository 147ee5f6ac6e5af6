//! The extension `human`: approval gates (G07). An operator's word is asked for before calls and starts that a rule names.
//!
//! The gate decides by the rows of `approval` alone, and waits for nobody: a call that nobody decided about is parked, and
//! made again when it is. Operators decide through the management server, in its own transaction ([`approvals`]); an execution
//! reaches neither that socket nor these rows, so that none approves itself (E02, E08).
#![forbid(unsafe_code)]

pub mod approvals;
mod gate;
mod input;
mod rules;
mod verdict;

use conduit_api::Version;
use conduit_api::error::Diagnostic;
use conduit_config::Catalogue;
use conduit_toolbelt::registry::Registration;
use serde_json::Value;

pub use gate::Human;

/// Its name, and its namespace.
pub const NAME: &str = "human";
/// The type of the Event that wakes whoever waits for a decision.
pub const DECIDED: &str = "human.decided";
/// The type of the Event that tells of a request.
pub const REQUESTED: &str = "human.approval.requested";
/// The source of what it tells.
const SOURCE: &str = "extension:human";

/// What it registers. It is active only where a configuration enables it.
pub fn registration() -> Registration {
    Registration {
        gate: true,
        start_gate: true,
        event_families: vec![NAME.into()],
        wait_families: vec![NAME.into()],
        ..Registration::new(
            NAME,
            Version::new(0, 1, 0),
            "An operator's approval before calls and starts that a rule names",
        )
    }
}

/// The faults of its settings, which stand at `pointer` of `document`; names are looked up in `catalogue` and in the document.
pub fn validate(config: &Value, pointer: &str, catalogue: &Catalogue, document: &Value) -> Vec<Diagnostic> {
    rules::read(config, pointer, catalogue, Some(document)).1
}
