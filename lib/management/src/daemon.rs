//! The way to the daemon that holds the extensions: what only their own code can answer is asked over `host.sock`.

use std::time::Duration;

use conduit_api::host::{self, HostAct, HostValidate, HostValidated};
use conduit_api::places::Places;
use conduit_api::views::ActionReply;
use conduit_api::{ApiError, Code};
use conduit_client::{AsyncClient, Call, ClientError, Credential, Method};
use conduit_store::digest::{Sha256Digest, hex};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Result;

/// Longer than an extension may take, so that the host's own answer comes first.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(180);

/// A client of `host.sock`.
#[derive(Debug)]
pub(crate) struct Daemon(AsyncClient);

impl Daemon {
    pub(crate) fn new(places: &Places) -> Self {
        Self(AsyncClient::new(places.host_socket(), Credential::none()).with_time_limit(ANSWER_TIME_MAX))
    }

    /// Has an extension look at its settings. Errors: `host_unavailable`, `extension_unavailable`, `not_found`.
    pub(crate) async fn validate(
        &self,
        operator: &Sha256Digest,
        extension: &str,
        settings: &Value,
    ) -> Result<HostValidated> {
        let (extension, settings) = (extension.to_owned(), settings.clone());
        let asked = HostValidate { bearer_digest: hex(operator), extension, settings };
        Ok(self.ask(host::VALIDATE, &asked).await?)
    }

    /// Has an extension carry an action out. Errors: `host_unavailable`; the host's own, an extension's among them.
    pub(crate) async fn act(&self, asked: &HostAct) -> Result<ActionReply> {
        Ok(self.ask(host::ACT, asked).await?)
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, asked: &impl Serialize) -> Result<T, ApiError> {
        let sent = Call::new(Method::Post, path).and_then(|request| request.json(asked)).map_err(told)?;
        self.0.send(&sent).await.map_err(told)?.read().map_err(told)
    }
}

/// The host's refusal as it stands, an extension's own code included.
fn told(error: ClientError) -> ApiError {
    if let Some(refusal) = error.refusal() {
        return refusal;
    }
    tracing::warn!(%error, "the daemon did not answer what only an extension can");
    ApiError::new(
        Code::HostUnavailable,
        "the daemon that extensions run under does not answer; start it, and ask again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// X01
    #[tokio::test]
    async fn a_daemon_that_is_away_is_said_to_be_and_nothing_is_taken_for_sound() {
        let base = tempfile::tempdir().unwrap();
        let places = Places { state: base.path().join("s"), runtime: base.path().join("r") };
        let asked = Daemon::new(&places).validate(&[7; 32], "words", &serde_json::json!({})).await;
        assert!(matches!(asked, Err(Error::Refused(refused)) if refused.code == Code::HostUnavailable));
    }
}
