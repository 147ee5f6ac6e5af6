//! Starting and applying on a real store: what is active, what is refused, and what is left behind.

use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::UnixMicros;
use conduit_config::{Applied, Catalogue, Change, ConfigService, Error, Origin, Registered, SnapshotCache, Started};
use conduit_store::{Now, StateDir, Store, named_params};

const NOW: Now = Now { wall: UnixMicros(1_000_000), boot_us: 0, boot_id: "boot" };
const FIRST: &str = r#"{"version": 1, "scopes": {"demo": {"operations": ["emit"], "events": ["demo"]}, "b": {}}}"#;
const SECOND: &str = r#"{"version":1,"scopes":{"demo":{"enabled":false,"operations":["emit"]}}}"#;
const INVALID: &str = r#"{"version":1,"scopes":{"Demo":{}}}"#;

/// A state directory, and a service on it with one executor.
struct Host {
    base: tempfile::TempDir,
    state: StateDir,
    store: Store,
}

impl Host {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("state")).unwrap();
        let store = Store::open(&state).unwrap();
        Self { base, state, store }
    }

    /// One that started on [`FIRST`].
    fn started() -> Self {
        let mut host = Self::new();
        host.write(FIRST);
        host.start().unwrap();
        host
    }

    fn file(&self) -> PathBuf {
        self.base.path().join("config.json")
    }
    fn write(&self, text: &str) {
        std::fs::write(self.file(), text).unwrap();
    }
    fn text(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap()
    }
    fn last_good(&self) -> String {
        std::fs::read_to_string(self.base.path().join("config.json.last-good")).unwrap()
    }

    fn service(&self, executor: &str) -> ConfigService {
        let registry = Registered::builtins().executor(executor, |_, _| Vec::new());
        ConfigService::new(self.state.clone(), self.file(), Rc::new(registry))
    }

    /// A start by a process that knows the executor `shell`.
    fn start(&mut self) -> Result<Started, Error> {
        self.service("shell").start(&mut self.store, NOW)
    }

    fn apply(&mut self, text: &str, expected: Option<i64>) -> Result<Applied, Error> {
        self.service("shell").apply(&mut self.store, text.as_bytes(), expected, "owner", NOW.plus(5))
    }

    /// The number and the hash of the active generation.
    fn active(&mut self) -> (i64, String) {
        let mut cache = SnapshotCache::new(Catalogue::builtins());
        let snapshot = self.store.read(|read| cache.active(read, &self.state)).unwrap();
        (snapshot.generation, snapshot.hash.clone())
    }

    /// `id:enabled:generation` of every scope row.
    fn scopes(&mut self) -> Vec<String> {
        const ROWS: &str = "SELECT id || ':' || enabled || ':' || generation FROM scope ORDER BY id";
        self.store.read(|read| read.all("testing", ROWS, [], |row| row.get(0))).unwrap()
    }

    fn work(&mut self, id: &str, scope: &str, state: &str) {
        const PUT: &str = "
            INSERT INTO work (id, scope_id, binding, state, created_event_id, ready_at_us, created_at_us, updated_at_us, finished_at_us)
            VALUES (:id, :scope, 'b', :state, 'evt', 0, 0, 0, iif(:state IN ('succeeded', 'failed', 'cancelled'), 1, NULL))";
        let params = named_params! { ":id": id, ":scope": scope, ":state": state };
        self.store.write(|tx| tx.execute("testing", PUT, params)).unwrap();
    }
}

fn code(error: &Error) -> &'static str {
    error.code().as_str()
}

/// C05
#[test]
fn a_first_start_activates_the_file_as_generation_one() {
    let mut host = Host::new();
    host.write(FIRST);
    let started = host.start().unwrap();
    assert_eq!((started.origin, started.snapshot.generation), (Origin::FirstFile, 1));
    assert_eq!(host.scopes(), ["b:1:1", "demo:1:1"]);
    assert_eq!(host.text(), FIRST);
}

/// C05
#[test]
fn a_first_start_without_a_file_has_a_setup_scope_and_writes_no_file() {
    let mut host = Host::new();
    let started = host.start().unwrap();
    assert_eq!(started.origin, Origin::FirstDefault);
    let setup = "setup".parse().unwrap();
    assert!(started.snapshot.enabled_scope(&setup).is_some());
    assert!(!started.snapshot.authorize_operation(&setup, "emit"));
    assert!(!host.file().exists());
}

/// C05
#[test]
fn a_file_with_faults_stops_the_first_start_and_leaves_no_generation() {
    let mut host = Host::new();
    host.write(INVALID);
    let error = host.start().unwrap_err();
    assert_eq!(code(&error), "invalid_config");
    assert!(error.to_string().contains("config.json") && error.to_string().contains("invalid_name"), "{error}");
    let mut cache = SnapshotCache::new(Catalogue::builtins());
    let none = host.store.read(|read| cache.active(read, &host.state)).unwrap_err();
    assert_eq!(code(&none), "unavailable");
}

/// C05, C06
#[test]
fn an_edit_of_the_file_alone_changes_nothing_not_even_at_the_next_start() {
    let mut host = Host::started();
    let before = host.active();
    for (text, file_differs) in [(FIRST, false), (SECOND, true), (INVALID, true)] {
        host.write(text);
        let started = host.start().unwrap();
        assert_eq!(started.origin, Origin::Restored { file_differs });
        assert_eq!(host.active(), before);
    }
    std::fs::remove_file(host.file()).unwrap();
    assert_eq!(host.start().unwrap().origin, Origin::Restored { file_differs: false });
}

/// C05
#[test]
fn a_generation_whose_bytes_are_gone_or_altered_is_replaced_by_the_file() {
    for damage in [None, Some(&b"{\"version\":1,\"scopes\":{}}"[..]), Some(b"")] {
        let mut host = Host::started();
        let (_, hash) = host.active();
        let bytes = host.state.generation_file(&hash);
        match damage {
            None => std::fs::remove_file(&bytes).unwrap(),
            Some(other) => std::fs::write(&bytes, other).unwrap(),
        }
        let mut cache = SnapshotCache::new(Catalogue::builtins());
        let refused = host.store.read(|read| cache.active(read, &host.state)).unwrap_err();
        assert_eq!(code(&refused), "state_unavailable");

        let started = host.start().unwrap();
        assert!(matches!(started.origin, Origin::Adopted { replaced: 1, .. }), "{:?}", started.origin);
        assert_eq!(host.active(), (2, hash));
    }
}

/// C05, C06: what cannot be read for a moment is not replaced.
#[test]
fn a_generation_whose_bytes_cannot_be_read_stops_the_start_and_stays_active() {
    let mut host = Host::started();
    let before = host.active();
    let bytes = host.state.generation_file(&before.1);
    let aside = bytes.with_extension("aside");
    std::fs::rename(&bytes, &aside).unwrap();
    std::fs::create_dir(&bytes).unwrap(); // there, and not to be read: also by root
    host.write(r#"{"version":1,"scopes":{"another":{}}}"#);
    assert_eq!(code(&host.start().unwrap_err()), "internal");
    std::fs::remove_dir(&bytes).unwrap();
    std::fs::rename(&aside, &bytes).unwrap();
    assert_eq!(host.start().unwrap().origin, Origin::Restored { file_differs: true });
    assert_eq!(host.active(), before);
}

/// C05
#[test]
fn a_generation_that_this_release_cannot_serve_is_replaced_by_the_file_or_both_faults_are_named() {
    let text = |executor: &str| {
        format!(r#"{{"version":1,"scopes":{{"demo":{{"bindings":{{"a":{{"executor":"{executor}"}}}}}}}}}}"#)
    };
    let mut host = Host::new();
    host.write(&text("shell"));
    host.start().unwrap();
    // A release that has another executor, and a file that names the old one, or none, or has faults.
    for file in [Some(text("shell")), None, Some(INVALID.to_owned())] {
        match file {
            Some(text) => host.write(&text),
            None => std::fs::remove_file(host.file()).unwrap(),
        }
        let error = host.service("other").start(&mut host.store, NOW).unwrap_err();
        assert_eq!(code(&error), "invalid_config");
        let said = error.to_string();
        assert!(
            said.contains("generation 1") && said.contains("unknown_reference") && said.contains("config.json"),
            "{said}"
        );
        assert_eq!(host.active().0, 1);
    }
    host.write(&text("other"));
    let started = host.service("other").start(&mut host.store, NOW).unwrap();
    assert!(matches!(started.origin, Origin::Adopted { replaced: 1, .. }));
    assert_eq!(host.active().0, 2);
}

/// C05, C06
#[test]
fn an_adopted_file_cannot_take_away_a_scope_with_work_that_has_not_ended() {
    let mut host = Host::started();
    host.work("w", "b", "running");
    let hash = host.active().1;
    std::fs::remove_file(host.state.generation_file(&hash)).unwrap();
    host.write(SECOND);
    let error = host.start().unwrap_err();
    assert_eq!(code(&error), "invalid_config");
    assert!(error.to_string().contains("`b`"), "{error}");
    assert_eq!(host.scopes(), ["b:1:1", "demo:1:1"]);
}

/// C06, T07
#[test]
fn an_apply_publishes_the_next_generation_and_a_cache_sees_it_at_once() {
    let mut host = Host::started();
    let demo = "demo".parse().unwrap();
    let mut cache = SnapshotCache::new(Catalogue::builtins());
    let before = host.store.read(|read| cache.active(read, &host.state)).unwrap();
    assert!(before.authorize_operation(&demo, "emit") && before.authorize_event(&demo, "demo.a"));
    let again = host.store.read(|read| cache.active(read, &host.state)).unwrap();
    assert!(Rc::ptr_eq(&before, &again));

    let applied = host.apply(SECOND, Some(1)).unwrap();
    assert_eq!((applied.generation, applied.published), (2, true));
    let after = host.store.read(|read| cache.active(read, &host.state)).unwrap();
    assert!(!after.authorize_operation(&demo, "emit") && !after.authorize_event(&demo, "demo.a"));
    assert_eq!((after.generation, &after.hash), (2, &applied.hash));
    let pinned = host.store.read(|read| cache.pinned(read, &host.state, 1)).unwrap();
    assert_eq!(pinned.hash, before.hash);

    assert_eq!(host.scopes(), ["demo:0:2"]);
    assert_eq!(host.text(), SECOND);
    assert_eq!(host.last_good(), FIRST);
}

/// C06
#[test]
fn the_same_configuration_again_is_no_new_generation_and_keeps_the_operators_spelling() {
    let mut host = Host::started();
    let compact: serde_json::Value = serde_json::from_str(FIRST).unwrap();
    let applied = host.apply(&compact.to_string(), None).unwrap();
    assert_eq!((applied.generation, applied.published), (1, false));
    assert_eq!(host.text(), FIRST);
    assert_eq!(host.start().unwrap().origin, Origin::Restored { file_differs: false });
}

/// C06
#[test]
fn an_edited_file_that_is_applied_stays_as_it_is_and_the_former_generation_is_kept_beside_it() {
    let mut host = Host::started();
    let edited = format!("{}\n", SECOND.replace(':', " : "));
    host.write(&edited);
    host.apply(SECOND, Some(1)).unwrap();
    assert_eq!(host.text(), edited);
    let kept: serde_json::Value = serde_json::from_str(&host.last_good()).unwrap();
    assert_eq!(kept, serde_json::from_str::<serde_json::Value>(FIRST).unwrap());
}

/// C06
#[test]
fn a_refused_apply_touches_neither_file_nor_generation() {
    let mut host = Host::started();
    host.work("w", "b", "waiting");
    host.work("v", "demo", "succeeded");
    let before = host.active();
    for (text, expected, refused) in [
        (INVALID, None, "invalid_config"),
        (SECOND, Some(7), "generation_conflict"),
        (SECOND, Some(1), "scope_in_use"),
        ("{", None, "invalid_config"),
    ] {
        assert_eq!(code(&host.apply(text, expected).unwrap_err()), refused);
        assert_eq!(host.active(), before);
        assert_eq!(host.text(), FIRST);
        assert!(!host.base.path().join("config.json.last-good").exists());
    }
    // Disabling is always possible, and once its Work has ended the scope may go.
    let disabled = r#"{"version":1,"scopes":{"demo":{},"b":{"enabled":false}}}"#;
    host.apply(disabled, Some(1)).unwrap();
    assert_eq!(host.scopes(), ["b:0:2", "demo:1:2"]);
    host.store
        .write(|tx| tx.execute("testing", "UPDATE work SET state = 'failed', finished_at_us = 1 WHERE id = 'w'", []))
        .unwrap();
    host.apply(SECOND, Some(2)).unwrap();
    assert_eq!(host.scopes(), ["demo:0:3"]);
}

/// C06
#[test]
fn a_scope_that_did_not_change_keeps_its_row() {
    let mut host = Host::started();
    host.apply(&FIRST.replace(r#""b": {}"#, r#""b": {"concurrency": 9}"#), None).unwrap();
    assert_eq!(host.scopes(), ["b:1:2", "demo:1:1"]);
}

/// C06
#[test]
fn an_apply_before_the_first_start_is_refused() {
    let mut host = Host::new();
    assert_eq!(code(&host.apply(FIRST, None).unwrap_err()), "unavailable");
    assert!(!host.file().exists());
}

/// C02
#[test]
fn the_hash_is_of_the_canonical_document_and_no_text_of_an_executor_enters_the_store() {
    let text = |spelling: &str| {
        format!(
            r#"{{{spelling}"scopes":{{"s":{{"bindings":{{"b":{{"executor":"shell","config":{{"env":{{"KEY":"hunter2"}},"n":[1,true,"hunter2"]}}}}}}}}}}}}"#
        )
    };
    let mut host = Host::new();
    host.write(&text(r#" "version" : 1.0e0 , "#).replace("1.0e0", "1"));
    let hash = host.start().unwrap().snapshot.hash;
    let checked = host.service("shell").validate(text(r#""version":1,"#).as_bytes()).unwrap();
    assert_eq!(checked.hash, hash);
    let kept = std::fs::read(host.state.generation_file(&hash)).unwrap();
    assert_eq!(kept, checked.canonical);

    const SNAPSHOT: &str = "SELECT snapshot FROM generation";
    let snapshot: String = host.store.read(|read| read.one("testing", SNAPSHOT, [], |row| row.get(0))).unwrap();
    let snapshot: serde_json::Value = serde_json::from_str(&snapshot).unwrap();
    let config = &snapshot["scopes"]["s"]["bindings"]["b"]["config"];
    assert_eq!(config, &serde_json::json!({"env": {"KEY": "[redacted]"}, "n": [1, true, "[redacted]"]}));
    for name in ["store.db", "store.db-wal"] {
        let bytes = std::fs::read(host.state.path().join(name)).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{name}");
    }
}

/// C02, T07
#[test]
fn the_ceiling_is_what_the_enabled_scope_grants_and_a_binding_only_narrows_it() {
    let mut host = Host::new();
    host.write(
        r#"{"version":1,"scopes":{
            "on":{"operations":["emit"],"events":["demo"],"bindings":{"b":{"executor":"shell","events":["demo.b"]}}},
            "off":{"enabled":false,"operations":["emit"],"events":["demo"]}}}"#,
    );
    let snapshot = host.start().unwrap().snapshot;
    let [on, off, none] = ["on", "off", "none"].map(|id| id.parse().unwrap());
    assert!(snapshot.authorize_operation(&on, "emit") && !snapshot.authorize_operation(&on, "wait"));
    assert!(!snapshot.authorize_operation(&off, "emit") && !snapshot.authorize_operation(&none, "emit"));
    assert!(snapshot.authorize_event(&on, "demo.x") && !snapshot.authorize_event(&off, "demo.x"));
    for outside in ["demolition.x", "core.work.created", "demo", "demo.", "demo.X"] {
        assert!(!snapshot.authorize_event(&on, outside), "{outside}");
    }
    let families = ["demo.b", "demolition"].map(str::to_owned);
    assert_eq!(snapshot.authorize_families(&on, &families), ["demo.b"]);
    assert!(snapshot.authorize_families(&off, &families).is_empty());
    assert!(snapshot.scope(&off).is_some() && snapshot.enabled_scope(&off).is_none());
}

fn set(host: &mut Host, pointer: &str, value: serde_json::Value) -> Result<Applied, Error> {
    let change = Change { pointer, value: &value, expected: None };
    let edited = host.service("shell").edited(&mut host.store, &change)?;
    host.service("shell").apply_edited(&mut host.store, &edited, "owner", NOW)
}

/// S06, C06
#[test]
fn one_value_is_set_in_the_file_as_it_is_written_and_published() {
    let mut host = Host::started();
    let applied = set(&mut host, "/scopes/b/operations", serde_json::json!(["wait"])).unwrap();
    assert_eq!((applied.generation, applied.published), (2, true));
    let text = std::fs::read_to_string(host.file()).unwrap();
    assert!(text.starts_with(FIRST.split_once("\"b\"").unwrap().0), "{text}");
    let again = set(&mut host, "/scopes/b/operations", serde_json::json!(["wait"])).unwrap();
    assert_eq!((again.generation, again.published), (2, false));
    assert_eq!(code(&set(&mut host, "/scopes/b/operations", serde_json::json!([7])).unwrap_err()), "invalid_config");
    assert_eq!(code(&set(&mut host, "/version/x", serde_json::json!(1)).unwrap_err()), "invalid_request");
    assert_eq!(std::fs::read_to_string(host.file()).unwrap(), text, "what is refused changes nothing");
    let value = serde_json::json!(true);
    let stale = Change { pointer: "/scopes/b/enabled", value: &value, expected: Some(1) };
    let refused = host.service("shell").edited(&mut host.store, &stale).unwrap_err();
    assert_eq!(code(&refused), "generation_conflict");
}

/// S06, C05
#[test]
fn a_file_with_changes_that_nobody_applied_is_not_set_and_without_a_file_one_is_written() {
    let mut host = Host::started();
    host.write(SECOND);
    let refused = set(&mut host, "/scopes/b/enabled", serde_json::json!(true)).unwrap_err();
    assert_eq!(code(&refused), "config_file_differs");
    assert_eq!(std::fs::read_to_string(host.file()).unwrap(), SECOND);
    host.write(FIRST);
    let value = serde_json::json!(true);
    let change = Change { pointer: "/scopes/b/enabled", value: &value, expected: None };
    let edited = host.service("shell").edited(&mut host.store, &change).unwrap();
    host.write(SECOND); // while packages look at their settings
    let refused = host.service("shell").apply_edited(&mut host.store, &edited, "owner", NOW).unwrap_err();
    assert_eq!((code(&refused), host.text().as_str()), ("config_file_differs", SECOND));
    std::fs::remove_file(host.file()).unwrap();
    set(&mut host, "/scopes/b/operations", serde_json::json!(["wait"])).unwrap();
    let text = std::fs::read_to_string(host.file()).unwrap();
    assert!(text.lines().count() > 5 && text.contains("\"wait\""), "{text}");
}
