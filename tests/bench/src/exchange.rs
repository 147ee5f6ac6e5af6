//! One HTTP exchange on a kept connection, the same for floors and for the suite.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::Result;

/// A connection to one socket, with the credential that its requests show.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    bearer: Option<String>,
}

impl Connection {
    pub async fn open(socket: &Path, token: Option<&str>) -> Result<Self> {
        let (sender, connection) = handshake(TokioIo::new(UnixStream::connect(socket).await?)).await?;
        tokio::task::spawn_local(async move {
            // How it ended is told to whoever waits for an answer on it.
            let _ = connection.await;
        });
        Ok(Self { sender, bearer: token.map(|token| format!("Bearer {token}")) })
    }

    /// Sends `body` to `path` and reads the answer in full; how long that took.
    ///
    /// An answer that is not a success is an error, with its body.
    pub async fn post(&mut self, path: &str, body: String) -> Result<Duration> {
        let mut request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let begun = Instant::now();
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        let took = begun.elapsed();
        if status == StatusCode::OK {
            Ok(took)
        } else {
            Err(format!("{path} answered {status}: {}", String::from_utf8_lossy(&answer)).into())
        }
    }
}
