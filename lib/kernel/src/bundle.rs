//! The bundle: what the kernel and the runner tell each other, as files in `attempts/<attempt>/` (0700).
//!
//! Before the launch the kernel writes `request.json`, `plan.json` and `manifest.json`; all three can be rebuilt
//! from the store, so they are not synced. The runner writes `start.json` before it spawns, `target.json` after, and
//! `result.json` last and durably. `lock` is held, by flock, from before the boundary until the runner ends: the lock
//! belongs to the open file, which the runner inherits as its standard output. An empty `stop` says "do not start".
//! Identity: the launch token, which the runner gets on standard input, derives from the attempt and the digests of
//! request and plan, so a runner that was given other files refuses.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use conduit_api::{AttemptId, json};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::attempt::{ProcessEnd, StopReason, Terminal};
use crate::limits::BUNDLE_FILE_BYTES_MAX;

/// The paths of one bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    dir: PathBuf,
}

impl Bundle {
    pub fn of(attempts: &Path, attempt: &AttemptId) -> Self {
        Self { dir: attempts.join(attempt.as_str()) }
    }
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    pub fn request(&self) -> PathBuf {
        self.dir.join("request.json")
    }
    pub fn plan(&self) -> PathBuf {
        self.dir.join("plan.json")
    }
    pub fn manifest(&self) -> PathBuf {
        self.dir.join("manifest.json")
    }
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }
    pub fn stop(&self) -> PathBuf {
        self.dir.join("stop")
    }
    pub fn start(&self) -> PathBuf {
        self.dir.join("start.json")
    }
    pub fn target(&self) -> PathBuf {
        self.dir.join("target.json")
    }
    pub fn result(&self) -> PathBuf {
        self.dir.join("result.json")
    }
    /// Where the retained bytes of the stream `name` (`stdout`, `stderr`) are.
    pub fn output(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// What the bundle holds, by digest (lower-case hex).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub version: u32,
    pub attempt: AttemptId,
    pub request_digest: String,
    pub plan_digest: String,
    pub operation_digest: String,
    /// Digest of the launch token; the token itself is in no file.
    pub token_digest: String,
}

/// The runner says who it is, before anything is spawned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartEvidence {
    pub attempt: AttemptId,
    pub operation_digest: String,
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
    pub boot_id: String,
    pub started_at_us: i64,
}

/// The runner says what it spawned. The process leads a session of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetEvidence {
    pub pid: u32,
    pub start_ticks: u64,
    pub session: u32,
    /// The control groups that it was started in, as `/proc/<pid>/cgroup` has them.
    pub cgroup: String,
    pub spawned_at_us: i64,
}

/// Why the runner ended the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The main process ended by itself.
    Ended,
    /// The runner was told to stop it first.
    Stopped,
    TimedOut,
}

/// One stream that the process wrote to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamResult {
    /// `stdout` or `stderr`.
    pub name: String,
    /// SHA-256 of the retained bytes, lower-case hex.
    pub digest: String,
    pub bytes: u64,
    pub dropped_bytes: u64,
    pub last_output_at_us: i64,
}

/// How the attempt ended; written only when its whole process tree is proven gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerResult {
    pub attempt: AttemptId,
    pub operation_digest: String,
    pub cause: Cause,
    pub end: ProcessEnd,
    /// Only streams that something was written to.
    pub streams: Vec<StreamResult>,
    /// How many processes had to be killed, at least.
    pub killed: u32,
    pub started_at_us: i64,
    pub finished_at_us: i64,
}

impl RunnerResult {
    /// What the attempt came to, in the kernel's words. The runner knows that it was told to stop; `asked` is why, when
    /// that is on record.
    pub fn terminal(&self, asked: Option<StopReason>) -> Terminal {
        match (self.cause, &self.end) {
            (Cause::Stopped, _) => asked.unwrap_or(StopReason::Cancel).terminal(),
            (Cause::TimedOut, _) => StopReason::Deadline.terminal(),
            (Cause::Ended, ProcessEnd::Exited { code: 0 }) => Terminal::Succeeded,
            (Cause::Ended, end) => Terminal::Failed { end: end.clone() },
        }
    }
}

/// One retained stream of a concluded attempt, for the caller to keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputFact {
    pub name: String,
    /// In the bundle, until [`crate::Kernel::forget_bundle`]. Not stored: a state directory can move.
    #[serde(skip)]
    pub path: PathBuf,
    pub digest: String,
    pub bytes: u64,
    pub dropped_bytes: u64,
}

/// Reads a file of a bundle, strictly; `None` when it is not there, `InvalidData` when it is not what it should be.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> std::io::Result<Option<T>> {
    let Some(bytes) = read_bytes(path)? else { return Ok(None) };
    json::read(&bytes, BUNDLE_FILE_BYTES_MAX)
        .map(Some)
        .map_err(|refused| std::io::Error::new(std::io::ErrorKind::InvalidData, refused))
}

/// The bytes of a file of a bundle; `None` when it is not there.
pub(crate) fn read_bytes(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(BUNDLE_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Writes a file that can be rebuilt: owner-only, not synced.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Writes a file that must not be there yet: `AlreadyExists` otherwise.
pub(crate) fn put_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Room on the disk for a file that has to be written later, whatever the disk holds by then.
#[derive(Debug)]
pub(crate) struct Reserved {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Reserved {
    /// Takes `bytes_max` bytes for the file `path`: real ones, as a hole can turn out to have no room.
    pub fn take(path: PathBuf, bytes_max: usize) -> std::io::Result<Self> {
        let temporary = path.with_extension("tmp");
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(&vec![0; bytes_max])?;
        Ok(Self { path, temporary, file })
    }

    /// Makes `bytes` the file, complete and durable, in the room that was taken. May be tried again after an error.
    pub fn put(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(bytes, 0)?;
        self.file.set_len(bytes.len() as u64)?;
        self.file.sync_all()?;
        std::fs::rename(&self.temporary, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}
