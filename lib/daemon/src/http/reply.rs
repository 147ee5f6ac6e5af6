//! What a service answers, and its way onto the wire.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use conduit_api::{ApiError, Code, http as wire};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

/// Bytes of a file that are read and sent at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// An answer.
#[derive(Debug)]
pub enum Reply {
    /// A JSON document.
    Json { status: u16, body: Vec<u8> },
    /// Bytes that are not in memory.
    Stream(Stream),
    /// No body.
    Empty(u16),
    /// A refusal: the code's status and the one envelope, with the request's ID.
    Refused(ApiError),
    /// Another answer with headers besides.
    With(Box<Self>, HeaderMap),
}

/// A body that is sent as it comes.
#[derive(Debug)]
pub struct Stream {
    pub status: u16,
    pub content_type: String,
    pub source: Source,
}

/// Where a stream comes from: a file, of which exactly `bytes` are sent. Reading happens on the daemon's thread.
#[derive(Debug)]
pub struct Source {
    pub file: std::fs::File,
    pub bytes: u64,
}

impl Reply {
    /// `value` as a JSON document.
    pub fn json(status: u16, value: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::Json { status, body },
            Err(error) => {
                tracing::error!(%error, "an answer could not be written as JSON");
                Self::Refused(ApiError::new(Code::Internal, "the answer could not be written"))
            }
        }
    }

    /// This answer with the header `name` as well.
    pub fn with(self, name: HeaderName, value: HeaderValue) -> Self {
        let (inner, mut headers) = match self {
            Self::With(inner, headers) => (inner, headers),
            other => (Box::new(other), HeaderMap::new()),
        };
        headers.append(name, value);
        Self::With(inner, headers)
    }

    /// The status that goes onto the wire.
    pub fn status(&self) -> u16 {
        match self {
            Self::Json { status, .. } | Self::Empty(status) => *status,
            Self::Stream(stream) => stream.status,
            Self::Refused(error) => error.code.status(),
            Self::With(inner, _) => inner.status(),
        }
    }

    pub(super) fn into_response(self, request_id: &str) -> Response<ReplyBody> {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let (content_type, body, more) = self.into_parts(request_id);
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if let Some(value) = content_type {
            headers.insert(header::CONTENT_TYPE, value);
        }
        if let Ok(value) = HeaderValue::from_str(request_id) {
            headers.insert(wire::REQUEST_ID, value);
        }
        headers.extend(more);
        response
    }

    fn into_parts(self, request_id: &str) -> (Option<HeaderValue>, ReplyBody, HeaderMap) {
        let json = || Some(HeaderValue::from_static(wire::JSON));
        match self {
            Self::Json { body, .. } => (json(), ReplyBody::Whole(Some(body.into())), HeaderMap::new()),
            Self::Empty(_) => (None, ReplyBody::Whole(None), HeaderMap::new()),
            Self::Refused(error) => {
                let later = error.retry_after_s.map(|seconds| (header::RETRY_AFTER, HeaderValue::from(seconds)));
                (json(), ReplyBody::Whole(Some(envelope(&error, request_id).into())), later.into_iter().collect())
            }
            Self::Stream(stream) => {
                let Source { file, bytes } = stream.source;
                let body = ReplyBody::File { file, left: bytes };
                (HeaderValue::from_str(&stream.content_type).ok(), body, HeaderMap::new())
            }
            Self::With(inner, headers) => {
                let (content_type, body, mut all) = inner.into_parts(request_id);
                all.extend(headers);
                (content_type, body, all)
            }
        }
    }
}

impl From<ApiError> for Reply {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl From<Result<Self, ApiError>> for Reply {
    fn from(result: Result<Self, ApiError>) -> Self {
        result.unwrap_or_else(Self::Refused)
    }
}

/// The envelope of `error` in bytes. Its parts are strings, so writing it cannot fail; were it to, the body is empty.
pub(super) fn envelope(error: &ApiError, request_id: &str) -> Vec<u8> {
    serde_json::to_vec(&error.envelope(request_id)).unwrap_or_default()
}

/// The body of an answer on its way out.
pub enum ReplyBody {
    Whole(Option<Bytes>),
    File { file: std::fs::File, left: u64 },
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::File { left: 0, .. } => Poll::Ready(None),
            Self::File { file, left } => Poll::Ready(Some(next_chunk(file, left).map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::File { left, .. } => *left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::File { left, .. } => SizeHint::with_exact(*left),
        }
    }
}

/// A file that ends early breaks the connection, so that the client does not take a part for the whole.
fn next_chunk(file: &mut std::fs::File, left: &mut u64) -> io::Result<Bytes> {
    use io::Read;
    let wanted = usize::try_from(*left).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
    let mut chunk = vec![0; wanted];
    let read = file.read(&mut chunk)?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    chunk.truncate(read);
    *left -= read as u64;
    Ok(chunk.into())
}
