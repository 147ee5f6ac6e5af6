//! What the demonstration runs: its configuration, its two scripts, and the repository that they look at.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conduit_api::{ApiError, Code};
use serde_json::{Value, json};

pub const SCOPE: &str = "demo";
/// The Event that asks for a survey.
pub const REQUESTED: &str = "demo.survey.requested";

const SURVEY: &str = include_str!("survey.sh");
const COUNT: &str = include_str!("count.sh");
/// Longest that one segment may run, in seconds.
const DEADLINE_S: u64 = 300;

/// The top of the Git repository at `path`. Error: `invalid_request` when there is none, or it has no commit.
pub fn repository(path: &Path) -> Result<PathBuf, ApiError> {
    let git = |arguments: &[&str]| {
        Command::new("git")
            .args(["-c", "safe.directory=*", "-C"])
            .arg(path)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
    };
    let missing = |error: io::Error| {
        ApiError::new(Code::ExecutableUnavailable, format!("git cannot be run ({error}); install it"))
    };
    let top = git(&["rev-parse", "--show-toplevel"]).map_err(missing)?;
    let text = String::from_utf8_lossy(&top.stdout);
    let text = text.trim_end_matches('\n');
    if !top.status.success() || text.is_empty() {
        let message = format!("{} is not in a Git repository; name one: open-conduit demo REPO", path.display());
        return Err(ApiError::new(Code::InvalidRequest, message));
    }
    if !git(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).map_err(missing)?.status.success() {
        return Err(ApiError::new(
            Code::InvalidRequest,
            format!("{text} has no commit yet; the survey counts committed files"),
        ));
    }
    Ok(PathBuf::from(text))
}

/// Writes the scripts and the configuration into `base`; returns the configuration's path.
pub fn write(base: &Path) -> io::Result<PathBuf> {
    let (survey, count) = (base.join("survey.sh"), base.join("count.sh"));
    put(&survey, SURVEY, 0o700)?;
    put(&count, COUNT, 0o700)?;
    let config = base.join("config.json");
    put(&config, &format!("{:#}\n", config_of(&survey, &count)), 0o600)?;
    Ok(config)
}

fn put(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

fn config_of(survey: &Path, count: &Path) -> Value {
    let (survey, count) = (survey.to_string_lossy(), count.to_string_lossy());
    json!({
        "version": 1,
        "limits": {"executions": 4},
        "scopes": {SCOPE: {
            "concurrency": 4,
            "operations": ["emit", "create_work", "wait", "declare_outcome", "read_context"],
            "events": ["demo"],
            "bindings": {
                "survey": {
                    "executor": "shell",
                    "config": {"command": [survey], "resume": true},
                    "operations": ["emit", "create_work", "wait", "declare_outcome", "read_context"],
                    "events": ["demo.survey"],
                    "delegates": ["count"],
                    "deadline_s": DEADLINE_S,
                },
                "count": {
                    "executor": "shell",
                    "config": {"command": [count]},
                    "operations": ["declare_outcome", "read_context"],
                    "deadline_s": DEADLINE_S,
                },
            },
            "routes": [{"match": {"type": REQUESTED}, "effect": "start", "binding": "survey"}],
        }},
    })
}
