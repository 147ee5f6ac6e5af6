//! What a run socket answers (E02): a table, matched before anything else is looked at.

use conduit_api::{ApiError, Code, http as wire};
use conduit_daemon::http::Method;

/// The routes of a run socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Call,
    Guidance,
    Serving,
}

/// Every route with its method; docs/api.md is read off it.
pub static ROUTES: &[(Method, &str, Route)] = &[
    (Method::POST, wire::TOOLBELT_CALL, Route::Call),
    (Method::GET, wire::TOOLBELT_GUIDANCE, Route::Guidance),
    (Method::GET, wire::TOOLBELT_SERVING, Route::Serving),
];

/// Finds the route of a raw path. Authority is not asked yet: `not_found` for every other path, also for those that
/// operators use elsewhere, and then `method_not_allowed`.
pub fn find(method: &Method, path: &str) -> Result<Route, ApiError> {
    let Some((takes, _, route)) = ROUTES.iter().find(|(_, known, _)| *known == path) else {
        return Err(ApiError::new(Code::NotFound, "there is no such route on this socket"));
    };
    if method != takes {
        return Err(ApiError::new(Code::MethodNotAllowed, format!("this route takes {takes}")));
    }
    Ok(*route)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E02
    #[test]
    fn every_path_but_three_is_not_found_whatever_the_method() {
        for (method, path, route) in ROUTES {
            assert_eq!(find(method, path), Ok(*route));
            assert_eq!(find(&Method::DELETE, path).unwrap_err().code, Code::MethodNotAllowed);
        }
        for path in
            ["/", "/v1/executions", "/v1/toolbelt", "/v1/toolbelt/call/", "/v1//toolbelt/call", "/v1/toolbelt/c%61ll"]
        {
            for method in [Method::GET, Method::POST, Method::OPTIONS] {
                assert_eq!(find(&method, path).unwrap_err().code, Code::NotFound, "{path}");
            }
        }
    }
}
