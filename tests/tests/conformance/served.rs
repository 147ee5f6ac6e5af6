//! A toolbelt behind sockets: `open-conduit-endpointd` and the workers that it starts, as programs, and `host.sock` with the
//! scheduler's own service behind it. The cases' extensions are on record as packages, so that workers know them, and
//! carried out in this process, so that a case can say what they do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use conduit_api::places::Places;
use conduit_api::toolbelt::CallResponse;
use conduit_api::{ApiError, ExecutionId, UnixMicros};
use conduit_client::{AsyncClient, Call as Sent, ClientError, Credential, Method};
use conduit_endpoint::control;
use conduit_endpoint::rundir::RunDir;
use conduit_extension::host::ExtensionHost;
use conduit_extension::{Answer, Extension};
use conduit_scheduler::extensions;
use conduit_store::{StateDir, Store};
use conduit_tests::processes::{self, Process};
use conduit_tests::{programs, until};
use conduit_toolbelt::hosted::Hosted;
use conduit_toolbelt::packages::{self, Installed};
use conduit_toolbelt::registry::Registry;
use nix::sys::signal::Signal;
use tokio::sync::oneshot;

use crate::call::{Answered, Call, Implementation};
use crate::support::{Scripted, World};

/// What happens between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    Nothing,
    /// Every worker and the extension host end; the next call finds new ones.
    StartedAnew,
}

pub struct Served {
    places: Places,
    extensions: Vec<Rc<Scripted>>,
    spawner: Child,
    between: Between,
    host: Option<Host>,
    instances: u32,
    sockets: BTreeMap<ExecutionId, PathBuf>,
}

/// `host.sock` and what serves it.
struct Host {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    pub fn new(world: &World, between: Between) -> Self {
        let state = world.state();
        let places = Places { runtime: state.with_file_name("r"), state };
        register(&places, &world.extensions);
        let log = std::fs::File::create(places.state.with_file_name("log")).unwrap();
        let spawner = Command::new(programs::folder().join("open-conduit-endpointd"))
            .arg("--state")
            .arg(&places.state)
            .arg("--runtime")
            .arg(&places.runtime)
            .args(["--parent", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let extensions = world.extensions.clone();
        Self { places, extensions, spawner, between, host: None, instances: 0, sockets: BTreeMap::new() }
    }

    async fn answer(&mut self, call: Call) -> Answered {
        if self.between == Between::StartedAnew {
            self.end_workers();
            if let Some(host) = self.host.take() {
                let _ = host.stop.send(());
                host.task.await.unwrap();
            }
        }
        if self.host.is_none() {
            self.host = Some(self.start_host());
        }
        let socket = self.socket(&call.socket).await;
        let token = self.places.state.with_file_name("bearer");
        std::fs::write(&token, &call.token).unwrap();
        let client = AsyncClient::new(socket, Credential::from_file(&token).unwrap());
        let sent = Sent::new(Method::Post, conduit_api::http::TOOLBELT_CALL).unwrap().json(&call.request).unwrap();
        match client.send(&sent).await {
            Ok(answer) => Ok(answer.read::<CallResponse>().unwrap()),
            Err(ClientError::Refused { body, status }) => {
                let error = match body.code.parse() {
                    Ok(code) => ApiError::new(code, body.message),
                    Err(()) => ApiError::of_extension(body.code, body.message),
                };
                assert_eq!(status, error.code.status(), "{error:?}");
                Err(ApiError { diagnostics: body.diagnostics, ..error })
            }
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// The run socket of an execution, which the spawner binds when it is asked to.
    async fn socket(&mut self, execution: &ExecutionId) -> PathBuf {
        if let Some(socket) = self.sockets.get(execution) {
            return socket.clone();
        }
        RunDir::prepare(&self.places.state, execution).unwrap();
        let socket = control::serve(&self.places, execution).await.unwrap();
        self.sockets.insert(execution.clone(), socket.clone());
        socket
    }

    fn start_host(&mut self) -> Host {
        self.instances += 1;
        let listener = extensions::bind(&self.places).unwrap();
        // What is registered it reads off the store, like the workers.
        let instance = format!("instance {}", self.instances);
        let toolbelt = Hosted::open(&self.places.state, Rc::new(Registry::builtins()), instance).unwrap();
        let own = self.extensions.iter().map(|extension| Rc::clone(extension) as Rc<dyn Extension>).collect();
        let host = Rc::new(ExtensionHost::new(toolbelt, own, Box::new(|| ())));
        host.settle_left_behind().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::task::spawn_local(extensions::serve(listener, host, stopped));
        Host { stop, task }
    }

    fn workers(&self) -> Vec<Process> {
        let all = processes::naming(&self.places.state);
        all.into_iter().filter(|process| process.program == "open-conduit-endpoint" && process.lives()).collect()
    }

    /// Asks every worker to end, and waits until the spawner has seen the end of each.
    fn end_workers(&self) {
        for worker in self.workers() {
            worker.signal(Signal::SIGTERM);
            until("the worker is gone", || Process::read(worker.pid).is_none_or(|now| now != worker).then_some(()));
        }
    }
}

/// Puts the extensions on record as packages; one that no registry accepts stays out of every registry.
fn register(places: &Places, extensions: &[Rc<Scripted>]) {
    let mut store = Store::open(&StateDir::open(&places.state).unwrap()).unwrap();
    for extension in extensions {
        let registration = extension.registration();
        let package = Installed {
            name: registration.name.clone(),
            version: registration.version,
            manifest: "{}".into(),
            digest: [0; 32],
            installed_at: UnixMicros(1),
            installed_by: "operator:local".into(),
            failing: None,
            registration,
        };
        let put: Result<(), conduit_store::Error> = store.write(|tx| packages::put(tx, &package));
        put.unwrap();
    }
}

impl Implementation for Served {
    fn call(&mut self, arrived: Call) -> Answer<'_, Answered> {
        Box::pin(self.answer(arrived))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let workers = self.workers();
        let _ = self.spawner.kill();
        let _ = self.spawner.wait();
        for worker in workers {
            worker.kill();
        }
    }
}
