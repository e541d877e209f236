//! The records of a file of values: lines of CSV, of tab-separated values, or of JSON.
//!
//! CSV is that of RFC 4180: a quoted value may contain commas, line ends and doubled quotes, and nothing may follow
//! its closing quote. Tab-separated values have no quotes. A line ends with \n, \r\n or \r; a line of JSON only with
//! \n or \r\n. Empty lines are skipped.

use std::collections::HashSet;
use std::fmt;
use std::io::{Chain, Read};
use std::path::Path;

use csv::{Reader, ReaderBuilder, StringRecord};
use serde_json::Value as Json;

use dlfs_format::format::columns::{ColumnType, OwnedValue, Value};

/// A file of values.
pub(super) struct Records<'a> {
    syntax: Syntax,
    /// The content of the file, without a byte order mark.
    text: &'a str,
    /// The titles of the columns; for JSON, the keys of all lines.
    pub(super) names: Vec<Title>,
}

/// The name of a column, and the type that the file gives it, if it does.
pub(super) type Title = (String, Option<ColumnType>);

/// The syntax of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syntax {
    /// CSV.
    Comma,
    /// Tab-separated values.
    Tab,
    /// JSON Lines.
    Json,
}

/// One record.
pub(super) struct Record<'a> {
    /// The file that has the record.
    of: &'a Records<'a>,
    /// Offset in the text of the record, or of empty lines before it.
    at: usize,
    values: Values<'a>,
}

/// Receives a record; an error says what is wrong with it.
type TakeRecord<'t> = dyn FnMut(&Record<'_>) -> Result<(), String> + 't;

/// The values of a record.
enum Values<'a> {
    /// The cells of a line, in the order of the columns.
    Cells(&'a StringRecord),
    /// An object of JSON.
    Object(serde_json::Map<String, Json>),
}

/// A value as it is in a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    /// There is no value.
    None,
    /// A value of CSV or tab-separated values, which has no type of its own.
    Word(&'a str),
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    /// A list or an object.
    Nested(&'static str),
}

impl<'a> Records<'a> {
    /// The records of the file at `path`, which has the content `bytes`. Reads the names of the columns.
    pub(super) fn new(path: &Path, bytes: &'a [u8]) -> Result<Records<'a>, String> {
        let suffix = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let syntax = match &*suffix {
            "csv" => Syntax::Comma,
            "tsv" | "tab" => Syntax::Tab,
            "jsonl" | "ndjson" => Syntax::Json,
            _ => {
                return Err(
                    "the name of a file of values ends in .csv, .tsv, .jsonl or .ndjson".to_owned()
                );
            }
        };
        let text = std::str::from_utf8(bytes)
            .map_err(|error| format!("is no UTF-8 at byte {}", error.valid_up_to()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut records = Records { syntax, text, names: Vec::new() };
        let names = if records.is_json() { records.keys()? } else { records.titles()? };
        let mut seen = HashSet::new();
        records.names = names.into_iter().map(typed).collect();
        match records.names.iter().find(|(name, _)| !seen.insert(name)) {
            Some((name, _)) => Err(format!("column `{name}` is there twice")),
            None => Ok(records),
        }
    }

    pub(super) fn is_json(&self) -> bool {
        self.syntax == Syntax::Json
    }

    /// The cells of the first line.
    fn titles(&self) -> Result<Vec<String>, String> {
        let mut reader = self.reader();
        let titles = reader.headers().map_err(|error| error.to_string())?;
        if is_end(titles) {
            return Err("there is no line".to_owned());
        }
        Ok(titles.iter().map(|cell| cell.trim().to_owned()).collect())
    }

    /// The keys of all objects, in the order in which they appear.
    fn keys(&self) -> Result<Vec<String>, String> {
        let mut keys = Vec::new();
        let mut known = HashSet::new();
        self.each(&mut |record| {
            if let Values::Object(object) = &record.values {
                for key in object.keys() {
                    if !known.contains(key) {
                        known.insert(key.clone());
                        keys.push(key.clone());
                    }
                }
            }
            Ok(())
        })?;
        Ok(keys)
    }

    /// Calls `take` with each record, until it fails.
    pub(super) fn each(&self, take: &mut TakeRecord<'_>) -> Result<(), String> {
        if self.is_json() { self.each_object(take) } else { self.each_row(take) }
    }

    /// As [`each`](Self::each), for JSON Lines.
    fn each_object(&self, take: &mut TakeRecord<'_>) -> Result<(), String> {
        let mut at = 0;
        for line in self.text.split_inclusive('\n') {
            if !line.trim().is_empty() {
                let object = serde_json::from_str(line.trim_end()).map_err(|error| {
                    format!("line {}: not an object of JSON: {error}", line_at(self.text, at))
                })?;
                take(&Record { of: self, at, values: Values::Object(object) })?;
            }
            at += line.len();
        }
        Ok(())
    }

    /// As [`each`](Self::each), for CSV and tab-separated values.
    fn each_row(&self, take: &mut TakeRecord<'_>) -> Result<(), String> {
        if self.syntax == Syntax::Comma
            && let Some(at) = behind_a_quote(self.text)
        {
            let line = self.text[..at].matches('\n').count() + 1;
            return Err(format!("line {line}: text behind a closed quote"));
        }
        let mut reader = self.reader();
        let mut cells = StringRecord::new();
        let mut next = StringRecord::new();
        while reader.read_record(&mut next).map_err(|error| error.to_string())? {
            if !cells.is_empty() {
                self.take_row(&cells, take)?;
            }
            std::mem::swap(&mut cells, &mut next);
        }
        // A quote that is not closed would contain all that follows it, also `END`.
        if is_end(&cells) {
            return Ok(());
        }
        let line = line_at(self.text, place_of(&cells));
        Err(format!("line {line}: a quote is not closed"))
    }

    /// Passes a line to `take`, if the line has as many cells as there are columns.
    fn take_row(&self, cells: &StringRecord, take: &mut TakeRecord<'_>) -> Result<(), String> {
        let record = Record { of: self, at: place_of(cells), values: Values::Cells(cells) };
        let found = cells.len();
        let expected = self.names.len();
        if found != expected {
            let values = if found == 1 { "value" } else { "values" };
            let line = record.line();
            return Err(format!("line {line}: {found} {values} in place of {expected}"));
        }
        take(&record)
    }

    /// Reader of the lines, followed by the line [`END`].
    fn reader(&self) -> Reader<Chain<&'a [u8], &'static [u8]>> {
        ReaderBuilder::new()
            .flexible(true)
            .delimiter(if self.syntax == Syntax::Tab { b'\t' } else { b',' })
            .quoting(self.syntax == Syntax::Comma)
            .from_reader(self.text.as_bytes().chain(END))
    }
}

/// Splits a title, `NAME` or `NAME:TYPE`, into the column's name and type.
fn typed(title: String) -> Title {
    let parts = title.rsplit_once(':').filter(|(name, _)| !name.is_empty());
    match parts.and_then(|(name, kind)| Some((name.to_owned(), kind.parse().ok()?))) {
        Some((name, kind)) => (name, Some(kind)),
        None => (title, None),
    }
}

/// The offset of text after a closing quote, if there is any. The crate `csv` would make it a part of the value.
fn behind_a_quote(text: &str) -> Option<usize> {
    let mut is_start = true; // of a value
    let mut is_quoted = false;
    let mut is_closed = false;
    for (at, byte) in text.bytes().enumerate() {
        let is_quote = byte == b'"';
        if is_quoted {
            is_closed = is_quote;
            is_quoted = !is_quote;
        } else if matches!(byte, b',' | b'\n' | b'\r') {
            is_start = true;
            is_closed = false;
        } else if is_closed && !is_quote {
            return Some(at);
        } else {
            is_quoted = is_quote && (is_start || is_closed);
            is_start = false;
            is_closed = false;
        }
    }
    None
}

/// The line number, from 1, of the first record at or after `at`. Lines that end with a lone \r are not counted.
fn line_at(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default().trim_start_matches(['\r', '\n']);
    text[..text.len() - rest.len()].matches('\n').count() + 1
}

/// Offset of a record, or of the end of the previous record.
fn place_of(cells: &StringRecord) -> usize {
    cells.position().map_or(0, |position| position.byte() as usize)
}

/// Returns whether a line is [`END`].
fn is_end(cells: &StringRecord) -> bool {
    cells.len() == 1 && cells.get(0) == Some("\0")
}

/// A line added after the last one. It is a record of its own only if every quote before it is closed.
const END: &[u8] = b"\n\0";

impl Record<'_> {
    /// The number of the line at which the record begins, from 1.
    pub(super) fn line(&self) -> usize {
        line_at(self.of.text, self.at)
    }

    /// The value in the column at `at`.
    pub(super) fn cell(&self, at: usize) -> Cell<'_> {
        match &self.values {
            Values::Cells(cells) => match cells.get(at) {
                None | Some("") => Cell::None,
                Some(word) => Cell::Word(word),
            },
            Values::Object(object) => match object.get(&self.of.names[at].0) {
                None | Some(Json::Null) => Cell::None,
                Some(Json::Bool(is_true)) => Cell::Bool(*is_true),
                // As in CSV, an empty string is no value.
                Some(Json::String(text)) if text.is_empty() => Cell::None,
                Some(Json::String(text)) => Cell::Text(text),
                Some(Json::Array(_)) => Cell::Nested("a list"),
                Some(Json::Object(_)) => Cell::Nested("an object"),
                Some(Json::Number(number)) => match number.as_i64() {
                    Some(number) => Cell::Int(number),
                    None if number.is_u64() => Cell::Nested("a number of more than 63 bits"),
                    None => number.as_f64().map_or(Cell::None, Cell::Float),
                },
            },
        }
    }

    /// The name of the record's sample, from the column at `at`, without a leading `./`.
    pub(super) fn key(&self, at: usize) -> Result<String, String> {
        let name = match self.cell(at) {
            Cell::Word(text) | Cell::Text(text) => text.to_owned(),
            Cell::Int(number) => number.to_string(),
            _ => return Err(format!("line {}: there is no name of a sample", self.line())),
        };
        Ok(name.strip_prefix("./").map_or(name.clone(), str::to_owned))
    }
}

impl Cell<'_> {
    /// The type of the value itself; `None` if it has none.
    pub(super) fn kind(&self) -> Option<ColumnType> {
        Some(match self {
            Cell::None | Cell::Nested(_) => return None,
            Cell::Int(i64::MIN) => ColumnType::Text,
            Cell::Int(_) => ColumnType::Int,
            Cell::Float(_) => ColumnType::Float,
            Cell::Bool(_) => ColumnType::Bool,
            Cell::Text(_) => ColumnType::Text,
            Cell::Word(word) => kind_of(word),
        })
    }

    /// Converts to a value of a column of type `kind`; `None` if the type does not hold it.
    pub(super) fn to_value(&self, kind: ColumnType) -> Option<OwnedValue> {
        use ColumnType::{Bool, Float, Float32, Int, Text};
        let value = match (kind, self) {
            (_, Cell::None) => OwnedValue::None,
            (Int | Float | Float32, Cell::Int(number)) => OwnedValue::Int(*number),
            (Int, Cell::Word(word)) => OwnedValue::Int(word.trim().parse().ok()?),
            (Int, Cell::Float(number)) if number.fract() == 0.0 && number.abs() < EXACT => {
                OwnedValue::Int(*number as i64)
            }
            (Float | Float32, Cell::Float(number)) => OwnedValue::Float(*number),
            (Float | Float32, Cell::Word(word)) => {
                let word = word.trim();
                let number: f64 = word.parse().ok()?;
                let is_rounded = word.parse().is_ok_and(|whole| !kind.holds(Value::Int(whole)));
                let has_digits = word.contains(|c: char| c.is_ascii_digit());
                if is_rounded || number.is_infinite() && has_digits {
                    return None;
                }
                OwnedValue::Float(number)
            }
            (Bool, Cell::Bool(is_true)) => OwnedValue::Bool(*is_true),
            (Bool, Cell::Int(bit @ 0..=1)) => OwnedValue::Bool(*bit == 1),
            (Bool, Cell::Word(word)) => match &*word.trim().to_ascii_lowercase() {
                "true" | "1" => OwnedValue::Bool(true),
                "false" | "0" => OwnedValue::Bool(false),
                _ => return None,
            },
            (Text, Cell::Text(text) | Cell::Word(text)) => OwnedValue::Text((*text).to_owned()),
            (Text, Cell::Int(_) | Cell::Float(_) | Cell::Bool(_)) => {
                OwnedValue::Text(self.to_string())
            }
            _ => return None,
        };
        Some(value).filter(|value| kind.holds(value.as_value()))
    }
}

/// The type of a word. A number with leading zeroes, or too large for [`ColumnType::Int`], is text, since a number
/// would not keep its spelling or value.
fn kind_of(word: &str) -> ColumnType {
    let word = word.trim();
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_padded = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
    match () {
        () if is_padded => ColumnType::Text,
        () if is_whole => match word.parse() {
            Ok(i64::MIN) | Err(_) => ColumnType::Text,
            Ok(_) => ColumnType::Int,
        },
        () if word.parse::<f64>().is_ok() => ColumnType::Float,
        () if word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false") => {
            ColumnType::Bool
        }
        () => ColumnType::Text,
    }
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::None => f.write_str("nothing"),
            Cell::Word(text) | Cell::Text(text) => write!(f, "`{}`", text.escape_debug()),
            Cell::Int(number) => number.fmt(f),
            Cell::Float(number) => number.fmt(f),
            Cell::Bool(is_true) => is_true.fmt(f),
            Cell::Nested(what) => f.write_str(what),
        }
    }
}

/// Integers below this are exact in an `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;
