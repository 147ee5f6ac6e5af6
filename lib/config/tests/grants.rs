//! Lists of grants from the document to the snapshot: what is kept as written, what each release makes of it, and what is
//! narrowed rather than refused.

use std::rc::Rc;

use conduit_api::{ScopeId, UnixMicros, Version};
use conduit_config::{
    Catalogue, ConfigService, Listing, Member, Playbook, Registered, Snapshot, SnapshotCache, Toolset, parse,
};
use conduit_store::{Now, StateDir, Store};
use serde_json::{Value, json};

const NOW: Now = Now { wall: UnixMicros(1), boot_us: 0, boot_id: "boot" };
const V1: Version = Version::new(1, 0, 0);
const V2: Version = Version::new(2, 0, 0);

/// A release whose extension `lab` has these operations, and all of them in its toolset `lab.author`.
fn catalogue(operations: &[&str]) -> Catalogue {
    let members = operations.iter().map(|name| Member::new(*name, if name.ends_with("_new") { V2 } else { V1 }));
    let author = Toolset { name: "lab.author".into(), summary: "Writes".into(), operations: members.collect() };
    Catalogue::new(&[Listing { extension: "lab", always: false, operations, toolsets: &[author] }])
}

fn release(operations: &[&str], playbook: &[&str]) -> Registered {
    let operations_used = playbook.iter().map(|name| (*name).to_owned()).collect();
    Registered::of(catalogue(operations))
        .executor_with_playbook("shell", |_, _| Vec::new(), |config| Some(config.get("playbook")?.as_str()?.to_owned()))
        .playbook(Playbook { name: "author".into(), operations: operations_used })
}

fn document(enabled: bool) -> Value {
    json!({"version": 1, "extensions": {"lab": {"enabled": enabled}}, "scopes": {"demo": {
        "operations": ["@lab.author", "emit", "wait", "!wait"],
        "bindings": {
            "author": {"executor": "shell", "config": {"playbook": "author"}, "operations": ["@lab.author", "emit", "!lab.read"]},
            "named": {"executor": "shell", "operations": ["lab.read", "emit"]},
        },
    }}})
}

fn scope() -> ScopeId {
    "demo".parse().unwrap()
}

fn granted(snapshot: &Snapshot, binding: &str) -> Vec<String> {
    snapshot.binding(&scope(), binding).unwrap().operations.granted().map(str::to_owned).collect()
}

struct Host {
    base: tempfile::TempDir,
    state: StateDir,
    store: Store,
}

impl Host {
    fn new(configuration: &Value) -> Self {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("config.json"), configuration.to_string()).unwrap();
        let state = StateDir::open(&base.path().join("state")).unwrap();
        let store = Store::open(&state).unwrap();
        Self { base, state, store }
    }

    /// What a daemon of this release has after its start.
    fn start(&mut self, release: Registered) -> Snapshot {
        let file = self.base.path().join("config.json");
        ConfigService::new(self.state.clone(), file, Rc::new(release)).start(&mut self.store, NOW).unwrap().snapshot
    }

    /// What another process of a release with this catalogue reads.
    fn seen(&mut self, catalogue: Catalogue) -> Snapshot {
        let mut cache = SnapshotCache::new(catalogue);
        let snapshot = self.store.read(|read| cache.active(read, &self.state)).unwrap();
        Snapshot::clone(&snapshot)
    }
}

/// S01, S03, C02
#[test]
fn a_snapshot_grants_the_resolved_list_and_shows_the_written_one() {
    let checked = parse(document(true).to_string().as_bytes(), &release(&["lab.read", "lab.write"], &[])).unwrap();
    let snapshot = Snapshot::new(1, checked);
    assert_eq!(granted(&snapshot, "author"), ["emit", "lab.write"]);
    assert_eq!(granted(&snapshot, "named"), ["emit", "lab.read"]);
    assert!(snapshot.authorize_operation(&scope(), "lab.read") && !snapshot.authorize_operation(&scope(), "wait"));
    let shown = snapshot.redacted();
    assert_eq!(shown["scopes"]["demo"]["operations"], document(true)["scopes"]["demo"]["operations"]);
    assert_eq!(
        shown["scopes"]["demo"]["bindings"]["author"]["operations"],
        json!(["@lab.author", "emit", "!lab.read"])
    );
}

/// T18
#[test]
fn a_binding_that_lists_a_disabled_extensions_operations_keeps_the_rest() {
    let release = release(&["lab.read", "lab.write"], &[]);
    let snapshot = Snapshot::new(1, parse(document(false).to_string().as_bytes(), &release).unwrap());
    assert_eq!(granted(&snapshot, "author"), ["emit"]);
    assert_eq!(granted(&snapshot, "named"), ["emit"]);
    assert!(!snapshot.registers("lab") && !snapshot.authorize_operation(&scope(), "lab.read"));
}

/// T18, G01
#[test]
fn an_extension_is_active_in_the_scopes_that_are_listed_for_it_and_grants_nothing_elsewhere() {
    let release = release(&["lab.read", "lab.write"], &[]);
    let mut document = document(true);
    document["scopes"]["other"] = document["scopes"]["demo"].clone();
    document["extensions"]["lab"]["scopes"] = json!(["other"]);
    let snapshot = Snapshot::new(1, parse(document.to_string().as_bytes(), &release).unwrap());
    let other: ScopeId = "other".parse().unwrap();
    assert!(
        snapshot.registers("lab") && snapshot.registers_in("lab", &other) && !snapshot.registers_in("lab", &scope())
    );
    assert!(snapshot.authorize_operation(&other, "lab.read") && !snapshot.authorize_operation(&scope(), "lab.read"));
    assert_eq!(granted(&snapshot, "author"), ["emit"]);
    document["extensions"]["lab"]["scopes"] = json!([]);
    let nowhere = Snapshot::new(1, parse(document.to_string().as_bytes(), &release).unwrap());
    assert!(!nowhere.registers_in("lab", &other) && !nowhere.authorize_operation(&other, "lab.read"));
}

/// S02
#[test]
fn a_release_that_grows_a_toolset_grows_the_grant_with_the_same_hash_in_every_process() {
    let mut host = Host::new(&document(true));
    let before = host.start(release(&["lab.read", "lab.write"], &[]));
    assert_eq!(host.seen(catalogue(&["lab.read", "lab.write"])), before);
    let after = host.start(release(&["lab.read", "lab.write", "lab.write_new"], &[]));
    assert_eq!((after.generation, &after.hash), (before.generation, &before.hash));
    assert_eq!(granted(&after, "author"), ["emit", "lab.write", "lab.write_new"]);
    assert_eq!(host.seen(catalogue(&["lab.read", "lab.write", "lab.write_new"])), after);
}

/// S02, S03
#[test]
fn a_process_of_another_release_grants_only_what_its_own_has() {
    let mut host = Host::new(&document(true));
    host.start(release(&["lab.read", "lab.write"], &[]));
    assert_eq!(granted(&host.seen(Catalogue::builtins()), "named"), ["emit"]);
    // `!lab.read` denies something that it does not know: then it cannot tell what is left.
    assert_eq!(granted(&host.seen(Catalogue::builtins()), "author"), [""; 0]);
}

/// S02
#[test]
fn a_release_that_lacks_what_the_generation_names_adopts_the_file() {
    let mut host = Host::new(&document(true));
    host.start(release(&["lab.read", "lab.write"], &[]));
    std::fs::write(host.base.path().join("config.json"), r#"{"version":1,"scopes":{"demo":{}}}"#).unwrap();
    assert_eq!(host.start(release(&["lab.write"], &[])).generation, 2);
}

/// S05, S07
#[test]
fn a_refused_call_is_drift_only_when_the_bindings_own_playbook_relies_on_it() {
    let mut host = Host::new(&document(true));
    let operations = ["lab.read", "lab.write"];
    host.start(release(&operations, &["emit", "lab.write", "lab.read"]));
    // A process that knows no executor and no playbook tells it from what was recorded.
    let seen = host.seen(catalogue(&operations));
    assert!(seen.drift(&scope(), "author", "lab.read"));
    assert!(!seen.drift(&scope(), "author", "wait") && !seen.drift(&scope(), "named", "lab.read"));
    assert!(!seen.drift(&scope(), "gone", "lab.read") && !seen.drift(&"other".parse().unwrap(), "author", "lab.read"));

    // A release whose playbook uses more records that at its start, under the same generation.
    let renewed = host.start(release(&operations, &["emit", "lab.write", "lab.read", "wait"]));
    assert_eq!(host.seen(catalogue(&operations)), renewed);
    assert!(renewed.drift(&scope(), "author", "wait"));
}

/// S05, C06
#[test]
fn a_scope_whose_binding_has_a_playbook_keeps_its_row_when_another_scope_changes() {
    let mut host = Host::new(&document(true));
    let operations = ["lab.read", "lab.write"];
    host.start(release(&operations, &["emit"]));
    let mut next = document(true);
    next["scopes"]["other"] = json!({});
    let file = host.base.path().join("config.json");
    let service = ConfigService::new(host.state.clone(), file, Rc::new(release(&operations, &["emit"])));
    let applied = service.apply(&mut host.store, next.to_string().as_bytes(), Some(1), "owner", NOW).unwrap();
    assert_eq!(applied.generation, 2);
    let rows: conduit_config::Result<Vec<(String, i64)>> = host.store.read(|read| {
        Ok(read
            .all("looking", "SELECT id, generation FROM scope ORDER BY id", [], |row| Ok((row.get(0)?, row.get(1)?)))?)
    });
    assert_eq!(rows.unwrap(), [("demo".to_owned(), 1), ("other".to_owned(), 2)]);
}
