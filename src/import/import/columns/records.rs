//! The records of a file of values: lines of CSV, of tab-separated values, or of JSON.
//!
//! CSV is that of RFC 4180: a value in quotes may hold commas, line ends, and quotes, which are doubled. Tab-separated
//! values have no quotes. Empty lines are none in all of them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use serde_json::Value as Json;

use dlfs_format::format::columns::{ColumnType, OwnedValue, Value};

/// A file of values.
pub(super) struct Records<'a> {
    syntax: Syntax,
    text: &'a str,
    /// The names of the columns: of JSON, of all lines together.
    header: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Comma,
    Tab,
    Json,
}

/// One record.
pub(super) struct Record<'a> {
    /// The line at which it begins, from 1.
    pub(super) line: usize,
    values: Values<'a>,
}

enum Values<'a> {
    Cells(Vec<Cow<'a, str>>),
    Object(serde_json::Map<String, Json>),
}

/// A value as it is in a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    None,
    /// A cell of a file without types.
    Word(&'a str),
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    /// A list or an object.
    Nested(&'static str),
}

impl<'a> Records<'a> {
    /// The records of the file at `path`, with its names of columns.
    pub(super) fn new(path: &Path, bytes: &'a [u8]) -> Result<Records<'a>, String> {
        let syntax = match &*super::suffix(path) {
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
        let mut records = Records { syntax, text, header: Vec::new() };
        records.header = match syntax {
            Syntax::Json => records.keys()?,
            _ => match records.next(&mut 0, &mut 1)? {
                Some((_, cells)) => cells.into_iter().map(|cell| cell.trim().to_owned()).collect(),
                None => return Err("there is no line".to_owned()),
            },
        };
        Ok(records)
    }

    pub(super) fn is_json(&self) -> bool {
        self.syntax == Syntax::Json
    }

    pub(super) fn names(&self) -> Result<Vec<String>, String> {
        Ok(self.header.clone())
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

    /// Gives each record to `take`, until it fails.
    pub(super) fn each(
        &self,
        take: &mut dyn FnMut(&Record<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        if self.syntax == Syntax::Json {
            for (line, text) in
                (1..).zip(self.text.lines()).filter(|(_, text)| !text.trim().is_empty())
            {
                let object = serde_json::from_str(text)
                    .map_err(|error| format!("line {line}: not an object of JSON: {error}"))?;
                take(&Record { line, values: Values::Object(object) })?;
            }
            return Ok(());
        }
        let mut at = 0;
        let mut line = 1;
        self.next(&mut at, &mut line)?; // the names
        while let Some((line, cells)) = self.next(&mut at, &mut line)? {
            if cells.len() != self.header.len() {
                let found = cells.len();
                let expected = self.header.len();
                let values = if found == 1 { "value" } else { "values" };
                return Err(format!("line {line}: {found} {values} in place of {expected}"));
            }
            take(&Record { line, values: Values::Cells(cells) })?;
        }
        Ok(())
    }

    /// The cells of the next record that is not an empty line, and its line.
    fn next(&self, at: &mut usize, line: &mut usize) -> Result<Option<Cells<'a>>, String> {
        let text = self.text;
        while let Some(rest) = text.get(*at..).filter(|rest| !rest.is_empty()) {
            let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
            if !rest[..end].trim_end_matches(['\n', '\r']).is_empty() {
                break;
            }
            *at += end;
            *line += 1;
        }
        if *at >= text.len() {
            return Ok(None);
        }
        let first = *line;
        let separator = if self.syntax == Syntax::Tab { '\t' } else { ',' };
        let mut cells = Vec::new();
        loop {
            let rest = &text[*at..];
            let is_quoted = self.syntax == Syntax::Comma && rest.starts_with('"');
            let (cell, len) = if is_quoted {
                quoted(rest).ok_or_else(|| format!("line {first}: a quote is not closed"))?
            } else {
                let len = rest.find([separator, '\n']).unwrap_or(rest.len());
                (Cow::Borrowed(&rest[..len]), len)
            };
            *line += rest[..len].matches('\n').count();
            *at += len;
            let behind = &text[*at..];
            let is_end =
                behind.is_empty() || behind.starts_with('\n') || behind.starts_with("\r\n");
            if !is_end && !behind.starts_with(separator) {
                return Err(format!("line {line}: text behind a closed quote"));
            }
            cells.push(match cell {
                Cow::Borrowed(cell) if is_end && !is_quoted => {
                    Cow::Borrowed(cell.strip_suffix('\r').unwrap_or(cell))
                }
                cell => cell,
            });
            if is_end {
                *at += behind.find('\n').map_or(behind.len(), |end| end + 1);
                *line += 1;
                return Ok(Some((first, cells)));
            }
            *at += separator.len_utf8();
        }
    }
}

/// The line of a record, and its cells.
type Cells<'a> = (usize, Vec<Cow<'a, str>>);

/// The text in quotes at the start of `rest`, and the bytes that it takes. `None`: they are not closed.
fn quoted(rest: &str) -> Option<(Cow<'_, str>, usize)> {
    let mut at = 1;
    loop {
        at += rest[at..].find('"')?;
        if !rest[at + 1..].starts_with('"') {
            let inner = &rest[1..at];
            let inner = if inner.contains('"') {
                Cow::Owned(inner.replace("\"\"", "\""))
            } else {
                Cow::Borrowed(inner)
            };
            return Some((inner, at + 1));
        }
        at += 2;
    }
}

impl Record<'_> {
    /// The value in the column at `at` of `names`.
    pub(super) fn cell(&self, at: usize, names: &[(String, Option<ColumnType>)]) -> Cell<'_> {
        match &self.values {
            Values::Cells(cells) => match cells.get(at).map(|cell| &**cell) {
                None | Some("") => Cell::None,
                Some(word) => Cell::Word(word),
            },
            Values::Object(object) => match names.get(at).and_then(|(name, _)| object.get(name)) {
                None | Some(Json::Null) => Cell::None,
                Some(Json::Bool(is_true)) => Cell::Bool(*is_true),
                // As in files without types, an empty text is none.
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

    /// The name of its sample.
    pub(super) fn key(
        &self,
        at: usize,
        names: &[(String, Option<ColumnType>)],
    ) -> Result<String, String> {
        let name = match self.cell(at, names) {
            Cell::Word(text) | Cell::Text(text) => text.to_owned(),
            Cell::Int(number) => number.to_string(),
            _ => return Err(format!("line {}: there is no name of a sample", self.line)),
        };
        Ok(name.strip_prefix("./").map_or(name.clone(), str::to_owned))
    }
}

impl Cell<'_> {
    /// The type that it has by itself.
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

    /// The value in a column of this type; `None` if it is none of it.
    pub(super) fn to_value(&self, kind: ColumnType) -> Option<OwnedValue> {
        let is_number = |number: &i64| *number != i64::MIN;
        Some(match (kind, self) {
            (_, Cell::None) => OwnedValue::None,
            (ColumnType::Int, Cell::Int(number)) => {
                OwnedValue::Int(Some(*number).filter(is_number)?)
            }
            (ColumnType::Int, Cell::Word(word)) => {
                OwnedValue::Int(word.trim().parse().ok().filter(is_number)?)
            }
            (ColumnType::Int, Cell::Float(number))
                if number.fract() == 0.0 && number.abs() < EXACT =>
            {
                OwnedValue::Int(*number as i64)
            }
            (ColumnType::Float | ColumnType::Float32, Cell::Int(number)) => {
                OwnedValue::Float(Some(*number).filter(|number| holds(kind, *number))? as f64)
            }
            (ColumnType::Float | ColumnType::Float32, Cell::Float(number)) => {
                OwnedValue::Float(Some(*number).filter(|number| fits(kind, *number))?)
            }
            (ColumnType::Float | ColumnType::Float32, Cell::Word(word)) => {
                let word = word.trim();
                if word.parse().is_ok_and(|number| !holds(kind, number)) {
                    return None;
                }
                let is_spelled = |number: &f64| {
                    !number.is_infinite() || !word.contains(|c: char| c.is_ascii_digit())
                };
                let number = word.parse().ok().filter(is_spelled);
                OwnedValue::Float(number.filter(|number| fits(kind, *number))?)
            }
            (ColumnType::Bool, Cell::Bool(is_true)) => OwnedValue::Bool(*is_true),
            (ColumnType::Bool, Cell::Int(bit @ 0..=1)) => OwnedValue::Bool(*bit == 1),
            (ColumnType::Bool, Cell::Word(word)) => match &*word.trim().to_ascii_lowercase() {
                "true" | "1" => OwnedValue::Bool(true),
                "false" | "0" => OwnedValue::Bool(false),
                _ => return None,
            },
            (ColumnType::Text, Cell::Text(text) | Cell::Word(text)) => {
                OwnedValue::Text((*text).to_owned())
            }
            (ColumnType::Text, Cell::Int(number)) => OwnedValue::Text(number.to_string()),
            (ColumnType::Text, Cell::Float(number)) => OwnedValue::Text(number.to_string()),
            (ColumnType::Text, Cell::Bool(is_true)) => OwnedValue::Text(is_true.to_string()),
            _ => return None,
        })
    }
}

/// Returns whether the number stays finite in a column of this type.
fn fits(kind: ColumnType, number: f64) -> bool {
    kind.holds(Value::Float(number))
}

/// Returns whether a column of floats holds an integer exactly.
fn holds(kind: ColumnType, number: i64) -> bool {
    kind.holds(Value::Int(number))
}

/// The type of a word. One with zeroes before it, or too large for its type, is a text: as a number it would be
/// another.
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

/// Whole numbers below it are exact in an f64.
const EXACT: f64 = 9_007_199_254_740_992.0;
