//! Executions: one attempt of a Work, from its claim to its end, under a lease.

mod claim;
mod complete;
pub mod policy;
mod stop;

pub use claim::{
    Claim, Claimed, Left, Orphan, any_due, claim_next, left_by_others, next_ready_at, recover, renew, start_bypassed,
    started, was_launched,
};
pub use complete::{Completed, SegmentEnd, complete, is_decided, orphaned, silence};
pub use stop::{
    StopReason, cancel, ended_while_parked, fence, hold_for_budget, is_live, live_of, noted, stop_requested,
};
pub(crate) use stop::{interrupt, listening_of};
