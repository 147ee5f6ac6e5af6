//! docs/api.md has the table of routes that the server has.

use std::path::{Path, PathBuf};

use conduit_management::routes::{ROUTES, Replay, Route, Takes};

const START: &str = "CONDUIT_UPDATE_DOCS=1 writes it again -->\n";
const END: &str = "<!-- end of routes -->";
/// Set to write the table into the page.
const UPDATE: &str = "CONDUIT_UPDATE_DOCS";

fn row(route: &Route) -> String {
    let takes = match route.takes {
        Takes::Nothing => "-".to_owned(),
        Takes::Body => "JSON".to_owned(),
        Takes::Page([]) => "page".to_owned(),
        Takes::Page(filters) => format!("page: {}", filters.join(", ")),
    };
    let replay = match route.replay {
        Replay::Free => "free",
        Replay::Keyed => "key",
        Replay::State => "state",
    };
    let answer = if route.answer.contains(' ') { route.answer.to_owned() } else { format!("`{}`", route.answer) };
    let (method, path, role) = (&route.method, route.path, route.role.as_str());
    format!("| {method} | `{path}` | {role} | {takes} | {replay} | {answer} |\n")
}

fn table() -> String {
    let head = "| Method | Path | Role | Takes | Replay | Answer |\n|---|---|---|---|---|---|\n";
    format!("\n{head}{}\n", ROUTES.iter().map(row).collect::<String>())
}

#[test]
fn the_page_has_every_route_as_the_server_has_it() {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let start = page.find(START).expect("the start of the table") + START.len();
    let end = page.find(END).expect("the end of the table");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, format!("{}{}{}", &page[..start], table(), &page[end..])).unwrap();
        return;
    }
    assert_eq!(&page[start..end], table(), "run this test with {UPDATE}=1, and commit the page");
}
