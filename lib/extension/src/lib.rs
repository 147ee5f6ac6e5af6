//! What extensions and executors look like to the suite, whoever wrote them.
//!
//! An [`Extension`] adds operations, gates and actions to a toolbelt; one interface serves those in this process and
//! installed packages (X01). An [`Executor`] decides *what* to run, and what an ending means; it starts nothing: the
//! scheduler takes its plan through the kernel, the one path by which this suite starts a process.
#![forbid(unsafe_code)]

pub mod desk;
mod executor;
pub mod host;
mod interface;
pub mod package;

pub use executor::{Executor, Phase, SegmentContext, SegmentEnd, Transport};
pub use interface::{
    Action, Answer, Authority, Extension, Failure, GateAnswer, GateCall, Invocation, Invoked, OperationError,
    SettingFault, StartCall, WaitPlan,
};
