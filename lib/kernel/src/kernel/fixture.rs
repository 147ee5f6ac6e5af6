//! A kernel on a real store for the unit tests of this room. Its runner is never started.

use std::collections::BTreeMap;

use conduit_api::AttemptId;
use conduit_store::{Clock, StateDir, Store, named_params};

use crate::error::Result;
use crate::identity::{BaseEnvironment, Limits, OperationRequest};
use crate::kernel::{Admission, Kernel, Settings};

pub struct Fixture {
    pub base: tempfile::TempDir,
    pub store: Store,
    pub kernel: Kernel,
}

impl Fixture {
    pub fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("state")).unwrap();
        let settings = Settings {
            attempts: state.path().join("attempts"),
            runner: "/bin/true".into(),
            base: BaseEnvironment::of_home(base.path()),
            files: None,
        };
        let (store, kernel) = (Store::open(&state).unwrap(), Kernel::new(settings).unwrap());
        Self { base, store, kernel }
    }

    pub fn admit(&mut self, request: &OperationRequest) -> Result<Admission> {
        self.store.write(|tx| self.kernel.admit(tx, request, Clock.now()))
    }

    /// An attempt behind the boundary that no runner was started for.
    pub fn dispatched(&mut self, id: &str) -> AttemptId {
        let attempt = self.admit(&request(id)).unwrap().attempt;
        let staged = self.kernel.stage(&mut self.store, &attempt).unwrap();
        self.store.write(|tx| self.kernel.dispatch(tx, &staged, Clock.now())).unwrap();
        attempt
    }

    pub fn count(&mut self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        self.store.read(|read| read.one("testing", &sql, [], |row| row.get(0))).unwrap()
    }

    pub fn reservation(&mut self, attempt: &AttemptId) -> String {
        const SQL: &str = "SELECT state FROM reservation WHERE attempt_id = :id";
        let id = named_params! { ":id": attempt.as_str() };
        self.store.read(|read| read.one("testing", SQL, id, |row| row.get(0))).unwrap()
    }

    /// The states that the attempt went through, with their reasons.
    pub fn history(&mut self, attempt: &AttemptId) -> Vec<(String, String)> {
        const SQL: &str = "SELECT state, reason FROM attempt_event WHERE attempt_id = :id ORDER BY revision";
        let id = named_params! { ":id": attempt.as_str() };
        self.store.read(|read| read.all("testing", SQL, id, |row| Ok((row.get(0)?, row.get(1)?)))).unwrap()
    }
}

pub fn request(id: &str) -> OperationRequest {
    OperationRequest {
        principal: "test".into(),
        client_request_id: id.into(),
        executable: "/bin/true".into(),
        args: vec!["a".into()],
        cwd: "/".into(),
        env: BTreeMap::new(),
        limits: Limits {
            timeout_ms: 1000,
            output_bytes_max: None,
            stop_grace_ms: None,
            resources: crate::identity::Resources::default(),
        },
        workspace_digest: None,
        channel: false,
    }
}
