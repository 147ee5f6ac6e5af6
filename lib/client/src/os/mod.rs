//! The program `os`: how a process of an execution asks its host for outcomes.
//!
//! One command is one call over the execution's own socket (E04). JSON comes in as an argument, a file or standard
//! input, and is parsed strictly before anything is sent. The one thing that a script wants goes to standard output;
//! remarks and errors go to standard error. Nothing here knows what a call means: the host decides.

mod args;
mod exit;
mod failure;
mod output;
mod pointer;
mod toolbelt;
mod wait;

use clap::Parser;
use conduit_api::toolbelt::{CreateWorkInput, EmitInput, OutcomeInput, operation};
use serde::Serialize;
use serde_json::{Map, Value};

use args::{Cli, Command, ContextArgs, CreateWorkArgs, EmitArgs, OutcomeArgs};
pub use exit::Exit;
use failure::{Failure, Result};
use output::Output;
use toolbelt::{Name, Toolbelt};

use crate::error::ClientError;
use crate::input;

/// Runs `os` with the arguments and the environment of this process; its exit code.
pub fn main() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error) as u8,
    };
    let name = match Name::of(cli.request_id.clone()) {
        Ok(name) => name,
        Err(failure) => return failure.report(None, cli.json) as u8,
    };
    match run(&cli, &name) {
        Ok(()) => Exit::Done as u8,
        Err(failure) => failure.report(Some(name.id()), cli.json) as u8,
    }
}

/// Prints what the parser has to say; `--help` and `--version` are answers, all else is a usage error.
///
/// Whether they are to be JSON is asked of the words themselves, since the parser has given none.
fn usage(error: &clap::Error) -> Exit {
    if error.use_stderr() && std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json") {
        let message = error.to_string();
        // Up to the first empty line: what follows is the usage, which `--help` has.
        let said = message.strip_prefix("error: ").unwrap_or(&message).split("\n\n").next().unwrap_or_default();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        return Failure::Usage(said).report(None, true);
    }
    match (error.print(), error.use_stderr()) {
        (Ok(()), false) => Exit::Done,
        (Err(_), false) => Exit::Internal,
        (_, true) => Exit::Usage,
    }
}

fn run(cli: &Cli, name: &Name) -> Result<()> {
    let mut out = Output::new(cli.json);
    match &cli.command {
        Command::Emit(args) => emit(args, name, &mut out),
        Command::CreateWork(args) => create_work(args, name, &mut out),
        Command::Wait(args) => {
            let input = args.input()?;
            let answer = Toolbelt::of_process()?.call(operation::WAIT, fields(&input)?, name)?;
            out.declared(&answer)
        }
        Command::Outcome(args) => outcome(args, name, &mut out),
        Command::Context(args) => context(args, name, &mut out),
        Command::Call(args) => {
            let input = input::object(args.document.as_deref())?;
            let answer = Toolbelt::of_process()?.call(&args.operation, input, name)?;
            out.whole(&answer)
        }
        Command::Guidance => out.document(&Toolbelt::of_process()?.guidance(name)?),
    }?;
    out.flush().map_err(|e| Failure::Call(ClientError::Output(e)))
}

fn emit(args: &EmitArgs, name: &Name, out: &mut Output) -> Result<()> {
    let input = EmitInput {
        kind: args.kind.clone(),
        data: input::object(args.document.as_deref())?,
        schema: args.schema.clone(),
        correlation_key: args.key.clone(),
        delivery_id: args.delivery.clone(),
        source: None,
        parent: None,
        target: None,
    };
    let answer = Toolbelt::of_process()?.call(operation::EMIT, fields(&input)?, name)?;
    out.field(&answer, "event_id")
}

fn create_work(args: &CreateWorkArgs, name: &Name, out: &mut Output) -> Result<()> {
    let input = CreateWorkInput {
        binding: args.binding.clone(),
        title: args.title.clone(),
        data: input::object(args.document.as_deref())?,
        keys: args.keys.clone(),
        source: None,
        parent: None,
        target: None,
    };
    let answer = Toolbelt::of_process()?.call(operation::CREATE_WORK, fields(&input)?, name)?;
    out.field(&answer, "work_id")
}

fn outcome(args: &OutcomeArgs, name: &Name, out: &mut Output) -> Result<()> {
    let input = OutcomeInput {
        status: args.status.into(),
        summary: args.summary.clone(),
        data: input::object(args.document.as_deref())?,
    };
    let answer = Toolbelt::of_process()?.call(operation::DECLARE_OUTCOME, fields(&input)?, name)?;
    out.declared(&answer)
}

fn context(args: &ContextArgs, name: &Name, out: &mut Output) -> Result<()> {
    let pointer = args.pointer.as_deref().map(pointer::Pointer::parse).transpose()?;
    let answer = Toolbelt::of_process()?.call(operation::READ_CONTEXT, Map::new(), name)?;
    match pointer {
        None => out.whole(&answer),
        Some(pointer) => out.selected(&pointer, &answer.output),
    }
}

/// The fields of `input` as they go into a call.
fn fields<T: Serialize>(input: &T) -> Result<Map<String, Value>> {
    match serde_json::to_value(input) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Failure::Usage("the input of a call is a JSON object".into())),
        Err(error) => Err(Failure::Usage(format!("the input cannot be written as JSON: {error}"))),
    }
}
