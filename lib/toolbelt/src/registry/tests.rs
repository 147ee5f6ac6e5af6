//! Registrations as sets: what is accepted, what is refused and why, whatever the order.

use conduit_api::Version;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const V1: Version = Version::new(1, 0, 0);

fn operation(name: &str) -> OperationSpec {
    OperationSpec::new(name, "Does something", json!({"type": "object"}))
}

fn registration(name: &str, operations: &[&str]) -> Registration {
    let operations = operations.iter().map(|name| operation(name)).collect();
    Registration { operations, ..Registration::new(name, V1, "An extension") }
}

fn toolset(name: &str, members: &[(&str, Version)]) -> Toolset {
    let operations = members.iter().map(|(operation, since)| Member::new(*operation, *since)).collect();
    Toolset { name: name.into(), summary: "For a role".into(), operations }
}

fn refused(registrations: Vec<Registration>) -> Vec<(String, Fault)> {
    Registry::new(registrations).1.into_iter().map(|refused| (refused.part, refused.fault)).collect()
}

/// T16
#[test]
fn an_operation_is_registered_only_in_its_registrations_own_namespace() {
    for name in ["git.pr.view", "github", "githubx.pr", "github.", "github.PR", ".github.pr", "pr"] {
        let sent = registration("github", &["github.pr.view", name]);
        assert_eq!(refused(vec![sent]), [(name.to_owned(), Fault::Invalid)], "{name}");
    }
    let (registry, refused) = Registry::new(vec![registration("github", &["github.pr.view"])]);
    assert!(refused.is_empty());
    assert_eq!(registry.operation("github.pr.view").unwrap().registration.unwrap().name, "github");
    assert!(registry.operation("emit").unwrap().registration.is_none() && registry.operation("github.pr").is_none());
}

/// T16
#[test]
fn a_name_that_is_taken_is_a_conflict_and_the_error_names_the_operation_and_why() {
    let twice = Registry::new(vec![registration("demo", &["demo.a", "demo.a"])]).1;
    assert_eq!(twice.len(), 1);
    assert_eq!(twice[0].code().as_str(), "conflict");
    assert_eq!(twice[0].to_string(), "the registration `demo` is refused: `demo.a` is an operation already");
    assert_eq!(refused(vec![registration("demo", &["emit"])]), [("emit".to_owned(), Fault::Conflict)]);
    assert_eq!(refused(vec![registration("core", &[])]), [("core".to_owned(), Fault::Conflict)]);
    let both = Registration { toolsets: vec![toolset("demo.a", &[("emit", V1)])], ..registration("demo", &["demo.a"]) };
    assert_eq!(refused(vec![both]), [("demo.a".to_owned(), Fault::Conflict)]);
    let claimed = refused(vec![registration("demo", &["demo.a"]), registration("demo", &["demo.b"])]);
    assert_eq!(claimed, [("demo".to_owned(), Fault::Conflict)]);
}

/// T16
#[test]
fn a_refused_registration_registers_nothing() {
    let (mut registry, refused) =
        Registry::new(vec![registration("bad", &["bad.a", "good.b"]), registration("good", &["good.a"])]);
    assert_eq!(refused.len(), 1);
    assert!(registry.operation("bad.a").is_none() && registry.operation("good.b").is_none());
    assert!(registry.operation("good.a").is_some());

    let faults = registry.register(registration("good", &["good.c"])).unwrap_err();
    assert_eq!(faults[0].code().as_str(), "conflict");
    assert!(registry.operation("good.c").is_none() && registry.operation("good.a").is_some());
    registry.register(registration("more", &["more.a"])).unwrap();
    assert!(registry.operation("more.a").is_some() && registry.operation("good.a").is_some());
}

/// T16
#[test]
fn the_rest_of_a_registration_is_checked_as_well() {
    let mut odd = registration("demo", &["demo.a"]);
    odd.version = Version::new(1, 2, 0);
    odd.operations[0].summary = "two\nlines".into();
    odd.operations[0].input = json!({"type": "array"});
    odd.event_families = vec!["core.work".into(), "Demo".into()];
    odd.playbooks = vec![Playbook { name: "Play".into(), operations: vec![] }];
    odd.actions = vec![ActionSpec {
        name: "other.approve".into(),
        summary: "Approve".into(),
        input: json!({"type": "object"}),
        role: ActionRole::Operate,
    }];
    let parts: Vec<(String, Fault)> = refused(vec![odd]);
    let expected = [
        ("Play", Fault::Invalid),
        ("demo", Fault::Invalid),
        ("demo", Fault::Conflict),
        ("demo.a", Fault::Invalid),
        ("demo.a", Fault::Invalid),
        ("other.approve", Fault::Invalid),
    ];
    assert_eq!(parts, expected.map(|(part, fault)| (part.to_owned(), fault)));
}

/// T14
#[test]
fn what_only_reads_can_be_asked_again() {
    let once = |kind| OperationSpec { idempotent: false, kind, ..operation("demo.a") };
    let with = |spec| refused(vec![Registration { operations: vec![spec], ..registration("demo", &[]) }]);
    assert_eq!(with(once(OperationKind::Read)), [("demo.a".to_owned(), Fault::Invalid)]);
    assert_eq!(with(once(OperationKind::Handler)), []);
    assert_eq!(with(operation("demo.a").kind(OperationKind::Read)), []);
}

/// S04
#[test]
fn a_toolset_stays_in_its_namespace_and_grants_its_own_operations_and_builtins_as_old_as_the_release() {
    let with = |toolset: Toolset| {
        let own = Registration { toolsets: vec![toolset], ..registration("demo", &["demo.a"]) };
        let other = registration("other", &["other.a"]);
        refused(vec![own, other])
    };
    let invalid = |name: &str| vec![(name.to_owned(), Fault::Invalid)];
    assert_eq!(with(toolset("demo.author", &[("demo.a", V1), ("emit", V1)])), []);
    assert_eq!(with(toolset("other.author", &[("demo.a", V1)])), invalid("other.author"));
    assert_eq!(with(toolset("demo.author", &[("other.a", V1)])), invalid("demo.author"));
    assert_eq!(with(toolset("demo.author", &[("demo.b", V1)])), invalid("demo.author"));
    assert_eq!(with(toolset("demo.author", &[("demo.a", Version::new(1, 0, 1))])), invalid("demo.author"));
    assert_eq!(with(toolset("demo.author", &[])), invalid("demo.author"));
}

/// S04
#[test]
fn a_toolset_only_gains_operations() {
    let v2 = Version::new(2, 0, 0);
    let old = toolset("demo.author", &[("demo.a", V1), ("emit", V1)]);
    let grown = toolset("demo.author", &[("demo.b", v2), ("emit", V1), ("demo.a", V1)]);
    assert_eq!(grown_from(&old, &grown), Ok(()));
    let lost = grown_from(&grown, &old).unwrap_err();
    assert_eq!(lost.operation, "demo.b");
    let moved = toolset("demo.author", &[("demo.a", v2), ("emit", V1)]);
    assert_eq!(grown_from(&old, &moved).unwrap_err().operation, "demo.a");
}

#[test]
fn the_builtins_are_described_like_any_operation_and_their_schemas_hold() {
    let registry = Registry::builtins();
    for name in conduit_api::toolbelt::operation::BUILTINS {
        let known = registry.operation(name).unwrap();
        assert!(known.spec.kind == OperationKind::Builtin && !known.spec.summary.is_empty());
        assert!(known.violations(&json!({"odd": 1})).unwrap().iter().any(|fault| fault.pointer == "/odd"), "{name}");
    }
    let wait = json!({"mode": "all", "predicates": [{"type": "core.work.finished", "work_id": "wrk_x"}]});
    assert_eq!(registry.operation("wait").unwrap().violations(&wait).unwrap(), []);
    assert_eq!(registry.operation("emit").unwrap().violations(&json!({"type": "demo.a"})).unwrap(), []);
}

/// T16, X01
#[test]
fn an_executor_has_the_name_of_its_registration_or_one_below_it_and_none_of_the_suites() {
    let with = |registration: &str, executors: &[&str]| {
        let spec = |name: &&str| ExecutorSpec {
            name: (*name).to_owned(),
            summary: "Runs".into(),
            config: json!({"type": "object", "properties": {"guide": {}}}),
            transport: ExecutorTransport::Toolbelt,
            resume_capable: false,
            playbook_field: Some("guide".into()),
        };
        Registration { executors: executors.iter().map(spec).collect(), ..self::registration(registration, &[]) }
    };
    let registry = Registry::new(vec![with("a", &["a", "a.fast"])]).0;
    assert_eq!(registry.executor("a.fast").map(|(owner, spec)| (&*owner.name, &*spec.name)), Some(("a", "a.fast")));
    assert!(registry.executor("a.slow").is_none() && registry.executor("b").is_none());
    let one = |name: &str, fault| vec![(name.to_owned(), fault)];
    assert_eq!(refused(vec![with("a", &["b"])]), one("b", Fault::Invalid));
    assert_eq!(refused(vec![with("a", &["b.a"])]), one("b.a", Fault::Invalid));
    assert_eq!(refused(vec![with("shell", &["shell"])]), one("shell", Fault::Conflict));
    assert_eq!(refused(vec![with("a", &["a", "a"])]), one("a", Fault::Conflict));
    let mut odd = with("a", &["a"]);
    odd.executors[0].playbook_field = Some("other".into());
    assert_eq!(refused(vec![odd.clone()]), one("a", Fault::Invalid));
    odd.executors[0].playbook_field = None;
    odd.executors[0].config = json!({"type": "array"});
    assert_eq!(refused(vec![odd]), one("a", Fault::Invalid));
}

/// E02
#[test]
fn operations_are_found_by_the_capability_that_they_serve() {
    let mut git = registration("github", &["github.z", "github.git.credential", "github.pr.view"]);
    for at in [0, 1] {
        git.operations[at].capabilities = vec!["git.credential".into()];
    }
    let registry = Registry::new(vec![git]).0;
    assert_eq!(registry.serving("git.credential"), ["github.git.credential", "github.z"]);
    assert!(registry.serving("other").is_empty());
}

/// A registration that may break any rule of names.
fn any_registration() -> impl Strategy<Value = Registration> {
    let name = prop::sample::select(vec!["a", "b", "c", "core", "emit", "A"]);
    let operation = prop::sample::select(vec!["a.x", "a.y", "b.x", "b.x.y", "c.x", "emit", "a", "core.x"]);
    (name, prop::collection::vec(operation, 0..4)).prop_map(|(name, operations)| registration(name, &operations))
}

proptest! {
    /// T16
    #[test]
    fn the_order_of_loading_changes_neither_what_is_accepted_nor_what_is_said(
        (set, shuffled) in prop::collection::vec(any_registration(), 0..6)
            .prop_flat_map(|set| (Just(set.clone()), Just(set).prop_shuffle()))
    ) {
        let (one, other) = (Registry::new(set), Registry::new(shuffled));
        prop_assert_eq!(one.0.registrations(), other.0.registrations());
        prop_assert_eq!(one.1, other.1);
    }

    /// T16
    #[test]
    fn whatever_is_accepted_owns_each_of_its_operations_alone(set in prop::collection::vec(any_registration(), 0..6)) {
        let registry = Registry::new(set).0;
        for registration in registry.registrations() {
            for spec in &registration.operations {
                let owned = conduit_api::id::in_family(&spec.name, &registration.name);
                prop_assert!(owned);
                let owner = registry.operation(&spec.name).unwrap().registration.map(|owner| owner.name.as_str());
                prop_assert_eq!(owner, Some(registration.name.as_str()));
            }
        }
    }
}
