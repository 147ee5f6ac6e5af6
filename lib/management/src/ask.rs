//! What a handler is given: who asks, for what, and with which parameters.

use bytes::Bytes;
use conduit_api::limits::{BODY_BYTES_MAX, PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, REQUEST_ID_BYTES_MAX};
use conduit_api::views::Page;
use conduit_api::{Code, ScopeId, WorkId, json};
use conduit_coordination::queries::{Filter, Key, Listed, Window};
use conduit_store::digest::Sha256Digest;
use serde::de::DeserializeOwned;

use crate::cursor;
use crate::error::{Error, Result};
use crate::operator::Operator;

/// One request that may be carried out.
#[derive(Debug)]
pub(crate) struct Ask {
    pub operator: Operator,
    /// Digest of its credential: what the daemon knows it by.
    pub credential: Sha256Digest,
    /// What stands in the `{…}` of the route's path, decoded, in order.
    pub path: Vec<String>,
    pub query: Vec<(String, String)>,
    /// Empty where the route takes none.
    pub body: Bytes,
    pub idempotency_key: Option<String>,
}

impl Ask {
    /// The identifier in the path. What is no identifier names nothing: `not_found`.
    pub(crate) fn id<I: std::str::FromStr>(&self, what: &str) -> Result<I> {
        self.path.first().and_then(|text| text.parse().ok()).ok_or_else(|| Error::not_found(what))
    }

    /// The body, read strictly (M07). Error: `invalid_request`, naming the fault and no value.
    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T> {
        json::read(&self.body, BODY_BYTES_MAX).map_err(|refused| invalid(format!("the body is refused: {refused}")))
    }

    /// The page of a list whose items have one of `states`. Errors: `invalid_request`, `invalid_cursor`.
    pub(crate) fn page(&self, list: &'static str, states: &[&str]) -> Result<Paging> {
        let mut paging = Paging { list, scope: None, work: None, state: None, before: None, limit: PAGE_ITEMS_DEFAULT };
        for (name, value) in &self.query {
            let wrong = |expected: &str| invalid(format!("`{name}` is {expected}"));
            match name.as_str() {
                "scope_id" => paging.scope = Some(value.parse().map_err(|_| wrong("the name of a scope"))?),
                "work_id" => paging.work = Some(value.parse().map_err(|_| wrong("a Work, as in wrk_…"))?),
                "state" if states.contains(&value.as_str()) => paging.state = Some(value.clone()),
                "state" => return Err(wrong(&format!("one of {}", states.join(", ")))),
                "cursor" => paging.before = Some(cursor::decode(list, value)?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE_ITEMS_MAX).contains(limit));
                    paging.limit = limit.ok_or_else(|| wrong(&format!("a number from 1 to {PAGE_ITEMS_MAX}")))?;
                }
                _ => return Err(invalid(format!("`{name}` is not a parameter of this list"))),
            }
        }
        Ok(paging)
    }
}

/// Which page of which list is asked for.
#[derive(Debug)]
pub(crate) struct Paging {
    list: &'static str,
    scope: Option<ScopeId>,
    work: Option<WorkId>,
    state: Option<String>,
    before: Option<Key>,
    limit: usize,
}

impl Paging {
    pub(crate) fn filter(&self) -> Filter<'_> {
        Filter { scope: self.scope.as_ref(), work: self.work.as_ref(), state: self.state.as_deref() }
    }

    pub(crate) fn window(&self) -> Window<'_> {
        Window { before: self.before.as_ref(), limit: self.limit }
    }

    /// The page as it goes onto the wire.
    pub(crate) fn shown<T>(&self, listed: Listed<T>) -> Page<T> {
        Page { items: listed.items, next: listed.next.map(|key| cursor::encode(self.list, &key)) }
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidRequest, message)
}

/// Refuses a key that no delivery can have. The host's own deliveries are named after the things that they are about.
pub(crate) fn check_key(key: &str) -> Result<()> {
    let fits = !key.is_empty() && key.len() <= REQUEST_ID_BYTES_MAX && key.bytes().all(|b| b.is_ascii_graphic());
    if !fits {
        return Err(invalid(format!("an idempotency key has 1 to {REQUEST_ID_BYTES_MAX} visible ASCII characters")));
    }
    if key.starts_with("wrk_") || key.starts_with("exe_") {
        return Err(invalid("an idempotency key does not start with wrk_ or exe_: the host names its own Events so"));
    }
    Ok(())
}

/// Refuses a text that is empty or longer than `bytes_max`.
pub(crate) fn check_length(name: &str, text: &str, bytes_max: usize) -> Result<()> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(invalid(format!("`{name}` has 1 to {bytes_max} bytes")));
    }
    Ok(())
}
