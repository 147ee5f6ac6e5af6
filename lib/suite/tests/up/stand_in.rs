//! What this program does under the name of one of the suite's: just enough to see what `up` does with it.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use conduit_api::{ApiError, Code, ExecutionId, WorkId};
use conduit_daemon::activation::{as_listener, bind_datagram};
use conduit_daemon::http::{Limits, Reply, Request, Served, Service, serve};
use conduit_daemon::program::{Start, run};
use conduit_daemon::{DaemonArgs, notify, shutdown};
use conduit_suite::up::{UpArgs, up};

/// Environment variable that names the test's directory.
pub const HOME: &str = "CONDUIT_TEST_HOME";
/// Socket in it to which stand-ins report.
pub const REPORTS: &str = "reports";
/// Socket in it that the spawner's stand-in takes commands from.
pub const COMMANDS: &str = "commands";
pub const RUN_SOCKET: &str = "run.sock";

const IDLE: Duration = Duration::from_millis(50);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: DaemonArgs,
    #[arg(long)]
    _config: Option<PathBuf>,
}

#[derive(Parser)]
enum Main {
    Up(UpArgs),
}

/// Acts as the program `name`; `None` when that is the test itself.
pub fn main(name: &str) -> Option<i32> {
    let code = match name {
        "open-conduit" => {
            let Main::Up(args) = Main::parse();
            up(&args)
        }
        "open-conduitd" => run("open-conduitd", shared, async |_: Args, start| scheduler(start).await),
        "open-conduit-endpointd" => {
            run("open-conduit-endpointd", shared, async |_: Args, start| endpointd(start).await)
        }
        "open-conduit-management" => {
            run("open-conduit-management", shared, async |_: Args, start| management(start).await)
        }
        _ => return None,
    };
    Some(if code == ExitCode::SUCCESS { 0 } else { exit_number(code) })
}

fn shared(args: &Args) -> &DaemonArgs {
    &args.common
}

/// `ExitCode` shows its number to nobody but the system; its `Debug` form does.
fn exit_number(code: ExitCode) -> i32 {
    format!("{code:?}").chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(1)
}

fn home() -> PathBuf {
    PathBuf::from(std::env::var_os(HOME).unwrap())
}

fn tell(text: &str) {
    // The test may have ended already.
    let _ = UnixDatagram::unbound().unwrap().send_to(text.as_bytes(), home().join(REPORTS));
}

fn started(program: &str, kept: usize) {
    std::fs::write(home().join(format!("{program}.pid")), std::process::id().to_string()).unwrap();
    tell(&format!("{program} started kept={kept} pid={}", std::process::id()));
    notify::ready().unwrap();
}

async fn scheduler(mut start: Start) -> Result<(), ApiError> {
    if home().join("refuse").exists() {
        return Err(ApiError::new(Code::StoreNewer, "the store is newer"));
    }
    let end = shutdown::signals().unwrap();
    start.inherited.datagram("doorbell")?.expect("the doorbell was passed");
    started("open-conduitd", start.inherited.rest().count());
    end.await;
    if home().join("stubborn").exists() {
        std::future::pending::<()>().await;
    }
    tell("open-conduitd stopped");
    Ok(())
}

async fn endpointd(mut start: Start) -> Result<(), ApiError> {
    let end = shutdown::signals().unwrap();
    start.inherited.listener("endpointd")?.expect("the socket was passed");
    let mut kept = start.inherited.all("run-");
    let count = kept.len();
    let mut run: Option<UnixListener> = kept.pop().map(|(name, fd)| as_listener(&name, fd)).transpose()?;
    let commands = tokio::net::UnixDatagram::from_std(bind_datagram(&home().join(COMMANDS))?).unwrap();
    started("open-conduit-endpointd", count);
    tokio::pin!(end);
    loop {
        let mut text = [0; 64];
        let bytes = tokio::select! {
            bytes = commands.recv(&mut text) => bytes.unwrap(),
            _ = &mut end => break,
        };
        match std::str::from_utf8(&text[..bytes]).unwrap() {
            "open" => {
                let path = home().join(RUN_SOCKET);
                let listener = conduit_daemon::activation::bind_stream(&path)?;
                notify::store_fd("run-a", &listener).unwrap();
                tell(&format!("opened {}", inode(&path)));
                run = Some(listener);
            }
            "inode" => {
                let address = run.as_ref().unwrap().local_addr().unwrap();
                tell(&format!("inode {}", inode(address.as_pathname().unwrap())));
            }
            "accept" => {
                use std::io::Read;
                let (mut stream, _) = run.as_ref().unwrap().accept().unwrap();
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                tell(&format!("accepted {}", char::from(byte[0])));
            }
            "close" => {
                notify::remove_fd("run-a").unwrap();
                run = None;
                tell("closed");
            }
            other => panic!("{other}"),
        }
    }
    tell("open-conduit-endpointd stopped");
    Ok(())
}

fn inode(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().ino()
}

/// The execution that the management server's stand-in says is running.
pub fn running() -> ExecutionId {
    ExecutionId::from_parts(0, 1)
}

struct Executions;

impl Service for Executions {
    async fn handle(&self, request: Request) -> Reply {
        assert_eq!(request.path, "/v1/executions");
        let execution = |id: ExecutionId, state: &str| {
            serde_json::json!({
                "id": id, "work_id": WorkId::from_parts(0, 1), "scope_id": "s", "binding": "b", "generation": 1, "attempt": 1,
                "epoch": 1, "segment": 1, "state": state, "created_at": "2026-01-01T00:00:00Z", "revision": 1,
            })
        };
        let items = [execution(running(), "running"), execution(ExecutionId::from_parts(0, 2), "parked")];
        Reply::json(200, &serde_json::json!({ "items": items }))
    }
}

async fn management(mut start: Start) -> Result<(), ApiError> {
    let end = shutdown::signals().unwrap();
    let listener = start.inherited.listener("management")?.expect("the socket was passed");
    started("open-conduit-management", start.inherited.rest().count());
    // While an operator is there it stays, so that a stop finds it.
    let idle = if start.places.operator_token().exists() { None } else { Some(IDLE) };
    let served = serve(listener, Rc::new(Executions), Limits::default(), end, idle).await?;
    tell(match served {
        Served::Idle => "open-conduit-management idle",
        Served::Shutdown => "open-conduit-management stopped",
    });
    Ok(())
}
