//! A causal chain as a tree: each Event under the one that it follows from, with its time after the root.

use std::collections::{BTreeMap, BTreeSet};

use conduit_api::EventId;
use conduit_api::views::{ChainView, EventView};
use serde_json::Value;

use crate::table::{clean, cut};
use crate::when::{between, short};

/// Characters of the time column.
const TIME_CHARS: usize = 8;

/// The chain for people, in lines of at most `width` characters.
pub fn tree(chain: &ChainView, width: usize) -> String {
    let Some(first) = chain.events.first() else { return String::new() };
    let known: BTreeSet<&EventId> = chain.events.iter().map(|event| &event.id).collect();
    let mut below: BTreeMap<Option<&EventId>, Vec<&EventView>> = BTreeMap::new();
    for event in &chain.events {
        // A cause that was cut off leaves its Events at the root.
        below.entry(event.cause_id.as_ref().filter(|cause| known.contains(cause))).or_default().push(event);
    }
    let mut text = format!("{}  scope {}\n", short(first.accepted_at), first.scope_id);
    let mut open: Vec<Branch<'_>> = Vec::new();
    push(&mut open, below.get(&None), "", true);
    while let Some(Branch { event, lead, rest, .. }) = open.pop() {
        let time = format!("+{}", between(first.accepted_at, event.accepted_at));
        text += &cut(&format!("{time:>TIME_CHARS$}  {lead}{}", describe(event)), width);
        text.push('\n');
        push(&mut open, below.get(&Some(&event.id)), &rest, false);
    }
    if chain.truncated {
        text += &format!("The chain is longer; these are its first {} Events.\n", chain.events.len());
    }
    text
}

/// An Event that is still to be written.
struct Branch<'c> {
    event: &'c EventView,
    /// What stands before the Event, and before what follows from it.
    lead: String,
    rest: String,
}

/// Opens the branches of `events`, the first on top.
fn push<'c>(open: &mut Vec<Branch<'c>>, events: Option<&Vec<&'c EventView>>, before: &str, root: bool) {
    let events = events.map_or(&[][..], Vec::as_slice);
    for (at, event) in events.iter().enumerate().rev() {
        let (lead, rest) = match (root, at + 1 == events.len()) {
            (true, _) => ("", ""),
            (false, true) => ("└─ ", "   "),
            (false, false) => ("├─ ", "│  "),
        };
        open.push(Branch { event, lead: format!("{before}{lead}"), rest: format!("{before}{rest}") });
    }
}

/// `demo.survey.counted  evt_…  wrk_…  → start`
fn describe(event: &EventView) -> String {
    let mut text = format!("{}  {}", event.kind, event.id);
    text += &event.work_id.as_ref().map_or_else(String::new, |work| format!("  {work}"));
    text += &event.actor.as_ref().map_or_else(String::new, |actor| format!("  by {actor}"));
    match event.route.as_deref() {
        None => text += "  (not routed yet)",
        Some("unmatched") => {}
        Some(route) => text += &format!("  → {route}"),
    }
    let summary = event.data.pointer("/outcome/summary").or_else(|| event.data.get("summary"));
    text += &summary.and_then(Value::as_str).map_or_else(String::new, |summary| format!("  “{summary}”"));
    clean(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::UnixMicros;
    use serde_json::json;

    fn event(n: i64, cause: Option<i64>, kind: &str) -> EventView {
        let id = |n: i64| EventId::from_parts(n.unsigned_abs(), 0);
        EventView {
            id: id(n),
            sequence: n,
            scope_id: "demo".parse().unwrap(),
            kind: kind.to_owned(),
            source: "core".into(),
            delivery_id: n.to_string(),
            correlation_key: None,
            work_id: None,
            execution_id: None,
            cause_id: cause.map(id),
            root_id: id(1),
            depth: 0,
            actor: None,
            schema: None,
            data: json!({}),
            accepted_at: UnixMicros(n * 1_500_000),
            route: Some("unmatched".into()),
        }
    }

    fn shapes(events: Vec<EventView>, truncated: bool) -> Vec<String> {
        let chain = ChainView { root_id: events[0].id.clone(), events, truncated };
        let lines = tree(&chain, usize::MAX);
        lines.lines().map(|line| line.split("  evt_").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_event_stands_under_its_cause_with_its_time_after_the_root() {
        let events = vec![
            event(1, None, "a.root"),
            event(2, Some(1), "a.one"),
            event(3, Some(1), "a.two"),
            event(4, Some(2), "a.one.below"),
            event(5, Some(3), "a.two.below"),
        ];
        assert_eq!(
            shapes(events, false),
            [
                "1970-01-01T00:00:01Z  scope demo",
                "    +0ms  a.root",
                " +1.500s  ├─ a.one",
                " +4.500s  │  └─ a.one.below",
                " +3.000s  └─ a.two",
                " +6.000s     └─ a.two.below",
            ]
        );
    }

    #[test]
    fn a_chain_that_is_cut_says_so_and_fits_its_lines() {
        let events: Vec<EventView> = (1..500).map(|n| event(n, (n > 1).then_some(n - 1), "a.deep")).collect();
        let lines = shapes(events.clone(), true);
        assert!(lines.last().unwrap().contains("first 499 Events"));
        let chain = ChainView { root_id: events[0].id.clone(), events, truncated: false };
        assert!(tree(&chain, 60).lines().all(|line| line.chars().count() <= 60));
    }
}
