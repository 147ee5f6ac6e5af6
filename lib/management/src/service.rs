//! From a request to its reply: who, where to, how far, and only then what.

use std::cell::RefCell;

use conduit_api::{ApiError, Code, http as wire};
use conduit_daemon::http::{HeaderValue, Reply, Request, Service, header};
use conduit_daemon::path;
use conduit_store::digest::sha256;

use crate::ask::{self, Ask, check_key};
use crate::error::{Error, Result};
use crate::handlers::extensions;
use crate::host::Host;
use crate::operator;
use crate::routes::{self, Handler, Matched, Replay, Route, Takes};

/// The server's service. Handlers run on the one thread, and none is interrupted while it has the host.
pub(crate) struct Management {
    host: RefCell<Host>,
}

impl Management {
    pub(crate) fn new(host: Host) -> Self {
        Self { host: RefCell::new(host) }
    }

    async fn answer(&self, request: &mut Request) -> Result<Reply> {
        // First of all, on every route and beside every route: E08.
        let operator = self.host.borrow_mut().read(|r, _| operator::authenticate(r, request.bearer()))?;
        let segments = path::segments(&request.path)?;
        let (route, captured) = match routes::find(&request.method, &segments) {
            Matched::Route(route, captured) => (route, captured),
            Matched::Methods(methods) => {
                return Ok(wrong_method(&methods.iter().map(|m| m.as_str()).collect::<Vec<_>>()));
            }
            Matched::Nowhere => {
                return Err(Error::new(Code::NotFound, "there is no such route; docs/api.md lists them"));
            }
        };
        let needed = match route.handler {
            Handler::Acts(_) => extensions::role(&mut self.host.borrow_mut(), &captured)?,
            _ => route.role,
        };
        if operator.role < needed {
            let message =
                format!("this route needs the role {}, and yours is {}", needed.as_str(), operator.role.as_str());
            return Err(Error::new(Code::ForbiddenRole, message));
        }
        let query = query(route, request.query.as_deref())?;
        let idempotency_key = key(route, request)?;
        let body = if route.takes == Takes::Body { request.json_bytes().await? } else { Default::default() };
        let credential = sha256(request.bearer().unwrap_or_default().as_bytes());
        let ask = Ask { operator, credential, path: captured, query, body, idempotency_key };
        // Nothing waits while the host is borrowed, so the borrow is the only one.
        match route.handler {
            Handler::Whole(answer) => answer(&mut self.host.borrow_mut(), &ask),
            Handler::Waits(answer) | Handler::Acts(answer) => answer(&self.host, &ask).await,
            Handler::Content(find) => {
                let recorded = find(&mut self.host.borrow_mut(), &ask)?;
                recorded.content().await
            }
        }
    }
}

impl Service for Management {
    async fn handle(&self, mut request: Request) -> Reply {
        match self.answer(&mut request).await {
            Ok(reply) => reply,
            Err(error) => refused(error.into_api(&request.request_id)),
        }
    }
}

fn refused(error: ApiError) -> Reply {
    let unauthenticated = error.code == Code::Unauthenticated;
    let reply = Reply::Refused(error);
    if unauthenticated { reply.with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")) } else { reply }
}

fn wrong_method(methods: &[&str]) -> Reply {
    let allowed = methods.join(", ");
    let reply = refused(ApiError::new(Code::MethodNotAllowed, format!("this route takes {allowed}")));
    match HeaderValue::from_str(&allowed) {
        Ok(value) => reply.with(header::ALLOW, value),
        Err(_) => reply, // the names of methods are visible ASCII
    }
}

/// The query's pairs, each one that the route takes, none twice. Error: `invalid_request` (M07).
fn query(route: &Route, raw: Option<&str>) -> Result<Vec<(String, String)>> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    let Takes::Page(filters) = route.takes else {
        return Err(ask::invalid("this route takes no query; leave out the question mark and what follows it"));
    };
    let pairs = path::query(raw)?;
    for (at, (name, _)) in pairs.iter().enumerate() {
        if !filters.contains(&name.as_str()) && !["limit", "cursor"].contains(&name.as_str()) {
            let known = [&["limit", "cursor"], filters].concat().join(", ");
            return Err(ask::invalid(format!("this list takes {known} and nothing else")));
        }
        if pairs[..at].iter().any(|(earlier, _)| earlier == name) {
            return Err(ask::invalid(format!("`{name}` stands twice in the query")));
        }
    }
    Ok(pairs)
}

/// The `Idempotency-Key`, where the route has a use for it. Error: `invalid_request` (M07).
fn key(route: &Route, request: &Request) -> Result<Option<String>> {
    if route.replay != Replay::Keyed || !request.headers.contains_key(wire::IDEMPOTENCY_KEY) {
        return Ok(None);
    }
    let key =
        request.header(wire::IDEMPOTENCY_KEY).ok_or_else(|| ask::invalid("there is more than one idempotency key"))?;
    check_key(key)?;
    Ok(Some(key.to_owned()))
}
