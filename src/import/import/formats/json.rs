//! The text of JSON Lines: the lines of a file, and the object of each line.
//!
//! The parser accepts `NaN` and `Infinity`, which Python writes but JSON lacks, and rounds no integer.

use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

use super::input::{BUFFER_BYTES, Input};
use crate::import::columns::Number;
use crate::import::sources::content::BYTE_ORDER_MARK;
use crate::import::sources::shard::read_some;
use dlfs_base::Result;

/// The pairs of an object, in the order of the text.
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

/// The rest of the lines of a file.
pub(super) type Lines = BufReader<Box<dyn Read + Send>>;

/// The lines of `input`, decompressed and without a byte order mark, and the offset of the first line. `window_bytes`:
/// bytes to request ahead from a store; `None`: the store's own window.
///
/// # Errors
/// The file does not open, or its first bytes cannot be read.
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

/// Prefix of a string that is parsed in place of a number.
const MARK: &str = "\0dlfs:";
/// The mark as it is escaped in JSON.
const MARK_IN_JSON: &str = "\\u0000dlfs:";
/// Numbers that Python writes but JSON lacks.
const WORDS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
/// Limit of the length of a line.
const MAX_LINE_BYTES: usize = 1 << 30;
/// Bytes by which the memory of a line grows.
const STEP_BYTES: usize = 1 << 20;
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
}
