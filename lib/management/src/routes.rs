//! Every route of the management socket. docs/api.md and the denial tests are read off this table (M04, M07, E08).

use std::cell::RefCell;
use std::pin::Pin;

use conduit_daemon::http::{Method, Reply};

use crate::ask::Ask;
use crate::error::Result;
use crate::handlers::artifacts::Recorded;
use crate::handlers::{
    approvals, artifacts, config, doubts, events, executions, explain, extensions, gates, health, packages, scopes,
    waits, work,
};
use crate::host::Host;

/// How far an operator reaches; each role reaches what the ones before it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    View,
    Operate,
    Admin,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::View, Self::Operate, Self::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// The role in a row; the narrowest one for a word that this release does not know.
    pub(crate) fn from_row(text: &str) -> Self {
        Self::ALL.into_iter().find(|role| role.as_str() == text).unwrap_or(Self::View)
    }
}

/// What a route takes beside its path. Whatever else comes is refused (M07).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    /// A query that chooses a page: `limit`, `cursor`, and these filters.
    Page(&'static [&'static str]),
    /// A JSON body and no query.
    Body,
}

/// What a second request of the same meaning does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// The same as the first.
    Free,
    /// Under the same `Idempotency-Key`: answers with what the first one made; another body is `idempotency_conflict`.
    Keyed,
    /// Is `illegal_state` once the first one is done: the state is the record.
    State,
}

/// The answer of a handler that waits for somebody else; it has the host only while it does not wait.
pub(crate) type Waits<'h> = Pin<Box<dyn Future<Output = Result<Reply>> + 'h>>;

/// What answers a route.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Handler {
    /// Looks or changes, and is done.
    Whole(fn(&mut Host, &Ask) -> Result<Reply>),
    /// Waits for the daemon on the way; others are served meanwhile.
    Waits(for<'h> fn(&'h RefCell<Host>, &'h Ask) -> Waits<'h>),
    /// As before; the role that the action in the path asks for stands in the place of the route's.
    Acts(for<'h> fn(&'h RefCell<Host>, &'h Ask) -> Waits<'h>),
    /// Finds an artifact, the bytes of which are then verified and sent beside everything else.
    Content(fn(&mut Host, &Ask) -> Result<Recorded>),
}

/// One route.
#[derive(Debug)]
pub struct Route {
    pub method: Method,
    /// `{id}` stands for one escaped segment (M08).
    pub path: &'static str,
    pub role: Role,
    pub takes: Takes,
    pub replay: Replay,
    /// The type of the answer in `conduit_api::views`.
    pub answer: &'static str,
    pub(crate) handler: Handler,
}

const GET: Method = Method::GET;
const POST: Method = Method::POST;

const fn route(
    method: Method,
    path: &'static str,
    role: Role,
    takes: Takes,
    replay: Replay,
    answer: &'static str,
    handler: fn(&mut Host, &Ask) -> Result<Reply>,
) -> Route {
    Route { method, path, role, takes, replay, answer, handler: Handler::Whole(handler) }
}

const fn waits(
    path: &'static str,
    role: Role,
    replay: Replay,
    answer: &'static str,
    handler: for<'h> fn(&'h RefCell<Host>, &'h Ask) -> Waits<'h>,
) -> Route {
    Route { method: POST, path, role, takes: Body, replay, answer, handler: Handler::Waits(handler) }
}

const fn acts(
    path: &'static str,
    answer: &'static str,
    handler: for<'h> fn(&'h RefCell<Host>, &'h Ask) -> Waits<'h>,
) -> Route {
    let handler = Handler::Acts(handler);
    Route { method: POST, path, role: View, takes: Body, replay: Keyed, answer, handler }
}

const fn content(path: &'static str, find: fn(&mut Host, &Ask) -> Result<Recorded>) -> Route {
    let (takes, replay, handler) = (Nothing, Free, Handler::Content(find));
    Route { method: GET, path, role: View, takes, replay, answer: "the bytes", handler }
}

use Replay::{Free, Keyed, State};
use Role::{Admin, Operate, View};
use Takes::{Body, Nothing, Page};

const NONE: Takes = Page(&[]);
const OF_WORK: Takes = Page(&["scope_id", "work_id"]);
const BY_STATE: Takes = Page(&["scope_id", "work_id", "state"]);

#[rustfmt::skip]
pub static ROUTES: &[Route] = &[
    //    method path                         role     takes     replay  answer            handler
    route(GET,  "/v1/health",                 View,    Nothing,  Free,   "HealthView",     health::get),
    route(GET,  "/v1/scopes",                 View,    NONE,     Free,   "Page<ScopeView>", scopes::list),
    route(GET,  "/v1/scopes/{id}",            View,    Nothing,  Free,   "ScopeView",      scopes::get),
    route(GET,  "/v1/events",                 View,    OF_WORK,  Free,   "Page<EventView>", events::list),
    route(POST, "/v1/events",                 Operate, Body,     Keyed,  "EmitReply",      events::emit),
    route(GET,  "/v1/events/{id}",            View,    Nothing,  Free,   "EventView",      events::get),
    route(GET,  "/v1/events/{id}/chain",      View,    Nothing,  Free,   "ChainView",      events::chain),
    route(GET,  "/v1/work",                   View,    BY_STATE, Free,   "Page<WorkView>", work::list),
    route(POST, "/v1/work",                   Operate, Body,     Keyed,  "WorkReply",      work::create),
    route(GET,  "/v1/work/{id}",              View,    Nothing,  Free,   "WorkView",       work::get),
    route(POST, "/v1/work/{id}/cancel",       Operate, Body,     State,  "WorkReply",      work::cancel),
    route(POST, "/v1/work/{id}/retry",        Operate, Body,     State,  "WorkReply",      work::retry),
    route(GET,  "/v1/executions",             View,    BY_STATE, Free,   "Page<ExecutionView>", executions::list),
    route(GET,  "/v1/executions/{id}",        View,    Nothing,  Free,   "ExecutionView",  executions::get),
    route(POST, "/v1/executions/{id}/cancel", Operate, Body,     State,  "ExecutionReply", executions::cancel),
    route(GET,  "/v1/waits",                  View,    BY_STATE, Free,   "Page<WaitView>", waits::list),
    route(GET,  "/v1/waits/{id}",             View,    Nothing,  Free,   "WaitView",       waits::get),
    route(GET,  "/v1/artifacts",              View,    OF_WORK,  Free,   "Page<ArtifactView>", artifacts::list),
    route(GET,  "/v1/artifacts/{id}",         View,    Nothing,  Free,   "ArtifactView",   artifacts::get),
    content(    "/v1/artifacts/{id}/content",                                             artifacts::recorded),
    route(GET,  "/v1/approvals",              View,    BY_STATE, Free,   "Page<ApprovalView>", approvals::list),
    route(GET,  "/v1/approvals/{id}",         View,    Nothing,  Free,   "ApprovalView",   approvals::get),
    route(POST, "/v1/approvals/{id}/approve", Operate, Body,     Free,   "ApprovalView",   approvals::approve),
    route(POST, "/v1/approvals/{id}/deny",    Operate, Body,     Free,   "ApprovalView",   approvals::deny),
    route(GET,  "/v1/gates",                  View,    Nothing,  Free,   "GatesView",      gates::get),
    route(POST, "/v1/gates/bypass",           Admin,   Body,     Keyed,  "BypassView",     gates::bypass),
    route(POST, "/v1/gates/restore",          Admin,   Body,     Free,   "GatesView",      gates::restore),
    route(GET,  "/v1/doubts",                 View,    NONE,     Free,   "Page<DoubtView>", doubts::list),
    route(POST, "/v1/doubts/resolve",         Operate, Body,     State,  "DoubtView",      doubts::resolve),
    route(GET,  "/v1/explain/{id}",           View,    Nothing,  Free,   "ExplainView",    explain::call),
    route(GET,  "/v1/executions/{id}/can-i/{id}", View, Nothing, Free,   "CanIView",       explain::can_execution),
    route(GET,  "/v1/scopes/{id}/bindings/{id}/can-i/{id}", View, Nothing, Free, "CanIView", explain::can_binding),
    route(GET,  "/v1/config",                 View,    Nothing,  Free,   "ConfigView",     config::get),
    waits(      "/v1/config/validate",        View,              Free,   "ConfigReply",    config::validate),
    waits(      "/v1/config/apply",           Admin,             Free,   "ConfigReply",    config::apply),
    waits(      "/v1/config/set",             Admin,             Free,   "ConfigReply",    config::set),
    route(GET,  "/v1/extensions",             View,    NONE,     Free,   "Page<ExtensionView>", extensions::list),
    acts(       "/v1/extensions/{id}/actions/{id}",                       "ActionReply",    extensions::act),
    route(GET,  "/v1/packages",               View,    NONE,     Free,   "Page<PackageView>", packages::list),
    route(GET,  "/v1/packages/{id}",          View,    Nothing,  Free,   "PackageView",    packages::get),
    route(POST, "/v1/packages",               Admin,   Body,     Free,   "PackageView",    packages::install),
    route(POST, "/v1/check/package",          Admin,   Body,     Free,   "PackageView",    packages::check),
    route(POST, "/v1/packages/{id}/remove",   Admin,   Body,     State,  "PackageView",    packages::remove),
];

/// Where a request belongs.
pub(crate) enum Matched {
    Route(&'static Route, Vec<String>),
    /// The path is a route's, for these methods.
    Methods(Vec<&'static Method>),
    Nowhere,
}

/// Finds the route of a method and a path's decoded segments.
pub(crate) fn find(method: &Method, segments: &[String]) -> Matched {
    let mut methods = Vec::new();
    for route in ROUTES {
        if let Some(path) = captured(route.path, segments) {
            if route.method == *method {
                return Matched::Route(route, path);
            }
            methods.push(&route.method);
        }
    }
    if methods.is_empty() { Matched::Nowhere } else { Matched::Methods(methods) }
}

/// What `segments` have in the places of the pattern's `{…}`; `None` when they do not match.
fn captured(pattern: &str, segments: &[String]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = segments.iter();
    for part in pattern.trim_start_matches('/').split('/') {
        let segment = rest.next()?;
        if part.starts_with('{') && !segment.is_empty() {
            found.push(segment.clone());
        } else if part != segment {
            return None;
        }
    }
    rest.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(method: &Method, path: &str) -> Matched {
        find(method, &conduit_daemon::path::segments(path).unwrap())
    }

    /// M08
    #[test]
    fn an_identifier_with_an_escaped_slash_is_one_segment() {
        assert!(matches!(at(&GET, "/v1/work/a%2Fb"), Matched::Route(_, path) if path == ["a/b"]));
        assert!(matches!(at(&GET, "/v1/work/a/b"), Matched::Nowhere));
        assert!(matches!(at(&GET, "/v1/work/"), Matched::Nowhere));
    }

    #[test]
    fn a_known_path_names_its_methods_and_an_unknown_one_nothing() {
        assert!(matches!(at(&Method::DELETE, "/v1/work"), Matched::Methods(m) if m == [&GET, &POST]));
        for path in ["/", "/v1", "/v2/work", "/v1/work/x/cancel/y", "//v1/work"] {
            assert!(matches!(at(&GET, path), Matched::Nowhere), "{path}");
        }
    }

    /// M04
    #[test]
    fn what_changes_something_needs_more_than_a_look() {
        for route in ROUTES {
            // An action has a role of its own.
            let acts = matches!(route.handler, Handler::Acts(_));
            let looks = route.method == GET || route.path.ends_with("/validate") || acts;
            assert_eq!(route.role == View, looks, "{} {}", route.method, route.path);
            assert_eq!(route.takes == Body, route.method == POST, "{} {}", route.method, route.path);
        }
        assert!(View < Operate && Operate < Admin);
        assert_eq!(Role::from_row("emperor"), View);
    }
}
