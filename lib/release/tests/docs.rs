//! `docs/operations.md` says what the programs register, and the examples are configurations of this release.

use std::path::Path;

use conduit_api::Version;
use conduit_release::reference;
use conduit_toolbelt::registry::{Member, OperationKind, OperationSpec, Registration, Registry, Toolset};
use serde_json::json;

/// S04
#[test]
fn the_operations_page_is_what_the_registry_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let page = reference::page(&conduit_release::registry());
    if std::env::var_os("CONDUIT_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/operations.md is not what the registry says; CONDUIT_UPDATE_DOCS=1 writes it anew");
}

/// S04
#[test]
fn the_page_lists_each_operation_and_each_toolset_with_the_versions_in_which_its_operations_joined() {
    let schema = json!({"type": "object", "properties": {"path": {}, "depth": {}}, "required": ["path"]});
    let survey = OperationSpec::new("lab.survey", "Count a | b", schema);
    let expect = OperationSpec::new("lab.expect", "Wait for it", json!({"type": "object"})).kind(OperationKind::Wait);
    let author = Toolset {
        name: "lab.author".into(),
        summary: "Who writes".into(),
        operations: vec![Member::new("emit", Version::new(1, 0, 0)), Member::new("lab.survey", Version::new(1, 2, 0))],
    };
    let lab = Registration {
        operations: vec![survey, expect],
        toolsets: vec![author],
        gate: true,
        ..Registration::new("lab", Version::new(1, 2, 0), "A laboratory")
    };
    let (registry, refused) = Registry::new(vec![lab]);
    assert_eq!(refused, []);
    let page = reference::page(&registry);
    for line in [
        "### `lab` 1.2.0",
        "A laboratory. Active only where a configuration enables it.",
        "It is asked before other registrations' operations run (a gate).",
        "| `lab.survey` | handler | Count a \\| b | **`path`**, `depth` |",
        "| `lab.expect` | becomes a Wait | Wait for it | nothing |",
        "| `@lab.author` | `emit` 1.0.0, `lab.survey` 1.2.0 | Who writes |",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
}

/// C01, G07
#[test]
fn every_example_is_a_configuration_without_faults() {
    let references = conduit_release::references(&conduit_release::registry());
    let mut seen = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let bytes = std::fs::read(&path).unwrap();
            if let Err(faults) = conduit_config::parse(&bytes, &references) {
                panic!("{}: {faults:#?}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen >= 4);
}
