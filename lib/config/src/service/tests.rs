//! A crash between any two steps of an apply or of a first start.

use conduit_api::UnixMicros;

use super::*;
use crate::cache::SnapshotCache;
use crate::catalogue::Catalogue;
use crate::registry::Registered;

const NOW: Now = Now { wall: UnixMicros(1), boot_us: 0, boot_id: "boot" };
const OLD: &[u8] = br#"{"version":1,"scopes":{"old":{}}}"#;
const NEW: &[u8] = br#"{"version":1,"scopes":{"new":{}}}"#;

/// What a process has that starts on the state directory below `base`.
fn process(base: &tempfile::TempDir) -> (ConfigService, Store) {
    let state = StateDir::open(&base.path().join("state")).unwrap();
    let store = Store::open(&state).unwrap();
    let service = ConfigService::new(state, base.path().join("config.json"), Rc::new(Registered::builtins()));
    (service, store)
}

fn active(service: &ConfigService, store: &mut Store) -> Snapshot {
    let snapshot = store.read(|read| SnapshotCache::new(Catalogue::builtins()).active(read, &service.state)).unwrap();
    Rc::unwrap_or_clone(snapshot)
}

/// C06
#[test]
fn a_crash_after_any_step_before_the_commit_keeps_the_old_generation_and_the_apply_can_be_repeated() {
    for steps in 0..=Step::ALL.len() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("config.json"), OLD).unwrap();
        let (service, mut store) = process(&base);
        let old = service.start(&mut store, NOW).unwrap().snapshot;
        let plan = service.plan(&mut store, NEW, Some(1), "owner", NOW).unwrap();
        for step in &Step::ALL[..steps] {
            service.take(*step, &plan, &mut store).unwrap();
        }
        drop(plan);
        drop((service, store)); // the crash

        let (service, mut store) = process(&base);
        let committed = steps == Step::ALL.len();
        let started = service.start(&mut store, NOW).unwrap();
        assert!(matches!(started.origin, Origin::Restored { .. }), "after {steps} steps");
        assert_eq!(started.snapshot == old, !committed, "after {steps} steps");
        assert_eq!(active(&service, &mut store), started.snapshot);

        let applied = service.apply(&mut store, NEW, None, "owner", NOW).unwrap();
        assert_eq!((applied.generation, applied.published), (2, !committed), "after {steps} steps");
        assert_eq!(std::fs::read(base.path().join("config.json")).unwrap(), NEW);
        assert_eq!(service.start(&mut store, NOW).unwrap().origin, Origin::Restored { file_differs: false });
    }
}

/// C06, S06
#[test]
fn what_an_apply_left_in_the_file_gives_way_to_the_next_change_and_what_an_operator_wrote_does_not() {
    const SPELT: &[u8] = b"{ \"version\": 1, \"scopes\": {\"old\": {}} }\n";
    for steps in 0..=Step::ALL.len() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("config.json");
        std::fs::write(&file, SPELT).unwrap();
        let (service, mut store) = process(&base);
        service.start(&mut store, NOW).unwrap();
        let value = serde_json::json!({"enabled": false});
        let change = |pointer| Change { pointer, value: &value, expected: None };
        let first = service.edited(&mut store, &change("/scopes/first")).unwrap();
        let plan = service.plan(&mut store, first.text.as_bytes(), Some(1), "owner", NOW).unwrap();
        for step in &Step::ALL[..steps] {
            service.take(*step, &plan, &mut store).unwrap();
        }
        drop(plan);
        drop((service, store)); // the crash

        let (service, mut store) = process(&base);
        service.start(&mut store, NOW).unwrap();
        let second = service.edited(&mut store, &change("/scopes/second")).unwrap();
        let committed = steps == Step::ALL.len();
        assert_eq!(second.text.contains("first"), committed, "after {steps} steps");
        assert!(second.text.starts_with("{ \"version\": 1,"), "the operator's spelling stays: {}", second.text);
        service.apply_edited(&mut store, &second, "owner", NOW).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), second.text.as_bytes());

        std::fs::write(&file, NEW).unwrap();
        let refused = service.edited(&mut store, &change("/scopes/third")).unwrap_err();
        assert_eq!(refused.code().as_str(), "config_file_differs");
    }
}

/// C06
#[test]
fn a_crash_inside_a_save_leaves_what_the_next_apply_sweeps_away() {
    let base = tempfile::tempdir().unwrap();
    std::fs::write(base.path().join("config.json"), OLD).unwrap();
    let (service, mut store) = process(&base);
    service.start(&mut store, NOW).unwrap();
    let hash = service.validate(NEW).unwrap().hash;
    let generation = format!("{}.new", service.state.generation_file(&hash).display());
    for half in ["config.json.new", "config.json.last-good.new"].map(|name| base.path().join(name)) {
        std::fs::write(half, "{").unwrap();
    }
    std::fs::write(&generation, "{").unwrap();
    service.apply(&mut store, NEW, Some(1), "owner", NOW).unwrap();
    let mut left: Vec<_> = std::fs::read_dir(base.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["config.json", "config.json.last-good", "state"]);
    assert!(!std::path::Path::new(&generation).exists());
    assert_eq!(active(&service, &mut store).hash, hash);
}

/// C05
#[test]
fn a_crash_before_the_first_commit_leaves_a_first_start_to_do() {
    let base = tempfile::tempdir().unwrap();
    std::fs::write(base.path().join("config.json"), OLD).unwrap();
    let (service, store) = process(&base);
    service.keep_bytes(&service.validate(OLD).unwrap()).unwrap();
    drop((service, store)); // the crash
    let (service, mut store) = process(&base);
    assert_eq!(service.start(&mut store, NOW).unwrap().origin, Origin::FirstFile);
}

/// C06
#[test]
fn two_applies_from_the_same_reading_do_not_both_succeed() {
    let base = tempfile::tempdir().unwrap();
    let (service, mut store) = process(&base);
    service.start(&mut store, NOW).unwrap();
    let late = service.plan(&mut store, OLD, Some(1), "one", NOW).unwrap();
    service.apply(&mut store, NEW, Some(1), "other", NOW).unwrap();
    let refused = service.take(Step::Publish, &late, &mut store).unwrap_err();
    assert_eq!(refused.code().as_str(), "generation_conflict");
    assert_eq!(active(&service, &mut store).generation, 2);
}
