//! Parser of libconfig's text format, in which HDMLP's configuration is written (`hdmlp.rs`).
//!
//! A file has settings `name = value` or `name : value`, each ended by `;`, by `,` or by nothing. A value is a
//! number, a string, a boolean, a group `{ }` of settings, a list `( )` or an array `[ ]`. Comments are `#`, `//` and
//! `/* */`. Includes are not supported.

use serde_json::{Map, Value};

/// Syntax error: the line, from 1, and the expected syntax.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}")]
pub(super) struct SyntaxError {
    line: usize,
    expected: &'static str,
}

/// Parses all settings of `text`. Numbers become floating-point numbers, lists and arrays become arrays.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, SyntaxError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    let settings = parser.settings()?;
    match parser.peek() {
        None => Ok(settings),
        Some(_) => Err(parser.expected("a setting")),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Offset of the next byte.
    at: usize,
    /// Number of values that contain the current position.
    depth: u32,
}

impl Parser<'_> {
    fn settings(&mut self) -> Result<Map<String, Value>, SyntaxError> {
        let mut settings = Map::new();
        while self.peek().is_some_and(|next| next.is_ascii_alphabetic() || next == '*') {
            let name = self.word();
            if settings.contains_key(&name) {
                return Err(self.expected("a name that the group does not have yet"));
            }
            if !self.takes('=') && !self.takes(':') {
                return Err(self.expected("= or : behind a name"));
            }
            let value = self.value()?;
            settings.insert(name, value);
            _ = self.takes(';') || self.takes(','); // neither is needed
        }
        Ok(settings)
    }

    fn value(&mut self) -> Result<Value, SyntaxError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.expected("less nesting"));
        }
        let value = match self.peek() {
            Some('{') => {
                self.takes('{');
                let settings = self.settings()?;
                self.close('}', "a setting or }").map(|()| Value::Object(settings))
            }
            Some('(') => self.list('(', ')', ", or )"),
            Some('[') => self.list('[', ']', ", or ]"),
            Some('"') => self.texts().map(Value::String),
            Some(_) => self.scalar(),
            None => Err(self.expected("a value")),
        };
        self.depth -= 1;
        value
    }

    /// Values separated by commas; a trailing comma is allowed.
    fn list(&mut self, open: char, close: char, what: &'static str) -> Result<Value, SyntaxError> {
        self.takes(open);
        let mut values = Vec::new();
        while self.peek().is_some_and(|next| next != close) {
            values.push(self.value()?);
            if !self.takes(',') {
                break;
            }
        }
        self.close(close, what).map(|()| Value::Array(values))
    }

    /// Adjacent strings are concatenated.
    fn texts(&mut self) -> Result<String, SyntaxError> {
        let mut text = String::new();
        while self.takes('"') {
            loop {
                let next = self.next().ok_or_else(|| self.expected("the end of a text: \""))?;
                match next {
                    '"' => break,
                    '\\' => text.push(match self.next() {
                        Some('n') => '\n',
                        Some('t') => '\t',
                        Some('r') => '\r',
                        Some('f') => '\u{c}',
                        Some(same @ ('"' | '\\')) => same,
                        _ => return Err(self.expected("one of nrtf\"\\ behind a \\")),
                    }),
                    next => text.push(next),
                }
            }
        }
        Ok(text)
    }

    fn scalar(&mut self) -> Result<Value, SyntaxError> {
        let before = self.at;
        let word = self.word();
        let value = match word.to_ascii_lowercase().as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => number(&word).map(Value::from),
        };
        value.ok_or_else(|| {
            self.at = before;
            self.expected("a number, true, false, or one of \" { ( [")
        })
    }

    /// The letters, digits and signs at the current position.
    fn word(&mut self) -> String {
        self.peek(); // skips whitespace
        let rest = &self.text[self.at..];
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-*+.".contains(c);
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += len;
        rest[..len].to_owned()
    }

    fn close(&mut self, end: char, what: &'static str) -> Result<(), SyntaxError> {
        if self.takes(end) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// Skips `expected` if it is the next character after whitespace and comments; returns whether it was.
    fn takes(&mut self, expected: char) -> bool {
        let is_next = self.peek() == Some(expected);
        self.at += if is_next { expected.len_utf8() } else { 0 };
        is_next
    }

    /// The next character, including whitespace.
    fn next(&mut self) -> Option<char> {
        let next = self.text[self.at..].chars().next()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// The next character that is neither whitespace nor in a comment.
    fn peek(&mut self) -> Option<char> {
        loop {
            let rest = &self.text[self.at..];
            let begun = rest.trim_start();
            self.at += rest.len() - begun.len();
            let end = match begun {
                _ if begun.starts_with('#') || begun.starts_with("//") => begun.find('\n'),
                _ if begun.starts_with("/*") => begun.find("*/").map(|end| end + 2),
                _ => return begun.chars().next(),
            };
            self.at += end.unwrap_or(begun.len());
        }
    }

    fn expected(&self, expected: &'static str) -> SyntaxError {
        let before = &self.text[..self.at];
        SyntaxError { line: before.matches('\n').count() + 1, expected }
    }
}

/// A decimal or hexadecimal integer, possibly with the suffix `L`, or a floating-point number.
fn number(word: &str) -> Option<f64> {
    let digits = word.trim_end_matches('L');
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok().map(|number| number as f64);
    }
    let is_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    digits.parse().ok().filter(|_| digits.chars().all(is_number))
}

/// Maximum nesting of groups and lists.
const MAX_DEPTH: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn settings_are_read_with_every_separator_and_comment() {
        let text = "a = 1 # one\n b: 0x1F; /* a\n b */ c = -2.5e1, d = true // yes\n e = \"x\\\"\" \"y\"\n\
                    f = { g = FALSE; }; h = [1, 2L]; i = ( { j : 3 }, \"k\", );";
        let expected = json!({
            "a": 1.0,
            "b": 31.0,
            "c": -25.0,
            "d": true,
            "e": "x\"y",
            "f": { "g": false },
            "h": [1.0, 2.0],
            "i": [{ "j": 3.0 }, "k"],
        });
        assert_eq!(Value::Object(parse(text).unwrap()), expected);
        assert_eq!(parse(" # nothing"), Ok(Map::new()));
    }

    #[test]
    fn what_is_not_libconfig_is_refused_with_its_line() {
        let refuse = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(refuse("a = 1;\nb 2"), "line 2: expected = or : behind a name");
        assert_eq!(refuse("a = \n"), "line 2: expected a value");
        assert_eq!(
            refuse("a = fast"),
            "line 1: expected a number, true, false, or one of \" { ( ["
        );
        assert_eq!(refuse("a = inf"), "line 1: expected a number, true, false, or one of \" { ( [");
        assert_eq!(refuse("a = ( 1\n 2 )"), "line 2: expected , or )");
        assert_eq!(refuse("a = { b = 1; "), "line 1: expected a setting or }");
        assert_eq!(refuse("a = \"b"), "line 1: expected the end of a text: \"");
        assert_eq!(refuse("a = \"\\q\""), "line 1: expected one of nrtf\"\\ behind a \\");
        assert_eq!(
            refuse("a = 1; a = 2"),
            "line 1: expected a name that the group does not have yet"
        );
        assert_eq!(refuse("@include \"x\""), "line 1: expected a setting");
        assert_eq!(refuse("a = ("), "line 1: expected , or )");
        assert_eq!(refuse(&format!("a = {}", "(".repeat(100))), "line 1: expected less nesting");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-c=:;,(){}\\[\\]\"\\\\#/*0-9.\n é-]{0,60}") {
            let _ = parse(&text); // the result does not matter
        }
    }
}
