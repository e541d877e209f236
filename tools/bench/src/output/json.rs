//! JSON that keeps the order of its keys, printed as fio prints it.

use std::fmt::Write as _;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Whole(i128),
    /// Printed with six decimals.
    Float(f64),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// An object that is filled with [`Json::with`].
    pub(crate) fn object() -> Json {
        Json::Object(Vec::new())
    }

    /// The object with one more entry.
    pub(crate) fn with(mut self, key: impl Into<String>, value: impl Into<Json>) -> Json {
        if let Json::Object(entries) = &mut self {
            entries.push((key.into(), value.into()));
        }
        self
    }

    /// As a document that ends with a newline.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, 0);
        text.push('\n');
        text
    }

    fn write(&self, out: &mut String, depth: usize) {
        // Writing to a string does not fail.
        let _ = match self {
            Json::Whole(value) => write!(out, "{value}"),
            Json::Float(value) if value.is_finite() => write!(out, "{value:.6}"),
            Json::Float(_) => write!(out, "0.000000"),
            Json::Text(text) => {
                write_text(out, text);
                Ok(())
            }
            Json::Array(values) => {
                let values = values.iter().map(|value| (None, value));
                write_all(out, values, ['[', ']'], depth);
                Ok(())
            }
            Json::Object(entries) => {
                let entries = entries.iter().map(|(key, value)| (Some(key.as_str()), value));
                write_all(out, entries, ['{', '}'], depth);
                Ok(())
            }
        };
    }
}

fn write_all<'a>(
    out: &mut String,
    values: impl Iterator<Item = (Option<&'a str>, &'a Json)>,
    brackets: [char; 2],
    depth: usize,
) {
    out.push(brackets[0]);
    let mut any = false;
    for (key, value) in values {
        out.push_str(if any { ",\n" } else { "\n" });
        any = true;
        out.push_str(&"  ".repeat(depth + 1));
        if let Some(key) = key {
            write_text(out, key);
            out.push_str(" : ");
        }
        value.write(out, depth + 1);
    }
    if any {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    }
    out.push(brackets[1]);
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32); // writing to a string does not fail
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

macro_rules! from {
    ($($type:ty => $json:expr;)*) => {
        $(impl From<$type> for Json {
            fn from(value: $type) -> Json {
                $json(value)
            }
        })*
    };
}

from! {
    u64 => |value| Json::Whole(i128::from(value));
    i32 => |value| Json::Whole(i128::from(value));
    usize => |value| Json::Whole(value as i128);
    f64 => Json::Float;
    &str => |value: &str| Json::Text(value.to_owned());
    String => Json::Text;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_look_like_fio_s_and_escape_what_must_be() {
        let value = Json::object()
            .with("a", 1_u64)
            .with("b", Json::Array(vec![1.5.into(), "x\"\\\n\u{1}".into()]))
            .with("c", Json::object());
        let expected = "{\n  \"a\" : 1,\n  \"b\" : [\n    1.500000,\n    \
                        \"x\\\"\\\\\\n\\u0001\"\n  ],\n  \"c\" : {}\n}\n";
        assert_eq!(value.to_text(), expected);
    }
}
