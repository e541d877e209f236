//! Parser of the objects in JSON Lines. Accepts `NaN` and `Infinity`, which Python writes but JSON lacks, and rounds no
//! integer.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

use crate::import::columns::Number;

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
        match serde_json::from_slice(line) {
            Err(_) if has_word(line) => {}
            parsed => return parsed,
        }
    }
    serde_json::from_slice(&marked(line))
}

fn has_word(line: &[u8]) -> bool {
    WORDS.iter().any(|word| line.windows(word.len()).any(|part| part == word.as_bytes()))
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

/// Prefix of a string that is parsed in place of a number.
const MARK: &str = "\0dlfs:";
const MARK_IN_JSON: &str = "\\u0000dlfs:";
/// Numbers that Python writes but JSON lacks.
const WORDS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

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
