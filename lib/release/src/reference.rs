//! `docs/operations.md`, read off the registry: every operation and toolset, with the version in which it joined (S04).

use std::fmt::Write;

use conduit_toolbelt::registry::{OperationKind, OperationSpec, Registration, Registry};

const HEAD: &str = "\
# Operations

Every operation, toolset and playbook of this release. This page is generated from what the programs register:
`CONDUIT_UPDATE_DOCS=1 cargo test -p conduit-release` writes it, and a test compares it.

How a list of grants names them: [configuration.md](configuration.md).

## Builtin operations

Every generation has them.
";

/// The text of the page.
pub fn page(registry: &Registry) -> String {
    let mut page = HEAD.to_owned();
    operations(&mut page, registry.builtin_specs());
    page.push_str("\n## Extensions\n");
    if registry.registrations().is_empty() {
        page.push_str("\nThis release comes with none.\n");
    }
    for registration in registry.registrations() {
        extension(&mut page, registration);
    }
    page.push_str("\n## Playbooks\n\n| Playbook | Uses |\n|---|---|\n");
    let own = registry.registrations().iter().flat_map(|registration| registration.playbooks.clone());
    for playbook in crate::playbooks::bundled().into_iter().chain(own) {
        line(&mut page, format_args!("| `{}` | {} |", playbook.name, codes(&playbook.operations)));
    }
    page
}

fn extension(page: &mut String, registration: &Registration) {
    let active = if registration.always {
        "Active unless a configuration disables it."
    } else {
        "Active only where a configuration enables it."
    };
    line(page, format_args!("\n### `{}` {}\n", registration.name, registration.version));
    line(page, format_args!("{} {active}", sentence(&registration.summary)));
    for (holds, what) in [
        (registration.gate, "It is asked before other registrations' operations run (a gate)."),
        (registration.start_gate, "It is asked before a Work's first attempt (a start gate)."),
    ] {
        if holds {
            line(page, format_args!("{what}"));
        }
    }
    for (families, what) in [
        (&registration.event_families, "Events that it writes"),
        (&registration.wait_families, "Events that its Waits may name"),
    ] {
        if !families.is_empty() {
            line(page, format_args!("\n{what}: {}.", codes(families)));
        }
    }
    operations(page, &registration.operations);
    if !registration.toolsets.is_empty() {
        page.push_str("\n| Toolset | Grants, since | For |\n|---|---|---|\n");
    }
    for toolset in &registration.toolsets {
        let members: Vec<String> =
            toolset.operations.iter().map(|member| format!("`{}` {}", member.operation, member.since)).collect();
        line(page, format_args!("| `@{}` | {} | {} |", toolset.name, members.join(", "), cell(&toolset.summary)));
    }
    if !registration.actions.is_empty() {
        page.push_str("\n| Action | Role | Does |\n|---|---|---|\n");
    }
    for action in &registration.actions {
        let role = role_name(action.role);
        line(page, format_args!("| `{}` | {role} | {} |", action.name, cell(&action.summary)));
    }
}

fn operations(page: &mut String, specs: &[OperationSpec]) {
    if specs.is_empty() {
        return;
    }
    page.push_str("\n| Operation | Kind | Does | Input |\n|---|---|---|---|\n");
    for spec in specs {
        let (name, kind, does) = (&spec.name, kind(spec), cell(&spec.summary));
        line(page, format_args!("| `{name}` | {kind} | {does} | {} |", input(spec)));
    }
}

fn kind(spec: &OperationSpec) -> String {
    let mut kind = match spec.kind {
        OperationKind::Builtin => "builtin",
        OperationKind::Handler => "handler",
        OperationKind::Read => "read",
        OperationKind::Wait => "becomes a Wait",
        OperationKind::Emission => "becomes an Event",
    }
    .to_owned();
    if !spec.idempotent {
        kind.push_str(", not repeatable");
    }
    if !spec.capabilities.is_empty() {
        kind.push_str(&format!(", serves {}", codes(&spec.capabilities)));
    }
    kind
}

/// The fields of an input: those that have to be there first and in bold.
fn input(spec: &OperationSpec) -> String {
    let required = spec.input.get("required").and_then(|required| required.as_array());
    let needed = |name: &str| required.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(name)));
    let properties = spec.input.get("properties").and_then(|properties| properties.as_object());
    let mut fields: Vec<(bool, &str)> =
        properties.into_iter().flat_map(|all| all.keys()).map(|name| (!needed(name), name.as_str())).collect();
    fields.sort_unstable();
    let shown: Vec<String> = fields
        .iter()
        .map(|(optional, name)| if *optional { format!("`{name}`") } else { format!("**`{name}`**") })
        .collect();
    if shown.is_empty() { "nothing".into() } else { shown.join(", ") }
}

fn role_name(role: conduit_toolbelt::registry::ActionRole) -> &'static str {
    use conduit_toolbelt::registry::ActionRole::{Admin, Operate, View};
    match role {
        View => "view",
        Operate => "operate",
        Admin => "admin",
    }
}

fn codes(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

/// Text that cannot end its cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(page, "{text}");
}
