//! The wire: what servers and clients of the suite agree on, and nothing that does I/O.
//!
//! Identifiers, error codes and their envelope, strict JSON, limits, the shapes of toolbelt calls and of
//! management views, and where a suite keeps its files and sockets.
#![forbid(unsafe_code)]

pub mod error;
pub mod host;
pub mod http;
pub mod id;
pub mod json;
pub mod limits;
pub mod places;
pub mod time;
pub mod toolbelt;
pub mod version;
pub mod views;

pub use error::{ApiError, Code, Retry};
pub use id::{
    ApprovalId, ArtifactId, AttemptId, BypassId, EventId, ExecutionId, JobId, OperatorId, ScopeId, TokenId, WaitId,
    WorkId,
};
pub use time::UnixMicros;
pub use version::Version;
