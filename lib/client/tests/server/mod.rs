//! A tiny real server on a real Unix socket: it answers as the test says, and keeps what it was asked.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub headers: HeaderMap,
    pub body: Value,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// What the server does with a request.
pub enum Reply {
    Json(u16, Value),
    /// Bytes that are the whole body.
    Raw(u16, Vec<u8>),
    /// Takes the request and closes the connection without an answer.
    HangUp,
    /// Begins an answer and breaks it off.
    BreakOff(Vec<u8>),
    /// Answers, and closes the connection afterwards.
    JsonThenClose(u16, Value),
    /// Never answers.
    Silence,
}

type Handler = dyn FnMut(&Seen) -> Reply + Send;

pub struct Server {
    socket: PathBuf,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves at `socket`; `handler` decides on each request.
    pub fn start(socket: &Path, handler: impl FnMut(&Seen) -> Reply + Send + 'static) -> Self {
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let shared = Shared { seen: seen.clone(), handler: Arc::new(Mutex::new(handler)) };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                tokio::spawn(accept(listener, shared));
                // The sender is dropped to say so; the runtime then drops every connection.
                let _ = stopped.await;
            });
        });
        Self { socket: socket.to_owned(), seen, stop: Some(stop), thread: Some(thread) }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The one request that came.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        // Absent where the test has taken it away by itself.
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[derive(Clone)]
struct Shared {
    seen: Arc<Mutex<Vec<Seen>>>,
    handler: Arc<Mutex<Handler>>,
}

async fn accept(listener: std::os::unix::net::UnixListener, shared: Shared) {
    let listener = UnixListener::from_std(listener).unwrap();
    let connections = AtomicUsize::new(0);
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let connection = connections.fetch_add(1, Ordering::Relaxed);
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, connection, shared.clone()));
            // A connection that this server itself breaks off ends with an error, as it should.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Outgoing = BoxBody<Bytes, io::Error>;

fn whole(bytes: Vec<u8>) -> Outgoing {
    Full::new(Bytes::from(bytes)).map_err(|never: Infallible| match never {}).boxed()
}

async fn answer(request: Request<Incoming>, connection: usize, shared: Shared) -> io::Result<Response<Outgoing>> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let seen = Seen {
        method: head.method.to_string(),
        target: head.uri.to_string(),
        headers: head.headers,
        body: if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() },
        connection,
    };
    let reply = (shared.handler.lock().unwrap())(&seen);
    shared.seen.lock().unwrap().push(seen);
    let response = Response::builder();
    let response = match reply {
        Reply::Json(status, value) => response.status(status).body(whole(value.to_string().into())),
        Reply::Raw(status, bytes) => response.status(status).body(whole(bytes)),
        Reply::JsonThenClose(status, value) => {
            response.status(status).header("connection", "close").body(whole(value.to_string().into()))
        }
        Reply::HangUp => return Err(io::Error::other("hanging up")),
        Reply::BreakOff(bytes) => response.body(BreakingOff(Some(bytes), false).boxed()),
        Reply::Silence => std::future::pending().await,
    };
    Ok(response.unwrap())
}

/// A body that gives its bytes, lets them be flushed, and fails.
struct BreakingOff(Option<Vec<u8>>, bool);

impl Body for BreakingOff {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(bytes) = self.0.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
        }
        if !std::mem::replace(&mut self.1, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(io::Error::other("breaking off"))))
    }
}
