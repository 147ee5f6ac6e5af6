//! The way to the extension host: a call of an extension's operation is passed on, and its answer handed back as it is.

use std::time::Duration;

use conduit_api::host::{self, HostCall};
use conduit_api::places::Places;
use conduit_api::toolbelt::CallResponse;
use conduit_api::{ApiError, Code};
use conduit_client::{AsyncClient, Call, ClientError, Credential, Method};

/// Longer than gates and a handler may take, so that the host's own answer comes first.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(180);

/// A client of `host.sock`.
#[derive(Debug)]
pub(super) struct HostClient(AsyncClient);

impl HostClient {
    pub fn new(places: &Places) -> Self {
        Self(AsyncClient::new(places.host_socket(), Credential::none()).with_time_limit(ANSWER_TIME_MAX))
    }

    /// Passes `call` on. Errors: the host's own; `host_unavailable` when it does not answer.
    pub async fn call(&self, call: &HostCall) -> Result<CallResponse, ApiError> {
        let sent = Call::new(Method::Post, host::CALL).and_then(|request| request.json(call)).map_err(told)?;
        self.0.send(&sent).await.map_err(told)?.read().map_err(told)
    }
}

/// The host's refusal as it stands, an extension's own code included.
fn told(error: ClientError) -> ApiError {
    if let Some(refusal) = error.refusal() {
        return refusal;
    }
    match error {
        ClientError::BodyTooLarge { .. } => {
            ApiError::new(Code::BodyTooLarge, "the input is too large to be passed on; keep it a little below 1 MiB")
        }
        other => {
            tracing::warn!(error = %other, "the daemon did not answer a call of an extension's operation");
            ApiError::new(
                Code::HostUnavailable,
                "the daemon that carries this operation out does not answer; ask again under the same request ID",
            )
        }
    }
}
