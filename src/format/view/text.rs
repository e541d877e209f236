//! The parser of filter expressions. [`Filter`](super::Filter) looks up the columns that an expression names.
//!
//! ```text
//! any      = all ("or" all)*                            also ||
//! all      = not ("and" not)*                           also &&
//! not      = "not" not | "(" any ")" | test             also !
//! test     = operand (compare operand)+                 pairs of a column and a value: 10 <= len < 4K
//!          | column ["not"] "in" "(" value ("," value)* ")"
//!          | column ["not"] "glob" string
//! compare  = "==" | "=" | "!=" | "<" | "<=" | ">" | ">="
//! column   = (letter | "_") (letter | digit | "_" | ".")* | "`" characters other than "`" "`"
//! value    = integer ["K" | "M" | "G" | "T"] | decimal | string | "true" | "false" | "none"
//! string   = '...' or "...", with \\ \' \" \n \t \xHH     and, for patterns, \* \? \[ \] \- \!
//! ```
//!
//! Keywords are in lower or upper case; `True` and `False` are read too. An integer or decimal may have a sign, and
//! underscores between its digits. [`MAX_LEN`] limits the length of an expression, [`MAX_DEPTH`] its nesting.

use std::fmt;

use dlfs_base::error::{Error, invalid};

/// An expression as it is written, before its columns are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expr {
    All(Vec<Expr>),
    Any(Vec<Expr>),
    Not(Box<Expr>),
    Test(Test),
}

/// One comparison of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) column: String,
    /// Byte offset of the column in the expression.
    pub(super) at: usize,
    pub(super) compare: Compare,
    /// Values with their byte offsets: one value, or several if the comparison is `In`.
    pub(super) values: Vec<(Literal, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Glob,
}

/// A value in an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Literal {
    Number(i64),
    /// A floating-point literal, as its [`order_of`].
    Decimal(i64),
    Bool(bool),
    Bytes(Vec<u8>),
    /// `none`: the sample has no value.
    None,
}

/// An error in an expression, and its position.
#[derive(Debug)]
pub(super) struct Problem {
    /// Byte offset in the expression.
    at: usize,
    what: String,
}

impl Problem {
    pub(super) fn new(at: usize, what: impl Into<String>) -> Problem {
        Problem { at, what: what.into() }
    }

    /// The position in `text` in characters, from 1.
    fn character(&self, text: &str) -> usize {
        text.char_indices().take_while(|(at, _)| *at < self.at).count() + 1
    }

    /// The error for the expression `text`.
    pub(super) fn of(&self, text: &str) -> Error {
        let at = self.character(text);
        let shown = shown(text);
        invalid(format!("{}, at character {at} of the expression `{shown}`", self.what))
    }
}

/// The text for an error message: control characters escaped, and cut after [`MAX_SHOWN`] characters.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push_str("...");
    }
    shown.replace("\\'", "'").replace("\\\"", "\"")
}

/// Parses `text`.
///
/// # Errors
/// `text` is not a valid expression; the error has the message and the position.
pub(super) fn parse(text: &str) -> Result<Expr, Problem> {
    if text.len() > MAX_LEN {
        let len = text.len();
        let what = format!("an expression has at most {MAX_LEN} bytes, and this has {len}");
        return Err(Problem::new(0, what));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0 };
    let root = parser.any()?;
    match parser.peek().0 {
        Token::End => Ok(root),
        _ => parser.expected("`and`, `or` or the end"),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Column(String),
    Value(Literal),
    Compare(Compare),
    /// A keyword in lower case, a parenthesis, or a comma.
    Sign(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Column(name) => write!(f, "the column `{name}`"),
            Token::Value(Literal::Number(number)) => write!(f, "the number {number}"),
            Token::Value(Literal::Bytes(bytes)) => {
                write!(f, "the string '{}'", bytes.escape_ascii())
            }
            Token::Value(Literal::Decimal(order)) => {
                write!(f, "the number {}", number_at(*order))
            }
            Token::Value(Literal::Bool(is_true)) => write!(f, "`{is_true}`"),
            Token::Value(Literal::None) => f.write_str("`none`"),
            Token::Compare(_) => f.write_str("a comparison"),
            Token::Sign(sign) => write!(f, "`{sign}`"),
            Token::End => f.write_str("the end"),
        }
    }
}

/// A recursive-descent parser, with a method for each rule of the grammar.
struct Parser {
    /// Tokens with their byte offsets. The last token is `End`.
    tokens: Vec<(Token, usize)>,
    /// The index of the next token.
    next: usize,
    /// The current nesting of parentheses and `not`.
    depth: usize,
}

impl Parser {
    fn peek(&self) -> (&Token, usize) {
        let (token, at) = &self.tokens[self.next.min(self.tokens.len() - 1)];
        (token, *at)
    }

    fn take(&mut self) -> (Token, usize) {
        let (token, at) = self.peek();
        let taken = (token.clone(), at);
        self.next += 1;
        taken
    }

    /// Advances past the next token if it is `token`; returns whether it is.
    fn take_if(&mut self, token: &Token) -> bool {
        let is_it = self.peek().0 == token;
        self.next += usize::from(is_it);
        is_it
    }

    /// The error that `what` should follow.
    fn expected<T>(&self, what: &str) -> Result<T, Problem> {
        let (found, at) = self.peek();
        Err(Problem::new(at, format!("expected {what}, found {found}")))
    }

    fn any(&mut self) -> Result<Expr, Problem> {
        let mut list = vec![self.all()?];
        while self.take_if(&Token::Sign("or")) {
            list.push(self.all()?);
        }
        Ok(if list.len() == 1 { list.remove(0) } else { Expr::Any(list) })
    }

    fn all(&mut self) -> Result<Expr, Problem> {
        let mut list = vec![self.not()?];
        while self.take_if(&Token::Sign("and")) {
            list.push(self.not()?);
        }
        Ok(if list.len() == 1 { list.remove(0) } else { Expr::All(list) })
    }

    fn not(&mut self) -> Result<Expr, Problem> {
        let at = self.peek().1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let what = format!("more than {MAX_DEPTH} levels of parentheses and `not`");
            return Err(Problem::new(at, what));
        }
        let expr = if self.take_if(&Token::Sign("not")) {
            Expr::Not(Box::new(self.not()?))
        } else if self.take_if(&Token::Sign("(")) {
            let inner = self.any()?;
            if !self.take_if(&Token::Sign(")")) {
                return self.expected("`)`, `and` or `or`");
            }
            inner
        } else {
            self.test()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn test(&mut self) -> Result<Expr, Problem> {
        let (mut left, mut at) = self.operand()?;
        let mut tests = Vec::new();
        loop {
            let is_negated = matches!(left, Token::Column(_)) && self.take_if(&Token::Sign("not"));
            let test = match (self.peek().0.clone(), &left) {
                (Token::Sign("in"), Token::Column(column)) => {
                    self.next += 1;
                    let values = self.list()?;
                    Test { column: column.clone(), at, compare: Compare::In, values }
                }
                (Token::Sign("glob"), Token::Column(column)) => {
                    self.next += 1;
                    let Token::Value(value @ Literal::Bytes(_)) = self.peek().0.clone() else {
                        return self.expected("a pattern in quotes");
                    };
                    let values = vec![(value, self.take().1)];
                    Test { column: column.clone(), at, compare: Compare::Glob, values }
                }
                (Token::Compare(compare), _) if !is_negated => {
                    self.next += 1;
                    let (right, right_at) = self.operand()?;
                    tests.push(Expr::Test(self.compared(
                        (&left, at),
                        compare,
                        (&right, right_at),
                    )?));
                    (left, at) = (right, right_at);
                    if matches!(self.peek().0, Token::Compare(_)) {
                        continue;
                    }
                    break;
                }
                (_, _) if is_negated => return self.expected("`in` or `glob`"),
                (_, Token::Column(_)) => return self.expected("a comparison, `in` or `glob`"),
                _ => return self.expected("a comparison with a column"),
            };
            let test = Expr::Test(test);
            tests.push(if is_negated { Expr::Not(Box::new(test)) } else { test });
            break;
        }
        Ok(if tests.len() == 1 { tests.remove(0) } else { Expr::All(tests) })
    }

    /// The test that compares two operands with their byte offsets: a column and a value, in either order.
    fn compared(
        &self,
        (left, left_at): (&Token, usize),
        compare: Compare,
        (right, right_at): (&Token, usize),
    ) -> Result<Test, Problem> {
        let (column, at, compare, value) = match (left, right) {
            (Token::Column(column), Token::Value(value)) => {
                (column, left_at, compare, (value.clone(), right_at))
            }
            (Token::Value(value), Token::Column(column)) => {
                (column, right_at, compare.turned(), (value.clone(), left_at))
            }
            (Token::Column(_), Token::Column(_)) => {
                let what = "a column is compared with a value, not with another column";
                return Err(Problem::new(right_at, what));
            }
            _ => {
                let what = "one side of a comparison is a column; strings stand in quotes";
                return Err(Problem::new(left_at, what));
            }
        };
        Ok(Test { column: column.clone(), at, compare, values: vec![value] })
    }

    /// One side of a comparison, with its byte offset: a column or a value.
    fn operand(&mut self) -> Result<(Token, usize), Problem> {
        match self.peek().0 {
            Token::Column(_) | Token::Value(_) => Ok(self.take()),
            _ => self.expected("a column, such as `label`, or a value"),
        }
    }

    /// The values in parentheses after `in`, with their byte offsets.
    fn list(&mut self) -> Result<Vec<(Literal, usize)>, Problem> {
        if !self.take_if(&Token::Sign("(")) {
            return self.expected("`(` and a list of values");
        }
        let mut values = Vec::new();
        loop {
            let Token::Value(value) = self.peek().0.clone() else {
                return self.expected("a number, or a string in quotes");
            };
            values.push((value, self.take().1));
            if self.take_if(&Token::Sign(")")) {
                return Ok(values);
            }
            if !self.take_if(&Token::Sign(",")) {
                return self.expected("`,` or `)`");
            }
        }
    }
}

impl Compare {
    /// The same comparison with both sides exchanged.
    fn turned(self) -> Compare {
        match self {
            Compare::Less => Compare::Greater,
            Compare::LessOrEqual => Compare::GreaterOrEqual,
            Compare::Greater => Compare::Less,
            Compare::GreaterOrEqual => Compare::LessOrEqual,
            same => same,
        }
    }
}

/// Divides an expression into tokens, with their byte offsets; `End` is the last.
fn tokens(text: &str) -> Result<Vec<(Token, usize)>, Problem> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (token, len) = match first {
            '\'' | '"' => string(text, at)?,
            '0'..='9' | '-' | '+' => number(text, at)?,
            'a'..='z' | 'A'..='Z' | '_' => word(rest),
            '`' => quoted(text, at)?,
            _ => match SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)) {
                Some((sign, token)) => (token.clone(), sign.len()),
                None => {
                    let what = format!("`{}` has no meaning here", first.escape_debug());
                    return Err(Problem::new(at, what));
                }
            },
        };
        tokens.push((token, at));
        at += len;
    }
    tokens.push((Token::End, text.len()));
    Ok(tokens)
}

/// Operators and signs, longer ones first, so that `<=` is not read as `<`.
const SIGNS: [(&str, Token); 13] = [
    ("==", Token::Compare(Compare::Equal)),
    ("!=", Token::Compare(Compare::NotEqual)),
    ("<=", Token::Compare(Compare::LessOrEqual)),
    (">=", Token::Compare(Compare::GreaterOrEqual)),
    ("&&", Token::Sign("and")),
    ("||", Token::Sign("or")),
    ("=", Token::Compare(Compare::Equal)),
    ("<", Token::Compare(Compare::Less)),
    (">", Token::Compare(Compare::Greater)),
    ("!", Token::Sign("not")),
    ("(", Token::Sign("(")),
    (")", Token::Sign(")")),
    (",", Token::Sign(",")),
];

/// Reads a keyword, a constant or the name of a column at the start of `rest`; returns its length too.
fn word(rest: &str) -> (Token, usize) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let name = &rest[..len];
    let token = match name {
        "and" | "AND" => Token::Sign("and"),
        "or" | "OR" => Token::Sign("or"),
        "not" | "NOT" => Token::Sign("not"),
        "in" | "IN" => Token::Sign("in"),
        "glob" | "GLOB" => Token::Sign("glob"),
        "none" | "NONE" => Token::Value(Literal::None),
        "true" | "TRUE" | "True" => Token::Value(Literal::Bool(true)),
        "false" | "FALSE" | "False" => Token::Value(Literal::Bool(false)),
        name => Token::Column(name.to_owned()),
    };
    (token, len)
}

/// Reads the name of a column in backquotes at byte `at`; returns the length of what was read too.
fn quoted(text: &str, at: usize) -> Result<(Token, usize), Problem> {
    match text[at + 1..].find('`') {
        Some(len) => Ok((Token::Column(text[at + 1..at + 1 + len].to_owned()), len + 2)),
        None => Err(Problem::new(at, "this name of a column has no end")),
    }
}

/// Reads a number at byte `at`; returns its length too.
fn number(text: &str, at: usize) -> Result<(Token, usize), Problem> {
    let rest = &text[at..];
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
    let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let written = &rest[..len];
    let (digits, unit) = match written.as_bytes().last() {
        Some(b'K' | b'k') => (&written[..len - 1], 1 << 10),
        Some(b'M') => (&written[..len - 1], 1 << 20),
        Some(b'G') => (&written[..len - 1], 1 << 30),
        Some(b'T') => (&written[..len - 1], 1 << 40),
        _ => (written, 1i64),
    };
    let number = digits.replace('_', "").parse::<i64>().ok();
    match number.and_then(|number| number.checked_mul(unit)) {
        Some(number) => Ok((Token::Value(Literal::Number(number)), len)),
        None if is_decimal(written) => {
            let number: f64 = written.replace('_', "").parse().unwrap_or(f64::NAN);
            if !number.is_finite() {
                let what = format!("`{}` is no number", shown(written));
                return Err(Problem::new(at, what));
            }
            Ok((Token::Value(Literal::Decimal(order_of(number))), len))
        }
        None => {
            let what = format!(
                "`{}` is no integer of 64 bits, with or without K, M, G or T (powers of 1,024)",
                shown(written)
            );
            Err(Problem::new(at, what))
        }
    }
}

/// Returns whether this is a floating-point literal: a number with a decimal point or an exponent.
fn is_decimal(written: &str) -> bool {
    let digits = written.strip_prefix(['-', '+']).unwrap_or(written);
    let starts = digits.starts_with(|first: char| first.is_ascii_digit());
    starts && digits.contains(['.', 'e', 'E'])
}

/// Maps floating-point numbers to integers in the same order. Equal numbers map to the same integer, also -0 and 0.
pub(super) fn order_of(number: f64) -> i64 {
    let bits = (number + 0.0).to_bits() as i64;
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

/// The inverse of [`order_of`].
pub(super) fn number_at(order: i64) -> f64 {
    f64::from_bits(if order < 0 { order ^ i64::MAX } else { order } as u64)
}

/// Reads a string in quotes at byte `at`; returns the length of what was read too.
fn string(text: &str, at: usize) -> Result<(Token, usize), Problem> {
    let bytes = text.as_bytes();
    let quote = bytes[at];
    let mut next = at + 1;
    let mut value = Vec::new();
    loop {
        let Some(&byte) = bytes.get(next) else {
            return Err(Problem::new(at, "this string has no end"));
        };
        next += 1;
        if byte == quote {
            return Ok((Token::Value(Literal::Bytes(value)), next - at));
        }
        if byte != b'\\' {
            value.push(byte);
            continue;
        }
        let escape = bytes.get(next).copied();
        next += 1;
        let byte = match escape {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(byte @ (b'\\' | b'\'' | b'"')) => byte,
            Some(b'x') => {
                let byte =
                    text.get(next..next + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
                next += 2;
                byte.ok_or_else(|| Problem::new(next - 4, "`\\x` has two hexadecimal digits"))?
            }
            // Keep the backslash before a special character of a glob pattern: `Glob` reads it.
            Some(byte @ (b'*' | b'?' | b'[' | b']' | b'-' | b'!')) => {
                value.push(b'\\');
                byte
            }
            _ => {
                let what =
                    "a backslash in a string stands before \\ ' \" n t xHH, or a sign of a pattern";
                return Err(Problem::new(next - 2, what));
            }
        };
        value.push(byte);
    }
}

/// Maximum bytes of an expression.
pub(super) const MAX_LEN: usize = 1 << 16;

/// Maximum nesting of an expression: each level takes stack of the recursive parser.
const MAX_DEPTH: usize = 100;

/// Maximum characters of an expression that an error message shows.
const MAX_SHOWN: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn test(text: &str) -> Test {
        match parse(text).unwrap() {
            Expr::Test(test) => test,
            other => panic!("{other:?}"),
        }
    }

    fn problem(text: &str) -> (usize, String) {
        let problem = parse(text).unwrap_err();
        (problem.character(text), problem.of(text).to_string())
    }

    #[test]
    fn comparisons_have_a_column_and_values() {
        for text in ["len < 4096", "len<4K", "4096 > len", "len < 4_096"] {
            let test = test(text);
            assert_eq!((&*test.column, test.compare), ("len", Compare::Less), "{text}");
            assert_eq!(test.values[0].0, Literal::Number(4096), "{text}");
        }
        assert_eq!(test("label IN (3, -7,'x')").values.len(), 3);
        assert_eq!(test("label = none").values[0].0, Literal::None);
        assert_eq!(test(r#"name == 'a\x2fb\\\''"#).values[0].0, Literal::Bytes(b"a/b\\'".to_vec()));
    }

    #[test]
    fn not_binds_tighter_than_and_and_that_tighter_than_or() {
        let parsed = |text: &str| parse(text).unwrap();
        assert_eq!(parsed("a=1 or b=2 and not c=3").to_text(), "(a=1|(b=2&!c=3))");
        assert_eq!(parsed("(a=1 || b=2) && !(c=3)").to_text(), "((a=1|b=2)&!c=3)");
        assert_eq!(parsed("1 < len <= 5").to_text(), "(len>1&len<=5)");
        assert_eq!(parsed("a not in (1)").to_text(), "!a in 1");
        assert_eq!(parsed("not a glob 'x*'").to_text(), "!a~x*");
    }

    #[test]
    fn problems_name_their_place() {
        for (text, column, what) in [
            ("", 1, "expected a column"),
            ("label inn (3)", 7, "expected a comparison, `in` or `glob`, found the column `inn`"),
            ("label in (3, 7", 15, "expected `,` or `)`, found the end"),
            ("label in ()", 11, "expected a number"),
            ("(label == 3", 12, "expected `)`"),
            ("label == 3)", 11, "expected `and`, `or` or the end"),
            ("label == cat", 10, "not with another column"),
            ("3 < 4", 1, "one side of a comparison is a column"),
            ("name == 'cat", 9, "no end"),
            ("len < 4X", 7, "`4X` is no integer"),
            ("len < 99999999999T", 7, "no integer of 64 bits"),
            ("len < 1.5.2", 7, "no number"),
            ("len < 1e999", 7, "no number"),
            ("`len < 1", 1, "has no end"),
            ("näme == 1", 2, "`ä` has no meaning"),
            ("label == 3 & len < 4", 12, "`&`"),
            ("label not 3", 11, "`in` or `glob`"),
            ("name glob 3", 11, "a pattern in quotes"),
            (r"name == 'a\q'", 11, "a backslash"),
            ("'ä' == näme", 9, "`ä`"),
        ] {
            let (found, message) = problem(text);
            assert!(message.contains(what), "{text}: {message}");
            assert_eq!(found, column, "{text}: {message}");
        }
    }

    #[test]
    fn nesting_and_length_are_bounded() {
        let deep = format!("{}a=1{}", "(".repeat(100_000 / 4), ")".repeat(100_000 / 4));
        assert!(problem(&deep).1.contains("levels"));
        assert!(problem(&"not ".repeat(10_000)).1.contains("levels"));
        assert!(problem(&" ".repeat(MAX_LEN + 1)).1.contains("at most 65536 bytes"));
        let wide = vec!["a=1"; 10_000].join(" or ");
        assert!(parse(&wide[..MAX_LEN - MAX_LEN % 7 - 4]).is_ok());
    }

    #[test]
    fn decimals_keep_their_order() {
        let numbers =
            [f64::NEG_INFINITY, -1e300, -1.5, -1e-320, 0.0, 5e-324, 0.1, 1.0, 1e300, f64::INFINITY];
        for pair in numbers.windows(2) {
            assert!(order_of(pair[0]) < order_of(pair[1]), "{pair:?}");
            assert_eq!(number_at(order_of(pair[0])), pair[0]);
        }
        assert_eq!(order_of(-0.0), order_of(0.0));
        assert_eq!(order_of(0.0) - 2, order_of(-5e-324), "the next one below, but for -0");
    }

    impl Expr {
        fn to_text(&self) -> String {
            let joined = |list: &[Expr], sign| {
                format!("({})", list.iter().map(Expr::to_text).collect::<Vec<_>>().join(sign))
            };
            match self {
                Expr::All(list) => joined(list, "&"),
                Expr::Any(list) => joined(list, "|"),
                Expr::Not(inner) => format!("!{}", inner.to_text()),
                Expr::Test(Test { column, compare, values, .. }) => {
                    let sign = ["=", "!=", "<", "<=", ">", ">=", " in ", "~"][*compare as usize];
                    let Literal::Number(number) = values[0].0 else {
                        if let Literal::Decimal(order) = values[0].0 {
                            return format!("{column}{sign}{}", number_at(order));
                        }
                        if let Literal::Bool(is_true) = values[0].0 {
                            return format!("{column}{sign}{is_true}");
                        }
                        let Literal::Bytes(bytes) = &values[0].0 else { return "none".into() };
                        return format!("{column}{sign}{}", bytes.escape_ascii());
                    };
                    format!("{column}{sign}{number}")
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_expression_or_is_refused_at_a_character_of_it(text in any::<String>()) {
            if let Err(problem) = parse(&text) {
                prop_assert!(problem.character(&text) <= text.chars().count() + 1);
            }
        }

        #[test]
        fn any_words_are_an_expression_or_are_refused(
            words in prop::collection::vec(
                prop::sample::select(vec![
                    "label", "len", "(", ")", "and", "or", "not", "in", "glob", "==", "<", "3", "'x'", ",", "none",
                    "\\", "'",
                ]),
                0..30,
            )
        ) {
            let text = words.join(" ");
            if let Err(problem) = parse(&text) {
                prop_assert!(problem.character(&text) <= text.chars().count() + 1);
                prop_assert!(!problem.of(&text).to_string().is_empty());
            }
        }
    }
}
