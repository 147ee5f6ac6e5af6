//! What the machine may do to a suite: no room, a path too long, a foreign or newer store, a second suite.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use conduit_client::ClientError;
use conduit_tests::suite::Setup;
use conduit_tests::{Suite, config, programs, until};
use serde_json::json;

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs `open-conduit up` on directories of the test's own; it is expected to refuse.
fn up(state: &std::path::Path, runtime: &std::path::Path) -> Output {
    Command::new(programs::folder().join("open-conduit"))
        .args(["up", "--state"])
        .arg(state)
        .arg("--runtime")
        .arg(runtime)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn base() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("oc-").permissions(PermissionsExt::from_mode(0o700)).tempdir_in("/tmp").unwrap()
}

/// U04, M01
#[test]
fn a_second_suite_on_the_same_state_is_refused_in_a_sentence_and_the_first_goes_on() {
    let suite = Suite::start(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    let second = up(suite.state(), &suite.home().join("r2"));
    assert!(!second.status.success());
    assert!(text(&second).contains("state_locked"), "{}", text(&second));
    suite.hold("hold").call("read_context", json!({})).unwrap();
}

/// M01
#[test]
fn an_unsafe_state_directory_and_a_path_too_long_are_refused_before_anything_is_made() {
    let base = base();
    let open = base.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o755)).unwrap();
    let refused = up(&open, &base.path().join("r"));
    assert!(!refused.status.success() && text(&refused).contains("state_unsafe"), "{}", text(&refused));
    assert_eq!(std::fs::read_dir(&open).unwrap().count(), 0);

    let long = base.path().join("x".repeat(100));
    let refused = up(&base.path().join("s"), &long);
    assert!(!refused.status.success() && text(&refused).contains("socket_path_too_long"), "{}", text(&refused));
    assert!(text(&refused).contains(long.to_str().unwrap()), "{}", text(&refused));
}

/// E07
#[test]
fn an_execution_whose_socket_path_would_be_too_long_is_served_at_a_shorter_one() {
    let base = base();
    let mut setup = Setup::new(|_| {
        let script = "printf %s \"$OS_ENDPOINT\" > \"$NOTE\"; os outcome succeeded";
        config::one_scope(json!({"look": config::script(script)}), json!([]))
    });
    let note = setup.home.path().join("endpoint");
    setup.config["scopes"]["test"]["bindings"]["look"]["config"]["env"] = json!({"NOTE": note});
    setup.state = Some(base.path().join("s".repeat(70)));
    let suite = Suite::start_with(setup);
    let work = suite.work("look", json!({}));
    assert_eq!(suite.ended(&work).state, "succeeded", "{:?}\n{}", suite.executions(&work), suite.log());
    let endpoint = std::fs::read_to_string(note).unwrap();
    assert!(endpoint.len() <= 100 && !endpoint.starts_with(base.path().to_str().unwrap()), "{endpoint}");
    until("its short directory is gone", || (!std::path::Path::new(&endpoint).exists()).then_some(()));
}

#[test]
fn a_newer_and_a_damaged_store_are_refused_by_name_and_left_as_they_are() {
    for (sql, code) in [(Some("PRAGMA user_version = 9999"), "store_newer"), (None, "store_unreadable")] {
        let mut suite = Suite::start(|_| config::one_scope(json!({}), json!([])));
        suite.stop(nix::sys::signal::Signal::SIGTERM);
        let file = suite.state().join("store.db");
        match sql {
            Some(sql) => rusqlite::Connection::open(&file).unwrap().execute_batch(sql).unwrap(),
            None => {
                for name in ["store.db-wal", "store.db-shm"] {
                    let _ = std::fs::remove_file(suite.state().join(name));
                }
                std::fs::write(&file, vec![b'x'; 64 << 10]).unwrap();
            }
        }
        let before = std::fs::read(&file).unwrap();
        let refused = up(suite.state(), &suite.places().runtime);
        assert!(!refused.status.success() && text(&refused).contains(code), "{code}: {}", text(&refused));
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }
}

#[test]
fn without_a_suite_a_client_says_what_to_start() {
    let base = base();
    std::fs::write(base.path().join("token"), "x").unwrap();
    let health = Command::new(programs::folder().join("open-conduit"))
        .arg("health")
        .env("OPEN_CONDUIT_ENDPOINT", base.path().join("management.sock"))
        .env("OPEN_CONDUIT_TOKEN_FILE", base.path().join("token"))
        .output()
        .unwrap();
    assert!(!health.status.success());
    assert!(text(&health).contains("open-conduit up"), "{}", text(&health));
}

/// A file system of `bytes`, gone with the value; `None` where this user may not make one.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: std::path::PathBuf, bytes: u64) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let options = format!("size={bytes},mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output().ok()?;
        mounted.status.success().then_some(Self(at))
    }

    /// Writes a file until not a byte more can be written; its path.
    fn fill(&self) -> std::path::PathBuf {
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path).unwrap();
        for piece in [16 << 10, 512, 1] {
            let piece = vec![b'x'; piece];
            while std::io::Write::write_all(&mut file, &piece).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is still ending must not keep the test's directory.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_each_call_by_name_and_room_makes_the_same_call_succeed() {
    let base = base();
    let Some(disk) = SmallDisk::mount(base.path().join("disk"), 8 << 20) else {
        eprintln!("skipped: a small file system needs the right to mount one");
        return;
    };
    let mut setup = Setup::new(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    setup.state = Some(disk.0.join("s"));
    let suite = Suite::start_with(setup);
    let held = suite.hold("hold");
    held.call("emit", json!({"type": "test.room"})).unwrap();
    let ballast = disk.fill();
    let client = held.client();
    let payload = "x".repeat(100_000);
    let emit = |n: u32| {
        let input = json!({"type": "test.full", "data": {"n": n, "payload": payload}});
        conduit_tests::execution::call_as(&client, "emit", input, &format!("full-{n}"))
    };
    let refused = (0..200).find_map(|n| emit(n).err().map(|error| (n, error)));
    let (n, error) = refused.expect("a full disk refuses something");
    match &error {
        ClientError::Refused { body, status } => assert_eq!((body.code.as_str(), *status), ("storage_full", 507)),
        other => panic!("{other}"),
    }
    assert!(error.may_retry());
    std::fs::remove_file(&ballast).unwrap();
    until("there is room again", || emit(n).ok());
    assert_eq!(suite.processes("open-conduitd").len(), 1);
    drop(suite);
    drop(disk);
}

/// K10, X02
#[test]
fn a_full_disk_costs_no_process_its_result() {
    let base = base();
    let Some(disk) = SmallDisk::mount(base.path().join("disk"), 16 << 20) else {
        eprintln!("skipped: a small file system needs the right to mount one");
        return;
    };
    let mut setup = Setup::new(|home| config::one_scope(json!({"hold": config::hold(home)}), json!([])));
    setup.state = Some(disk.0.join("s"));
    let suite = Suite::start_with(setup);
    let (quiet, declared) = (suite.hold("hold"), suite.hold("hold"));
    declared.call("declare_outcome", json!({"status": "succeeded", "summary": "told before"})).unwrap();
    let ballast = disk.fill();
    quiet.release(1);
    declared.release(1);
    let runners = || suite.processes("open-conduit-runner").len();
    until("both runners have left their results", || (runners() == 0).then_some(()));
    std::fs::remove_file(&ballast).unwrap();
    for held in [&quiet, &declared] {
        assert_eq!(suite.ended(&held.work).state, "succeeded", "{}", suite.log());
    }
    assert_eq!(suite.ended(&declared.work).outcome.unwrap()["summary"], "told before");
    drop(suite);
    drop(disk);
}
