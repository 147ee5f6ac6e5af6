//! The language of histories: what is registered, and what happens one step after another.
//!
//! Plain data. A number that names a token, an execution or a Work is taken modulo how many there are, so that a history
//! stays one when steps are taken out of it.

use std::collections::BTreeMap;

/// Everything that one history does.
#[derive(Debug, Clone)]
pub struct History {
    /// In the order in which they are offered.
    pub offered: Vec<Extension>,
    pub steps: Vec<Step>,
}

/// What an extension asks to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    pub name: String,
    pub always: bool,
    pub operations: Vec<Operation>,
    pub toolsets: Vec<Toolset>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub name: String,
    pub kind: Kind,
    pub idempotent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolset {
    pub name: String,
    pub operations: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Handler,
    Read,
    Wait,
    Emission,
}

/// A configuration, as an operator writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// What is said about extensions.
    pub extensions: BTreeMap<String, Said>,
    /// One for each of [`SCOPES`].
    pub scopes: Vec<Scope>,
}

/// What a configuration says about an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub enabled: bool,
    /// The only scopes that it is for, by their places in [`SCOPES`].
    pub scopes: Option<Vec<usize>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub enabled: bool,
    pub operations: Vec<String>,
    /// Whether Events of the family `demo` may be emitted.
    pub events: bool,
    /// One for each of [`BINDINGS`].
    pub bindings: Vec<Binding>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    pub operations: Vec<String>,
    pub events: bool,
    /// Places in [`BINDINGS`].
    pub delegates: Vec<usize>,
}

pub const SCOPES: [&str; 2] = ["north", "south"];
pub const BINDINGS: [&str; 2] = ["first", "second"];
pub const BUILTINS: [&str; 5] = ["emit", "create_work", "wait", "declare_outcome", "read_context"];
/// How long a lease lasts, in microseconds.
pub const LEASE_US: i64 = 900_000_000;

#[derive(Debug, Clone)]
pub enum Step {
    Publish(Generation),
    /// A Work that an operator creates.
    Create {
        scope: usize,
        binding: usize,
    },
    /// The next due Work gets an execution.
    Claim,
    /// The execution crosses its boundary, with a token that lives so long.
    Launch {
        execution: usize,
        lives_us: i64,
    },
    /// Another scheduler takes the execution over; a token is issued with it, or none.
    Recover {
        execution: usize,
        lives_us: Option<i64>,
    },
    Complete {
        execution: usize,
    },
    /// An operator cancels the execution.
    Cancel {
        execution: usize,
    },
    /// An operator cancels the Work.
    Abandon {
        work: usize,
    },
    Wake {
        work: usize,
    },
    Pass {
        us: i64,
    },
    Reboot,
    Tamper(Tamper),
    Call(Box<Call>),
    /// A handler that was left running comes to its end.
    Settle {
        running: usize,
        end: End,
    },
    /// An operator says of a request that is in doubt whether it was done.
    Resolve {
        execution: usize,
        operation: String,
        request: u8,
        done: bool,
    },
    /// The host dies with every handler, and another instance starts.
    RestartHost,
}

/// What nobody should ever do to the rows: each fact of the lease has to hold by itself, without its neighbours.
#[derive(Debug, Clone, Copy)]
pub enum Tamper {
    Unrevoke { token: usize },
    MoveWork { work: usize, scope: usize },
    PauseWork { work: usize },
    StealLease { execution: usize },
}

#[derive(Debug, Clone)]
pub struct Call {
    pub bearer: Bearer,
    /// The execution whose socket it comes through; the bearer's own when it is not said.
    pub socket: Option<usize>,
    pub scope: Option<usize>,
    /// Asserts this Work, or for a number past the last, one that nobody has.
    pub work: Option<usize>,
    pub execution: Option<usize>,
    pub operation: String,
    pub request: Request,
    pub body: Body,
    /// How the handler of an extension's operation ends.
    pub end: End,
    /// What happens between the first decision about it and its handler.
    pub between: Option<Box<Step>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearer {
    Token(usize),
    /// The last one that was issued.
    Newest,
    Unknown,
    Operator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    None,
    Named(u8),
    /// One that is no request ID.
    Malformed,
}

/// What is asked for, beside the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Body {
    Plain(u8),
    /// For `emit`: under a delivery ID of its own.
    Delivered(u8),
    /// For `emit`: under a delivery ID that is spelt like the first request ID.
    DeliveredAsRequest,
    /// Outside of what is granted: another event family, another binding.
    Foreign,
    /// It breaks the operation's schema.
    Malformed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Finish,
    /// The handler refuses, and did nothing.
    Refuse,
    /// The handler fails, and nobody knows what it did.
    Fail,
    /// It is still running when the next step comes.
    Leave,
}

/// What the toolbelt made of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    Replayed,
    /// The very request is being carried out.
    UnderWay,
    /// Its handler runs.
    Begun,
    /// `rule` is the one that refused, where the path tells.
    Refused {
        code: String,
        rule: Option<&'static str>,
    },
}

/// What a step came to on the real path.
#[derive(Debug, Clone)]
pub enum Happened {
    Nothing,
    Published(bool),
    /// The Work that was claimed, by its place.
    Claimed(Option<usize>),
    /// Whether it was done.
    Moved(bool),
    Called {
        answer: Answer,
        /// Whether any row was written by it.
        wrote: bool,
        between: Option<Box<Happened>>,
    },
    Settled(Answer),
}

/// What an execution left in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rows {
    pub events: usize,
    pub declarations: usize,
    pub replays: usize,
    pub intents: usize,
}

/// A history as it really went.
#[derive(Debug, Clone)]
pub struct Record {
    /// The names of the registrations that were accepted, in their order.
    pub accepted: Vec<String>,
    pub happened: Vec<Happened>,
    pub rows: Vec<Rows>,
}

impl Answer {
    pub fn refused(code: &str, rule: Option<&'static str>) -> Self {
        Self::Refused { code: code.to_owned(), rule }
    }

    /// Whether both are the same answer; a rule is compared where both tell it.
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Refused { code, rule }, Self::Refused { code: other, rule: their }) => {
                code == other && (rule.is_none() || their.is_none() || rule == their)
            }
            (one, other) => one == other,
        }
    }
}

/// The place that `number` names among `len`; the greatest number is the last place. `None` when there is none.
pub const fn place(number: usize, len: usize) -> Option<usize> {
    match (number, len) {
        (_, 0) => None,
        (usize::MAX, _) => Some(len - 1),
        _ => Some(number % len),
    }
}
