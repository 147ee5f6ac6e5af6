//! What goes to standard output: a table or a field list for people, or one JSON document on a line.

use std::io::{BufWriter, IsTerminal, StdoutLock, Write};

use conduit_api::UnixMicros;
use conduit_api::views::Page;
use conduit_client::ClientError;
use serde::Serialize;

use crate::failure::Result;
use crate::show::{Listed, Single};
use crate::table;
use crate::when;

/// Standard output of this command.
pub struct Output {
    json: bool,
    now: UnixMicros,
    width: usize,
    to: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub fn of_process(json: bool) -> Self {
        Self { json, now: when::now(), width: width(), to: BufWriter::new(std::io::stdout().lock()) }
    }

    pub const fn width(&self) -> usize {
        self.width
    }

    /// One thing.
    pub fn one<T: Single + Serialize>(&mut self, view: &T) -> Result<()> {
        self.shaped(view, |view, now| table::fields(&view.fields(now)))
    }

    /// One page of a list; a remark says how to see the next.
    pub fn page<T: Listed + Serialize>(&mut self, page: &Page<T>) -> Result<()> {
        let width = self.width;
        self.shaped(page, |page, now| {
            let rows: Vec<Vec<String>> = page.items.iter().map(|item| item.cells(now)).collect();
            table::table(T::COLUMNS, &rows, width)
        })?;
        match (&page.next, self.json) {
            (Some(cursor), false) => self.remark(&format!("There is more: --cursor {cursor}")),
            _ => Ok(()),
        }
    }

    /// Any answer, in a shape of its own.
    pub fn shaped<T: Serialize>(&mut self, view: &T, text: impl FnOnce(&T, UnixMicros) -> String) -> Result<()> {
        if self.json {
            serde_json::to_writer(&mut self.to, view).map_err(|error| ClientError::Output(error.into()))?;
            return self.text("\n");
        }
        let text = text(view, self.now);
        self.text(&text)
    }

    /// Says something that is not the answer, on standard error, after what was said before.
    pub fn remark(&mut self, text: &str) -> Result<()> {
        self.flush()?;
        // A remark that nobody reads is none.
        let _ = writeln!(std::io::stderr(), "{text}");
        Ok(())
    }

    /// The stream itself, for bytes that are nobody's to shape.
    pub fn raw(&mut self) -> &mut dyn Write {
        &mut self.to
    }

    pub fn flush(&mut self) -> Result<()> {
        Ok(self.to.flush().map_err(ClientError::Output)?)
    }

    fn text(&mut self, text: &str) -> Result<()> {
        Ok(self.to.write_all(text.as_bytes()).map_err(ClientError::Output)?)
    }
}

/// Characters in a line of the terminal; without one, as many as there are.
fn width() -> usize {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return usize::MAX;
    }
    match rustix::termios::tcgetwinsize(&stdout) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => 80,
    }
}
