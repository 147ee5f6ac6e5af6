//! Every statement of the suite, as SQLite would carry it out on this schema: none walks a table or sorts what grows.
//!
//! Statements are read off the sources, where they stand as constants, so a new one is asked about without a line here.

use std::path::{Path, PathBuf};

/// Tables that stay small, whatever the suite has done: walking one is cheap.
/// `intent` holds what runs now, and what is in doubt until an operator says a word.
const SMALL: [&str; 5] = ["generation", "intent", "package", "scope", "work_count"];
/// Indexes that hold only what is still to be done: walking one is doing it.
const TO_DO: [&str; 3] = ["event_unrouted", "execution_stop", "attempt_unresolved"];
/// Statements that read every execution of a state, all of which live.
const LIVING: [&str; 4] = ["LEFT", "RENEW", "LIVE", "PINNED"];
/// Statements that sort, and what bounds it.
const SORTS: [(&str, &str); 5] = [
    ("PINNED", "the generations of the executions that live"),
    ("LEFT", "the executions that live"),
    ("MATCHED", "the predicates of one wait"),
    ("CHAIN", "the Events that one page of a chain shows"),
    ("WORK", "one row for each scope and state"),
];

struct Statement {
    file: String,
    name: String,
    sql: String,
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// Every `const NAME: &str` of the library whose text is a statement.
fn statements(lib: &Path) -> Vec<Statement> {
    let mut files = Vec::new();
    for crate_dir in std::fs::read_dir(lib).unwrap() {
        let src = crate_dir.unwrap().path().join("src");
        if src.is_dir() {
            sources(&src, &mut files);
        }
    }
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for piece in text.split("const ").skip(1) {
            let Some((name, rest)) = piece.split_once(": &str =") else { continue };
            let Some(rest) = rest.trim_start().strip_prefix('"') else { continue };
            let sql = rest.split('"').next().unwrap();
            let verb = sql.split_whitespace().next().unwrap_or_default();
            if ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].contains(&verb) && !name.contains(char::is_whitespace) {
                let file = file.strip_prefix(lib).unwrap().display().to_string();
                found.push(Statement { file, name: name.to_owned(), sql: sql.to_owned() });
            }
        }
    }
    found
}

/// What is wrong with a step of a plan, if anything is.
fn fault(step: &str, name: &str) -> Option<&'static str> {
    let mut words = step.split(' ');
    match (words.next(), words.next()) {
        (Some("SCAN"), Some("CONSTANT")) => None,
        (Some("SCAN"), Some(table)) if table.starts_with('(') || SMALL.contains(&table) => None,
        (Some("SCAN"), Some(_)) if words.next_back().is_some_and(|index| TO_DO.contains(&index)) => None,
        (Some("SCAN"), _) => Some("it walks a table"),
        (Some("SEARCH"), _) if step.ends_with("(state=?)") && !LIVING.contains(&name) => {
            Some("it reads every row of a state")
        }
        (Some("USE"), _) if !SORTS.iter().any(|(sorts, _)| *sorts == name) => Some("it sorts"),
        _ => None,
    }
}

#[test]
fn no_statement_walks_a_table_or_sorts_what_grows() {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut migrations: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(lib.join("store/migrations")).unwrap() {
        migrations.push(entry.unwrap().path());
    }
    migrations.sort();
    let db = rusqlite::Connection::open_in_memory().unwrap();
    for migration in migrations {
        db.execute_batch(&std::fs::read_to_string(migration).unwrap()).unwrap();
    }
    let statements = statements(lib);
    assert!(statements.len() > 100, "the sources are read: {}", statements.len());
    let mut faults = Vec::new();
    for Statement { file, name, sql } in statements {
        let mut statement = db
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap_or_else(|error| panic!("{file} {name} does not fit the schema: {error}"));
        for at in 1..=statement.parameter_count() {
            statement.raw_bind_parameter(at, 1).unwrap();
        }
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().unwrap() {
            let step: String = row.get("detail").unwrap();
            faults.extend(fault(&step, &name).map(|fault| format!("{file} {name}: {fault}: {step}")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
