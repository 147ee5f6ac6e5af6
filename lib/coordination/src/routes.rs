//! Routes: what an Event leads to. The first route that matches decides; a pure function.

use serde_json::{Map, Value};

use crate::waits::decide::data_matches;

/// What a matching route does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A new Work of this binding, with the Event as its input; or its input only, when a Work that has not ended owns the Event's key.
    Start { binding: String },
    /// Input for the next segment of the Work that the Event is for.
    Queue,
    /// Input for the running segment at once, else for the next.
    Inject,
    /// Input, and the running segment is stopped so that the next one sees it.
    Interrupt,
    /// Input, and a waiting Work goes on at once.
    Wake,
    /// Nothing.
    Drop,
}

impl Effect {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Queue => "queue",
            Self::Inject => "inject",
            Self::Interrupt => "interrupt",
            Self::Wake => "wake",
            Self::Drop => "drop",
        }
    }
}

/// One route: everything that is given has to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// An event type, or a family as `demo.survey.*`.
    pub kind: Option<String>,
    pub source: Option<String>,
    pub correlation_key: Option<String>,
    /// JSON pointers into the data, and the values that have to stand there.
    pub data: Map<String, Value>,
    pub effect: Effect,
}

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
    routes.iter().enumerate().find(|(_, route)| matches(route, event)).map(|(at, route)| (at, &route.effect))
}

fn matches(route: &Route, event: Facts<'_>) -> bool {
    let kind = route.kind.as_deref().is_none_or(|wanted| match wanted.strip_suffix(".*") {
        Some(family) => conduit_api::id::in_family(event.kind, family) && event.kind != family,
        None => wanted == event.kind,
    });
    kind && route.source.as_deref().is_none_or(|wanted| wanted == event.source)
        && route.correlation_key.as_deref().is_none_or(|wanted| event.correlation_key == Some(wanted))
        && data_matches(&route.data, event.data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn route(kind: &str, effect: Effect) -> Route {
        Route { kind: Some(kind.into()), source: None, correlation_key: None, data: Map::new(), effect }
    }

    #[test]
    fn the_first_route_that_matches_decides() {
        let routes = [
            Route { source: Some("core.manual".into()), ..route("demo.x", Effect::Drop) },
            Route { data: json!({"/size": 3}).as_object().unwrap().clone(), ..route("demo.x", Effect::Wake) },
            route("demo.*", Effect::Start { binding: "b".into() }),
        ];
        let data = json!({"size": 3});
        let ask =
            |kind, source, data| decide(&routes, Facts { kind, source, correlation_key: None, data }).map(|(at, _)| at);
        assert_eq!(ask("demo.x", "core.manual", &data), Some(0));
        assert_eq!(ask("demo.x", "core", &data), Some(1));
        assert_eq!(ask("demo.x", "core", &json!({"size": 4})), Some(2));
        assert_eq!(ask("demo.y.z", "core", &data), Some(2));
        assert_eq!(ask("demo", "core", &data), None);
        assert_eq!(ask("demolition.x", "core", &data), None);
    }
}
