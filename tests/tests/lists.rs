//! Lists that guard themselves: requirements against tests, error codes against their page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use conduit_api::{Code, Retry};

/// How many requirements each letter has.
const REQUIREMENTS: [(char, u32); 10] =
    [('T', 19), ('G', 7), ('E', 8), ('S', 7), ('C', 7), ('M', 14), ('X', 5), ('K', 10), ('L', 5), ('U', 4)];
const STATES: [&str; 3] = ["done", "partly", "open"];
/// Set to write the tests that cite each requirement into the page.
const UPDATE: &str = "CONDUIT_UPDATE_DOCS";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap_or_else(|e| panic!("docs/{name}: {e}"))
}

/// Every Rust file of the project.
fn sources() -> Vec<PathBuf> {
    let mut open: Vec<PathBuf> = ["bins", "lib", "tests"].iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A capital letter and two digits, standing alone.
fn is_requirement(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.len() == 3 && bytes[0].is_ascii_uppercase() && bytes[1].is_ascii_digit() && bytes[2].is_ascii_digit()
}

/// Every test of `source`, with the requirements that its doc comment cites.
fn tests_in(source: &str) -> Vec<(String, Vec<String>)> {
    let (mut found, mut cited, mut is_test) = (Vec::new(), Vec::new(), false);
    for line in source.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            let words = comment.split(|c: char| !c.is_ascii_alphanumeric());
            cited.extend(words.filter(|word| is_requirement(word)).map(str::to_owned));
        } else if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else {
            let name = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            if let (true, Some((name, _))) = (is_test, name) {
                found.push((name.to_owned(), std::mem::take(&mut cited)));
            }
            (cited, is_test) = (Vec::new(), false);
        }
    }
    found
}

/// One row of the page.
struct Row {
    id: String,
    state: String,
    holds: String,
    tests: Vec<String>,
}

fn rows(page: &str) -> Vec<Row> {
    let cells =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect() };
    page.lines()
        .filter(|line| line.starts_with("| "))
        .map(cells)
        .filter(|cells| is_requirement(&cells[0]))
        .map(|cells| Row {
            id: cells[0].clone(),
            state: cells[1].clone(),
            holds: cells[2].clone(),
            tests: cells[3].split('`').filter(|name| is_test_name(name)).map(str::to_owned).collect(),
        })
        .collect()
}

fn is_test_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The page with its last column written from `proofs`.
fn updated(page: &str, proofs: &BTreeMap<String, BTreeSet<String>>) -> String {
    let write = |row: &Row| {
        let tests: Vec<String> = proofs.get(&row.id).into_iter().flatten().map(|name| format!("`{name}`")).collect();
        let column = if tests.is_empty() { String::new() } else { format!("{} ", tests.join(", ")) };
        format!("| {} | {} | {} | {column}|", row.id, row.state, row.holds)
    };
    let lines: Vec<String> =
        page.lines().map(|line| rows(line).first().map_or_else(|| line.to_owned(), write)).collect();
    lines.join("\n") + "\n"
}

#[test]
fn every_requirement_that_is_done_is_proven_by_tests_that_exist() {
    let (mut proofs, mut names) = (BTreeMap::<String, BTreeSet<String>>::new(), BTreeSet::new());
    for path in sources() {
        for (name, cited) in tests_in(&std::fs::read_to_string(&path).unwrap()) {
            for id in cited {
                proofs.entry(id).or_default().insert(name.clone());
            }
            names.insert(name);
        }
    }
    let text = page("requirements.md");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(root().join("docs/requirements.md"), updated(&text, &proofs)).unwrap();
    }
    let rows = rows(&page("requirements.md"));
    let expected: Vec<String> =
        REQUIREMENTS.iter().flat_map(|(letter, n)| (1..=*n).map(move |i| format!("{letter}{i:02}"))).collect();
    let listed: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(listed, expected, "each requirement stands once, in order");

    let mut faults = Vec::new();
    for row in &rows {
        if !STATES.contains(&row.state.as_str()) || row.holds.is_empty() {
            faults.push(format!("{}: its state is one of {STATES:?}, with words that say what holds", row.id));
        }
        if row.state == "done" && row.tests.is_empty() {
            faults.push(format!("{} is done and names no test", row.id));
        }
        let missing = row.tests.iter().filter(|name| !names.contains(*name));
        faults.extend(missing.map(|name| format!("{} names the test `{name}`, which does not exist", row.id)));
    }
    let unknown = proofs.keys().filter(|id| !expected.contains(id));
    faults.extend(unknown.map(|id| format!("a test cites {id}, which is no requirement")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_error_code_has_its_line_and_no_line_is_without_a_code() {
    let text = page("errors.md");
    let lines: BTreeMap<String, Vec<String>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|rest| rest.split_once('`'))
        .map(|(code, rest)| (code.to_owned(), rest.split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()))
        .collect();
    let mut faults = Vec::new();
    for code in Code::ALL {
        let retry = match code.retry() {
            Retry::Never => "never",
            Retry::SameRequest => "same request",
        };
        let expected = [code.status().to_string(), retry.to_owned()];
        match lines.get(code.as_str()) {
            None => faults.push(format!("`{code}` has no line in docs/errors.md")),
            Some(cells) if cells.len() < 4 || cells[..2] != expected || cells[2].is_empty() || cells[3].is_empty() => {
                faults.push(format!("the line of `{code}` needs {expected:?}, a cause and a remedy; it has {cells:?}"));
            }
            Some(_) => {}
        }
    }
    let known: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let gone = lines.keys().filter(|code| !known.contains(code.as_str()));
    faults.extend(gone.map(|code| format!("docs/errors.md lists `{code}`, which is no code")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_test_is_found_with_what_it_cites() {
    let source = "/// T02, T06\n#[test]\nfn a_b() {\n}\n/// T03\nfn helper() {}\n/// E01\n#[tokio::test(start_paused = true)]\nasync fn c() {}\n";
    let found = tests_in(source);
    assert_eq!(found[0], ("a_b".into(), vec!["T02".into(), "T06".into()]));
    assert_eq!(found[1], ("c".into(), vec!["E01".into()]));
    assert_eq!(found.len(), 2);
}
