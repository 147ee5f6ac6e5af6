//! A state directory with packages in it, and the daemon's part that runs them.

use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use conduit_extension::package::{Bounds, Packages, Processes, install};
use conduit_extension::{Authority, Extension, GateCall, Invocation};
use conduit_kernel::{BaseEnvironment, Settings};
use conduit_store::{Clock, StateDir, Store, mint};
use conduit_toolbelt::packages;
use serde_json::{Value, json};

pub const BOUNDS: Bounds = Bounds {
    line_bytes: 64 << 10,
    in_flight: 8,
    in_flight_of_execution: 8,
    initialize: Duration::from_secs(3),
    handler: Duration::from_secs(1),
    validate: Duration::from_secs(1),
    executor: Duration::from_secs(1),
    gate: Duration::from_secs(1),
    cancelled: Duration::from_millis(300),
    idle: Duration::from_millis(1500),
    pause: Duration::from_millis(200),
    pause_max: Duration::from_secs(2),
};

/// A package whose first argument says what it does wrong, until the file that its second names is there.
const ODD: &str = r#"#!/usr/bin/env python3
import json, os, signal, sys, time
mode = "good" if os.path.exists(sys.argv[2]) else sys.argv[1]
said = {"protocol_version": 1, "name": "odd", "version": "1.0.0", "operations": ["odd.do"], "operation_gate": True}
lies = {"name": {"name": "even"}, "version": {"version": "1.0.1"}, "operations": {"operations": ["odd.do", "words.count"]},
        "gate": {"operation_gate": False}, "protocol": {"protocol_version": 7}, "shape": {"surprise": 1},
        "executors": {"executors": ["odd"]}}
said.update(lies.get(mode, {}))
def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()
def answer(id, result):
    say(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\n")
if mode in ("deaf", "outlives"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    line = sys.stdin.readline()
    if not line:
        break
    asked = json.loads(line)
    method, id = asked["method"], asked.get("id")
    if method == "initialize":
        if mode != "mute":
            answer(id, said)
    elif method == "shutdown":
        answer(id, {})
        break
    elif method == "$/cancel":
        pass
    elif method == "operation.gate":
        answer(id, {"answer": "perhaps"} if mode == "nonsense_gate" else {"answer": "let_through"})
    elif mode == "crash":
        sys.exit("I crash")
    elif mode in ("hang", "deaf"):
        pass
    elif mode == "flood":
        while True:
            say("x" * 65536)
    elif mode == "huge":
        answer(id, {"output": "x" * (10 << 20)})
    elif mode == "chatter":
        say("hello\n")
    elif mode == "unasked":
        answer(4711, {"output": 1})
    elif mode == "limits":
        import resource
        kinds = {"memory": resource.RLIMIT_DATA, "files": resource.RLIMIT_NOFILE, "file": resource.RLIMIT_FSIZE, "core": resource.RLIMIT_CORE}
        said = {name: list(resource.getrlimit(kind)) for name, kind in kinds.items()}
        status = open("/proc/self/status").read()
        answer(id, {"output": said | {"no_new_privileges": "NoNewPrivs:\t1" in status}})
    elif mode == "hoard":
        # It would stop by itself at a gigabyte, so that a limit that does not hold does no harm.
        held = [bytearray(b"x" * (8 << 20)) for _ in range(128)]
        answer(id, {"output": {"held": len(held)}})
    elif mode == "scribble":
        with open(sys.argv[2] + ".large", "wb") as large:
            for _ in range(128):
                large.write(b"x" * (1 << 20))
        answer(id, {"output": {"written": True}})
    elif mode == "nonsense":
        answer(id, {"output": 1, "emission": {"type": "odd.x"}})
    else:
        answer(id, {"output": {"mode": mode}})
while mode == "outlives":
    time.sleep(1)
"#;

pub struct World {
    base: tempfile::TempDir,
    state: StateDir,
    store: RefCell<Store>,
    pub pool: Packages,
    failed_at: RefCell<Option<Instant>>,
}

impl World {
    pub fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let store = RefCell::new(Store::open(&state).unwrap());
        let pool = pool(&state, base.path());
        Self { base, state, store, pool, failed_at: RefCell::new(None) }
    }

    pub fn another_pool(&self) -> Packages {
        pool(&self.state, self.base.path())
    }

    /// The example of the documentation.
    pub fn example(&self) -> Rc<dyn Extension> {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/package-python");
        self.install("words", &examples.canonicalize().unwrap())
    }

    /// The example in Rust, built as its page says, from what this machine has.
    pub fn rust_example(&self) -> Rc<dyn Extension> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/package-rust");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package-rust");
        let built = std::process::Command::new(env!("CARGO"))
            .args(["build", "--offline", "--locked", "--quiet", "--manifest-path"])
            .arg(source.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let place = self.base.path().join("tally");
        std::fs::create_dir(&place).unwrap();
        std::fs::copy(source.join("manifest.json"), place.join("manifest.json")).unwrap();
        std::fs::copy(target.join("debug/tally"), place.join("tally")).unwrap();
        self.install("tally", &place)
    }

    /// A package that does wrong what `mode` says.
    pub fn package(&self, mode: &str) -> Rc<dyn Extension> {
        let dir = self.base.path().join("odd");
        std::fs::create_dir(&dir).unwrap();
        let manifest = json!({
            "name": "odd", "version": "1.0.0", "summary": "Odd", "protocol_versions": [1],
            "program": {"path": "main.py", "args": [mode, self.mended()]},
            "provides": {
                "operations": [{"name": "odd.do", "summary": "Do it", "input": {"type": "object"}}],
                "operation_gate": true,
            },
            "needs": ["operation.gate"],
            "limits": {"memory_mib": 96, "files": 64, "file_mib": 2},
        });
        std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
        std::fs::write(dir.join("main.py"), ODD).unwrap();
        std::fs::set_permissions(dir.join("main.py"), PermissionsExt::from_mode(0o755)).unwrap();
        self.install("odd", &dir)
    }

    fn install(&self, name: &str, source: &Path) -> Rc<dyn Extension> {
        let candidate = install::check(source, &[], &[]).unwrap();
        candidate.copy(&self.state, source).unwrap();
        let row = candidate.installed("operator:local", Clock.now());
        self.store.borrow_mut().write(|tx| packages::put(tx, &row)).unwrap();
        self.pool.get(name).unwrap()
    }

    fn mended(&self) -> PathBuf {
        self.base.path().join("mended")
    }

    /// From here on the odd package does nothing wrong.
    pub fn mend(&self) {
        std::fs::write(self.mended(), "").unwrap();
    }

    /// Whether the longest pause that one failure brings is over.
    pub fn rested(&self) -> bool {
        let mut failed_at = self.failed_at.borrow_mut();
        failed_at.get_or_insert_with(Instant::now).elapsed() > BOUNDS.pause * 2
    }

    /// Changes the installed bytes behind the suite's back.
    pub fn change(&self, name: &str) {
        let row = self.store.borrow_mut().read(|r| packages::find(r, name)).unwrap().unwrap();
        let file = install::place(self.state.path(), name, &row.digest).join("main.py");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
    }

    /// Why health says that the package cannot be used.
    pub fn failing(&self, name: &str) -> Option<String> {
        let row = self.store.borrow_mut().read(|r| packages::find(r, name)).unwrap().unwrap();
        row.failing.map(|(_, why)| why)
    }

    fn count(&self, sql: &str) -> i64 {
        let counted: Result<i64, conduit_store::Error> =
            self.store.borrow_mut().read(|r| r.one("testing", sql, [], |row| row.get(0)));
        counted.unwrap()
    }

    /// Processes whose end is not on record, but for those of the example.
    pub fn unended(&self) -> i64 {
        self.count("SELECT count(*) FROM attempt WHERE finished_at_us IS NULL")
    }

    pub fn started(&self) -> i64 {
        self.count("SELECT count(*) FROM attempt")
    }

    fn authority(&self) -> Authority {
        let now = Clock.now();
        Authority {
            execution_id: mint(now),
            work_id: mint(now),
            scope_id: "demo".parse().unwrap(),
            binding: "worker".into(),
            epoch: 1,
            generation: 1,
        }
    }

    pub fn call(&self, operation: &str, input: Value) -> Invocation {
        let Value::Object(input) = input else { panic!("an object") };
        let authority = self.authority();
        Invocation { operation: operation.into(), request_id: "r".into(), input, authority, settings: json!({}) }
    }

    pub fn question(&self, input: Value) -> GateCall {
        let Invocation { operation, request_id, input, authority, settings } = self.call("other.do", input);
        GateCall { operation, request_id, input, authority, settings, call_digest: "0".repeat(64) }
    }
}

fn pool(state: &StateDir, home: &Path) -> Packages {
    let settings = Settings {
        attempts: state.path().join("attempts"),
        runner: env!("CARGO_BIN_EXE_open-conduit-runner").into(),
        base: BaseEnvironment::of_home(home),
        files: None,
    };
    Packages::new(Processes::open(state, settings).unwrap(), BOUNDS)
}

/// Runs a test where tasks of one thread can be spawned.
pub fn locally(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// Waits until `holds`.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
