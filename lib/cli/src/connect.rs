//! Which server, and with which credential (M13).

use std::path::PathBuf;

use conduit_api::Code;
use conduit_api::http::env;
use conduit_api::places::{Environment, Places};
use conduit_client::{Client, ClientError, Credential};
use serde_json::Value;

use crate::args::Cli;
use crate::failure::{Failure, Result};

/// Where the server is, and where the credential lies; nothing is dialled yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Connection {
    endpoint: PathBuf,
    token_file: PathBuf,
    /// Whether somebody named the file, so that it has to be there.
    named: bool,
}

impl Connection {
    /// Option, then environment, then the directories of the suite. Error: usage, when none of them says where.
    pub fn resolve(cli: &Cli) -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self::decide(
            cli,
            variable(env::MANAGEMENT_ENDPOINT),
            variable(env::OPERATOR_TOKEN_FILE),
            &Environment::of_process(),
        )
    }

    fn decide(
        cli: &Cli,
        endpoint: Option<PathBuf>,
        token_file: Option<PathBuf>,
        process: &Environment,
    ) -> Result<Self> {
        let absolute =
            |path: &PathBuf| std::path::absolute(path).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())));
        let state = cli.state.as_ref().map(absolute).transpose()?;
        let runtime = cli.runtime.as_ref().map(absolute).transpose()?;
        let places = Places::resolve(state.as_deref(), runtime.as_deref(), process);
        let nowhere = || Failure::Usage("no state directory: HOME is not set; name one with --state".into());
        // A state directory that was named on the command line goes before what the environment says.
        let (endpoint, token_file) =
            if cli.state.is_some() || cli.runtime.is_some() { (None, None) } else { (endpoint, token_file) };
        let token_file = cli.token_file.clone().or(token_file);
        let named = token_file.is_some();
        Ok(Self {
            endpoint: match cli.endpoint.clone().or(endpoint) {
                Some(named) => named,
                None => places.as_ref().ok_or_else(nowhere)?.management_socket(),
            },
            token_file: match token_file {
                Some(named) => named,
                None => places.as_ref().ok_or_else(nowhere)?.operator_token(),
            },
            named,
        })
    }

    /// A client with the operator's credential.
    ///
    /// The server makes the owner's credential when it first starts, and it first starts when somebody dials. So an
    /// absent file of the suite's own is asked for by dialling: the answer comes after the file.
    pub fn client(&self) -> Result<Client> {
        if !self.named && !self.token_file.exists() {
            let stranger = Client::new(&self.endpoint, Credential::none())?;
            match stranger.get::<Value>("/v1/health") {
                Err(ClientError::Refused { .. }) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Client::new(&self.endpoint, Credential::from_file(&self.token_file)?)?)
    }

    /// Adds to `unauthenticated` which credential was shown, and how another is named.
    pub fn explain(&self, mut failure: Failure) -> Failure {
        if let Failure::Call { error, .. } = &mut failure
            && let ClientError::Refused { body, .. } = error.as_mut()
            && body.code == Code::Unauthenticated.as_str()
        {
            body.message = format!(
                "the server does not know the credential in {}; name another file with --token-file or {}, or its suite with --state",
                self.token_file.display(),
                env::OPERATOR_TOKEN_FILE
            );
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn decide(line: &[&str], endpoint: Option<&str>, token: Option<&str>) -> Connection {
        let process =
            Environment { home: Some("/home/u".into()), xdg_state_home: None, xdg_runtime_dir: Some("/run/u".into()) };
        let cli = Cli::try_parse_from([&["open-conduit", "health"], line].concat()).unwrap();
        Connection::decide(&cli, endpoint.map(Into::into), token.map(Into::into), &process).unwrap()
    }

    /// M13
    #[test]
    fn an_unknown_credential_is_named_by_its_file() {
        let body = conduit_api::ApiError::new(Code::Unauthenticated, "show one").envelope("req").error;
        let refused = ClientError::Refused { body: Box::new(body), status: 401 };
        let told = decide(&["--token-file", "/t"], None, None).explain(refused.into()).to_string();
        assert!(
            told.contains("/t;") && told.contains("--token-file") && told.contains("OPEN_CONDUIT_TOKEN_FILE"),
            "{told}"
        );
    }

    /// M13
    #[test]
    fn an_option_goes_before_the_environment_and_that_before_discovery() {
        let found = decide(&[], None, None);
        assert_eq!(found.endpoint, PathBuf::from("/run/u/open-conduit/management.sock"));
        assert_eq!(found.token_file, PathBuf::from("/home/u/.local/state/open-conduit/private/operator.token"));
        assert!(!found.named);
        let named = decide(&[], Some("/e"), Some("/t"));
        assert_eq!((named.endpoint, named.token_file, named.named), ("/e".into(), "/t".into(), true));
        let option = decide(&["--endpoint", "/o"], Some("/e"), Some("/t"));
        assert_eq!((option.endpoint, option.token_file), ("/o".into(), PathBuf::from("/t")));
        let state = decide(&["--state", "/s", "--runtime", "/r"], Some("/e"), Some("/t"));
        assert_eq!(state.endpoint, PathBuf::from("/r/management.sock"));
        assert_eq!(state.token_file, PathBuf::from("/s/private/operator.token"));
    }
}
