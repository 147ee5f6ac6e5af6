//! Operation identity (K02): what was asked for, what the world was, and the digests that bind both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use conduit_api::AttemptId;
use conduit_store::Now;
use conduit_store::digest::{Sha256Digest, canonical_json, hex, sha256_parts};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::executable::Executable;
use crate::limits::{
    ARGUMENT_BYTES_MAX, ARGUMENTS_BYTES_MAX, FILES_MIN, MEMORY_BYTES_MIN, OUTPUT_BYTES_DEFAULT, OUTPUT_BYTES_MAX,
    STOP_GRACE_MS_DEFAULT, STOP_GRACE_MS_MAX, TIMEOUT_MS_MAX,
};

/// Limits as the caller asked for them; what is absent is delegated to the kernel, which is a different fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Milliseconds from the admission: the time that a launch takes is part of it.
    pub timeout_ms: u64,
    /// Bytes of each output stream that are retained; the rest is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_max: Option<u64>,
    /// Milliseconds that the process tree has to end after SIGTERM, before SIGKILL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_ms: Option<u64>,
    /// What each of its processes may use.
    #[serde(default, skip_serializing_if = "Resources::is_open")]
    pub resources: Resources,
}

/// What each process of an operation may use at most; what is absent is as the launcher has it. They hold for each process by
/// itself: what a whole tree uses together only a control group bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Bytes of memory that are its own to write: more is not given to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
    /// Open files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_max: Option<u64>,
    /// Bytes of a file that it writes: at that size it is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes_max: Option<u64>,
    /// Whether it leaves no core file, whatever it dies of.
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_core: bool,
    /// Whether neither it nor what it starts gains a privilege from a file that it runs (set-user-ID, file capabilities).
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_new_privileges: bool,
}

impl Resources {
    /// Whether nothing is bounded.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }
}

/// One operation that a principal asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationRequest {
    pub principal: String,
    /// Unique for the principal: the same ID is the same operation, for ever.
    pub client_request_id: String,
    /// Absolute, as invoked: it becomes argv\[0\].
    pub executable: PathBuf,
    pub args: Vec<String>,
    pub cwd: PathBuf,
    /// Explicit values, laid over the kernel's own.
    pub env: BTreeMap<String, String>,
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_digest: Option<String>,
    /// Whether its standard input and output are a channel to whoever launches it; then no output but stderr is retained.
    #[serde(default, skip_serializing_if = "is_false")]
    pub channel: bool,
}

/// What every process is given, whoever asks; nothing is inherited from the service (K08).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseEnvironment {
    pub path: String,
    pub home: PathBuf,
    /// Short, so that the process's own sockets fit.
    pub tmp: PathBuf,
    pub cache: PathBuf,
}

/// The name of the variable that marks every process of an attempt.
pub const MARKER: &str = "OPEN_CONDUIT_KERNEL_ATTEMPT";

impl BaseEnvironment {
    /// A base with the usual PATH and `/tmp`.
    pub fn of_home(home: &Path) -> Self {
        Self {
            path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            home: home.to_owned(),
            tmp: "/tmp".into(),
            cache: home.join(".cache"),
        }
    }

    fn merged(&self, explicit: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut env = BTreeMap::from([
            ("PATH".into(), self.path.clone()),
            ("HOME".into(), text(&self.home)),
            ("LANG".into(), "C.UTF-8".into()),
            ("LC_ALL".into(), "C.UTF-8".into()),
            ("TMPDIR".into(), text(&self.tmp)),
            ("XDG_CACHE_HOME".into(), text(&self.cache)),
        ]);
        env.extend(explicit.iter().map(|(name, value)| (name.clone(), value.clone())));
        env
    }
}

/// What the world was at first admission, frozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub version: u32,
    pub executable: Executable,
    pub args: Vec<String>,
    pub cwd: PathBuf,
    /// The whole environment of the process, but for the marker.
    pub env: BTreeMap<String, String>,
    pub timeout_ms: u64,
    /// When the process is stopped, in microseconds since the boot `boot_id`.
    pub deadline_boot_us: i64,
    pub boot_id: String,
    pub output_bytes_max: u64,
    pub stop_grace_ms: u64,
    #[serde(default, skip_serializing_if = "Resources::is_open")]
    pub resources: Resources,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_digest: Option<String>,
    /// See [`OperationRequest::channel`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub channel: bool,
}

const VERSION: u32 = 1;

impl Plan {
    pub(crate) fn freeze(request: &OperationRequest, executable: Executable, base: &BaseEnvironment, now: Now) -> Self {
        Self {
            version: VERSION,
            executable,
            args: request.args.clone(),
            cwd: request.cwd.clone(),
            env: base.merged(&request.env),
            timeout_ms: request.limits.timeout_ms,
            deadline_boot_us: now.boot_us.saturating_add(micros(request.limits.timeout_ms)),
            boot_id: now.boot_id.to_owned(),
            output_bytes_max: request.limits.output_bytes_max.unwrap_or(OUTPUT_BYTES_DEFAULT),
            stop_grace_ms: request.limits.stop_grace_ms.unwrap_or(STOP_GRACE_MS_DEFAULT),
            resources: request.limits.resources,
            workspace_digest: request.workspace_digest.clone(),
            channel: request.channel,
        }
    }

    /// When the process is to be stopped that is started at `now`, in microseconds since this boot. The clock of another
    /// boot says nothing in this one: what was admitted in it has its whole time.
    pub(crate) fn deadline_boot_us(&self, now: Now) -> i64 {
        if self.boot_id == now.boot_id {
            self.deadline_boot_us
        } else {
            now.boot_us.saturating_add(micros(self.timeout_ms))
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

fn micros(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000)
}

/// Canonical bytes of something whose digest is taken.
pub(crate) fn canonical<T: Serialize>(what: &T) -> Result<Vec<u8>> {
    let value = serde_json::to_value(what)
        .map_err(|_| Error::InvalidRequest { why: "a path is not UTF-8; use one that is".into() })?;
    Ok(canonical_json(&value))
}

pub(crate) fn request_digest(request: &[u8]) -> Sha256Digest {
    sha256_parts("open-conduit request v1", &[request])
}

pub(crate) fn plan_digest(plan: &[u8]) -> Sha256Digest {
    sha256_parts("open-conduit plan v1", &[plan])
}

pub(crate) fn operation_digest(request: &Sha256Digest, plan: &Sha256Digest) -> Sha256Digest {
    sha256_parts("open-conduit operation v1", &[request, plan])
}

/// Bytes of a launch token.
pub(crate) const LAUNCH_TOKEN_BYTES: usize = 64;

/// The token that a runner is given on standard input: it proves that the bundle is the one that was admitted.
pub(crate) fn launch_token(attempt: &AttemptId, operation: &Sha256Digest) -> String {
    hex(&sha256_parts("open-conduit launch v1", &[attempt.as_str().as_bytes(), operation]))
}

pub(crate) fn token_digest(token: &str) -> Sha256Digest {
    sha256_parts("open-conduit launch token v1", &[token.as_bytes()])
}

impl OperationRequest {
    /// Checks what can be checked without looking at the world. Error: `invalid_request`.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::InvalidRequest { why: why.to_owned() });
        let texts = || self.args.iter().chain(self.env.keys()).chain(self.env.values());
        if self.principal.is_empty() || self.client_request_id.is_empty() {
            return refuse("a principal and a request ID are needed");
        }
        if !self.executable.is_absolute() || !self.cwd.is_absolute() {
            return refuse("the executable and the working directory must be absolute paths");
        }
        if texts().any(|text| text.contains('\0')) {
            return refuse("an argument or an environment value holds a NUL");
        }
        if self.env.keys().any(|name| name.is_empty() || name.contains('=') || name == MARKER) {
            return refuse("the name of an environment variable is empty, holds `=`, or is the kernel's own");
        }
        if self.args.iter().any(|arg| arg.len() > ARGUMENT_BYTES_MAX)
            || self.env.iter().any(|(name, value)| name.len() + value.len() + 1 > ARGUMENT_BYTES_MAX)
        {
            return refuse("an argument or an environment value is longer than 128 KiB");
        }
        if texts().map(String::len).sum::<usize>() > ARGUMENTS_BYTES_MAX {
            return refuse("the arguments and the environment are longer than 1 MiB together");
        }
        if self.limits.timeout_ms == 0 || self.limits.timeout_ms > TIMEOUT_MS_MAX {
            return refuse("the timeout must be between 1 ms and 366 days");
        }
        if self.limits.output_bytes_max.is_some_and(|n| n > OUTPUT_BYTES_MAX) {
            return refuse("at most 256 MiB of each output stream can be retained");
        }
        let Resources { memory_bytes_max, files_max, file_bytes_max, .. } = self.limits.resources;
        if memory_bytes_max.is_some_and(|n| n < MEMORY_BYTES_MIN) || files_max.is_some_and(|n| n < FILES_MIN) {
            return refuse("a process needs at least 16 MiB of memory and 16 open files");
        }
        if [memory_bytes_max, files_max, file_bytes_max].into_iter().flatten().any(|n| n > i64::MAX as u64) {
            return refuse("a bound of memory or files is larger than any machine");
        }
        if self.limits.stop_grace_ms.is_some_and(|n| n > STOP_GRACE_MS_MAX) {
            return refuse("the grace after SIGTERM can be at most five minutes");
        }
        Ok(())
    }
}
