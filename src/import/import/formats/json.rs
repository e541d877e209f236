//! The text of JSON Lines: its lines, the object of each, and a survey that finds the columns, and for each column a
//! type that holds all its values.
//!
//! The parser accepts `NaN` and `Infinity`, which Python writes but JSON lacks, and rounds no integer.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

use super::column::{CellKind, Column};
use super::input::{BUFFER_BYTES, Input};
use crate::import::columns::Number;
use crate::import::options::RowOptions;
use crate::import::sources::content::BYTE_ORDER_MARK;
use crate::import::sources::shard::read_some;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::field_type::{Element, FieldType};

/// An object whose keys keep their order.
pub(super) struct Object(pub(super) Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Object, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Object(pairs))
            }
        }

        from.deserialize_map(Pairs)
    }
}

/// The value as a number, if it is one.
pub(super) fn number_of(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => {
            let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
            whole.map(Number::Int).or(number.as_f64().map(Number::Float))
        }
        Value::String(text) => match text.strip_prefix(MARK)? {
            "NaN" => Some(Number::Float(f64::NAN)),
            "Infinity" => Some(Number::Float(f64::INFINITY)),
            "-Infinity" => Some(Number::Float(f64::NEG_INFINITY)),
            digits => digits.parse().ok().map(Number::Int),
        },
        _ => None,
    }
}

/// Converts JSON with marked strings back to JSON with the original numbers.
pub(super) fn unmarked(json: &str) -> String {
    let mark = format!("\"{MARK_IN_JSON}");
    let mut parts = json.split(mark.as_str());
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, behind) = part.split_once('"').unwrap_or((part, ""));
        out.extend([number, behind]);
    }
    out
}

/// A string as the line spells it: without the mark, if it has one.
pub(super) fn spelled(text: &str) -> &str {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// Parses the object of a line. Numbers that JSON lacks, and integers that would be rounded, become strings with the
/// prefix [`MARK`].
pub(super) fn parse(line: &[u8]) -> serde_json::Result<Object> {
    if !has_long_integer(line) {
        let is_in = |word: &&str| line.windows(word.len()).any(|part| part == word.as_bytes());
        match serde_json::from_slice(line) {
            Err(_) if WORDS.iter().any(is_in) => {}
            parsed => return parsed,
        }
    }
    serde_json::from_slice(&marked(line))
}

/// Returns whether a line has more than 18 digits in a row, and so may have an integer of more than 64 bits.
fn has_long_integer(line: &[u8]) -> bool {
    let mut digits = 0;
    line.iter().any(|byte| {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        digits > 18
    })
}

/// Replaces the numbers that [`parse`] marks by strings with [`MARK`].
fn marked(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len() + 64);
    let mut rest = line;
    while let [byte, behind @ ..] = rest {
        let len = match byte {
            b'"' => string_len(rest),
            b'-' | b'0'..=b'9' | b'N' | b'I' => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len())
            }
            _ => rest.len() - behind.len(),
        };
        let (token, behind) = rest.split_at(len.max(1));
        let text = std::str::from_utf8(token).unwrap_or_default();
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_whole = digits.len() > 18 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let is_rounded = is_whole && text.parse::<i64>().is_err() && text.parse::<u64>().is_err();
        // A leading zero is not JSON: such a number stays, so that parsing refuses it.
        if WORDS.contains(&text) || is_rounded && !digits.starts_with('0') {
            out.extend_from_slice(format!("\"{MARK_IN_JSON}{text}\"").as_bytes());
        } else {
            out.extend_from_slice(token);
        }
        rest = behind;
    }
    out
}

/// Length in bytes of the string at the beginning of `text`, including its quotes.
fn string_len(text: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = text.iter().skip(1).position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

pub(super) type Lines = BufReader<Box<dyn Read + Send>>;

/// The lines of `input`, decompressed and without a byte order mark, and the offset of the first line.
pub(super) fn lines(input: &Input, window_bytes: Option<u64>) -> Result<(Lines, u64)> {
    let mut from = input.read_plain(window_bytes)?;
    let mut head = [0; BYTE_ORDER_MARK.len()];
    let read = read_some(&mut from, &mut head);
    input.check()?;
    let head = &head[..read.map_err(|error| input.named(error))?];
    let (head, at) =
        if head == BYTE_ORDER_MARK { (Vec::new(), head.len() as u64) } else { (head.to_vec(), 0) };
    let from: Box<dyn Read + Send> = Box::new(Cursor::new(head).chain(from));
    Ok((BufReader::with_capacity(BUFFER_BYTES, from), at))
}

/// Reads the next line; `false` at the end.
///
/// # Errors
/// Errors of reading. The line has 1 GiB or more, or does not fit in memory.
pub(super) fn read_line(from: &mut Lines, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    loop {
        line.try_reserve(STEP_BYTES)?;
        let read = from.by_ref().take(STEP_BYTES as u64).read_until(b'\n', line)?;
        if read < STEP_BYTES || line.ends_with(b"\n") {
            return Ok(!line.is_empty());
        }
        if line.len() >= MAX_LINE_BYTES {
            return Err(io::Error::other("a line has 1 GiB or more"));
        }
    }
}

/// The columns of the lines surveyed so far.
#[derive(Default)]
pub(super) struct Survey {
    columns: Vec<(String, Seen)>,
    /// Index of each key in `columns`.
    at: HashMap<String, usize>,
    /// Set if only a part of the lines was surveyed.
    is_part: bool,
}

/// Properties of the values of a key, as bits. Bits of scalar types also describe the elements of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen(u16);

impl Survey {
    /// The columns of the file `input`.
    pub(super) fn columns_of(input: &Input, options: &RowOptions) -> Result<Vec<Column>> {
        let mut survey = Survey::default();
        // Request nothing ahead from a store: most of it would not be needed.
        survey.read(lines(input, Some(0))?.0, input, input.object.is_none())?;
        let mut columns = survey.columns();
        let at =
            |name: &str, columns: &[Column]| columns.iter().position(|column| column.name == name);
        let key = match &options.files {
            Some(key) => Some(key.clone()),
            None => Some(FILE_NAME.to_owned()).filter(|key| {
                let is_wanted = |field: &String| field == FILE || field == key;
                at(key, &columns).is_some_and(|at| columns[at].kind == CellKind::Bytes)
                    && (options.fields.is_empty() || options.fields.iter().any(is_wanted))
            }),
        };
        if let Some(key) = key {
            let column = at(&key, &columns).ok_or_else(|| {
                let text = format!("the lines have no key {key} that could name files");
                Error::new(ErrorKind::InvalidArgument, text).path(&input.path)
            })?;
            let keeps_its_name = at(FILE, &columns).is_some() || options.fields.contains(&key);
            let name = if keeps_its_name { key.as_str() } else { FILE };
            columns[column] =
                Column { files_of: Some(key.clone()), ..Column::new(name, CellKind::Bytes) };
        }
        for name in options.fields.iter().filter(|_| survey.is_part) {
            if at(name, &columns).is_none() {
                columns.push(Column::new(name, CellKind::Nothing));
            }
        }
        Ok(columns)
    }

    fn read(&mut self, mut from: Lines, input: &Input, is_whole: bool) -> Result<()> {
        let mut line = Vec::new();
        let mut bytes = 0;
        let mut count = 0;
        loop {
            let read = read_line(&mut from, &mut line);
            input.check()?;
            match read {
                Ok(true) => {}
                // An error that ends the lines early is reported when the lines are read as rows.
                Ok(false) | Err(_) if !self.columns.is_empty() => break,
                Ok(false) => {
                    return Err(input.bad("no line is a JSON object"));
                }
                Err(error) => return Err(input.named(error)),
            }
            bytes += line.len();
            let is_enough = bytes > SURVEYED_BYTES || count == SURVEYED_LINES;
            if is_enough && !is_whole && !self.columns.is_empty() {
                self.is_part = true;
                break;
            }
            // A bad line is reported when it is read as a row.
            let Ok(object) = parse(&line) else { continue };
            count += 1;
            object.0.iter().for_each(|(key, value)| self.see(key, value));
        }
        Ok(())
    }

    fn see(&mut self, key: &str, value: &Value) {
        let seen = Seen::of(value);
        match self.at.get(key) {
            Some(at) => self.columns[*at].1.0 |= seen.0,
            None => {
                self.at.insert(key.to_owned(), self.columns.len());
                self.columns.push((key.to_owned(), seen));
            }
        }
    }

    fn columns(&self) -> Vec<Column> {
        self.columns.iter().map(|(name, seen)| Column::new(name, seen.kind())).collect()
    }
}

impl Seen {
    const ONE: u16 = 1;
    const LIST: u16 = 2;
    const BOOL: u16 = 4;
    const WHOLE: u16 = 8;
    const NEGATIVE: u16 = 16;
    /// Integers above the range of an `i64`.
    const LARGE: u16 = 32;
    /// Integers that an `f64` does not hold exactly.
    const LONG: u16 = 64;
    const FRACTION: u16 = 128;
    /// Values that only bytes can hold.
    const OTHER: u16 = 256;

    fn of(value: &Value) -> Seen {
        match value {
            Value::Null => Seen::default(),
            Value::Array(all) => {
                let each = |value: &Value| match value {
                    Value::Null | Value::Array(_) => Seen::OTHER,
                    value => Seen::of(value).0 & !Seen::ONE,
                };
                Seen(all.iter().map(each).fold(Seen::LIST, |all, each| all | each))
            }
            value => Seen(Seen::ONE | Seen::kind_of(value)),
        }
    }

    fn kind_of(value: &Value) -> u16 {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        match (value, number_of(value)) {
            (Value::Bool(_), _) => Seen::BOOL,
            (_, Some(Number::Float(_))) => Seen::FRACTION,
            (_, Some(Number::Int(whole))) => match u64::try_from(whole) {
                Err(_) if i64::try_from(whole).is_err() => Seen::OTHER,
                of => {
                    Seen::WHOLE
                        | flag(of.is_err(), Seen::NEGATIVE)
                        | flag(whole > i64::MAX.into(), Seen::LARGE)
                        | flag(whole as f64 as i128 != whole, Seen::LONG)
                }
            },
            _ => Seen::OTHER,
        }
    }

    /// The kind of the column's values.
    fn kind(self) -> CellKind {
        let has = |all: u16| self.0 & all == all;
        let has_numbers = self.0 & (Seen::WHOLE | Seen::FRACTION) != 0;
        if self.0 == 0 {
            return CellKind::Nothing;
        }
        if has(Seen::OTHER) || has(Seen::ONE | Seen::LIST) || has(Seen::BOOL) && has_numbers {
            return CellKind::Bytes;
        }
        let element = match () {
            () if has(Seen::BOOL) => Element::Bool,
            () if has(Seen::FRACTION | Seen::LONG) => return CellKind::Bytes,
            () if has(Seen::FRACTION) => Element::F64,
            () if has(Seen::LARGE | Seen::NEGATIVE) => return CellKind::Bytes,
            () if has(Seen::LARGE) => Element::U64,
            () if has(Seen::WHOLE) => Element::I64,
            () => return CellKind::Bytes,
        };
        let kind = FieldType::new(element, has(Seen::LIST), Vec::new());
        kind.map_or_else(CellKind::Other, CellKind::Elements)
    }
}

/// Prefix of a string that is parsed in place of a number.
const MARK: &str = "\0dlfs:";
const MARK_IN_JSON: &str = "\\u0000dlfs:";
/// Numbers that Python writes but JSON lacks.
const WORDS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
const MAX_LINE_BYTES: usize = 1 << 30;
/// Bytes by which the memory of a line grows.
const STEP_BYTES: usize = 1 << 20;
/// The key that names files in Hugging Face's image folders.
const FILE_NAME: &str = "file_name";
/// The name of the column that holds the files, unless it is a key of the lines, or the options name the column by
/// the key of the files.
const FILE: &str = "file";
/// Limits of the survey of an object in a store, in lines and in bytes.
const SURVEYED_LINES: usize = 1024;
const SURVEYED_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_does_not_have_is_marked_outside_of_texts_and_read_back() {
        let line = br#"{"a": NaN, "b": [-Infinity, 18446744073709551616], "c": "NaN \" Infinity", "d": -1.5e3}"#;
        let object = parse(line).unwrap();
        let shown: Vec<String> =
            object.0.iter().map(|(_, value)| unmarked(&value.to_string())).collect();
        assert_eq!(
            shown,
            ["NaN", "[-Infinity,18446744073709551616]", r#""NaN \" Infinity""#, "-1500.0"]
        );
        for wrong in ["{\"a\": nan}", "{\"a\": -NaN}", "{\"a\": Infinit}", "{\"a"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_values_of_a_key_have_the_type_that_holds_them_exactly() {
        for (values, kind) in [
            ("[1, -2]", "i64"),
            ("[1, 18446744073709551615]", "u64"),
            ("[-1, 18446744073709551615]", "bytes"),
            ("[1, 0.5, null]", "f64"),
            ("[NaN, 9007199254740992]", "f64"),
            ("[0.5, 9007199254740993]", "bytes"),
            ("[18446744073709551616]", "bytes"),
            ("[null]", "nothing"),
            ("[true, 1]", "bytes"),
            ("[true]", "bool"),
            ("[[], [1], [0.5]]", "f64[*]"),
            ("[[]]", "bytes"),
            ("[[1], 1]", "bytes"),
            ("[[null]]", "bytes"),
            ("[\"x\", 1]", "bytes"),
        ] {
            let mut survey = Survey::default();
            let object = parse(format!("{{\"a\": {values}}}").as_bytes()).unwrap();
            let [(_, Value::Array(all))] = &object.0[..] else { panic!("{values}") };
            all.iter().for_each(|value| survey.see("a", value));
            assert_eq!(survey.columns()[0].shown(), kind, "{values}");
        }
    }
}
