//! The accept loop: bounded connections, idle end, and a stop that finishes what is under way.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code, http as wire};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::request::request_id;
use super::seats::{Seat, Seats, Sent};
use super::{Limits, Reply, Request, Service, reply};

/// Bytes that one connection buffers in each direction.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// How long accepting pauses when the process is out of descriptors and no connection ends meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection that is to make room may take for what was answered before.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);
/// Turns of the thread in which a short exchange comes to its end: it hears of the request, answers, sees the close.
const TURNS_MAX: usize = 4;

/// Why the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// It was asked to.
    Shutdown,
    /// It had no connection for the idle time.
    Idle,
}

/// Serves `listener` until `shutdown` ends, or until there was no connection for `idle`; then lets requests under way
/// finish within `limits.drain`. Runs inside a `LocalSet` ([`crate::program::block_on`]).
///
/// `internal` when the listener cannot be used at all.
pub async fn serve<S: Service>(
    listener: UnixListener,
    service: Rc<S>,
    limits: Limits,
    shutdown: impl Future,
    idle: Option<Duration>,
) -> Result<Served, ApiError> {
    let unusable = |error: io::Error| ApiError::new(Code::Internal, format!("the socket cannot be served: {error}"));
    listener.set_nonblocking(true).map_err(unusable)?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(unusable)?;
    let mut shutdown = pin!(shutdown);
    let (stop, stopped) = watch::channel(false);
    let (ids, seats) = (Rc::new(RequestIds::new()), Rc::new(Seats::default()));
    let mut connections = JoinSet::new();
    let mut quiet_since = Instant::now();

    let why = loop {
        let idle_at = idle.filter(|_| connections.is_empty()).map(|time| quiet_since + time);
        tokio::select! {
            biased;
            _ = &mut shutdown => break Served::Shutdown,
            // Before the next is accepted, so that those which have ended do not count as open.
            Some(ended) = next(&mut connections) => {
                see(ended);
                quiet_since = Instant::now();
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if limits.own_user_only && !is_own_user(&stream) => {
                    tracing::warn!("a connection of another user was closed");
                }
                Ok((stream, _)) if has_room(&mut connections, limits.connections, &seats).await => {
                    let seat = Seat::new(&seats);
                    connections.spawn_local(connection(stream, service.clone(), limits, ids.clone(), seat, stopped.clone()));
                }
                Ok((stream, _)) => turn_away(stream, &ids.next()),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // What it lacks comes back when a connection ends.
                    tokio::select! {
                        _ = &mut shutdown => break Served::Shutdown,
                        Some(_) = connections.join_next() => quiet_since = Instant::now(),
                        () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                    }
                }
            },
            () = at(idle_at) => break Served::Idle,
        }
    };

    // Who dials from now on is refused at once, or waits for the next holder of a socket that was passed.
    drop(listener);
    // Nobody is left to take the news when every connection has ended.
    let _ = stop.send(true);
    let draining = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain, draining).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests under way did not finish in time");
        connections.shutdown().await;
    }
    Ok(why)
}

/// The next connection that ended; waits for ever when there is none.
async fn next(connections: &mut JoinSet<()>) -> Option<Result<(), tokio::task::JoinError>> {
    if connections.is_empty() { std::future::pending().await } else { connections.join_next().await }
}

/// Whether fewer than `max` connections are open, or one of them can make room. Those that only wait for their turn on this
/// thread, with all that they need there already, get it before somebody has to go for them.
async fn has_room(connections: &mut JoinSet<()>, max: usize, seats: &Seats) -> bool {
    for _ in 0..TURNS_MAX {
        if connections.len() < max {
            return true;
        }
        tokio::task::yield_now().await;
        while let Some(ended) = connections.try_join_next() {
            see(ended);
        }
    }
    connections.len() < max || connections.len() < max.saturating_mul(2) && seats.make_room()
}

fn see(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task failed");
    }
}

/// Waits until `instant`; for ever when there is none.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

async fn connection<S: Service>(
    stream: UnixStream,
    service: Rc<S>,
    limits: Limits,
    ids: Rc<RequestIds>,
    seat: Rc<Seat>,
    mut stopped: watch::Receiver<bool>,
) {
    let answer = service_fn(|request| {
        let (service, ids, under_way) = (service.clone(), ids.clone(), seat.work());
        async move {
            let id = request_id(request.headers()).unwrap_or_else(|| ids.next());
            let request = Request::new(request, id.clone(), &limits);
            let (method, path) = (request.method.clone(), request.path.clone());
            let reply: Reply = service.handle(request).await;
            tracing::debug!(request_id = %id, %method, path, status = reply.status(), "answered");
            Ok::<_, Infallible>(reply.into_response(&id).map(|body| Sent { body, _under_way: under_way }))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        .max_headers(limits.headers)
        .max_header_size(limits.header_bytes)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let mut serving = pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        _ = stopped.wait_for(|stopped| *stopped) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        () = seat.leave() => {
            // What was answered may not have left yet; what never asked has nothing to wait for.
            if !seat.was_used() {
                return;
            }
            serving.as_mut().graceful_shutdown();
            match tokio::time::timeout(LEAVE_TIME_MAX, serving.as_mut()).await {
                Ok(ended) => ended,
                // A request that came in the same moment is answered; it is the last.
                Err(_) if seat.has_request() => serving.await,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Whether the other end is a process of this user; not when that cannot be known.
fn is_own_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

/// Answers a connection that is one too many. The answer fits the empty socket buffer; a client that is gone already
/// misses nothing.
fn turn_away(stream: UnixStream, request_id: &str) {
    let error = ApiError::new(Code::TooManyRequests, "too many connections are open on this socket; try again");
    let body = reply::envelope(&error, request_id);
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: {}\r\n{}: {request_id}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        wire::JSON,
        wire::REQUEST_ID,
        body.len()
    );
    let answer = [head.as_bytes(), &body].concat();
    if let Err(error) = stream.into_std().and_then(|mut stream| stream.write_all(&answer)) {
        tracing::debug!(%error, "a connection was turned away without an answer");
    }
}

/// Names for requests that come without one: unique on this machine, and no secret.
#[derive(Debug)]
struct RequestIds {
    prefix: u64,
    count: Cell<u64>,
}

impl RequestIds {
    fn new() -> Self {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or_default();
        Self { prefix: (micros << 12) ^ u64::from(std::process::id()), count: Cell::new(0) }
    }

    fn next(&self) -> String {
        let count = self.count.get() + 1;
        self.count.set(count);
        format!("req_{:016x}{count:08x}", self.prefix)
    }
}
