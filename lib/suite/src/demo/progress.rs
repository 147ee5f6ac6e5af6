//! What follows from an Event, as it happens.

use std::collections::BTreeMap;
use std::time::Duration;

use conduit_api::views::{ChainView, EventView, WorkView};
use conduit_api::{EventId, UnixMicros, WorkId};
use conduit_client::{AsyncClient, Call, ClientError, Method};
use serde_json::Value;

/// How often the chain is asked for; a person sees no difference below this.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How the Work that the Event started came out.
#[derive(Debug, Clone)]
pub struct Ending {
    pub work: WorkId,
    pub succeeded: bool,
}

/// Shows every Event that follows from `first`, until the Work that it started has ended.
pub async fn follow(client: &AsyncClient, first: &EventView, say: impl Fn(&str)) -> Result<Ending, ClientError> {
    let mut seen = 0;
    let mut titles = BTreeMap::new();
    loop {
        let chain: ChainView = get(client, &format!("/v1/events/{}/chain", first.id)).await?;
        for event in chain.events.iter().filter(|event| event.sequence > seen) {
            if let Some(work) = &event.work_id
                && !titles.contains_key(work)
            {
                let view: WorkView = get(client, &format!("/v1/work/{work}")).await?;
                titles.insert(work.clone(), view.title.unwrap_or(view.binding));
            }
            say(&line(event, first.accepted_at, &titles));
        }
        seen = chain.events.last().map_or(seen, |event| event.sequence.max(seen));
        if let Some(ending) = ended(&chain.events, &first.id) {
            return Ok(ending);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn get<T: serde::de::DeserializeOwned>(client: &AsyncClient, target: &str) -> Result<T, ClientError> {
    client.send(&Call::new(Method::Get, target)?).await?.read()
}

/// The Work that `first` started, once it has ended.
fn ended(events: &[EventView], first: &EventId) -> Option<Ending> {
    let started =
        events.iter().find(|event| event.kind == "core.work.created" && event.cause_id.as_ref() == Some(first))?;
    let work = started.work_id.clone()?;
    let finished =
        events.iter().find(|event| event.kind == "core.work.finished" && event.work_id.as_ref() == Some(&work))?;
    Some(Ending { work, succeeded: finished.data.get("state").and_then(Value::as_str) == Some("succeeded") })
}

/// One Event in a line: when, what, and of which Work.
fn line(event: &EventView, since: UnixMicros, titles: &BTreeMap<WorkId, String>) -> String {
    let seconds = (event.accepted_at.0 - since.0) as f64 / 1e6;
    let title = event.work_id.as_ref().and_then(|work| titles.get(work)).map_or("", String::as_str);
    let said = event
        .data
        .pointer("/outcome/summary")
        .and_then(Value::as_str)
        .map_or(String::new(), |text| format!(": {text}"));
    format!("  {seconds:7.3} s  {:<22} {title}{said}\n", event.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(n: u128, kind: &str, cause: Option<u128>, work: Option<u128>, data: Value) -> EventView {
        let id = |n| EventId::from_parts(1, n);
        serde_json::from_value(json!({
            "id": id(n), "sequence": n as i64, "scope_id": "demo", "type": kind, "source": "core", "delivery_id": "d",
            "cause_id": cause.map(id), "root_id": id(1), "depth": 0, "data": data, "accepted_at": UnixMicros(0),
            "work_id": work.map(|n| WorkId::from_parts(1, n)),
        }))
        .unwrap()
    }

    #[test]
    fn the_demonstration_ends_with_the_work_that_its_own_event_started() {
        let first = EventId::from_parts(1, 1);
        let mut events = vec![
            event(1, "demo.survey.requested", None, None, json!({})),
            event(2, "core.work.created", Some(1), Some(10), json!({})),
            event(3, "core.work.created", Some(2), Some(11), json!({})),
            event(4, "core.work.finished", Some(3), Some(11), json!({"state": "failed"})),
        ];
        assert!(ended(&events, &first).is_none());
        events.push(event(5, "core.work.finished", Some(2), Some(10), json!({"state": "succeeded"})));
        let ending = ended(&events, &first).unwrap();
        assert!(ending.succeeded && ending.work == WorkId::from_parts(1, 10));
    }
}
