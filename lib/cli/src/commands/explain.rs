//! `open-conduit explain` and `open-conduit can-i`

use conduit_api::ExecutionId;
use conduit_api::views::{CanIView, ExplainView};
use conduit_client::{Client, path};

use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Show how the calls under a request ID were decided, check by check
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The request ID that the caller chose
    request_id: String,
}

/// Show whether a call would be allowed now, check by check
#[derive(Debug, clap::Args)]
pub struct CanIArgs {
    operation: String,
    /// A call of this execution, as in exe_...
    #[arg(long, required_unless_present = "binding")]
    execution: Option<ExecutionId>,
    /// A call of an execution of this binding, as in SCOPE/BINDING
    #[arg(long, value_name = "SCOPE/BINDING", conflicts_with = "execution")]
    binding: Option<String>,
}

pub fn explain(args: &ExplainArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    out.one(&client.get::<ExplainView>(&format!("/v1/explain/{}", path::escape(&args.request_id)))?)?;
    Ok(Exit::Done)
}

pub fn can_i(args: &CanIArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    let of = match (&args.execution, &args.binding) {
        (Some(execution), _) => format!("/v1/executions/{execution}"),
        (None, Some(binding)) => {
            let (scope, name) = binding
                .split_once('/')
                .ok_or_else(|| Failure::Usage("--binding takes SCOPE/BINDING, as in demo/survey".into()))?;
            format!("/v1/scopes/{}/bindings/{}", path::escape(scope), path::escape(name))
        }
        (None, None) => return Err(Failure::Usage("name an --execution or a --binding".into())),
    };
    out.one(&client.get::<CanIView>(&format!("{of}/can-i/{}", path::escape(&args.operation)))?)?;
    Ok(Exit::Done)
}
