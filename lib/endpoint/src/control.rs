//! The scheduler's side of the spawner's control socket: ask for an endpoint, or have it closed.
//!
//! Both requests say what is to be so, not what to do: a lost answer is asked for again without harm.

use std::path::PathBuf;
use std::time::Duration;

use conduit_api::places::Places;
use conduit_api::{ApiError, Code, ExecutionId};
use conduit_client::{AsyncClient, Call, ClientError, Credential, Method};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

/// Path of the list of endpoints on the control socket; one endpoint stands below it.
pub const ENDPOINTS: &str = "/v1/endpoints";

/// How long a spawner may take to come back before the request fails.
const RETURN_TIME_MAX: Duration = Duration::from_secs(15);
/// Pause before the second try; it doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The answer to an endpoint that is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// What `OS_ENDPOINT` names.
    pub socket: PathBuf,
}

/// Which executions have an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    pub executions: Vec<ExecutionId>,
}

#[derive(Serialize)]
struct Nothing {}

/// Has the endpoint of `execution` served, and returns the path of its socket once it takes connections. The run
/// directory stands already ([`crate::rundir::RunDir::prepare`]). Meant for a current-thread runtime.
///
/// Errors: `endpoint_unavailable` when it cannot be (E01, E07); `unavailable` when no spawner answers in time.
pub async fn serve(places: &Places, execution: &ExecutionId) -> Result<PathBuf, ApiError> {
    let call = Call::new(Method::Put, target(execution)).and_then(|call| call.json(&Nothing {}));
    let answer = send(places, call.map_err(told)?).await?;
    Ok(answer.read::<Served>().map_err(told)?.socket)
}

/// Has the endpoint of `execution` closed: its socket is gone afterwards, and its worker told to end. One that is not
/// served is closed already. Errors: `unavailable` when no spawner answers in time.
pub async fn close(places: &Places, execution: &ExecutionId) -> Result<(), ApiError> {
    let call = Call::new(Method::Delete, target(execution)).map_err(told)?;
    send(places, call).await.map(drop)
}

/// Which executions have an endpoint now. Errors: `unavailable` when no spawner answers in time.
pub async fn endpoints(places: &Places) -> Result<Vec<ExecutionId>, ApiError> {
    let call = Call::new(Method::Get, ENDPOINTS).map_err(told)?;
    Ok(send(places, call).await?.read::<Endpoints>().map_err(told)?.executions)
}

fn target(execution: &ExecutionId) -> String {
    format!("{ENDPOINTS}/{}", execution.as_str())
}

/// Sends `call` until it is answered, and pauses while the spawner restarts.
async fn send(places: &Places, call: Call) -> Result<conduit_client::Answer, ApiError> {
    let client = AsyncClient::new(places.endpointd_socket(), Credential::none()).with_time_limit(RETURN_TIME_MAX);
    let end = Instant::now() + RETURN_TIME_MAX;
    let mut pause = PAUSE_FIRST;
    loop {
        match client.send(&call).await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.may_retry() && Instant::now() + pause < end => {
                tracing::debug!(%error, "the spawner did not answer; trying again");
                sleep_until(Instant::now() + pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => return Err(told(error)),
        }
    }
}

/// The spawner's own refusal as it stands; everything else by what the caller may do about it.
fn told(error: ClientError) -> ApiError {
    if let ClientError::Refused { body, .. } = error {
        let code = body.code.parse().unwrap_or(Code::Internal);
        return ApiError { diagnostics: body.diagnostics, ..ApiError::new(code, body.message) };
    }
    let code = error.code().parse().unwrap_or(Code::Internal);
    ApiError::new(code, format!("the endpoint spawner did not do as asked: {error}"))
}
