//! Making new identifiers.

use conduit_api::{
    ApprovalId, ArtifactId, AttemptId, BypassId, EventId, ExecutionId, JobId, OperatorId, TokenId, WaitId, WorkId,
};

use crate::clock::Now;

/// An identifier that can be made from the clock and chance.
pub trait Mint: Sized {
    fn from_parts(ms: u64, random: u128) -> Self;
}

macro_rules! minted {
    ($($id:ident),*) => {$(impl Mint for $id {
        fn from_parts(ms: u64, random: u128) -> Self {
            $id::from_parts(ms, random)
        }
    })*};
}
minted!(ApprovalId, ArtifactId, AttemptId, BypassId, EventId, ExecutionId, JobId, OperatorId, TokenId, WaitId, WorkId);

/// A new identifier, sortable by the wall clock of `now`.
pub fn mint<I: Mint>(now: Now) -> I {
    I::from_parts(u64::try_from(now.wall.0 / 1000).unwrap_or(0), rand::random())
}
