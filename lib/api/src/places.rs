//! Where a suite keeps its state and its sockets: pure functions of what the caller named and of the environment.

use std::path::{Path, PathBuf};

/// The directories of one suite. Every program of the suite is told the same two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Store, artifacts, run directories, credentials. Owner-only.
    pub state: PathBuf,
    /// Sockets that the suite's own programs and the operator dial. Owner-only; may vanish at a reboot.
    pub runtime: PathBuf,
}

/// What the environment says, gathered by the caller so that this stays a pure function.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub home: Option<PathBuf>,
    pub xdg_state_home: Option<PathBuf>,
    pub xdg_runtime_dir: Option<PathBuf>,
}

impl Environment {
    /// Reads `HOME`, `XDG_STATE_HOME` and `XDG_RUNTIME_DIR`; relative values are ignored, as the XDG base directory specification demands.
    pub fn of_process() -> Self {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        Self {
            home: absolute("HOME"),
            xdg_state_home: absolute("XDG_STATE_HOME"),
            xdg_runtime_dir: absolute("XDG_RUNTIME_DIR"),
        }
    }
}

impl Places {
    /// Resolves the two directories; `None` when no state directory is named and the environment has no home.
    ///
    /// A named `state` gets a runtime directory of its own, so that two suites of one user do not meet.
    pub fn resolve(state: Option<&Path>, runtime: Option<&Path>, env: &Environment) -> Option<Self> {
        let default_state = || {
            env.xdg_state_home
                .clone()
                .or_else(|| env.home.as_ref().map(|home| home.join(".local/state")))
                .map(|base| base.join("open-conduit"))
        };
        let chosen = match state {
            Some(path) => path.to_path_buf(),
            None => default_state()?,
        };
        let runtime = match (runtime, &env.xdg_runtime_dir) {
            (Some(named), _) => named.to_path_buf(),
            (None, Some(base)) if state.is_none() => base.join("open-conduit"),
            (None, Some(base)) => base.join("open-conduit").join(short_key(&chosen)),
            (None, None) => chosen.join("sockets"),
        };
        Some(Self { state: chosen, runtime })
    }

    pub fn management_socket(&self) -> PathBuf {
        self.runtime.join("management.sock")
    }
    /// Where the spawner takes its orders from the daemon.
    pub fn endpointd_socket(&self) -> PathBuf {
        self.runtime.join("endpointd.sock")
    }
    /// Where the daemon carries out what extensions do.
    pub fn host_socket(&self) -> PathBuf {
        self.runtime.join("host.sock")
    }
    /// The daemon's doorbell: an empty datagram says "the store changed".
    pub fn doorbell_socket(&self) -> PathBuf {
        self.runtime.join("doorbell.sock")
    }
    pub fn operator_token(&self) -> PathBuf {
        self.state.join("private/operator.token")
    }
    pub fn runs(&self) -> PathBuf {
        self.state.join("runs")
    }
    pub fn attempts(&self) -> PathBuf {
        self.state.join("attempts")
    }
    pub fn artifacts(&self) -> PathBuf {
        self.state.join("artifacts")
    }
    pub fn playbooks(&self) -> PathBuf {
        self.state.join("playbooks")
    }
    /// The configuration file, unless another was named.
    pub fn config_file(&self) -> PathBuf {
        self.state.join("config.json")
    }
}

/// Sixteen hex digits that tell paths apart: FNV-1a, 64 bits. Not a secret and not a proof.
fn short_key(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> Environment {
        Environment { home: Some("/home/u".into()), xdg_state_home: None, xdg_runtime_dir: Some("/run/user/7".into()) }
    }

    #[test]
    fn the_default_suite_lives_in_the_xdg_directories() {
        let places = Places::resolve(None, None, &env()).unwrap();
        assert_eq!(places.state, Path::new("/home/u/.local/state/open-conduit"));
        assert_eq!(places.management_socket(), Path::new("/run/user/7/open-conduit/management.sock"));
    }

    #[test]
    fn two_named_states_never_share_sockets() {
        let at = |p: &str| Places::resolve(Some(Path::new(p)), None, &env()).unwrap().runtime;
        assert_ne!(at("/a"), at("/b"));
        assert_eq!(at("/a"), at("/a"));
    }

    #[test]
    fn without_a_runtime_directory_sockets_live_in_the_state() {
        let env = Environment { xdg_runtime_dir: None, ..env() };
        assert_eq!(Places::resolve(Some(Path::new("/a")), None, &env).unwrap().runtime, Path::new("/a/sockets"));
        assert_eq!(Places::resolve(None, None, &Environment::default()), None);
    }
}
