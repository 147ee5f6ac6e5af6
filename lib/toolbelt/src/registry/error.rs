//! Why a registration was refused: a code, the operation or other part that it is about, and a sentence.

use conduit_api::Code;

/// One fault of a registration, which therefore registers nothing (T16).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("the registration `{registration}` is refused: `{part}` {why}")]
pub struct Refused {
    pub registration: String,
    /// The operation, toolset, playbook or action that the fault is about, or the registration itself.
    pub part: String,
    pub fault: Fault,
    pub why: String,
}

/// The two ways in which a registration cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It breaks a rule by itself.
    Invalid,
    /// It takes a name that somebody else has.
    Conflict,
}

impl Refused {
    /// The stable name of the fault.
    pub const fn code(&self) -> Code {
        match self.fault {
            Fault::Invalid => Code::Invalid,
            Fault::Conflict => Code::Conflict,
        }
    }
}
