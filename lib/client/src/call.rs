//! One request and one answer, as a client sees them.

use bytes::Bytes;
use conduit_api::limits::BODY_BYTES_MAX;
use rand::TryRng;
use rand::rngs::SysRng;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ClientError, Result};

/// The methods that the suite's APIs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// One request, before it is sent.
#[derive(Debug, Clone)]
pub struct Call {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) body: Option<Bytes>,
    pub(crate) request_id: String,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) replayable: bool,
}

impl Call {
    /// A request for `target`, which is a path and maybe a query, both escaped.
    ///
    /// Errors: `internal` when the machine has no random bytes for a request ID.
    pub fn new(method: Method, target: impl Into<String>) -> Result<Self> {
        Ok(Self {
            method,
            target: target.into(),
            body: None,
            request_id: request_id()?,
            idempotency_key: None,
            replayable: method != Method::Post,
        })
    }

    /// Sends `body` as JSON. Errors: `body_too_large`, `invalid_request`.
    pub fn json<B: Serialize + ?Sized>(mut self, body: &B) -> Result<Self> {
        let bytes = serde_json::to_vec(body).map_err(|e| ClientError::InvalidRequest { what: e.to_string() })?;
        if bytes.len() > BODY_BYTES_MAX {
            return Err(ClientError::BodyTooLarge { bytes: bytes.len() });
        }
        self.body = Some(bytes.into());
        Ok(self)
    }

    /// Names the request, in place of the generated name.
    pub fn request_id(mut self, request_id: impl Into<String>) -> Self {
        self.request_id = request_id.into();
        self
    }

    /// Makes a mutation replayable under `key` (M07); a lost answer is then asked for again, once.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self.replayable = true;
        self
    }

    /// Says that the server answers a second copy of this request as it answered the first; a lost answer is then
    /// asked for again, once. GET, PUT and DELETE are so by themselves.
    pub fn replayable(mut self, replayable: bool) -> Self {
        self.replayable = replayable;
        self
    }
}

/// An answer that is a success, read in full.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub request_id: String,
    pub body: Bytes,
}

impl Answer {
    /// Reads the body as a `T`; an empty body reads as `()`. Errors: `internal`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        let body: &[u8] = if self.body.is_empty() { b"null" } else { &self.body };
        serde_json::from_slice(body).map_err(|e| ClientError::Protocol { what: e.to_string() })
    }
}

/// A new request ID: `req_` and 128 random bits in hex.
///
/// Errors: `internal` when the machine has no random bytes.
pub fn request_id() -> Result<String> {
    let mut bytes = [0u8; 16];
    SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|e| ClientError::Machine { doing: "drawing a request ID", source: std::io::Error::other(e) })?;
    Ok(format!("req_{:032x}", u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_post_without_a_key_is_not_replayable() {
        let call = |method| Call::new(method, "/x").unwrap();
        assert!(call(Method::Get).replayable && call(Method::Put).replayable && call(Method::Delete).replayable);
        assert!(!call(Method::Post).replayable);
        assert!(call(Method::Post).idempotency_key("k").replayable);
    }

    #[test]
    fn a_body_that_no_server_takes_is_refused_before_it_is_sent() {
        let error = Call::new(Method::Post, "/x").unwrap().json(&"x".repeat(BODY_BYTES_MAX)).unwrap_err();
        assert_eq!(error.code(), "body_too_large");
    }

    #[test]
    fn request_ids_differ() {
        assert_ne!(request_id().unwrap(), request_id().unwrap());
        assert_eq!(request_id().unwrap().len(), 36);
    }
}
