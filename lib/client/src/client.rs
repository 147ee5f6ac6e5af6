//! The exchange itself: dial, send, read; one kept connection; one second try where the server answers a copy as it
//! answered the original.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use conduit_api::error::Envelope;
use conduit_api::http::{HOST, IDEMPOTENCY_KEY, JSON, REQUEST_ID};
use conduit_api::limits::SOCKET_PATH_BYTES_MAX;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST as HOST_HEADER};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use crate::call::{Answer, Call};
use crate::credential::Credential;
use crate::error::{ClientError, Loss, Result, Unreachable};

/// Largest answer that is read into memory, in bytes; a [`Download`] has no limit.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long a whole exchange takes at most, unless the caller says otherwise.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);

/// How often a server is dialled that hangs up before anything was sent.
const DIALS_MAX: usize = 3;

type Sender = SendRequest<Full<Bytes>>;

/// A client of one socket, for a caller that runs tokio. Calls may overlap; one idle connection is kept.
#[derive(Debug)]
pub struct AsyncClient {
    socket: PathBuf,
    credential: Mutex<Credential>,
    idle: Mutex<Option<Sender>>,
    time_max: Duration,
}

impl AsyncClient {
    pub fn new(socket: impl Into<PathBuf>, credential: Credential) -> Self {
        Self {
            socket: socket.into(),
            credential: Mutex::new(credential),
            idle: Mutex::new(None),
            time_max: EXCHANGE_TIME_MAX,
        }
    }

    /// Bounds each exchange by `time_max`.
    pub fn with_time_limit(mut self, time_max: Duration) -> Self {
        self.time_max = time_max;
        self
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads the credential's file again; whether it changed.
    pub fn reload_credential(&self) -> Result<bool> {
        locked(&self.credential).reload()
    }

    /// Sends `call` and reads its answer. A replayable call whose connection died is sent once more.
    ///
    /// Errors: the server's refusal; `unavailable`; `socket_path_too_long`; `internal` for an answer out of protocol.
    pub async fn send(&self, call: &Call) -> Result<Answer> {
        match self.exchange(call).await {
            Err(lost @ ClientError::AnswerLost { why: Loss::Ended(_), .. }) if call.replayable => {
                match self.exchange(call).await {
                    // That the server is gone now does not undo what it may have done before.
                    Err(ClientError::Unavailable { .. }) => Err(lost),
                    second => second,
                }
            }
            first => first,
        }
    }

    async fn exchange(&self, call: &Call) -> Result<Answer> {
        let until = Instant::now() + self.time_max;
        let (sender, response) = self.head(call, until).await?;
        let status = response.status().as_u16();
        let request_id = answered_id(&response, call);
        let limited = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let body = match timeout_at(until, limited.collect()).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(e)) if e.is::<LengthLimitError>() => {
                return Err(ClientError::Protocol { what: format!("it is larger than {ANSWER_BYTES_MAX} bytes") });
            }
            Ok(Err(e)) => return Err(lost(call, Loss::Ended(e.to_string()))),
            Err(_) => return Err(lost(call, Loss::Late(self.time_max))),
        };
        self.keep(sender);
        accept(Answer { status, request_id, body })
    }

    /// Sends `call` and gives its answer out in pieces as they come. The time limit holds until the first of them.
    ///
    /// Errors: as [`AsyncClient::send`]; nothing is sent twice.
    pub async fn download(&self, call: &Call) -> Result<Download> {
        let until = Instant::now() + self.time_max;
        let (sender, response) = self.head(call, until).await?;
        if response.status().is_success() {
            return Ok(Download { body: response.into_body(), call: call.clone(), _connection: sender });
        }
        let (status, request_id) = (response.status().as_u16(), answered_id(&response, call));
        let limited = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let body = match timeout_at(until, limited.collect()).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(e)) => return Err(lost(call, Loss::Ended(e.to_string()))),
            Err(_) => return Err(lost(call, Loss::Late(self.time_max))),
        };
        match accept(Answer { status, request_id, body }) {
            Err(refusal) => Err(refusal),
            Ok(_) => Err(ClientError::Protocol { what: format!("status {status} for a download") }),
        }
    }

    /// Sends `call` on the kept connection or a new one, and waits for the head of the answer.
    async fn head(&self, call: &Call, until: Instant) -> Result<(Sender, Response<Incoming>)> {
        let mut request = self.request(call)?;
        if let Some(mut kept) = self.take_idle(until).await {
            match timeout_at(until, kept.try_send_request(request)).await {
                Ok(Ok(response)) => return Ok((kept, response)),
                // The server had closed the kept connection: nothing was sent, so a new one is as good.
                Ok(Err(mut e)) => match e.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(lost(call, Loss::Ended(e.into_error().to_string()))),
                },
                Err(_) => return Err(lost(call, Loss::Late(self.time_max))),
            }
        }
        for _ in 0..DIALS_MAX {
            let mut sender = match timeout_at(until, self.dial()).await {
                Ok(dialled) => dialled?,
                Err(_) => return Err(self.unreachable(Unreachable::Busy)),
            };
            match timeout_at(until, sender.try_send_request(request)).await {
                Ok(Ok(response)) => return Ok((sender, response)),
                // The server ended when it had accepted, and before anything was sent: its successor is as good.
                Ok(Err(mut e)) => match e.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(lost(call, Loss::Ended(e.into_error().to_string()))),
                },
                Err(_) => return Err(lost(call, Loss::Late(self.time_max))),
            }
        }
        Err(self.unreachable(Unreachable::Other("the server hung up; try again".into())))
    }

    async fn dial(&self) -> Result<Sender> {
        let bytes = self.socket.as_os_str().as_bytes().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            return Err(self.unreachable(Unreachable::PathTooLong { bytes }));
        }
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.unreachable(Unreachable::of(&e)))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|e| self.unreachable(Unreachable::Other(e.to_string())))?;
        // How the connection ends is told to whoever waits for an answer on it.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(call.method.as_str())
            .uri(call.target.as_str())
            .header(HOST_HEADER, HOST)
            .header(REQUEST_ID, &call.request_id);
        if let Some(bearer) = locked(&self.credential).header()? {
            request = request.header(AUTHORIZATION, bearer);
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, JSON);
        }
        request
            .body(Full::new(call.body.clone().unwrap_or_default()))
            .map_err(|e| ClientError::InvalidRequest { what: e.to_string() })
    }

    /// The kept connection, if the server has not closed it.
    async fn take_idle(&self, until: Instant) -> Option<Sender> {
        let mut kept = locked(&self.idle).take()?;
        matches!(timeout_at(until, kept.ready()).await, Ok(Ok(()))).then_some(kept)
    }

    fn keep(&self, sender: Sender) {
        *locked(&self.idle) = Some(sender);
    }

    fn unreachable(&self, why: Unreachable) -> ClientError {
        ClientError::Unavailable { socket: self.socket.clone(), why }
    }
}

/// An answer that comes in pieces.
#[derive(Debug)]
pub struct Download {
    body: Incoming,
    call: Call,
    /// Held so that the connection lives as long as its answer.
    _connection: Sender,
}

impl Download {
    /// The next piece; `None` when the answer is complete. Errors: `unavailable` when it broke off.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|e| lost(&self.call, Loss::Ended(e.to_string())))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

fn lost(call: &Call, why: Loss) -> ClientError {
    ClientError::AnswerLost { request_id: call.request_id.clone(), why }
}

/// The request ID that the server answered under.
fn answered_id(response: &Response<Incoming>, call: &Call) -> String {
    let named = response.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    named.unwrap_or(&call.request_id).to_owned()
}

/// Tells a success from a refusal. A redirect is neither: this client follows none (M13).
fn accept(answer: Answer) -> Result<Answer> {
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    match serde_json::from_slice::<Envelope>(&answer.body) {
        Ok(envelope) => Err(ClientError::Refused { body: Box::new(envelope.error), status: answer.status }),
        Err(_) => Err(ClientError::Protocol { what: format!("status {} without an error envelope", answer.status) }),
    }
}

/// No code that holds these locks can panic, so a poisoned one is as good as any.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
