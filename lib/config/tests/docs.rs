//! `docs/configuration.md` and the examples say what the code does.

use std::path::{Path, PathBuf};

use conduit_config::{Field, Kind, Presence, Registered, Rule, TABLES, parse};
use serde_json::Value;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn page() -> String {
    std::fs::read_to_string(docs().join("configuration.md")).unwrap()
}

fn registry() -> Registered {
    Registered::builtins().executor("shell", |_, _| Vec::new())
}

/// The rows of the table under `heading`, as cells.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let after = page.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("no heading {heading}"));
    let section = after.split("\n#").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn code(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// C01
#[test]
fn the_page_has_every_field_with_its_bounds_and_default() {
    let page = page();
    for (path, table) in TABLES {
        let heading = if path.is_empty() { "### The document".to_owned() } else { format!("### `{path}`") };
        let rows = rows(&page, &heading);
        let names: Vec<&str> = rows.iter().map(|row| code(&row[0])).collect();
        assert_eq!(names, table.iter().map(|field| field.name).collect::<Vec<_>>(), "{path}");
        for (row, field) in rows.iter().zip(table) {
            let (holds, default) = (&row[1], &row[2]);
            assert!(default.starts_with(&default_of(field)), "{path}.{}: default {default}", field.name);
            for bound in bounds_of(field) {
                assert!(holds.contains(&bound), "{path}.{}: {bound} is not in: {holds}", field.name);
            }
        }
    }
}

fn default_of(field: &Field) -> String {
    match field.presence {
        Presence::Required => "required".into(),
        Presence::Optional => "none".into(),
        Presence::On => "true".into(),
        Presence::Number(number) => number.to_string(),
        Presence::Empty => "empty".into(),
    }
}

fn bounds_of(field: &Field) -> Vec<String> {
    match field.kind {
        Kind::Count { .. } if field.name == "version" => vec!["1".into()],
        Kind::Count { min, max } => vec![format!("{min} to {max}")],
        Kind::Texts { max, .. } | Kind::Objects { max } | Kind::Named { max } | Kind::Pointers { max } => {
            vec![format!("at most {max}")]
        }
        Kind::Text(conduit_config::Text::Free(max)) => vec![format!("1 to {max} bytes")],
        Kind::Text(conduit_config::Text::OneOf(all)) => all.iter().map(|name| format!("`{name}`")).collect(),
        Kind::Text(_) | Kind::Switch | Kind::Object => Vec::new(),
    }
}

/// C01
#[test]
fn the_page_has_every_code_and_its_example_yields_it() {
    let rows = rows(&page(), "## Faults");
    let mut codes: Vec<&str> = rows.iter().map(|row| code(&row[0])).collect();
    let mut all: Vec<&str> = Rule::ALL.iter().map(|rule| rule.code()).collect();
    codes.sort_unstable();
    all.sort_unstable();
    assert_eq!(codes, all);
    let survey = std::fs::read(docs().join("examples/survey.json")).unwrap();
    for row in rows {
        let (expected, place, what) = (code(&row[0]), code(&row[2]), code(&row[3]));
        let text = match place.rsplit_once('/') {
            None if what.is_empty() => continue, // too large to print
            None => what.to_owned(),
            Some((parent, field)) => {
                let mut document: Value = serde_json::from_slice(&survey).unwrap();
                let value: Value = serde_json::from_str(what).unwrap();
                let parent = document.pointer_mut(parent).unwrap().as_object_mut().unwrap();
                parent.insert(field.to_owned(), value);
                document.to_string()
            }
        };
        let found = parse(text.as_bytes(), &registry()).unwrap_err();
        assert!(found.iter().any(|fault| fault.code == expected), "{expected}: {found:?}");
    }
}
