//! Every route of the table, asked in every way in which it has to refuse.

mod server;

use conduit_api::limits::BODY_BYTES_MAX;
use conduit_management::routes::{ROUTES, Role, Route, Takes};
use server::{Answer, Ask, Server};

/// A request for `route` that has all it needs but a credential.
fn proper(route: &Route) -> Ask {
    let target = route.path.replace("{id}", "wrk_00000000000000000000000000");
    let ask = Ask::new(route.method.as_str(), &target);
    if route.takes == Takes::Body { ask.json("{}") } else { ask }
}

fn refusal(code: &str, status: u16) -> (u16, String) {
    (status, code.to_owned())
}

/// M02
#[test]
fn every_route_refuses_who_shows_no_operator_credential() {
    let server = Server::start();
    for route in ROUTES {
        let name = format!("{} {}", route.method, route.path);
        let ask = proper(route);
        let told: Vec<Answer> = [
            ask.clone(),
            ask.clone().bearer("forged"),
            ask.clone().header("authorization", "Basic bG9jYWw6"),
            ask.clone().bearer(&server.token()).bearer("forged"),
            ask.bearer(&server.token().to_lowercase()),
        ]
        .iter()
        .map(|ask| server.send(ask))
        .collect();
        for answer in &told {
            assert_eq!(answer.refusal(), refusal("unauthenticated", 401), "{name}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{name}");
            assert_eq!(answer.json()["error"]["message"], told[0].json()["error"]["message"], "no answer tells more");
        }
    }
}

/// E08
#[test]
fn an_execution_token_is_of_the_wrong_class_on_every_route_and_beside_them() {
    let server = Server::start();
    let tokens = server.execution("exe_00000000000000000000000001", &server.work(), "running");
    for token in &tokens {
        for route in ROUTES {
            let answer = server.send(&proper(route).bearer(token));
            assert_eq!(answer.refusal(), refusal("wrong_credential_class", 403), "{} {}", route.method, route.path);
            let answer = server.send(&Ask::new("PATCH", &proper(route).target).bearer(token));
            assert_eq!(answer.refusal(), refusal("wrong_credential_class", 403), "PATCH {}", route.path);
        }
        for path in ["/v1/toolbelt/call", "/v1/toolbelt/guidance", "/v1/toolbelt/serving?capability=x", "/", "/nowhere"]
        {
            let answer = server.send(&Ask::new("POST", path).bearer(token).json("{}"));
            assert_eq!(answer.refusal(), refusal("wrong_credential_class", 403), "{path}");
        }
    }
    // An operator finds none of them here (M02).
    for path in ["/v1/toolbelt/call", "/v1/toolbelt/guidance"] {
        assert_eq!(server.get(path).refusal(), refusal("not_found", 404));
    }
}

/// M04
#[test]
fn every_route_refuses_a_role_that_does_not_reach_it_before_it_reads_a_body() {
    let server = Server::start();
    for role in [Role::View, Role::Operate, Role::Admin] {
        let token = server.operator(&format!("named-{}", role.as_str()), role.as_str());
        for route in ROUTES {
            let mut ask = proper(route).bearer(&token);
            if route.takes == Takes::Body {
                ask.body = b"not json".to_vec();
            }
            let answer = server.send(&ask);
            let refused = answer.status == 403 && answer.refusal().1 == "forbidden_role";
            assert_eq!(refused, role < route.role, "{} {} as {}: {answer:?}", route.method, route.path, role.as_str());
        }
    }
}

/// M07
#[test]
fn every_route_refuses_other_methods_and_says_which_it_takes() {
    let server = Server::start();
    for route in ROUTES {
        let target = proper(route).target;
        let taken: Vec<&str> = ROUTES.iter().filter(|r| r.path == route.path).map(|r| r.method.as_str()).collect();
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"] {
            if taken.contains(&method) {
                continue;
            }
            let answer = server.send(&Ask::new(method, &target).bearer(&server.token()));
            assert_eq!(answer.status, 405, "{method} {target}");
            assert_eq!(answer.header("allow"), Some(taken.join(", ").as_str()));
            if method != "HEAD" {
                assert_eq!(answer.refusal(), refusal("method_not_allowed", 405));
            }
        }
    }
    for path in ["/", "/v1", "/v1/", "/v1/nothing", "/v2/health", "/v1/work/a/b", "/v1//work"] {
        assert_eq!(server.get(path).refusal(), refusal("not_found", 404), "{path}");
    }
    assert_eq!(server.get("/v1/work/%zz").refusal(), refusal("invalid_request", 400));
}

/// M07
#[test]
fn every_mutation_refuses_a_body_that_is_not_strict_json() {
    let server = Server::start();
    for route in ROUTES.iter().filter(|route| route.takes == Takes::Body) {
        let name = format!("{} {}", route.method, route.path);
        let bare = Ask { headers: Vec::new(), ..proper(route) }.bearer(&server.token());
        let with = |body: &str| server.send(&Ask { body: Vec::new(), ..bare.clone() }.json(body)).refusal();

        assert_eq!(server.send(&bare).refusal(), refusal("unsupported_media_type", 415), "{name}");
        let text = bare.clone().header("content-type", "text/plain");
        assert_eq!(server.send(&text).refusal(), refusal("unsupported_media_type", 415), "{name}");

        let large = format!("{{\"x\":\"{}\"}}", "x".repeat(BODY_BYTES_MAX));
        assert_eq!(with(&large), refusal("body_too_large", 413), "{name}");

        for body in [
            "not json",
            "[]",
            "{} {}",
            "\u{feff}{}",
            r#"{"nonsense":1}"#,
            r#"{"scope_id":"demo","scope_id":"demo"}"#,
            r#"{"config":{},"config":{}}"#,
            r#"{"scope_id":null}"#,
            r#"{"config":{},"expected_generation":null}"#,
            r#"{"scope_id":"demo","type":"demo.x","data":{"a":1,"a":2}}"#,
            r#"{"scope_id":"demo","type":"demo.x","data":{"a":null}}"#,
        ] {
            assert_eq!(with(body), refusal("invalid_request", 400), "{name} {body}");
        }
        let ask = Ask { target: bare.target.clone() + "?x=1", ..bare.clone() }.json("{}");
        assert_eq!(server.send(&ask).refusal(), refusal("invalid_request", 400), "{name} with a query");
    }
}

#[test]
fn every_list_refuses_a_query_that_it_does_not_understand() {
    let server = Server::start();
    let cursor = "d29yayAxIHdya18wMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA";
    for route in ROUTES.iter().filter(|route| route.method == "GET") {
        let refused = |query: &str| server.get(&format!("{}?{query}", proper(route).target)).refusal();
        for query in [
            "limit=0",
            "limit=501",
            "limit=x",
            "limit=1&limit=2",
            "nonsense=1",
            "state=asleep",
            "work_id=evt_x",
            "scope_id=A",
        ] {
            assert_eq!(refused(query), refusal("invalid_request", 400), "{} {query}", route.path);
        }
        if matches!(route.takes, Takes::Page(_)) {
            assert_eq!(refused("cursor=x"), refusal("invalid_cursor", 400), "{}", route.path);
            if route.path != "/v1/work" {
                assert_eq!(refused(&format!("cursor={cursor}")), refusal("invalid_cursor", 400), "{}", route.path);
            }
        } else {
            assert_eq!(refused("cursor=x"), refusal("invalid_request", 400), "{}", route.path);
        }
    }
}

#[test]
fn what_is_not_there_is_not_found_whatever_is_named() {
    let server = Server::start();
    for route in ROUTES.iter().filter(|route| route.path.contains("{id}")) {
        for id in ["wrk_00000000000000000000000000", "evt_00000000000000000000000000", "nonsense", "a%2Fb", "%00"] {
            let mut ask = Ask { target: route.path.replace("{id}", id), ..proper(route) };
            if route.path.contains("/actions/") {
                ask.body = br#"{"scope_id":"demo","input":{}}"#.to_vec();
            }
            let answer = server.send(&ask.bearer(&server.token()));
            assert_eq!(answer.refusal(), refusal("not_found", 404), "{} {} {id}", route.method, route.path);
        }
    }
}
