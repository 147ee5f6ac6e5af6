//! The options that every daemon has.

use std::path::PathBuf;

use conduit_api::places::{Environment, Places};
use conduit_api::{ApiError, Code};

use crate::log::LogFormat;

/// Where the suite lives, and how to log; flattened into the arguments of each daemon.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DaemonArgs {
    /// Directory of the suite's state [default: $XDG_STATE_HOME/open-conduit, else ~/.local/state/open-conduit]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Directory of the suite's sockets [default: $XDG_RUNTIME_DIR/open-conduit, or `sockets` in the state directory]
    #[arg(long, value_name = "DIR")]
    pub runtime: Option<PathBuf>,
    /// How log lines look on stderr
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// End when the process with this number, which started this one, ends
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,
}

impl DaemonArgs {
    /// The two directories, absolute. `state_unavailable` when none is named and the environment has no home.
    pub fn places(&self) -> Result<Places, ApiError> {
        let absolute = |path: &Option<PathBuf>| match path {
            None => Ok(None),
            Some(path) => std::path::absolute(path).map(Some).map_err(|error| {
                ApiError::new(Code::StateUnavailable, format!("{} cannot be made absolute: {error}", path.display()))
            }),
        };
        let (state, runtime) = (absolute(&self.state)?, absolute(&self.runtime)?);
        Places::resolve(state.as_deref(), runtime.as_deref(), &Environment::of_process()).ok_or_else(|| {
            ApiError::new(
                Code::StateUnavailable,
                "no state directory: HOME is not set; name one with --state".to_owned(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_state_directory_becomes_absolute() {
        let args = DaemonArgs { state: Some("here".into()), ..DaemonArgs::default() };
        let places = args.places().unwrap();
        assert!(places.state.is_absolute());
        assert!(places.state.ends_with("here"));
    }
}
