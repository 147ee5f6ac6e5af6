//! The extension host's socket, `host.sock`: workers pass calls of extensions' operations on to it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::host;
use conduit_api::limits::BODY_BYTES_MAX;
use conduit_api::places::Places;
use conduit_api::{ApiError, Code, json};
use conduit_daemon::activation;
use conduit_daemon::http::{self, Method, Reply, Request, Service};
use conduit_extension::Extension;
use conduit_extension::desk::Desk;
use conduit_extension::host::ExtensionHost;
use conduit_extension_human::Human;
use conduit_extension_introspection::Introspection;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

/// Name of the inherited socket.
pub const HOST: &str = "host";
/// Bounds of the socket: each worker keeps one connection for each call that is under way.
const LIMITS: http::Limits = http::Limits {
    connections: 1024,
    header_bytes: 8 << 10,
    headers: 32,
    header_read: Duration::from_secs(30),
    body_bytes: BODY_BYTES_MAX,
    body_read: Duration::from_secs(10),
    drain: Duration::from_secs(2),
    own_user_only: true,
};
/// How long nobody has to call before gathered records are written.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// The extensions that this release carries out itself. `conduit_release::bundled` has their registrations.
pub fn of_this_release(desk: &Rc<Desk>) -> Vec<Rc<dyn Extension>> {
    vec![Rc::new(Human::new(Rc::clone(desk))), Rc::new(Introspection::new(Rc::clone(desk)))]
}

/// Binds the socket, when none was passed.
pub fn bind(places: &Places) -> Result<UnixListener, ApiError> {
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&places.runtime) {
        tracing::warn!(%error, path = %places.runtime.display(), "the runtime directory cannot be made");
    }
    activation::bind_stream(&places.host_socket())
}

/// Serves the socket until `stop` ends.
pub async fn serve(listener: UnixListener, host: Rc<ExtensionHost>, stop: impl Future) {
    let reception = Rc::new(Reception { host: Rc::clone(&host), called: Notify::new() });
    let served = tokio::select! {
        served = http::serve(listener, Rc::clone(&reception), LIMITS, stop, None) => served.map(drop),
        () = reception.write_when_quiet() => Ok(()),
    };
    host.finish_history();
    if let Err(error) = served {
        tracing::error!(%error, "extensions' operations are not carried out until the next start");
    }
}

struct Reception {
    host: Rc<ExtensionHost>,
    called: Notify,
}

impl Reception {
    async fn answer(&self, request: &mut Request) -> Result<Reply, ApiError> {
        let path = request.path.clone();
        if ![host::CALL, host::VALIDATE, host::ACT].contains(&path.as_str()) {
            return Err(ApiError::new(Code::NotFound, "there is no such route"));
        }
        if request.method != Method::POST {
            return Err(ApiError::new(Code::MethodNotAllowed, "the route takes POST"));
        }
        let body = request.json_bytes().await?;
        if path == host::VALIDATE {
            return Ok(Reply::json(200, &self.host.validate(read(&body)?).await?));
        }
        if path == host::ACT {
            return Ok(Reply::json(200, &self.host.act(read(&body)?).await?));
        }
        let answered = self.host.call(read(&body)?).await;
        self.called.notify_one();
        Ok(Reply::json(200, &answered?))
    }

    /// Never ends.
    async fn write_when_quiet(&self) {
        loop {
            self.called.notified().await;
            tokio::time::sleep(QUIET_TIME).await;
            if !self.host.flush_history() {
                self.called.notify_one(); // others write
            }
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    json::read(body, BODY_BYTES_MAX).map_err(|refused| ApiError::new(Code::InvalidRequest, refused.0))
}

impl Service for Reception {
    async fn handle(&self, mut request: Request) -> Reply {
        self.answer(&mut request).await.unwrap_or_else(Reply::Refused)
    }
}
