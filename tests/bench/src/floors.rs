//! The floors: the least that a machine needs for an exchange, a durable commit, and a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rusqlite::{Connection, params};
use tokio::net::UnixListener;

use crate::Result;

/// About as many bytes as a small emit carries.
pub const PAYLOAD: &str =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Serves `socket` on one thread: each answer is the request's own body.
pub fn echo_server(socket: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let listener = UnixListener::bind(socket)?;
        println!("ready");
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::task::spawn_local(async move {
                let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo)).await;
                if let Err(error) = served {
                    eprintln!("conduit-bench echo: {error}");
                }
            });
        }
    })
}

async fn echo(request: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::builder().header("content-type", "application/json").body(Full::new(body)).unwrap_or_default())
}

/// A process of this program that plays a part; it ends with the value.
pub struct Part(Child);

impl Part {
    /// Starts the part and waits until it says that it is ready.
    pub fn start(args: &[&std::ffi::OsStr]) -> Result<Self> {
        let mut part = Self::spawn(args)?;
        let mut ready = [0; 6];
        part.0.stdout.as_mut().ok_or("no standard output")?.read_exact(&mut ready)?;
        Ok(part)
    }

    /// Starts a part that answers lines, and says nothing before that.
    pub fn spawn(args: &[&std::ffi::OsStr]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        Ok(Self(command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }

    pub fn pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.0.id())?)
    }

    fn go(&mut self) -> Result<()> {
        Ok(self.0.stdin.as_mut().ok_or("no standard input")?.write_all(b"go\n")?)
    }

    /// Sends `line`, which has its end, and reads a line back; how long that took.
    pub fn exchange(&mut self, line: &str) -> Result<Duration> {
        let input = self.0.stdin.as_mut().ok_or("no standard input")?;
        let output = self.0.stdout.as_mut().ok_or("no standard output")?;
        let mut answer = [0; 4096];
        let begun = Instant::now();
        input.write_all(line.as_bytes())?;
        loop {
            match output.read(&mut answer)? {
                0 => return Err("it ended".into()),
                read if answer[..read].ends_with(b"\n") => return Ok(begun.elapsed()),
                _ => {}
            }
        }
    }

    fn answer(&mut self) -> Result<u64> {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().ok_or("no standard output")?).read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing of it stays.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A database with one table, opened as the suite's store is: WAL, FULL, the same patience with other writers.
pub struct Bare(Connection);

impl Bare {
    pub fn open(path: &Path) -> Result<Self> {
        let mut conn = Connection::open(path)?;
        conn.busy_handler(Some(busy))?;
        conn.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.execute_batch("CREATE TABLE IF NOT EXISTS row (id INTEGER PRIMARY KEY, payload TEXT NOT NULL) STRICT")?;
        Ok(Self(conn))
    }

    /// Commits one row; how long that took.
    pub fn commit(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let tx = self.0.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.prepare_cached("INSERT INTO row (payload) VALUES (?1)")?.execute(params![PAYLOAD])?;
        tx.commit()?;
        Ok(begun.elapsed())
    }
}

fn busy(tries: i32) -> bool {
    let pause = match tries {
        0..20 => 50,
        20..100 => 200,
        _ => 2000,
    };
    std::thread::sleep(Duration::from_micros(pause));
    tries < 10_000
}

/// Commits one row after another for `length` once it is told to go; prints how many.
pub fn writer(database: &Path, length: Duration) -> Result<()> {
    let mut bare = Bare::open(database)?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let end = Instant::now() + length;
    let mut commits = 0u64;
    while Instant::now() < end {
        bare.commit()?;
        commits += 1;
    }
    println!("{commits}");
    Ok(())
}

/// What `writers` bare processes commit per second together.
pub fn writers(database: &Path, writers: usize, length: Duration) -> Result<f64> {
    let millis = length.as_millis().to_string();
    let args = ["writer".as_ref(), database.as_os_str(), millis.as_ref()];
    let mut parts = (0..writers).map(|_| Part::start(&args)).collect::<Result<Vec<_>>>()?;
    parts.iter_mut().try_for_each(Part::go)?;
    let commits = parts.iter_mut().map(Part::answer).sum::<Result<u64>>()?;
    Ok(commits as f64 / length.as_secs_f64())
}

/// Starts `program` and waits for its end; how long that took.
pub fn spawn(program: &Path, args: &[&std::ffi::OsStr], environment: &[(&str, &Path)]) -> Result<Duration> {
    let mut command = Command::new(program);
    command.args(args).envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status()?;
    let took = begun.elapsed();
    if status.success() { Ok(took) } else { Err(format!("{} ended with {status}", program.display()).into()) }
}

/// Wall time in microseconds, as the suite's own instants are.
pub fn wall_us() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?)
}

/// Writes the instant at which this process began to run into a file of its own in `folder`.
pub fn stamp(folder: &Path) -> Result<()> {
    let now = wall_us()?;
    let name = std::env::var("OPEN_CONDUIT_WORK_ID").unwrap_or_else(|_| "bare".into());
    let part = folder.join(format!(".{name}"));
    std::fs::write(&part, now.to_string())?;
    Ok(std::fs::rename(part, folder.join(name))?)
}
