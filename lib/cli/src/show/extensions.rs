//! How the views of what extensions add look to people.

use conduit_api::UnixMicros;
use conduit_api::views::{
    ActionReply, ApprovalView, BypassView, CanIView, CheckView, DoubtView, ExplainView, ExtensionView, GatesView,
    PackageFailure, PackageLimits, PackageView,
};

use super::{Listed, NONE, Single, document, joined, or_none, present};
use crate::table::{Column, clean};
use crate::when::{age, with_age};

/// `weather: failing since …: why`
pub(super) fn failing(failure: &PackageFailure, now: UnixMicros) -> String {
    clean(&format!("{}: failing since {}: {}", failure.name, with_age(failure.since, now), failure.why))
}

impl Listed for PackageView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("PACKAGE"),
        Column::fixed("VERSION"),
        Column::fixed("ENABLED"),
        Column::flexible("SUMMARY"),
        Column::flexible("STATE"),
    ];

    fn cells(&self, now: UnixMicros) -> Vec<String> {
        let enabled = if self.enabled { "yes" } else { "no" };
        let state = self.failing.as_ref().map_or_else(|| "ok".to_owned(), |failure| failing(failure, now));
        vec![clean(&self.name), self.version.to_string(), enabled.to_owned(), clean(&self.summary), state]
    }
}

/// What one process may use.
pub(crate) fn limits(limits: PackageLimits) -> String {
    let PackageLimits { memory_mib, files, file_mib } = limits;
    format!("for each process {memory_mib} MiB of memory, {files} open files, files of {file_mib} MiB")
}

impl Single for PackageView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("package", clean(&self.name)),
            ("version", self.version.to_string()),
            ("summary", clean(&self.summary)),
            ("operations", joined(&self.operations)),
            ("toolsets", joined(&self.toolsets)),
            ("actions", joined(&self.actions)),
            ("executors", joined(&self.executors)),
            ("permissions", joined(&self.permissions)),
            ("limits", limits(self.limits)),
            ("digest", clean(&self.digest)),
        ];
        if let Some(replaces) = self.replaces {
            fields.push(("replaces", replaces.to_string()));
        }
        if let (Some(at), Some(by)) = (self.installed_at, &self.installed_by) {
            fields.push(("enabled", if self.enabled { "yes" } else { "no" }.to_owned()));
            fields.push(("installed", format!("{} by {}", with_age(at, now), clean(by))));
        }
        fields.extend(self.failing.iter().map(|failure| ("state", failing(failure, now))));
        fields
    }
}

impl Listed for ExtensionView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("EXTENSION"),
        Column::fixed("VERSION"),
        Column::fixed("ACTIVE"),
        Column::flexible("SCOPES"),
        Column::flexible("ACTIONS"),
        Column::flexible("SUMMARY"),
    ];

    fn cells(&self, _now: UnixMicros) -> Vec<String> {
        let active = if self.active { "yes" } else { "no" };
        let scopes = self.scopes.as_ref().map_or_else(|| "all".to_owned(), |scopes| joined(scopes));
        let actions: Vec<String> =
            self.actions.iter().map(|action| format!("{} ({})", action.name, action.role)).collect();
        let (name, summary) = (clean(&self.name), clean(&self.summary));
        vec![name, self.version.to_string(), active.to_owned(), scopes, joined(&actions), summary]
    }
}

impl Single for ActionReply {
    fn fields(&self, _now: UnixMicros) -> Vec<(&'static str, String)> {
        vec![
            ("action", clean(&self.action)),
            ("scope", self.scope_id.to_string()),
            ("event", self.event_id.to_string()),
            ("before", if self.replayed { "yes" } else { "no" }.to_owned()),
            ("output", document(&self.output)),
        ]
    }
}

impl Listed for ApprovalView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("APPROVAL"),
        Column::fixed("STATE"),
        Column::fixed("SCOPE"),
        Column::flexible("BINDING"),
        Column::flexible("ASKS FOR"),
        Column::fixed("WORK"),
        Column::fixed("AGE"),
    ];
    fn cells(&self, now: UnixMicros) -> Vec<String> {
        vec![
            self.id.to_string(),
            clean(&self.state),
            self.scope_id.to_string(),
            clean(&self.binding),
            asks_for(self),
            self.work_id.to_string(),
            age(self.created_at, now),
        ]
    }
}

/// What is asked for: an operation, or the start of the Work.
fn asks_for(approval: &ApprovalView) -> String {
    approval.operation.as_deref().map_or_else(|| "the start of the Work".to_owned(), clean)
}

/// One line for each rule, in the order in which they are asked.
fn checks(checks: &[CheckView]) -> String {
    let line =
        |check: &CheckView| format!("{}  {:<9}  {}", check.check, check.outcome.as_str(), clean(&check.refuses_when));
    if checks.is_empty() {
        return "none: the call ended before it was decided".to_owned();
    }
    let lines = checks.iter().map(line).collect::<Vec<_>>().join("\n");
    format!("#  outcome    refuses when\n{lines}")
}

impl Single for CanIView {
    fn fields(&self, _now: UnixMicros) -> Vec<(&'static str, String)> {
        present(vec![
            ("allowed", if self.allowed { "yes" } else { "no" }.to_owned()),
            ("operation", clean(&self.operation)),
            ("scope", self.scope_id.to_string()),
            ("binding", clean(&self.binding)),
            ("execution", or_none(self.execution_id.as_ref())),
            ("generation", self.generation.to_string()),
            ("checks", checks(&self.checks)),
        ])
    }
}

impl Single for ExplainView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        let mut fields = vec![("request", clean(&self.request_id))];
        for call in &self.calls {
            let generation = call.generation.map_or_else(|| NONE.to_owned(), |generation| generation.to_string());
            fields.extend(present(vec![
                ("call", with_age(call.at, now)),
                ("operation", clean(&call.operation)),
                ("result", clean(&call.result)),
                ("refused as", or_none(call.rule.as_ref())),
                ("because of", or_none(call.refusal.as_ref())),
                ("gate", or_none(call.gate.as_ref())),
                ("scope", or_none(call.scope_id.as_ref())),
                ("work", or_none(call.work_id.as_ref())),
                ("execution", or_none(call.execution_id.as_ref())),
                ("generation", generation),
                ("checks", checks(&call.checks)),
            ]));
        }
        fields
    }
}

impl Listed for DoubtView {
    const COLUMNS: &'static [Column] = &[
        Column::fixed("EXECUTION"),
        Column::flexible("OPERATION"),
        Column::flexible("REQUEST"),
        Column::fixed("SCOPE"),
        Column::flexible("BINDING"),
        Column::fixed("AGE"),
    ];
    fn cells(&self, now: UnixMicros) -> Vec<String> {
        vec![
            self.execution_id.to_string(),
            clean(&self.operation),
            clean(&self.request_id),
            self.scope_id.to_string(),
            clean(&self.binding),
            age(self.began_at, now),
        ]
    }
}

impl Single for DoubtView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        vec![
            ("execution", self.execution_id.to_string()),
            ("operation", clean(&self.operation)),
            ("request", clean(&self.request_id)),
            ("scope", self.scope_id.to_string()),
            ("binding", clean(&self.binding)),
            ("work", self.work_id.to_string()),
            ("began", with_age(self.began_at, now)),
        ]
    }
}

impl Single for ApprovalView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        let at = |at: Option<UnixMicros>| at.map_or_else(|| NONE.to_owned(), |at| with_age(at, now));
        let input = if self.operation.is_some() { document(&self.input) } else { NONE.to_owned() };
        present(vec![
            ("approval", self.id.to_string()),
            ("state", clean(&self.state)),
            ("asks for", asks_for(self)),
            ("scope", self.scope_id.to_string()),
            ("binding", clean(&self.binding)),
            ("work", self.work_id.to_string()),
            ("execution", or_none(self.execution_id.as_ref())),
            ("call", clean(&self.call_digest)),
            ("asked", with_age(self.created_at, now)),
            ("expires", at(self.expires_at)),
            ("for", or_none(self.reach.as_ref())),
            ("until", at(self.until)),
            ("decided", at(self.decided_at)),
            ("by", or_none(self.actor.as_ref())),
            ("note", or_none(self.note.as_ref())),
            ("used by", or_none(self.used_execution_id.as_ref())),
            ("request", or_none(self.used_request_id.as_ref())),
            ("input", input),
        ])
    }
}

impl Single for GatesView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        let bypasses: Vec<String> = self.bypasses.iter().map(|bypass| told(bypass, now)).collect();
        vec![
            ("gates", joined(&self.gates)),
            ("start gates", joined(&self.start_gates)),
            ("bypasses", if bypasses.is_empty() { NONE.to_owned() } else { bypasses.join("\n") }),
        ]
    }
}

impl Single for BypassView {
    fn fields(&self, now: UnixMicros) -> Vec<(&'static str, String)> {
        present(vec![
            ("bypass", self.id.to_string()),
            ("scope", self.scope_id.as_ref().map_or_else(|| "every scope".to_owned(), ToString::to_string)),
            ("holds", if self.holds { "yes" } else { "no" }.to_owned()),
            ("until", with_age(self.until, now)),
            ("by", clean(&self.actor)),
            ("reason", clean(&self.reason)),
        ])
    }
}

/// One bypass in a line.
fn told(bypass: &BypassView, now: UnixMicros) -> String {
    let scope = bypass.scope_id.as_ref().map_or_else(|| "every scope".to_owned(), ToString::to_string);
    let end = match (bypass.holds, bypass.restored_at) {
        (true, _) => format!("holds until {}", with_age(bypass.until, now)),
        (false, Some(at)) => format!("restored {}", with_age(at, now)),
        (false, None) => format!("over since {}", with_age(bypass.until, now)),
    };
    format!("{}  {scope}, by {}, {end}: {}", bypass.id, clean(&bypass.actor), clean(&bypass.reason))
}
