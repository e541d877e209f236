//! Filter expressions over the columns of a directory: binds and evaluates them, 4,096 samples at a time.
//!
//! | column  | is                                                                                      |
//! |---------|-----------------------------------------------------------------------------------------|
//! | `id`    | the id                                                                                  |
//! | `label` | the label, a number or the name of a class                                              |
//! | `len`   | the length in bytes, of all fields together                                             |
//! | `name`  | the name, any bytes, compared bytewise                                                  |
//! | others  | the value in the typed column of this name                                              |
//!
//! A sample without a label has the label `none`, which equals no number. For such a sample, only comparisons with
//! `none` and negations (`!=`, `not`) can hold. The same is true of a sample without a value in a typed column. Values
//! of type str are compared with strings, bytewise; bools with `true` and `false`, or 1 and 0; f32 values with the
//! decimal rounded to f32.
//!
//! Names are also compared with glob patterns, as in a shell, bytewise.

use super::text::{Compare, Expr, Problem, Test, Value, number_at, order_of, parse};
use super::{IdSet, not_loaded};
use crate::directory::{self, Directory, Ones};
use crate::format::FormatError;
use crate::format::columns::ColumnType;
use dlfs_base::error::Result;
use dlfs_base::units::SampleId;

/// An expression, parsed and bound to the columns of one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    text: String,
    root: Node,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
    Number { column: Column, ranges: Ranges },
    Name(NameTest),
}

/// A column whose values are compared as integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Id,
    Label,
    Len,
    /// A typed column, by its index. Its strings are compared by their index, and its floats by their [`order_of`].
    Typed(usize),
}

/// A set of numbers as ascending inclusive ranges. `is_none` is set if a sample without a value matches too.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ranges {
    ranges: Vec<(i64, i64)>,
    is_none: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NameTest {
    /// The names to match, sorted.
    In(Vec<Vec<u8>>),
    Glob(Glob),
    Less(Vec<u8>),
    Greater(Vec<u8>),
}

impl Filter {
    /// Parses `text`, an expression over the columns of `directory`, which may be a view.
    ///
    /// # Errors
    /// `text` is not a valid expression, names an unknown column or class, or has a value of the wrong type for its
    /// column.
    pub fn parse(text: &str, directory: &Directory) -> Result<Filter> {
        let root = parse(text).and_then(|expr| Binding { directory }.node(&expr));
        let root = root.map_err(|problem| problem.of(text))?;
        Ok(Filter { text: text.to_owned(), root })
    }

    /// The text of the expression.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the filter compares names, so that they must be loaded.
    pub fn needs_names(&self) -> bool {
        self.root.cost() >= NAME_COST
    }

    /// Removes from `set` all ids of `directory` for which the filter does not hold.
    pub(super) fn restrict(&self, directory: &Directory, set: &mut IdSet) -> Result<()> {
        let mut rows = Rows { directory, name: Vec::new() };
        for (index, words) in set.words_mut().chunks_mut(BLOCK_WORDS).enumerate() {
            let mut block = [0; BLOCK_WORDS];
            block[..words.len()].copy_from_slice(words);
            let first = (index * BLOCK_WORDS * 64) as u64;
            rows.restrict(&self.root, first, &mut block).map_err(not_loaded)?;
            words.copy_from_slice(&block[..words.len()]);
        }
        Ok(())
    }
}

/// A bitmap of 4,096 consecutive ids.
type Block = [u64; BLOCK_WORDS];

struct Rows<'a> {
    directory: &'a Directory,
    name: Vec<u8>,
}

impl Rows<'_> {
    fn restrict(&mut self, node: &Node, first: u64, block: &mut Block) -> Result<(), FormatError> {
        let directory = self.directory;
        match node {
            Node::All(nodes) => {
                for node in nodes {
                    if *block == [0; BLOCK_WORDS] {
                        break;
                    }
                    self.restrict(node, first, block)?;
                }
            }
            Node::Any(nodes) => {
                let mut open = *block;
                for node in nodes {
                    let mut held = open;
                    self.restrict(node, first, &mut held)?;
                    open.iter_mut().zip(held).for_each(|(open, held)| *open &= !held);
                }
                block.iter_mut().zip(open).for_each(|(word, open)| *word &= !open);
            }
            Node::Not(node) => {
                let mut held = *block;
                self.restrict(node, first, &mut held)?;
                block.iter_mut().zip(held).for_each(|(word, held)| *word &= !held);
            }
            Node::Number { column, ranges } => match column {
                Column::Id => keep(first, block, |id| ranges.has(Some(id as i64))),
                Column::Label => match directory.labels() {
                    Some(labels) => keep(first, block, |id| ranges.has(labels.get(id))),
                    None => keep(first, block, |_| ranges.has(None)),
                },
                Column::Typed(at) => {
                    let column = &directory.columns()[*at];
                    if column.kind().is_float() {
                        keep(first, block, |id| ranges.has(column.float(id).map(order_of)))
                    } else {
                        keep(first, block, |id| ranges.has(column.int(id)))
                    }
                }
                Column::Len => keep(first, block, |id| {
                    ranges.has(directory.len_bytes(SampleId(id)).map(i64::from))
                }),
            },
            Node::Name(test) => {
                let mut failed = None;
                keep(first, block, |id| match directory.name_into(SampleId(id), &mut self.name) {
                    Ok(is_there) => is_there && test.fits(&self.name),
                    Err(error) => {
                        failed = Some(error);
                        false
                    }
                });
                failed.map_or(Ok(()), Err)?;
            }
        }
        Ok(())
    }
}

/// Clears the bits of the ids for which `fits` is false. `first` is the first id of the block.
#[inline]
fn keep(first: u64, block: &mut Block, mut fits: impl FnMut(u64) -> bool) {
    for (index, word) in block.iter_mut().enumerate() {
        let base = first + index as u64 * 64;
        let mut kept = 0;
        for bit in Ones(*word) {
            kept |= u64::from(fits(base + u64::from(bit))) << bit;
        }
        *word = kept;
    }
}

impl Ranges {
    #[inline]
    fn has(&self, number: Option<i64>) -> bool {
        let Some(number) = number else { return self.is_none };
        match &self.ranges[..] {
            [(first, last)] => (*first..=*last).contains(&number),
            ranges => {
                let behind = ranges.partition_point(|(first, _)| *first <= number);
                behind > 0 && number <= ranges[behind - 1].1
            }
        }
    }

    /// The numbers for which `compare` with `bound` holds.
    fn compared(compare: Compare, bound: i64) -> Ranges {
        let range = match compare {
            Compare::Less => bound.checked_sub(1).map(|last| (i64::MIN, last)),
            Compare::LessOrEqual => Some((i64::MIN, bound)),
            Compare::Greater => bound.checked_add(1).map(|first| (first, i64::MAX)),
            _ => Some((bound, i64::MAX)),
        };
        Ranges { ranges: range.into_iter().collect(), is_none: false }
    }

    /// The numbers for which `test` holds. `number` gives that of a value, and is told whether the comparison is one
    /// of equality; `None`: no sample has the value. `reason` refuses `none` where it is not taken.
    fn of_test(
        test: &Test,
        takes_none: bool,
        reason: &str,
        mut number: impl FnMut(&Value, usize, bool) -> Result<Option<i64>, Problem>,
    ) -> Result<Ranges, Problem> {
        let is_equal = matches!(test.compare, Compare::Equal | Compare::In);
        let mut numbers = Vec::new();
        let mut is_none = false;
        for (value, at) in &test.values {
            match value {
                Value::None if is_equal && takes_none => is_none = true,
                Value::None => return Err(Problem::new(*at, reason)),
                value => numbers.extend(number(value, *at, is_equal)?),
            }
        }
        if is_equal {
            return Ok(Ranges::of(numbers, is_none));
        }
        Ok(Ranges::compared(test.compare, numbers[0]))
    }

    fn of(numbers: impl IntoIterator<Item = i64>, is_none: bool) -> Ranges {
        let mut ranges: Vec<(i64, i64)> = numbers.into_iter().map(|one| (one, one)).collect();
        ranges.sort_unstable();
        ranges.dedup();
        Ranges { ranges, is_none }
    }
}

impl NameTest {
    fn fits(&self, name: &[u8]) -> bool {
        match self {
            NameTest::In(names) => names.binary_search_by(|one| one.as_slice().cmp(name)).is_ok(),
            NameTest::Glob(glob) => glob.fits(name),
            NameTest::Less(bound) => name < bound.as_slice(),
            NameTest::Greater(bound) => name > bound.as_slice(),
        }
    }
}

impl Node {
    /// Relative cost per sample. Cheap tests are evaluated first, so that expensive ones see fewer samples.
    fn cost(&self) -> u32 {
        match self {
            Node::All(nodes) | Node::Any(nodes) => nodes.iter().map(Node::cost).max().unwrap_or(0),
            Node::Not(node) => node.cost(),
            Node::Number { column: Column::Id | Column::Label | Column::Typed(_), .. } => 0,
            Node::Number { column: Column::Len, .. } => 1,
            Node::Name(_) => NAME_COST,
        }
    }
}

/// Binds a parsed expression: looks up its columns and classes in a directory.
struct Binding<'a> {
    directory: &'a Directory,
}

impl Binding<'_> {
    fn node(&self, expr: &Expr) -> Result<Node, Problem> {
        let list = |list: &[Expr]| {
            let mut nodes =
                list.iter().map(|expr| self.node(expr)).collect::<Result<Vec<_>, _>>()?;
            nodes.sort_by_key(Node::cost);
            Ok::<_, Problem>(nodes)
        };
        Ok(match expr {
            Expr::All(nodes) => Node::All(list(nodes)?),
            Expr::Any(nodes) => Node::Any(list(nodes)?),
            Expr::Not(inner) => Node::Not(Box::new(self.node(inner)?)),
            Expr::Test(test) => self.test(test)?,
        })
    }

    fn test(&self, test: &Test) -> Result<Node, Problem> {
        let column = match &*test.column {
            "id" => Column::Id,
            "label" => Column::Label,
            "len" => Column::Len,
            "name" => return self.name_test(test),
            other => match self.directory.columns().iter().position(|own| own.name() == other) {
                Some(at) => Column::Typed(at),
                None => return Err(Problem::new(test.at, self.no_column(other))),
            },
        };
        if column == Column::Label && self.directory.labels().is_none() {
            return Err(Problem::new(test.at, "no sample of this data set has a label"));
        }
        if test.compare == Compare::NotEqual {
            let equal = Test { compare: Compare::Equal, ..test.clone() };
            return Ok(Node::Not(Box::new(self.test(&equal)?)));
        }
        Ok(Node::Number { column, ranges: self.ranges(test, column)? })
    }

    fn no_column(&self, name: &str) -> String {
        let mut known = vec!["id", "label", "len", "name"];
        known.extend(self.directory.columns().iter().map(directory::Column::name));
        let last = known.pop().unwrap_or_default();
        format!("there is no column `{name}`: there are {} and {last}", known.join(", "))
    }

    fn ranges(&self, test: &Test, column: Column) -> Result<Ranges, Problem> {
        if let Column::Typed(at) = column {
            return self.typed_ranges(test, &self.directory.columns()[at]);
        }
        if test.compare == Compare::Glob {
            return self.classes_like(test, column);
        }
        let is_label = column == Column::Label;
        let reason = "only `label ==`, `!=` and `in` take `none`";
        Ranges::of_test(test, is_label, reason, |value, at, is_equal| match value {
            Value::Number(number) => Ok(Some(*number)),
            Value::Bytes(name) => self.class(test, column, is_equal, (name, at)).map(Some),
            _ => Err(Problem::new(at, format!("`{}` is a whole number", test.column))),
        })
    }

    /// The values of a typed column, as integers, for which `test` holds.
    fn typed_ranges(&self, test: &Test, column: &directory::Column) -> Result<Ranges, Problem> {
        let kind = column.kind();
        let texts = column.texts();
        if test.compare == Compare::Glob {
            let (glob, at) = self.glob(test)?;
            if kind != ColumnType::Text {
                let what = format!("`glob` compares texts, and `{}` is {kind}", test.column);
                return Err(Problem::new(at, what));
            }
            let fits = (0..).zip(texts).filter(|(_, text)| glob.fits(text.as_bytes()));
            return Ok(Ranges::of(fits.map(|(number, _)| number), false));
        }
        let reason = "only `==`, `!=` and `in` take `none`";
        Ranges::of_test(test, true, reason, |value, at, is_equal| {
            Ok(Some(match (kind, value) {
                (ColumnType::Int, Value::Number(number)) => *number,
                (ColumnType::Float, Value::Number(number)) => order_of(*number as f64),
                (ColumnType::Float, Value::Decimal(order)) => *order,
                (ColumnType::Float32, Value::Number(number)) => order_of(f64::from(*number as f32)),
                (ColumnType::Float32, Value::Decimal(order)) => {
                    order_of(f64::from(number_at(*order) as f32))
                }
                (ColumnType::Bool, Value::Bool(is_true)) if is_equal => (*is_true).into(),
                (ColumnType::Bool, Value::Number(bit @ 0..=1)) if is_equal => *bit,
                (ColumnType::Text, Value::Bytes(bytes)) => {
                    // Texts are in order, and need not have this one.
                    let less = texts.partition_point(|text| text.as_bytes() < &bytes[..]) as i64;
                    let same = texts.partition_point(|text| text.as_bytes() <= &bytes[..]) as i64;
                    match test.compare {
                        Compare::Less | Compare::GreaterOrEqual => less,
                        _ if is_equal && less == same => return Ok(None),
                        _ => same - 1,
                    }
                }
                _ => {
                    let takes = match kind {
                        ColumnType::Int => "a whole number",
                        ColumnType::Float | ColumnType::Float32 => "a number",
                        ColumnType::Bool => "`true` or `false`, by `==`, `!=` or `in`",
                        ColumnType::Text => "a string in quotes",
                    };
                    let what = format!("`{}` is {kind}: compare it with {takes}", test.column);
                    return Err(Problem::new(at, what));
                }
            }))
        })
    }

    /// The label of the class called `name`.
    fn class(
        &self,
        test: &Test,
        column: Column,
        is_equal: bool,
        (name, at): (&[u8], usize),
    ) -> Result<i64, Problem> {
        let classes = self.directory.classes();
        if column != Column::Label {
            let what = format!("{} is a number, and this is a string", test.column);
            return Err(Problem::new(at, what));
        }
        if !is_equal {
            return Err(Problem::new(at, "classes have no order: compare the label with a number"));
        }
        if classes.is_empty() {
            let what = "labels of this data set are numbers: its classes have no names";
            return Err(Problem::new(at, what));
        }
        classes.iter().position(|class| class == name).map(|label| label as i64).ok_or_else(|| {
            let known =
                classes.iter().take(MOST_NAMED).map(|class| class.escape_ascii().to_string());
            let more = if classes.len() > MOST_NAMED { ", ..." } else { "" };
            let known = known.collect::<Vec<_>>().join(", ");
            let what = format!(
                "there is no class `{}` among {}: {known}{more}",
                name.escape_ascii(),
                classes.len()
            );
            Problem::new(at, what)
        })
    }

    /// The labels of the classes whose names match the pattern.
    fn classes_like(&self, test: &Test, column: Column) -> Result<Ranges, Problem> {
        let (glob, at) = self.glob(test)?;
        let classes = self.directory.classes();
        if column != Column::Label || classes.is_empty() {
            return Err(Problem::new(at, "`glob` compares names, and the labels of named classes"));
        }
        let fits = classes.iter().enumerate().filter(|(_, class)| glob.fits(class));
        Ok(Ranges::of(fits.map(|(label, _)| label as i64), false))
    }

    fn glob(&self, test: &Test) -> Result<(Glob, usize), Problem> {
        let (value, at) = &test.values[0];
        let Value::Bytes(pattern) = value else {
            return Err(Problem::new(*at, "a pattern is a string in quotes"));
        };
        Ok((Glob::parse(pattern).map_err(|what| Problem::new(*at, what))?, *at))
    }

    fn name_test(&self, test: &Test) -> Result<Node, Problem> {
        if test.compare == Compare::Glob {
            return Ok(Node::Name(NameTest::Glob(self.glob(test)?.0)));
        }
        let name = |(value, at): &(Value, usize)| match value {
            Value::Bytes(name) => Ok(name.clone()),
            _ => Err(Problem::new(*at, "a name is a string in quotes")),
        };
        let mut names = test.values.iter().map(name).collect::<Result<Vec<_>, _>>()?;
        names.sort_unstable();
        let first = names[0].clone();
        let not = |test| Node::Not(Box::new(Node::Name(test)));
        Ok(match test.compare {
            Compare::Equal | Compare::In => Node::Name(NameTest::In(names)),
            Compare::NotEqual => not(NameTest::In(names)),
            Compare::Less => Node::Name(NameTest::Less(first)),
            Compare::GreaterOrEqual => not(NameTest::Less(first)),
            Compare::Greater => Node::Name(NameTest::Greater(first)),
            _ => not(NameTest::Greater(first)),
        })
    }
}

/// A pattern: `*` matches any bytes, slashes too; `?` matches one byte; `[a-z]` matches one byte in the set, `[!a-z]`
/// or `[^a-z]` one byte not in it; a backslash escapes the next byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Byte(u8),
    Any,
    Set { ranges: Vec<(u8, u8)>, is_negated: bool },
    Star,
}

impl Glob {
    /// Parses `text` as a pattern.
    ///
    /// # Errors
    /// `text` is not a valid pattern; the message says why.
    pub(super) fn parse(text: &[u8]) -> Result<Glob, &'static str> {
        let mut parts = Vec::new();
        let mut rest = text.iter().copied();
        while let Some(byte) = rest.next() {
            parts.push(match byte {
                b'*' if parts.last() == Some(&Part::Star) => continue,
                b'*' => Part::Star,
                b'?' => Part::Any,
                b'\\' => Part::Byte(rest.next().ok_or("a pattern cannot end with a backslash")?),
                b'[' => set(&mut rest).ok_or("a `[` in a pattern has no `]`")?,
                byte => Part::Byte(byte),
            });
        }
        Ok(Glob { parts })
    }

    /// Returns whether the pattern matches the whole of `text`. Takes at most as many steps as the product of both
    /// lengths.
    pub(super) fn fits(&self, text: &[u8]) -> bool {
        let mut part = 0;
        let mut at = 0;
        // The part after the last star, and the offset of the first byte that the star does not match.
        let mut star: Option<(usize, usize)> = None;
        loop {
            match self.parts.get(part) {
                Some(Part::Star) => {
                    part += 1;
                    star = Some((part, at));
                    continue;
                }
                Some(one) if text.get(at).is_some_and(|byte| one.takes(*byte)) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                None if at == text.len() => return true,
                _ => {}
            }
            // Backtrack: the last star matches one byte more. Earlier stars need not.
            let Some((behind, from)) = star.filter(|(_, from)| *from < text.len()) else {
                return false;
            };
            (part, at) = (behind, from + 1);
            star = Some((behind, from + 1));
        }
    }
}

impl Part {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Part::Byte(one) => *one == byte,
            Part::Any => true,
            Part::Set { ranges, is_negated } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte)) != *is_negated
            }
            Part::Star => false,
        }
    }
}

/// Parses the set after a `[`. A `]` that comes first belongs to the set.
fn set(rest: &mut impl Iterator<Item = u8>) -> Option<Part> {
    let mut rest = rest.by_ref().peekable();
    let is_negated = rest.next_if(|byte| matches!(byte, b'!' | b'^')).is_some();
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    loop {
        let first = match rest.next()? {
            b']' if !ranges.is_empty() => return Some(Part::Set { ranges, is_negated }),
            b'\\' => rest.next()?,
            byte => byte,
        };
        if rest.next_if_eq(&b'-').is_none() {
            ranges.push((first, first));
            continue;
        }
        match rest.next()? {
            // A `-` that comes last belongs to the set.
            b']' => {
                ranges.extend([(first, first), (b'-', b'-')]);
                return Some(Part::Set { ranges, is_negated });
            }
            b'\\' => ranges.push((first, rest.next()?)),
            last => ranges.push((first, last)),
        }
    }
}

/// 64-bit words of a block: 4,096 samples.
const BLOCK_WORDS: usize = 64;

const NAME_COST: u32 = 2;

/// Maximum classes that an error message lists.
const MOST_NAMED: usize = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        Glob::parse(pattern.as_bytes()).unwrap().fits(text.as_bytes())
    }

    #[test]
    fn patterns_fit_what_a_shell_fits() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "a/b"),
            ("a*c", "abcbc"),
            ("*.jpg", "x/1.jpg"),
            ("?.jpg", "1.jpg"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]x]", "]"),
            ("[a-]", "-"),
            (r"\*", "*"),
            ("**a**", "bab"),
            ("n[01]*_?", "n01440764/n01440764_1"),
        ] {
            assert!(fits(pattern, text), "{pattern} should fit {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("a", "ab"),
            ("*.jpg", "x.jpeg"),
            ("?", ""),
            ("[a-c]x", "dx"),
            ("[!a-c]x", "ax"),
            (r"\*", "a"),
        ] {
            assert!(!fits(pattern, text), "{pattern} should not fit {text}");
        }
        assert!(Glob::parse(b"a[b").is_err() && Glob::parse(b"a\\").is_err());
    }

    /// Matches by the definition of patterns, in time exponential in the number of stars.
    fn model(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| model(rest, &text[skip..])),
            Some((byte, rest)) => text
                .split_first()
                .is_some_and(|(first, text)| (*byte == b'?' || byte == first) && model(rest, text)),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_its_definition(pattern in "[ab?*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(fits(&pattern, &text), model(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn any_bytes_are_a_pattern_or_are_refused(
            pattern in prop::collection::vec(any::<u8>(), 0..40), text in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            if let Ok(glob) = Glob::parse(&pattern) {
                let _ = glob.fits(&text); // must end without a panic
            }
        }
    }
}
