//! Grant warnings: when there is one, and that its commands do what they say.

use conduit_api::Version;
use conduit_api::views::GrantWarning;
use conduit_config::{Catalogue, Listing, Member, Playbook, Registered, Registry, Toolset, grant_warnings, parse};
use proptest::prelude::*;
use serde_json::{Value, json};

const V1: Version = Version::new(1, 0, 0);
const V2: Version = Version::new(1, 1, 0);

/// `lab` has a toolset that gained an operation; `rare` is active only where it is enabled.
fn release() -> Registered {
    let toolset = |name: &str, members: &[(&str, Version)]| Toolset {
        name: name.into(),
        summary: "For a role".into(),
        operations: members.iter().map(|(operation, since)| Member::new(*operation, *since)).collect(),
    };
    let lab = [
        toolset("lab.author", &[("emit", V1), ("lab.read", V1), ("lab.write", V1), ("lab.push", V2)]),
        toolset("lab.reader", &[("lab.read", V1)]),
    ];
    let lab =
        Listing { extension: "lab", always: true, operations: &["lab.read", "lab.write", "lab.push"], toolsets: &lab };
    let rare = [toolset("rare.user", &[("rare.a", V1), ("rare.b", V2)])];
    let rare = Listing { extension: "rare", always: false, operations: &["rare.a", "rare.b"], toolsets: &rare };
    let uses = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Registered::of(Catalogue::new(&[lab, rare]))
        .executor_with_playbook("shell", |_, _| Vec::new(), |config| Some(config.get("playbook")?.as_str()?.to_owned()))
        .playbook(Playbook { name: "author".into(), operations: uses(&["emit", "lab.read", "lab.push"]) })
        .playbook(Playbook { name: "rare".into(), operations: uses(&["rare.a", "wait", "gone.x"]) })
}

fn document(scope: &[&str], binding: &[&str], playbook: &str) -> Value {
    json!({"version": 1, "scopes": {"demo": {"operations": scope, "bindings": {
        "a": {"executor": "shell", "config": {"playbook": playbook}, "operations": binding},
    }}}})
}

fn warnings(document: &Value) -> Vec<GrantWarning> {
    let release = release();
    let checked = parse(document.to_string().as_bytes(), &release).unwrap();
    grant_warnings(&checked.config, release.catalogue())
}

/// Does what `open-conduit config set POINTER JSON` does.
fn run(document: &mut Value, command: &str) {
    let rest = command.strip_prefix("open-conduit config set ").unwrap();
    let (pointer, value) = rest.split_once(' ').unwrap();
    let value = value.strip_prefix('\'').unwrap().strip_suffix('\'').unwrap();
    assert!(!value.contains('\''));
    let mut at = document;
    for key in pointer.split('/').skip(1) {
        at = at.as_object_mut().unwrap().entry(key).or_insert_with(|| json!({}));
    }
    *at = serde_json::from_str(value).unwrap();
}

fn mended(document: &Value) -> Value {
    let mut document = document.clone();
    warnings(&document).iter().flat_map(|warning| &warning.commands).for_each(|command| run(&mut document, command));
    document
}

/// S06
#[test]
fn a_playbook_that_uses_more_than_its_binding_may_call_is_warned_about_with_the_commands_that_grant_it() {
    let lacking = document(&["emit", "lab.read"], &["emit"], "author");
    let found = warnings(&lacking);
    assert_eq!(found.len(), 1);
    let GrantWarning { scope, binding, playbook, operations, commands, .. } = &found[0];
    assert_eq!((scope.as_str(), binding.as_deref(), playbook.as_deref()), ("demo", Some("a"), Some("author")));
    assert_eq!(operations, &["lab.read", "lab.push"]);
    assert_eq!(
        commands,
        &[
            r#"open-conduit config set /scopes/demo/operations '["emit","lab.read","lab.push"]'"#,
            r#"open-conduit config set /scopes/demo/bindings/a/operations '["emit","lab.read","lab.push"]'"#,
        ]
    );
    assert_eq!(warnings(&mended(&lacking)), []);
    assert_eq!(warnings(&document(&["@lab.author"], &["@lab.author"], "author")), []);
}

/// S06
#[test]
fn a_list_that_spells_out_an_older_toolset_is_warned_about_with_what_it_lacks() {
    let old = document(&["wait", "lab.read", "lab.write", "emit"], &["lab.write", "lab.read", "emit"], "none");
    let old = Value::String(old.to_string().replace(r#"{"playbook":"none"}"#, "{}"));
    let old: Value = serde_json::from_str(old.as_str().unwrap()).unwrap();
    let found = warnings(&old);
    assert_eq!(found.iter().map(|w| w.binding.as_deref()).collect::<Vec<_>>(), [None, Some("a")]);
    for warning in &found {
        assert_eq!(
            (warning.toolset.as_deref(), &warning.operations[..]),
            (Some("lab.author"), &["lab.push".to_owned()][..])
        );
    }
    assert_eq!(found[0].commands, [r#"open-conduit config set /scopes/demo/operations '["wait","@lab.author"]'"#]);
    assert_eq!(warnings(&mended(&old)), []);
}

/// S06, G01
#[test]
fn an_extension_that_is_for_other_scopes_is_opened_to_the_one_whose_playbook_uses_it() {
    let mut elsewhere = document(&["@lab.author"], &["@lab.author"], "author");
    elsewhere["scopes"]["other"] = json!({});
    elsewhere["extensions"]["lab"] = json!({"scopes": ["other"]});
    let found = warnings(&elsewhere);
    assert_eq!(found[0].commands, [r#"open-conduit config set /extensions/lab/scopes '["demo","other"]'"#]);
    assert_eq!(warnings(&mended(&elsewhere)), []);
}

/// S06
#[test]
fn what_is_denied_on_purpose_and_what_names_too_little_is_no_older_version() {
    let of = |scope: &[&str]| {
        let mut document = document(scope, &[], "none");
        document["scopes"]["demo"]["bindings"]["a"]["config"] = json!({});
        warnings(&document).len()
    };
    assert_eq!(of(&["emit", "lab.read", "lab.write"]), 1);
    assert_eq!(of(&["emit", "lab.read", "lab.write", "!lab.push"]), 0);
    assert_eq!(of(&["emit", "lab.read"]), 0);
    assert_eq!(of(&["emit", "lab.read", "lab.write", "lab.push"]), 0);
    assert_eq!(of(&["@lab.author"]), 0);
    assert_eq!(of(&["rare.a"]), 0, "a toolset that is not active would grant less");
}

/// S06, T18
#[test]
fn an_extension_that_is_not_active_is_enabled_by_the_first_command() {
    let mut asleep = document(&["wait"], &["wait"], "rare");
    let found = warnings(&asleep);
    assert_eq!(found[0].operations, ["rare.a"], "what this release does not have cannot be granted");
    assert_eq!(found[0].commands[0], r#"open-conduit config set /extensions/rare '{"enabled":true}'"#);
    asleep["extensions"] = json!({"rare": {"enabled": false}});
    assert_eq!(warnings(&asleep)[0].commands[0], "open-conduit config set /extensions/rare/enabled 'true'");
    let mended = mended(&asleep);
    assert_eq!(mended["extensions"], json!({"rare": {"enabled": true}}));
    assert!(warnings(&mended).iter().all(|warning| warning.playbook.is_none()));
}

/// S06
#[test]
fn a_disabled_scope_is_not_warned_about() {
    let mut off = document(&[], &[], "author");
    off["scopes"]["demo"]["enabled"] = json!(false);
    assert_eq!(warnings(&off), []);
}

fn list() -> impl Strategy<Value = Vec<&'static str>> {
    let entries = vec![
        "emit",
        "wait",
        "lab.read",
        "lab.write",
        "lab.push",
        "@lab.author",
        "@lab.reader",
        "!emit",
        "!lab.read",
        "!lab.push",
        "!@lab.author",
        "!@lab.reader",
        "rare.a",
        "@rare.user",
        "!@rare.user",
    ];
    prop::sample::subsequence(entries, 0..8).prop_shuffle()
}

proptest! {
    /// S06
    #[test]
    fn the_commands_of_all_warnings_make_a_sound_configuration_without_them(
        scope in list(), binding in list(), playbook in prop::sample::select(vec!["author", "rare"]),
    ) {
        let document = document(&scope, &binding, playbook);
        prop_assume!(parse(document.to_string().as_bytes(), &release()).is_ok());
        // Enabling an extension can bring an older version of its toolset to light: a second round says so.
        let once = mended(&document);
        prop_assert!(warnings(&once).iter().all(|warning| warning.playbook.is_none()), "{}", once);
        let twice = mended(&once);
        prop_assert_eq!(warnings(&twice), vec![], "{}", twice);
    }
}
