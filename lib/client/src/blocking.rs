//! The client for programs: every call blocks until its answer is there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};

use crate::call::{Answer, Call, Method};
use crate::client::AsyncClient;
use crate::credential::Credential;
use crate::error::{ClientError, Result};

/// A client of one socket that blocks. Not to be called from inside a tokio runtime.
#[derive(Debug)]
pub struct Client {
    inner: AsyncClient,
    runtime: Runtime,
}

impl Client {
    /// A client of `socket`; nothing is dialled before the first call. Errors: `internal`.
    pub fn new(socket: impl Into<PathBuf>, credential: Credential) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|source| ClientError::Machine { doing: "starting the client", source })?;
        Ok(Self { inner: AsyncClient::new(socket, credential), runtime })
    }

    /// Bounds each exchange by `time_max`.
    pub fn with_time_limit(mut self, time_max: Duration) -> Self {
        self.inner = self.inner.with_time_limit(time_max);
        self
    }

    pub fn socket(&self) -> &Path {
        self.inner.socket()
    }

    /// Reads the credential's file again; whether it changed.
    pub fn reload_credential(&self) -> Result<bool> {
        self.inner.reload_credential()
    }

    pub fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T> {
        self.send(&Call::new(Method::Get, target)?)?.read()
    }

    pub fn post<B: Serialize + ?Sized, T: DeserializeOwned>(&self, target: &str, body: &B) -> Result<T> {
        self.send(&Call::new(Method::Post, target)?.json(body)?)?.read()
    }

    /// As [`Client::post`], replayable under `key` (M07); a lost answer is asked for once more.
    pub fn post_keyed<B, T>(&self, target: &str, body: &B, key: &str) -> Result<T>
    where
        B: Serialize + ?Sized,
        T: DeserializeOwned,
    {
        self.send(&Call::new(Method::Post, target)?.json(body)?.idempotency_key(key))?.read()
    }

    pub fn put<B: Serialize + ?Sized, T: DeserializeOwned>(&self, target: &str, body: &B) -> Result<T> {
        self.send(&Call::new(Method::Put, target)?.json(body)?)?.read()
    }

    pub fn delete<T: DeserializeOwned>(&self, target: &str) -> Result<T> {
        self.send(&Call::new(Method::Delete, target)?)?.read()
    }

    /// Sends `call` and reads its answer; see [`AsyncClient::send`].
    pub fn send(&self, call: &Call) -> Result<Answer> {
        self.runtime.block_on(self.inner.send(call))
    }

    /// Writes the bytes at `target` to `out` as they come; how many there were.
    ///
    /// Errors: as [`Client::send`]; `internal` when `out` takes no more.
    pub fn download(&self, target: &str, out: &mut dyn Write) -> Result<u64> {
        let call = Call::new(Method::Get, target)?;
        self.runtime.block_on(async {
            let mut download = self.inner.download(&call).await?;
            let mut bytes = 0;
            while let Some(chunk) = download.chunk().await? {
                out.write_all(&chunk).map_err(ClientError::Output)?;
                bytes += chunk.len() as u64;
            }
            out.flush().map_err(ClientError::Output)?;
            Ok(bytes)
        })
    }
}
