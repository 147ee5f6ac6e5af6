//! How each view looks to people: the columns of its list, and the fields of one.

mod extensions;

pub(crate) use extensions::limits as package_limits;

use conduit_api::UnixMicros;
use conduit_api::toolbelt::WaitMode;
use conduit_api::views::{
    ArtifactView, ConfigView, EventView, ExecutionView, HealthView, PredicateView, ScopeView, WaitView, WorkView,
};
use extensions::failing;
use serde_json::{Map, Value};

use crate::table::{Column, clean};
use crate::when::{age, between, short, with_age};

/// A view that stands in a list.
pub trait Listed {
    const COLUMNS: &'static [Column];
    fn cells(&self, now: UnixMicros) -> Vec<String>;
}

/// A view that is shown by itself.
pub trait Single {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)>;
}

/// What stands for a value that is not there.
const NONE: &str = "-";

fn or_none<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| clean(&value.to_string()))
}

fn joined(texts: &[String]) -> String {
    if texts.is_empty() { NONE.to_owned() } else { clean(&texts.join(", ")) }
}

/// `ready 3, running 1`
fn counts(work: &Map<String, Value>) -> String {
    joined(&work.iter().map(|(state, n)| format!("{state} {n}")).collect::<Vec<_>>())
}

/// A document for people: its lines, each cleaned.
fn document(value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).unwrap_or_default(); // a Value can always be written
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// Leaves out what is not there.
fn present(fields: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    fields.into_iter().filter(|(_, value)| value != NONE).collect()
}

impl Single for HealthView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        let part = |up: bool| if up { "running" } else { "away" }.to_owned();
        let mut fields = vec![
            ("status", clean(&self.status)),
            ("version", clean(&self.version)),
            ("scheduler", part(self.scheduler)),
            ("endpoints", part(self.endpointd)),
            ("configuration", format!("generation {} ({:.12})", self.generation, clean(&self.config_hash))),
            ("work", counts(&self.work)),
            ("executions", format!("{} not ended", self.executions_live)),
            ("events", self.events.to_string()),
        ];
        fields.extend(self.packages_failing.iter().map(|failure| ("package", failing(failure, now))));
        fields
    }
}

impl Listed for ScopeView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("SCOPE"),
        Column::fixed("ENABLED"),
        Column::flexible("BINDINGS"),
        Column::fixed("ROUTES"),
        Column::flexible("WORK"),
    ];
    fn cells(&self, _now: UnixMicros) -> Vec<String> {
        let enabled = if self.enabled { "yes" } else { "no" };
        vec![
            self.id.to_string(),
            enabled.to_owned(),
            joined(&self.bindings),
            self.routes.to_string(),
            counts(&self.work),
        ]
    }
}

impl Single for ScopeView {
    fn fields(&self, _now: UnixMicros) -> Vec<(&'static str, String)> {
        vec![
            ("scope", self.id.to_string()),
            ("enabled", if self.enabled { "yes" } else { "no" }.to_owned()),
            ("bindings", joined(&self.bindings)),
            ("routes", self.routes.to_string()),
            ("generation", self.generation.to_string()),
            ("work", counts(&self.work)),
        ]
    }
}

impl Listed for EventView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("EVENT"),
        Column::fixed("SEQ"),
        Column::fixed("SCOPE"),
        Column::flexible("TYPE"),
        Column::flexible("SOURCE"),
        Column::fixed("ROUTE"),
        Column::fixed("AGE"),
    ];
    fn cells(&self, now: UnixMicros) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.sequence.to_string(),
            self.scope_id.to_string(),
            clean(&self.kind),
            clean(&self.source),
            self.route.as_deref().map_or_else(|| "pending".to_owned(), clean),
            age(self.accepted_at, now),
        ]
    }
}

impl Single for EventView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        present(vec![
            ("event", self.id.to_string()),
            ("sequence", self.sequence.to_string()),
            ("scope", self.scope_id.to_string()),
            ("type", clean(&self.kind)),
            ("source", clean(&self.source)),
            ("actor", or_none(self.actor.as_ref())),
            ("delivery", clean(&self.delivery_id)),
            ("key", or_none(self.correlation_key.as_ref())),
            ("work", or_none(self.work_id.as_ref())),
            ("execution", or_none(self.execution_id.as_ref())),
            ("cause", or_none(self.cause_id.as_ref())),
            ("root", format!("{} (depth {})", self.root_id, self.depth)),
            ("accepted", with_age(self.accepted_at, now)),
            ("route", self.route.as_deref().map_or_else(|| "pending".to_owned(), clean)),
            ("schema", or_none(self.schema.as_ref())),
            ("data", document(&self.data)),
        ])
    }
}

impl Listed for WorkView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("WORK"),
        Column::fixed("SCOPE"),
        Column::flexible("BINDING"),
        Column::fixed("STATE"),
        Column::flexible("TITLE"),
        Column::flexible("OUTCOME"),
        Column::fixed("AGE"),
    ];
    fn cells(&self, now: UnixMicros) -> Vec<String> {
        let summary = self.outcome.as_ref().and_then(|outcome| outcome.get("summary")).and_then(Value::as_str);
        vec![
            self.id.to_string(),
            self.scope_id.to_string(),
            clean(&self.binding),
            clean(&self.state),
            or_none(self.title.as_ref()),
            self.blocked_reason.as_deref().or(summary).map_or_else(|| NONE.to_owned(), clean),
            age(self.created_at, now),
        ]
    }
}

impl Single for WorkView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        present(vec![
            ("work", self.id.to_string()),
            ("scope", self.scope_id.to_string()),
            ("binding", clean(&self.binding)),
            ("title", or_none(self.title.as_ref())),
            ("state", clean(&self.state)),
            ("blocked", or_none(self.blocked_reason.as_ref())),
            ("parent", or_none(self.parent_work_id.as_ref())),
            ("created by", self.created_event_id.to_string()),
            ("keys", joined(&self.keys)),
            ("epoch", self.epoch.to_string()),
            ("failures", self.failures.to_string()),
            ("created", with_age(self.created_at, now)),
            ("updated", with_age(self.updated_at, now)),
            ("finished", self.finished_at.map_or_else(|| NONE.to_owned(), |at| with_age(at, now))),
            ("outcome", self.outcome.as_ref().map_or_else(|| NONE.to_owned(), document)),
        ])
    }
}

impl Listed for ExecutionView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("EXECUTION"),
        Column::fixed("WORK"),
        Column::flexible("BINDING"),
        Column::fixed("ATTEMPT"),
        Column::fixed("STATE"),
        Column::flexible("CODE"),
        Column::fixed("TOOK"),
        Column::fixed("AGE"),
    ];
    fn cells(&self, now: UnixMicros) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.work_id.to_string(),
            clean(&self.binding),
            self.attempt.to_string(),
            clean(&self.state),
            or_none(self.code.as_ref()),
            took(self, now),
            age(self.created_at, now),
        ]
    }
}

/// How long it has run, or ran.
fn took(execution: &ExecutionView, now: UnixMicros) -> String {
    let ended = execution.finished_at.unwrap_or(now);
    execution.started_at.map_or_else(|| NONE.to_owned(), |started| between(started, ended))
}

impl Single for ExecutionView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        let at = |at: Option<UnixMicros>| at.map_or_else(|| NONE.to_owned(), |at| with_age(at, now));
        present(vec![
            ("execution", self.id.to_string()),
            ("work", self.work_id.to_string()),
            ("scope", self.scope_id.to_string()),
            ("binding", clean(&self.binding)),
            ("generation", self.generation.to_string()),
            ("attempt", format!("{} (epoch {}, segment {})", self.attempt, self.epoch, self.segment)),
            ("state", clean(&self.state)),
            ("kernel attempt", or_none(self.attempt_id.as_ref())),
            ("created", with_age(self.created_at, now)),
            ("gates bypassed", at(self.gates_bypassed_at)),
            ("started", at(self.started_at)),
            ("deadline", at(self.deadline_at.filter(|_| self.finished_at.is_none()))),
            ("finished", at(self.finished_at)),
            ("took", took(self, now)),
            ("code", or_none(self.code.as_ref())),
            ("message", or_none(self.message.as_ref())),
            ("usage", self.usage.as_ref().map_or_else(|| NONE.to_owned(), document)),
        ])
    }
}

/// `all, 2 of 3 matched`
fn progress(wait: &WaitView) -> String {
    let mode = match wait.mode {
        WaitMode::Any => "any",
        WaitMode::All => "all",
    };
    let matched = wait.predicates.iter().filter(|predicate| predicate.matched_event_id.is_some()).count();
    format!("{mode}, {matched} of {} matched", wait.predicates.len())
}

/// `core.work.finished work=wrk_… ✓evt_…`
fn predicate(view: &PredicateView) -> String {
    let wanted = &view.predicate;
    let mut text = wanted.kind.clone();
    for (name, value) in [
        ("work", wanted.work_id.as_ref().map(ToString::to_string)),
        ("key", wanted.correlation_key.clone()),
        ("source", wanted.source.clone()),
    ] {
        text += &value.map_or_else(String::new, |value| format!(" {name}={value}"));
    }
    for (pointer, value) in &wanted.data {
        text += &format!(" {pointer}={value}");
    }
    text += &view.matched_event_id.as_ref().map_or_else(String::new, |event| format!(" matched by {event}"));
    clean(&text)
}

impl Listed for WaitView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("WAIT"),
        Column::fixed("WORK"),
        Column::fixed("STATE"),
        Column::flexible("PROGRESS"),
        Column::fixed("TIMEOUT"),
        Column::fixed("AGE"),
    ];
    fn cells(&self, now: UnixMicros) -> Vec<String> {
        let pending = self.finished_at.is_none();
        vec![
            self.id.to_string(),
            self.work_id.to_string(),
            clean(&self.state),
            progress(self),
            self.timeout_at.filter(|_| pending).map_or_else(|| NONE.to_owned(), |at| format!("in {}", age(now, at))),
            age(self.created_at, now),
        ]
    }
}

impl Single for WaitView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        let at = |at: Option<UnixMicros>| at.map_or_else(|| NONE.to_owned(), |at| with_age(at, now));
        present(vec![
            ("wait", self.id.to_string()),
            ("work", self.work_id.to_string()),
            ("execution", self.execution_id.to_string()),
            ("scope", self.scope_id.to_string()),
            ("state", clean(&self.state)),
            ("mode", progress(self)),
            ("watermark", self.watermark.to_string()),
            ("created", with_age(self.created_at, now)),
            ("timeout", at(self.timeout_at)),
            ("finished", at(self.finished_at)),
            ("for", self.predicates.iter().map(predicate).collect::<Vec<_>>().join("\n")),
        ])
    }
}

/// `12 B`, `3.4 KiB`, `1.0 MiB`
pub fn size(bytes: i64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = i128::from(bytes) * 10 / 1024;
    for unit in UNITS {
        if tenths < 10 * 1024 || unit == UNITS[UNITS.len() - 1] {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        tenths /= 1024;
    }
    format!("{bytes} B")
}

impl Listed for ArtifactView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("ARTIFACT"),
        Column::fixed("WORK"),
        Column::flexible("NAME"),
        Column::fixed("SEGMENT"),
        Column::fixed("SIZE"),
        Column::flexible("TYPE"),
        Column::fixed("AGE"),
    ];
    fn cells(&self, now: UnixMicros) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.work_id.to_string(),
            clean(&self.name),
            self.segment.to_string(),
            size(self.bytes),
            clean(&self.media_type),
            age(self.created_at, now),
        ]
    }
}

impl Single for ArtifactView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        vec![
            ("artifact", self.id.to_string()),
            ("work", self.work_id.to_string()),
            ("execution", format!("{} (segment {})", self.execution_id, self.segment)),
            ("scope", self.scope_id.to_string()),
            ("name", clean(&self.name)),
            ("type", clean(&self.media_type)),
            ("size", size(self.bytes)),
            ("dropped", size(self.dropped_bytes)),
            ("sha256", clean(&self.digest)),
            ("created", with_age(self.created_at, now)),
        ]
    }
}

impl Single for ConfigView {
    fn fields(&self, _now: UnixMicros) -> Vec<(&'static str, String)> {
        vec![
            ("generation", self.generation.to_string()),
            ("sha256", clean(&self.config_hash)),
            ("published", format!("{} by {}", short(self.published_at), clean(&self.published_by))),
            ("config", document(&self.config)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_in_the_unit_that_it_fills() {
        assert_eq!(
            [0, 1023, 1024, 3_482, 1 << 20, 5 << 30, i64::MAX].map(size),
            ["0 B", "1023 B", "1.0 KiB", "3.4 KiB", "1.0 MiB", "5.0 GiB", "8388607.9 TiB"]
        );
    }
}
