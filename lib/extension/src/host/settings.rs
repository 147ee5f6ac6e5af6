//! Settings that keep their schema, put before the extension that they are for: what no schema says it says itself.

use std::time::Duration;

use conduit_api::host::{HostValidate, HostValidated};
use conduit_api::{ApiError, Code};
use conduit_toolbelt::Error;
use tokio::time::timeout;

use super::{ExtensionHost, alone};
use crate::Failure;

/// How long one look at settings may take.
pub const VALIDATE_TIME_MAX: Duration = Duration::from_secs(10);

impl ExtensionHost {
    /// Has an extension look at settings, on behalf of an operator. Nothing is changed. Runs inside a `LocalSet`.
    ///
    /// Errors: `unauthenticated` for who is no operator; `not_found` for an extension that is not there or does not look at
    /// settings; `extension_unavailable`.
    pub async fn validate(&self, asked: HostValidate) -> Result<HostValidated, ApiError> {
        let HostValidate { extension: name, settings, .. } = &asked;
        let operator = asked.bearer().map(|digest| self.toolbelt.borrow_mut().operator(&digest)).transpose();
        if operator.map_err(|error: Error| error.to_api())?.flatten().is_none() {
            return Err(ApiError::new(Code::Unauthenticated, "settings are looked at for operators alone"));
        }
        let extension = self.extension(name).filter(|extension| extension.registration().validate);
        let Some(extension) = extension else {
            return Err(ApiError::new(Code::NotFound, "no extension of this name looks at settings"));
        };
        let settings = settings.clone();
        let looking = alone(async move { extension.validate(&settings).await });
        let looked = timeout(VALIDATE_TIME_MAX, looking).await;
        match looked.unwrap_or_else(|_| Err(Failure::Failed("it took too long".into()))) {
            Ok(faults) => Ok(HostValidated { faults }),
            Err(failure) => {
                tracing::warn!(extension = name, %failure, "an extension did not look at its settings");
                let message = format!(
                    "the extension `{name}` did not say whether its settings are sound; see `open-conduit health`, and ask again"
                );
                Err(ApiError::new(Code::ExtensionUnavailable, message))
            }
        }
    }
}
