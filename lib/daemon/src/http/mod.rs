//! An HTTP/1.1 server over a Unix socket, with every bound by name.
//!
//! Knows no route: a [`Service`] gets each request with its body unread, so that it can settle route and authority
//! first, and gives a [`Reply`]. Everything runs on the daemon's one thread.

mod reply;
mod request;
mod seats;
mod serve;

use std::time::Duration;

use conduit_api::limits::BODY_BYTES_MAX;

pub use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
pub use hyper::{Method, StatusCode};
pub use reply::{Reply, Source, Stream};
pub use request::{Body, Request};
pub use serve::{Served, serve};

/// Answers requests. Called for many requests at once, on one thread.
pub trait Service: 'static {
    fn handle(&self, request: Request) -> impl Future<Output = Reply>;
}

/// What a server allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at one time. One more makes the one leave that has waited longest without a request under way; while
    /// every one has a request it is answered 429 `too_many_requests` and closed. Those that leave may take a moment, and as
    /// many as this may be about it.
    pub connections: usize,
    /// Bytes of a request line with its headers.
    pub header_bytes: usize,
    /// Headers of one request.
    pub headers: usize,
    /// Time until the headers of the next request are there; a kept-alive connection may be quiet for as long.
    pub header_read: Duration,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Time until the body is there.
    pub body_read: Duration,
    /// Time that requests under way have to finish once the server is to stop.
    pub drain: Duration,
    /// Whether a connection of another user, root included, is closed unanswered (`SO_PEERCRED`).
    pub own_user_only: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            header_bytes: 16 << 10,
            headers: 64,
            header_read: Duration::from_secs(30),
            body_bytes: BODY_BYTES_MAX,
            body_read: Duration::from_secs(10),
            drain: Duration::from_secs(5),
            own_user_only: false,
        }
    }
}
