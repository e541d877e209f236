//! Standard output: results only, buffered, and quiet when the reader has gone.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use serde::Serialize;

use dlfs::Error;

use crate::exit::Failure;

/// The results of a command, on standard output.
pub(crate) struct Out {
    stdout: BufWriter<Stdout>,
    colour: bool,
}

impl Out {
    /// Standard output of this process; coloured on a terminal unless `NO_COLOR` is set.
    pub(crate) fn new() -> Out {
        let stdout = io::stdout();
        let colour = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Out { stdout: BufWriter::with_capacity(64 << 10, stdout), colour }
    }

    /// One line of text.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.bytes(text.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(output_failed)
    }

    /// One JSON value on a line of its own.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.stdout, value)
            .map_err(|error| output_failed(error.into()))?;
        self.bytes(b"\n")
    }

    /// Hands all of it to whoever reads: before waiting, and at the end.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(output_failed)
    }

    /// `text` emphasised where colours are in use.
    pub(crate) fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    /// `text` in the colour of success where colours are in use.
    pub(crate) fn green(&self, text: &str) -> String {
        self.styled("32;1", text)
    }

    /// `text` set back where colours are in use.
    pub(crate) fn dim(&self, text: &str) -> String {
        self.styled("2", text)
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn output_failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        kind => {
            let kind = Error::from(io::Error::from(kind)).kind();
            Failure::Error(Error::new(kind, "cannot write to standard output").source(error))
        }
    }
}
