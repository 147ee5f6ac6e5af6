//! What operators ask of extensions, over whole programs: who may, what is checked, and what is on record.

use std::thread;

use conduit_api::views::{ActionReply, ConfigReply, EventView, ExtensionView, Page};
use conduit_client::{Client, ClientError, Credential};
use conduit_store::digest::sha256;
use conduit_tests::{Suite, odd, until};
use serde_json::{Value, json};

fn suite(settings: Value) -> Suite {
    let suite = Suite::start(|home| odd::configuration(home, None, None));
    odd::install(&suite);
    try_apply(&suite, settings).unwrap();
    suite
}

fn try_apply(suite: &Suite, settings: Value) -> Result<ConfigReply, ClientError> {
    let mut config = odd::configuration(suite.home(), Some(settings), Some(json!(["test"])));
    config["scopes"]["other"] = json!({});
    suite.client().post("/v1/config/apply", &json!({"config": config}))
}

/// A client with the credential of a new operator.
fn operator(suite: &Suite, name: &str, role: &str) -> Client {
    suite.client();
    let credential = format!("credential-of-{name}");
    let store = rusqlite::Connection::open(suite.state().join("store.db")).unwrap();
    store.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    let id = format!("opr_{name}");
    let digest = sha256(credential.as_bytes()).to_vec();
    let insert = "INSERT INTO operator (id, name, role, digest, created_at_us) VALUES (?1, ?2, ?3, ?4, 1)";
    store.execute(insert, rusqlite::params![id, name, role, digest]).unwrap();
    let file = suite.home().join(name);
    std::fs::write(&file, credential).unwrap();
    Client::new(suite.places().management_socket(), Credential::from_file(&file).unwrap()).unwrap()
}

fn path(action: &str) -> String {
    format!("/v1/extensions/odd/actions/{action}")
}

fn act(client: &Client, action: &str, input: Value, key: &str) -> Result<ActionReply, ClientError> {
    client.post_keyed(&path(action), &json!({"scope_id": "test", "input": input}), key)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (u16, String, Vec<String>) {
    match answer.unwrap_err() {
        ClientError::Refused { status, body } => {
            (status, body.code, body.diagnostics.into_iter().map(|fault| fault.pointer).collect())
        }
        other => panic!("no refusal: {other}"),
    }
}

fn events(suite: &Suite) -> Vec<EventView> {
    let page: Page<EventView> = suite.client().get("/v1/events?scope_id=test").unwrap();
    page.items.into_iter().filter(|event| event.source == "core.action").collect()
}

/// M04, M06
#[test]
fn an_action_is_for_the_roles_that_its_extension_says_and_on_record_with_who_did_it() {
    let suite = suite(json!({"mark": 7}));
    let clients = ["view", "operate", "admin"].map(|role| (role, operator(&suite, &format!("a-{role}"), role)));
    for (action, least) in [("odd.look", "view"), ("odd.reset", "operate"), ("odd.wipe", "admin")] {
        let mut allowed = false;
        for (role, client) in &clients {
            allowed |= *role == least;
            let done = act(client, action, json!({"n": 1}), role);
            match allowed {
                true => {
                    let reply = done.unwrap();
                    assert_eq!(reply.output["actor"], format!("operator:a-{role}"));
                    assert_eq!(
                        (&reply.output["scope_id"], &reply.output["settings"]),
                        (&json!("test"), &json!({"mark": 7}))
                    );
                }
                false => assert_eq!(refused(done).1, "forbidden_role", "{action} {role}"),
            }
        }
    }
    let actors: Vec<String> = events(&suite).into_iter().map(|event| event.actor.unwrap()).rev().collect();
    let expected = ["view", "operate", "admin", "operate", "admin", "admin"].map(|role| format!("operator:a-{role}"));
    assert_eq!(actors, expected);
    assert!(events(&suite).iter().all(|event| event.kind == "core.action.done"));
}

/// M07, X01
#[test]
fn an_action_is_done_once_for_each_key_and_what_it_cannot_take_is_refused_before_it_is_asked() {
    let suite = suite(json!({}));
    let client = suite.client();
    let first = act(&client, "odd.reset", json!({"n": 1}), "one").unwrap();
    let again = act(&client, "odd.reset", json!({"n": 1}), "one").unwrap();
    assert_eq!(again, ActionReply { replayed: true, ..first.clone() });
    assert_eq!(refused(act(&client, "odd.reset", json!({"n": 2}), "one")).1, "idempotency_conflict");
    // Another operator's key of the same name is another key.
    let other = act(&operator(&suite, "ann", "operate"), "odd.reset", json!({"n": 2}), "one").unwrap();
    assert_ne!(other.event_id, first.event_id);

    let violation = refused(act(&client, "odd.reset", json!({"n": "hunter2", "more": 1}), "two"));
    assert_eq!(violation, (400, "invalid_request".into(), vec!["/input/more".into(), "/input/n".into()]));
    assert_eq!(refused(act(&client, "odd.gone", json!({}), "three")).1, "not_found");
    let elsewhere = |scope: &str| -> Result<ActionReply, ClientError> {
        client.post(&path("odd.reset"), &json!({"scope_id": scope, "input": {"n": 1}}))
    };
    assert_eq!(refused(elsewhere("other")).1, "not_found", "it is not active there");
    assert_eq!(refused(elsewhere("nowhere")).1, "unknown_scope");
    assert_eq!(events(&suite).len(), 2);

    let clients: Vec<Client> = (0..8).map(|_| suite.client()).collect();
    let copies: Vec<ActionReply> = thread::scope(|scope| {
        let ask = |client| scope.spawn(move || act(client, "odd.reset", json!({"n": 9}), "many").unwrap());
        let asked: Vec<_> = clients.iter().map(ask).collect();
        asked.into_iter().map(|copy| copy.join().unwrap()).collect()
    });
    assert!(copies.iter().all(|copy| copy.event_id == copies[0].event_id));
    assert_eq!(copies.iter().filter(|copy| !copy.replayed).count(), 1);
}

/// X01
#[test]
fn an_action_that_its_package_fails_at_is_not_on_record_and_may_be_asked_for_again() {
    let suite = suite(json!({}));
    let held = suite.hold("hold"); // a start gate that fails starts nothing
    for how in ["crash", "nonsense"] {
        let settings = json!({"act": how});
        until("its pause is over", || try_apply(&suite, settings.clone()).ok());
        assert_eq!(
            refused(act(&suite.client(), "odd.reset", json!({"n": 1}), "key")).1,
            "extension_unavailable",
            "{how}"
        );
    }
    assert_eq!(events(&suite), []);
    until("its pause is over", || try_apply(&suite, json!({})).ok());
    let done = act(&suite.client(), "odd.reset", json!({"n": 1}), "key").unwrap();
    let again = act(&suite.client(), "odd.reset", json!({"n": 1}), "key").unwrap();
    assert_eq!(again, ActionReply { replayed: true, ..done.clone() });
    let recorded: Vec<_> = events(&suite).into_iter().map(|event| event.id).collect();
    assert_eq!(recorded, [done.event_id]);
    // A process of an execution may dial the daemon's socket, and has nothing to show there.
    let token = sha256(held.token().as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let host = Client::new(suite.places().host_socket(), Credential::none()).unwrap();
    let asked =
        json!({"bearer_digest": token, "extension": "odd", "action": "odd.wipe", "scope_id": "test", "input": {}});
    assert_eq!(refused(host.post::<_, Value>("/v1/host/act", &asked)).1, "unauthenticated");
    let asked = json!({"bearer_digest": token, "extension": "odd", "settings": {}});
    assert_eq!(refused(host.post::<_, Value>("/v1/host/validate", &asked)).1, "unauthenticated");
}

/// M04, U01
#[test]
fn extensions_are_listed_with_their_actions_and_an_order_has_one_carried_out() {
    let suite = suite(json!({}));
    let page: Page<ExtensionView> = suite.client().get("/v1/extensions").unwrap();
    let names: Vec<(&str, bool, bool)> =
        page.items.iter().map(|one| (one.name.as_str(), one.package, one.active)).collect();
    assert_eq!(names, [("human", false, false), ("introspection", false, true), ("odd", true, true)]);
    let odd = page.items.last().unwrap();
    assert_eq!(odd.scopes, Some(vec!["test".to_owned()]));
    let roles: Vec<(&str, &str)> = odd.actions.iter().map(|action| (&*action.name, &*action.role)).collect();
    assert_eq!(roles, [("odd.look", "view"), ("odd.reset", "operate"), ("odd.wipe", "admin")]);

    let listed = suite.conduit(&["extension", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("odd.reset (operate)"));
    let done = suite.conduit(&["extension", "act", "odd.reset", r#"{"n": 3}"#, "--scope", "test", "--json"]);
    let reply: ActionReply = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(reply.output["input"], json!({"n": 3}));
    let again = suite.conduit(&["extension", "act", "odd.reset", r#"{"n": "x"}"#, "--scope", "test"]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("/input/n"));
}
