//! The output of a command: [`Out`] is standard output, which carries only results.
//!
//! Results are buffered, and coloured only on a terminal. Control characters in text and JSON are escaped; other bytes,
//! such as those of samples, are written as they are. If the reader of standard output has gone, the command ends
//! without a message. `meter.rs` shows progress on stderr, and `text.rs` formats numbers and names.

mod meter;
mod text;

pub(crate) use self::meter::{Meter, StageProgress, progress};
pub(crate) use self::text::{
    binary_size, bytes, count, counted, duration, micros, per_second, percent, rate, safe_name,
    safe_text, utc,
};

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use dlfs::report::text::is_unsafe;
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Serializer, Value, json};

use dlfs::Error;

use crate::exit::{Failure, Outcome};

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

    /// Writes one line of text. Quoted names and paths are escaped for the terminal.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.text(text.as_ref())?;
        self.bytes(b"\n")
    }

    /// Writes a string of one or several lines, and adds no newline. Quoted names and paths are escaped.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        if !self.colour {
            return self.bytes(safe_text(text).as_bytes());
        }
        // The styles of `STYLES` stay; every other ESC character is escaped.
        let mut parts = text.split(ESCAPE);
        self.bytes(safe_text(parts.next().unwrap_or_default()).as_bytes())?;
        for part in parts {
            let style = STYLES.iter().find(|style| part.starts_with(**style));
            self.bytes(style.map_or("\\u{1b}", |_| "\x1b").as_bytes())?;
            self.bytes(safe_text(part).as_bytes())?;
        }
        Ok(())
    }

    /// Writes bytes unchanged.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(output_failed)
    }

    /// Writes one JSON value on a line of its own. Characters that could affect a terminal are written as
    /// `\uXXXX`, which is equivalent in JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let mut serializer = Serializer::with_formatter(&mut self.stdout, SafeJson);
        value.serialize(&mut serializer).map_err(|error| output_failed(error.into()))?;
        self.bytes(b"\n")
    }

    /// Flushes the buffer: called before a wait, and at the end.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(output_failed)
    }

    /// Flushes at the end of a command, and returns its outcome.
    pub(crate) fn end(mut self, outcome: Outcome) -> Result<Outcome, Failure> {
        self.flush()?;
        Ok(outcome)
    }

    /// Prints the result of a command that has succeeded: `value` as JSON if `json` is set, otherwise the lines that
    /// `text` writes.
    pub(crate) fn answer(
        json: bool,
        value: &impl Serialize,
        text: impl FnOnce(&mut Out) -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        let mut out = Out::new();
        if json {
            out.json(value)?
        } else {
            text(&mut out)?
        }
        out.end(Outcome::Done)
    }

    /// `text` in bold if colours are enabled.
    pub(crate) fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    /// `text` in green if colours are enabled.
    pub(crate) fn green(&self, text: &str) -> String {
        self.styled("32;1", text)
    }

    /// `text` dimmed if colours are enabled.
    pub(crate) fn dim(&self, text: &str) -> String {
        self.styled("2", text)
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The JSON object without its fields that are null.
pub(crate) fn known(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// Merges two JSON objects; if both have a field, that of `more` stays.
pub(crate) fn joined(object: &impl Serialize, more: Value) -> Value {
    let mut object = json!(object);
    if let (Some(fields), Value::Object(more)) = (object.as_object_mut(), more) {
        fields.extend(more);
    }
    object
}

/// Formats JSON on one line and escapes characters that could affect a terminal.
struct SafeJson;

impl Formatter for SafeJson {
    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_unsafe) {
            let (safe, tail) = rest.split_at(at);
            writer.write_all(safe.as_bytes())?;
            let mut tail = tail.chars();
            for unit in tail.next().expect("found there").encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = tail.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

/// The character that begins a style.
const ESCAPE: char = '\x1b';
/// The escape sequences that [`Out::bold`], [`Out::green`] and [`Out::dim`] begin and end with, each without its ESC.
const STYLES: [&str; 4] = ["[0m", "[1m", "[2m", "[32;1m"];

fn output_failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        kind => {
            let kind = Error::from(io::Error::from(kind)).kind();
            Error::new(kind, "cannot write to standard output").source(error).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes_characters_that_could_harm_a_terminal() {
        let names = ["a\u{7f}b", "\u{9b}31m", "x\u{202e}gpj", "\u{e0041}", "größe\n\u{1b}", ""];
        for name in names {
            let mut written = Vec::new();
            let mut serializer = Serializer::with_formatter(&mut written, SafeJson);
            name.serialize(&mut serializer).unwrap();
            let text = std::str::from_utf8(&written).unwrap();
            assert!(!text.contains(is_unsafe), "{text:?}");
            assert_eq!(serde_json::from_str::<String>(text).unwrap(), name);
        }
    }
}
