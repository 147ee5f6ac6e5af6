//! The extension `introspection` (X04): what an execution may see of its own Work. It reads and changes nothing.
//!
//! Every query names the calling execution's own Work, which the toolbelt found; no input can name another. An answer is
//! bounded in items and in bytes, and holds no credential: none is in the rows that it reads.
#![forbid(unsafe_code)]

mod look;

use std::rc::Rc;

use conduit_api::{Code, ExecutionId, Version, WorkId};
use conduit_extension::desk::{Desk, Fault};
use conduit_extension::{Answer, Extension, Failure, Invocation, Invoked};
use conduit_store::Read;
use conduit_toolbelt::budget;
use conduit_toolbelt::reader::{Look, Reader};
use conduit_toolbelt::registry::{Member, OperationKind, OperationSpec, Registration, Toolset};
use serde_json::{Map, Value, json};

/// Its name, and its namespace.
pub const NAME: &str = "introspection";

const WORK: &str = "introspection.work";
const EVENTS: &str = "introspection.events";
const CHILDREN: &str = "introspection.children";
const EXECUTIONS: &str = "introspection.executions";
const BUDGET: &str = "introspection.budget";

/// Most items of one answer.
const ITEMS_MAX: u64 = 50;
const ITEMS_DEFAULT: u64 = 20;

/// What it registers. It is active only where a configuration enables it.
pub fn registration() -> Registration {
    let nothing = json!({"type": "object", "additionalProperties": false});
    let limited = json!({
        "type": "object", "additionalProperties": false,
        "properties": {"limit": {"type": "integer", "minimum": 1, "maximum": ITEMS_MAX}},
    });
    let read = |name, summary, input| OperationSpec::new(name, summary, input).kind(OperationKind::Read);
    let operations = vec![
        read(WORK, "Show the Work that this execution is of", nothing.clone()),
        read(EVENTS, "List the Events of this Work, newest first", limited.clone()),
        read(CHILDREN, "List the Works that this Work created, newest first", limited.clone()),
        read(EXECUTIONS, "List the executions of this Work, newest first", limited),
        read(BUDGET, "Show what this execution may use up, and what is left of it", nothing),
    ];
    let since = Version::new(0, 1, 0);
    let toolset = Toolset {
        name: "introspection.read".into(),
        summary: "Look at the execution's own Work".into(),
        operations: operations.iter().map(|spec| Member::new(&*spec.name, since)).collect(),
    };
    Registration {
        operations,
        toolsets: vec![toolset],
        ..Registration::new(NAME, since, "What an execution may see of its own Work")
    }
}

/// The extension, in the daemon's process.
#[derive(Debug)]
pub struct Introspection {
    desk: Rc<Desk>,
}

impl Introspection {
    pub const fn new(desk: Rc<Desk>) -> Self {
        Self { desk }
    }

    fn answer(&self, call: &Invocation) -> Result<Invoked, Failure> {
        let shown = self.desk.read(|r, _| {
            shown(r, &call.operation, &call.authority.execution_id, &call.authority.work_id, None, &call.input)
        })?;
        shown
            .map(Invoked::Output)
            .ok_or_else(|| Failure::Failed("it has no such operation, or the Work is gone".into()))
    }
}

/// What an operation shows of `work`; `None` when there is no such operation, or the Work is gone.
fn shown(
    r: &Read<'_>,
    operation: &str,
    execution: &ExecutionId,
    work: &WorkId,
    calls: Option<u64>,
    input: &Map<String, Value>,
) -> Result<Option<Value>, Fault> {
    let limit = input.get("limit").and_then(Value::as_u64).unwrap_or(ITEMS_DEFAULT).min(ITEMS_MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    match operation {
        WORK => look::work(r, work),
        EVENTS => look::events(r, work, limit),
        CHILDREN => look::children(r, work, limit),
        EXECUTIONS => look::executions(r, work, limit),
        BUDGET => Ok(Some(json!({"budget": budget::view(r, execution, calls)?}))),
        _ => Ok(None),
    }
}

/// Its reads, for whoever decides about a call and has a view of the store already.
pub fn readers() -> [(&'static str, Reader); 5] {
    [
        (WORK, |look| read(WORK, look)),
        (EVENTS, |look| read(EVENTS, look)),
        (CHILDREN, |look| read(CHILDREN, look)),
        (EXECUTIONS, |look| read(EXECUTIONS, look)),
        (BUDGET, |look| read(BUDGET, look)),
    ]
}

fn read(operation: &str, look: &Look<'_>) -> Result<Value, conduit_toolbelt::Error> {
    let gone = || conduit_toolbelt::Error::operation(Code::ExtensionUnavailable, "the Work is gone");
    shown(look.read, operation, &look.token.execution, &look.token.work, Some(look.calls), look.input)?.ok_or_else(gone)
}

impl Extension for Introspection {
    fn registration(&self) -> Registration {
        registration()
    }

    fn invoke<'a>(&'a self, call: &'a Invocation) -> Answer<'a, Result<Invoked, Failure>> {
        Box::pin(async move { self.answer(call) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_toolbelt::registry::Registry;

    /// X04, S04
    #[test]
    fn every_operation_is_in_the_toolset_and_the_registration_keeps_every_rule() {
        let (registry, refused) = Registry::new(vec![registration()]);
        assert_eq!(refused, []);
        let registered = registry.registration(NAME).unwrap();
        let operations: Vec<&str> = registered.operations.iter().map(|spec| spec.name.as_str()).collect();
        let members: Vec<&str> = registered.toolsets[0].operations.iter().map(|m| m.operation.as_str()).collect();
        assert_eq!(operations, members);
        assert!(!registered.always);
    }
}
