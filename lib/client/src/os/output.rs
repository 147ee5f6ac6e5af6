//! What goes to standard output: the one thing that a script wants, or the whole answer under `--json`.

use std::io::{BufWriter, StdoutLock, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::failure::{Failure, Result};
use super::pointer::Pointer;
use super::toolbelt::Answered;
use crate::error::ClientError;

pub struct Output {
    json: bool,
    to: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self { json, to: BufWriter::new(std::io::stdout().lock()) }
    }

    /// The identifier that the call made.
    pub fn field(&mut self, answer: &Answered, field: &str) -> Result<()> {
        if self.json {
            return self.envelope(answer);
        }
        match answer.output.get(field).and_then(Value::as_str) {
            Some(text) => self.line(text),
            None => Err(ClientError::Protocol { what: format!("it has no {field}") }.into()),
        }
    }

    /// Nothing: that the call was accepted is all there is to know, and the exit code says it.
    pub fn declared(&mut self, answer: &Answered) -> Result<()> {
        if self.json { self.envelope(answer) } else { Ok(()) }
    }

    /// The whole output of the call.
    pub fn whole(&mut self, answer: &Answered) -> Result<()> {
        if self.json {
            return self.envelope(answer);
        }
        self.document(&answer.output)?;
        if answer.declared.is_some() {
            eprintln!(
                "os: a wait was declared for this process and its authority has ended; end it, and call again when it goes on"
            );
        }
        Ok(())
    }

    /// What `pointer` names: a line each, text without quotes. Under `--json` the value itself; with a `*`, an array.
    pub fn selected(&mut self, pointer: &Pointer, document: &Value) -> Result<()> {
        let found = pointer.select(document)?;
        match (self.json, pointer.is_wild()) {
            (true, true) => self.compact(&found),
            (true, false) => found.iter().try_for_each(|value| self.compact(value)),
            (false, _) => found.iter().try_for_each(|value| match value {
                Value::String(text) => self.line(text),
                _ => self.compact(value),
            }),
        }
    }

    /// A document for people: indented; one line under `--json`.
    pub fn document(&mut self, value: &Value) -> Result<()> {
        if self.json {
            return self.compact(value);
        }
        serde_json::to_writer_pretty(&mut self.to, value).map_err(|e| unwritten(e.into()))?;
        self.line("")
    }

    fn envelope(&mut self, answer: &Answered) -> Result<()> {
        let mut shown = json!({
            "request_id": answer.request_id,
            "replayed": answer.replayed,
            "output": answer.output,
        });
        if let Some(declared) = &answer.declared {
            shown["declared"] = json!(declared);
        }
        self.compact(&shown)
    }

    fn compact<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        serde_json::to_writer(&mut self.to, value).map_err(|e| unwritten(e.into()))?;
        self.line("")
    }

    fn line(&mut self, text: &str) -> Result<()> {
        writeln!(self.to, "{text}").map_err(unwritten)
    }

    pub fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

fn unwritten(error: std::io::Error) -> Failure {
    ClientError::Output(error).into()
}
