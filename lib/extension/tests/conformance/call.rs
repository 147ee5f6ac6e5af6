//! What a case asks of a toolbelt, whichever it is.

use conduit_api::toolbelt::{CallRequest, CallResponse};
use conduit_api::{ApiError, ExecutionId};
use conduit_extension::Answer;

/// A call as it arrives: a bearer, a socket, a request.
#[derive(Debug, Clone)]
pub struct Call {
    pub token: String,
    pub socket: ExecutionId,
    pub request: CallRequest,
}

pub type Answered = Result<CallResponse, ApiError>;

pub trait Implementation {
    fn call(&mut self, call: Call) -> Answer<'_, Answered>;
}
