//! A request whose headers are there and whose body is not read yet.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use conduit_api::limits::REQUEST_ID_BYTES_MAX;
use conduit_api::{ApiError, Code, http as wire};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::{HeaderMap, Method, header};

use super::Limits;

/// Bytes beyond the limit that are swallowed, so that a client that is still sending gets to read the refusal.
const DRAIN_BYTES_MAX: usize = 1 << 20;

/// One request.
#[derive(Debug)]
pub struct Request {
    pub method: Method,
    /// As it was sent, escapes and all; see [`crate::path::segments`].
    pub path: String,
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Body,
    /// The caller's `x-request-id`, or one made up here; the answer carries it.
    pub request_id: String,
}

/// A body that was not read yet.
#[derive(Debug)]
pub struct Body {
    incoming: Option<Incoming>,
    bytes_max: usize,
    read_time: Duration,
}

impl Request {
    pub(super) fn new(request: hyper::Request<Incoming>, request_id: String, limits: &Limits) -> Self {
        let (head, incoming) = request.into_parts();
        Self {
            method: head.method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            headers: head.headers,
            body: Body { incoming: Some(incoming), bytes_max: limits.body_bytes, read_time: limits.body_read },
            request_id,
        }
    }

    /// The header `name`, when it is there once and is visible ASCII.
    pub fn header(&self, name: impl header::AsHeaderName) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next()?;
        if values.next().is_some() { None } else { first.to_str().ok() }
    }

    /// The token of `Authorization: Bearer …`; `None` when it is absent, repeated, or of another scheme.
    pub fn bearer(&self) -> Option<&str> {
        let (scheme, token) = self.header(header::AUTHORIZATION)?.split_once(' ')?;
        let token = token.trim_start_matches(' ');
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }

    /// Reads the body of a request that has to be JSON; whether it is, a parser says.
    ///
    /// Refusals: `unsupported_media_type`, `body_too_large` (announced or sent), `request_timeout`,
    /// `invalid_request` when the body broke off (M07).
    pub async fn json_bytes(&mut self) -> Result<Bytes, ApiError> {
        if !self.header(header::CONTENT_TYPE).is_some_and(is_json) {
            return Err(ApiError::new(
                Code::UnsupportedMediaType,
                format!("the body has to be {}; say so in content-type", wire::JSON),
            ));
        }
        let waits_for_continue = self.headers.contains_key(header::EXPECT);
        self.body.read(waits_for_continue).await
    }
}

impl Body {
    async fn read(&mut self, waits_for_continue: bool) -> Result<Bytes, ApiError> {
        let Some(mut incoming) = self.incoming.take() else {
            return Err(ApiError::new(Code::Internal, "the body was read before"));
        };
        let too_large =
            || ApiError::new(Code::BodyTooLarge, format!("the body is larger than {} bytes", self.bytes_max));
        let announced = incoming.size_hint().lower();
        if announced > self.bytes_max as u64 {
            // A client that waits for `100 Continue` has sent nothing, and will not.
            if !waits_for_continue && announced <= (self.bytes_max + DRAIN_BYTES_MAX) as u64 {
                swallow(&mut incoming, self.read_time).await;
            }
            return Err(too_large());
        }
        match tokio::time::timeout(self.read_time, collect(&mut incoming, announced, self.bytes_max)).await {
            Ok(Ok(Some(bytes))) => Ok(bytes),
            Ok(Ok(None)) => {
                swallow(&mut incoming, self.read_time).await;
                Err(too_large())
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "a body broke off");
                Err(ApiError::new(Code::InvalidRequest, "the body broke off or is not framed as HTTP/1.1 asks"))
            }
            Err(_) => Err(ApiError::new(
                Code::RequestTimeout,
                format!("the body did not arrive within {} s", self.read_time.as_secs_f32()),
            )),
        }
    }
}

/// All bytes of the body; `None` when there are more than `bytes_max`. A body in several frames takes what was `announced`
/// at once: growing by doubling, it would hold up to three times its length for a moment.
async fn collect(incoming: &mut Incoming, announced: u64, bytes_max: usize) -> Result<Option<Bytes>, hyper::Error> {
    let room = usize::try_from(announced).unwrap_or(bytes_max).min(bytes_max);
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = incoming.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if first.len() + all.len() + data.len() > bytes_max {
            return Ok(None);
        }
        if first.is_empty() && all.is_empty() {
            first = data; // the usual body is one frame, and is not copied
        } else {
            if all.is_empty() {
                all.reserve(room.max(first.len() + data.len()));
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
        }
    }
    Ok(Some(if all.is_empty() { first } else { all.freeze() }))
}

/// Reads and forgets, within bounds. The refusal stands already, so what goes wrong here changes nothing.
async fn swallow(incoming: &mut Incoming, time: Duration) {
    let reading = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = incoming.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    if tokio::time::timeout(time, reading).await.is_err() {
        tracing::debug!("a refused body kept coming");
    }
}

fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case(wire::JSON)
}

/// The caller's request ID, if it is one that an answer and a log line can carry.
pub(super) fn request_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(wire::REQUEST_ID)?.to_str().ok()?;
    let fits = !text.is_empty() && text.len() <= REQUEST_ID_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_may_have_parameters() {
        assert!(is_json("application/json"));
        assert!(is_json("Application/JSON; charset=utf-8"));
        assert!(!is_json("application/jsonp"));
        assert!(!is_json("text/plain"));
    }

    #[test]
    fn a_request_id_that_a_log_line_cannot_carry_is_replaced() {
        let with = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(wire::REQUEST_ID, text.parse().unwrap());
            request_id(&headers)
        };
        assert_eq!(with("req-1"), Some("req-1".to_owned()));
        assert_eq!(with("a b"), None);
        assert_eq!(with(""), None);
        assert_eq!(with(&"x".repeat(REQUEST_ID_BYTES_MAX + 1)), None);
    }
}
