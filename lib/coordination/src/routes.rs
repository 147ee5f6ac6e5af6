//! Routes: what an Event leads to. The first route that matches decides; a pure function.

use conduit_config::{Effect, Route};
use serde_json::Value;

/// What a route looks at.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub kind: &'a str,
    pub source: &'a str,
    pub correlation_key: Option<&'a str>,
    pub data: &'a Value,
}

/// The first route that matches, and its place in the list.
pub fn decide<'r>(routes: &'r [Route], event: Facts<'_>) -> Option<(usize, &'r Effect)> {
    let holds = |route: &Route| route.matching.holds(event.kind, event.source, event.correlation_key, event.data);
    routes.iter().enumerate().find(|(_, route)| holds(route)).map(|(at, route)| (at, &route.effect))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_config::{Match, Pattern};
    use serde_json::json;
    use std::collections::BTreeMap;

    fn route(kind: Pattern, effect: Effect) -> Route {
        Route { matching: Match { kind, source: None, correlation_key: None, data: BTreeMap::new() }, effect }
    }

    #[test]
    fn the_first_route_that_matches_decides() {
        let exact = || Pattern::Exact("demo.x".into());
        let mut manual = route(exact(), Effect::Drop);
        manual.matching.source = Some("core.manual".into());
        let mut sized = route(exact(), Effect::Wake);
        sized.matching.data = BTreeMap::from([("/size".to_owned(), json!(3))]);
        let routes = [manual, sized, route(Pattern::Below("demo".into()), Effect::Start { binding: "b".into() })];
        let (data, other) = (json!({"size": 3}), json!({"size": 4}));
        let ask =
            |kind, source, data| decide(&routes, Facts { kind, source, correlation_key: None, data }).map(|(at, _)| at);
        assert_eq!(ask("demo.x", "core.manual", &data), Some(0));
        assert_eq!(ask("demo.x", "core", &data), Some(1));
        assert_eq!(ask("demo.x", "core", &other), Some(2));
        assert_eq!(ask("demo.y.z", "core", &data), Some(2));
        assert_eq!(ask("demo", "core", &data), None);
        assert_eq!(ask("demolition.x", "core", &data), None);
    }
}
