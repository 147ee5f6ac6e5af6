//! One installed package as an [`Extension`]: its process is started on first use, ended when idle or at fault, and started
//! again after a pause that doubles with each failure in a row.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use conduit_api::ExecutionId;
use conduit_toolbelt::packages::Installed;
use conduit_toolbelt::registry::Registration;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::Bounds;
use super::connection::Connection;
use super::process::{Process, Processes};
use super::protocol::{self, Initialized, VERSIONS, method};
use crate::{
    Action, Answer, EndCall, Extension, Failure, GateAnswer, GateCall, Invocation, Invoked, Plan, PlanCall, SegmentEnd,
    SettingFault, StartCall,
};

/// How long a process may take to end by itself once it is told to.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(2);

/// An installed package.
#[derive(Debug, Clone)]
pub struct InstalledPackage(Rc<Package>);

#[derive(Debug)]
struct Package {
    row: Installed,
    processes: Rc<Processes>,
    bounds: Bounds,
    /// Held while a process is started, so that one is.
    running: Mutex<Option<Rc<Running>>>,
    /// Failures in a row.
    failures: Cell<u32>,
    /// Until when nothing is started, and why.
    pause: RefCell<Option<(Instant, String)>>,
}

/// A process that has introduced itself.
#[derive(Debug)]
struct Running {
    connection: Connection,
    process: Process,
    last_use: Cell<Instant>,
    /// It is ended on purpose.
    closing: Cell<bool>,
}

impl InstalledPackage {
    pub fn new(row: Installed, processes: Rc<Processes>, bounds: Bounds) -> Self {
        Self(Rc::new(Package {
            failures: Cell::new(u32::from(row.failing.is_some())),
            row,
            processes,
            bounds,
            running: Mutex::new(None),
            pause: RefCell::new(None),
        }))
    }

    /// The row that it runs by.
    pub fn row(&self) -> &Installed {
        &self.0.row
    }

    /// Ends its process, if one runs.
    pub async fn close(&self) {
        let running = self.0.running.lock().await.take();
        if let Some(running) = running {
            running.close().await;
        }
    }
}

impl Package {
    /// Asks its process on behalf of an execution, if it is one. The process is started if none runs, and kept to the
    /// deadline. An answer that `read` cannot make anything of is a fault of the process, which ends for it.
    async fn ask<P: Serialize, T>(
        self: &Rc<Self>,
        of: Option<&ExecutionId>,
        method: &str,
        params: P,
        deadline: Duration,
        read: fn(Value) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let running = self.running().await?;
        running.last_use.set(Instant::now());
        let answered = timeout(deadline, running.connection.ask(of, method, params))
            .await
            .unwrap_or_else(|_| Err(Failure::Failed("it took too long".into())));
        running.last_use.set(Instant::now());
        let heard = answered.is_ok();
        let answered = answered.and_then(read);
        match &answered {
            Err(Failure::Failed(why)) if heard => running.connection.end(why),
            Ok(_) | Err(Failure::Refused(_)) => self.works(),
            Err(_) => {}
        }
        answered
    }

    /// Its process, which has introduced itself. Error: `Unavailable`; the package was not asked anything.
    ///
    /// Who is dropped while it starts leaves a process that the next one finds.
    async fn running(self: &Rc<Self>) -> Result<Rc<Running>, Failure> {
        if let Ok(held) = self.running.try_lock()
            && let Some(running) = held.as_ref().filter(|running| running.is_usable())
        {
            return Ok(Rc::clone(running));
        }
        let starting = tokio::task::spawn_local(Rc::clone(self).started());
        starting.await.unwrap_or_else(|_| Err(Failure::Unavailable("its start was not completed".into())))
    }

    async fn started(self: Rc<Self>) -> Result<Rc<Running>, Failure> {
        let mut held = self.running.lock().await;
        if let Some(running) = held.as_ref().filter(|running| running.is_usable()) {
            return Ok(Rc::clone(running));
        }
        if let Some((until, why)) = &*self.pause.borrow()
            && Instant::now() < *until
        {
            return Err(Failure::Unavailable(format!("it failed, and is started again after a pause: {why}")));
        }
        *held = None;
        match self.start().await {
            Ok(running) => Ok(Rc::clone(held.insert(running))),
            Err(why) => {
                self.failed(&why);
                Err(Failure::Unavailable(why))
            }
        }
    }

    async fn start(self: &Rc<Self>) -> Result<Rc<Running>, String> {
        let (process, channel) = self.processes.start(&self.row).await?;
        let connection = match Connection::new(channel, self.bounds) {
            Ok(connection) => connection,
            Err(error) => {
                process.stop().await;
                return Err(format!("its channel cannot be used: {error}"));
            }
        };
        let introduced = timeout(self.bounds.initialize, self.introduce(&connection)).await;
        if let Err(why) = introduced.unwrap_or_else(|_| Err("it did not answer `initialize` in time".into())) {
            connection.end(&why);
            process.stop().await;
            return Err(why);
        }
        let running =
            Rc::new(Running { connection, process, last_use: Cell::new(Instant::now()), closing: Cell::new(false) });
        tokio::task::spawn_local(Rc::clone(self).attend(Rc::clone(&running)));
        Ok(running)
    }

    /// `initialize`: one version of the protocol for both, and a package that is what its manifest says (G01, T16).
    async fn introduce(&self, connection: &Connection) -> Result<(), String> {
        let params = json!({
            "protocol_versions": VERSIONS,
            "host": {"name": "open-conduit", "version": env!("CARGO_PKG_VERSION")},
            "package": {"name": self.row.name, "version": self.row.version.to_string()},
            "limits": {"line_bytes": self.bounds.line_bytes, "in_flight": self.bounds.in_flight},
        });
        let said = connection.ask(None, method::INITIALIZE, params).await.map_err(|failure| failure.to_string())?;
        let said: Initialized = conduit_api::json::from_value(said)
            .map_err(|refused| format!("its answer to `initialize` is none: {refused}"))?;
        if !VERSIONS.contains(&said.protocol_version) {
            return Err(format!("it speaks version {} of the protocol, which was not offered", said.protocol_version));
        }
        let registered = &self.row.registration;
        let differs = |what: &str| Err(format!("its {what} is not what its manifest says"));
        let same = |mut said: Vec<String>, mut registered: Vec<&str>| {
            said.sort_unstable();
            registered.sort_unstable();
            said == registered
        };
        if said.name != self.row.name {
            return differs("name");
        }
        if said.version != self.row.version.to_string() {
            return differs("version");
        }
        if !same(said.operations, registered.operations.iter().map(|spec| spec.name.as_str()).collect()) {
            return differs("list of operations");
        }
        if !same(said.actions, registered.actions.iter().map(|action| action.name.as_str()).collect()) {
            return differs("list of actions");
        }
        if !same(said.executors, registered.executors.iter().map(|spec| spec.name.as_str()).collect()) {
            return differs("list of executors");
        }
        if (said.operation_gate, said.start_gate) != (registered.gate, registered.start_gate) {
            return differs("list of gates");
        }
        if said.validate != registered.validate {
            return differs("word on `validate`");
        }
        Ok(())
    }

    /// Follows a process to its end: one that is idle is told to go, one that is at fault is killed.
    async fn attend(self: Rc<Self>, running: Rc<Running>) {
        let why = loop {
            let idle_at = running.last_use.get() + self.bounds.idle;
            tokio::select! {
                why = running.connection.broken() => break Some(why),
                () = running.process.ended() => break Some("its process ended".into()),
                () = sleep_until(idle_at) => {}
            }
            if running.connection.is_busy() {
                running.last_use.set(Instant::now());
            } else if running.last_use.get() + self.bounds.idle <= Instant::now() {
                break None;
            }
        };
        match why {
            Some(why) if !running.closing.get() => {
                running.closing.set(true);
                self.failed(&why);
                running.process.stop().await;
            }
            Some(_) => {}
            None => running.close().await,
        }
    }

    fn failed(&self, why: &str) {
        let failures = self.failures.get();
        self.failures.set(failures.saturating_add(1));
        let pause = self.bounds.pause.saturating_mul(1 << failures.min(16)).min(self.bounds.pause_max);
        tracing::error!(package = self.row.name, why, pause_ms = pause.as_millis() as u64, "a package failed");
        *self.pause.borrow_mut() = Some((Instant::now() + pause, why.to_owned()));
        self.processes.note(&self.row, Some(why));
    }

    /// It answered: what it failed at before is over.
    fn works(&self) {
        if self.failures.replace(0) > 0 {
            self.pause.borrow_mut().take();
            self.processes.note(&self.row, None);
        }
    }
}

impl Running {
    fn is_usable(&self) -> bool {
        !self.closing.get() && !self.connection.is_broken()
    }

    /// Tells it to end, and sees to it.
    async fn close(&self) {
        self.closing.set(true);
        let goes = async {
            // Whatever it answers, it may go.
            let _ = self.connection.ask(None, method::SHUTDOWN, json!({})).await;
            self.connection.end("it was told to end");
            self.process.ended().await;
        };
        if timeout(SHUTDOWN_TIME_MAX, goes).await.is_err() {
            self.connection.end("it was told to end");
            self.process.stop().await;
        }
    }
}

/// The parameters of a question: what is asked, and how long the answer may take.
#[derive(Serialize)]
struct Timed<'t, T> {
    #[serde(flatten)]
    what: &'t T,
    deadline_ms: u64,
}

fn timed<T>(what: &T, deadline: Duration) -> Timed<'_, T> {
    Timed { what, deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX) }
}

impl Extension for InstalledPackage {
    fn registration(&self) -> Registration {
        self.0.row.registration.clone()
    }

    fn invoke<'a>(&'a self, call: &'a Invocation) -> Answer<'a, Result<Invoked, Failure>> {
        let deadline = self.0.bounds.handler;
        let of = Some(&call.authority.execution_id);
        Box::pin(
            async move { self.0.ask(of, method::INVOKE, timed(call, deadline), deadline, protocol::invoked).await },
        )
    }

    fn gate<'a>(&'a self, call: &'a GateCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        let deadline = self.0.bounds.gate;
        let of = Some(&call.authority.execution_id);
        Box::pin(async move { self.0.ask(of, method::GATE, timed(call, deadline), deadline, protocol::gated).await })
    }

    fn start_gate<'a>(&'a self, call: &'a StartCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        let deadline = self.0.bounds.gate;
        Box::pin(
            async move { self.0.ask(None, method::START_GATE, timed(call, deadline), deadline, protocol::gated).await },
        )
    }

    fn validate<'a>(&'a self, settings: &'a Value) -> Answer<'a, Result<Vec<SettingFault>, Failure>> {
        let deadline = self.0.bounds.validate;
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        // The only kind there is; it leaves room for others.
        let params = json!({"kind": "settings", "settings": settings, "deadline_ms": deadline_ms});
        Box::pin(async move { self.0.ask(None, method::VALIDATE, params, deadline, protocol::validated).await })
    }

    fn plan<'a>(&'a self, call: &'a PlanCall) -> Answer<'a, Result<Plan, Failure>> {
        let deadline = self.0.bounds.executor;
        Box::pin(
            async move { self.0.ask(None, method::PLAN, timed(call, deadline), deadline, protocol::planned).await },
        )
    }

    fn interpret<'a>(&'a self, call: &'a EndCall) -> Answer<'a, Result<SegmentEnd, Failure>> {
        let deadline = self.0.bounds.executor;
        Box::pin(async move {
            self.0.ask(None, method::INTERPRET, timed(call, deadline), deadline, protocol::interpreted).await
        })
    }

    fn act<'a>(&'a self, action: &'a Action) -> Answer<'a, Result<Value, Failure>> {
        let deadline = self.0.bounds.handler;
        Box::pin(
            async move { self.0.ask(None, method::ACTION, timed(action, deadline), deadline, protocol::acted).await },
        )
    }
}
