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
//! Names, names of classes and values of type str are also compared with glob patterns (`glob.rs`).

use super::glob::Glob;
use super::text::{Compare, Expr, Literal, Problem, Test, number_at, order_of, parse};
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
    root: FilterNode,
}

/// An expression whose columns and classes are looked up. `All` and `Any`: all, or at least one, of the nodes hold.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FilterNode {
    All(Vec<FilterNode>),
    Any(Vec<FilterNode>),
    Not(Box<FilterNode>),
    Number { column: NumberColumn, ranges: Ranges },
    Name(NameTest),
}

/// A column whose values are compared as integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberColumn {
    Id,
    Label,
    Len,
    /// A typed column, by its index. Bools are compared as 0 and 1, strings by their index, and floats by their
    /// [`order_of`].
    Typed(usize),
}

/// A set of numbers, and whether a sample without a value matches too.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ranges {
    /// Ascending inclusive ranges.
    ranges: Vec<(i64, i64)>,
    /// True if a sample without a value matches.
    is_none: bool,
}

/// A test of the name; less and greater are bytewise.
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
type IdBlock = [u64; BLOCK_WORDS];

/// Evaluates a filter over the samples of a directory.
struct Rows<'a> {
    directory: &'a Directory,
    /// Scratch memory for a name.
    name: Vec<u8>,
}

impl Rows<'_> {
    /// Clears the bits of the ids for which `node` does not hold. `first` is the first id of the block.
    fn restrict(
        &mut self,
        node: &FilterNode,
        first: u64,
        block: &mut IdBlock,
    ) -> Result<(), FormatError> {
        let directory = self.directory;
        match node {
            FilterNode::All(nodes) => {
                for node in nodes {
                    if *block == [0; BLOCK_WORDS] {
                        break;
                    }
                    self.restrict(node, first, block)?;
                }
            }
            FilterNode::Any(nodes) => {
                // The ids for which no node has held so far.
                let mut rest = *block;
                for node in nodes {
                    let mut held = rest;
                    self.restrict(node, first, &mut held)?;
                    remove(&mut rest, &held);
                }
                remove(block, &rest);
            }
            FilterNode::Not(node) => {
                let mut held = *block;
                self.restrict(node, first, &mut held)?;
                remove(block, &held);
            }
            FilterNode::Number { column, ranges } => match column {
                NumberColumn::Id => keep(first, block, |id| ranges.has(Some(id as i64))),
                NumberColumn::Label => match directory.labels() {
                    Some(labels) => keep(first, block, |id| ranges.has(labels.get(id))),
                    None => keep(first, block, |_| ranges.has(None)),
                },
                NumberColumn::Typed(at) => {
                    let column = &directory.columns()[*at];
                    if column.kind().is_float() {
                        keep(first, block, |id| ranges.has(column.float(id).map(order_of)))
                    } else {
                        keep(first, block, |id| ranges.has(column.int(id)))
                    }
                }
                NumberColumn::Len => keep(first, block, |id| {
                    ranges.has(directory.len_bytes(SampleId(id)).map(i64::from))
                }),
            },
            FilterNode::Name(test) => {
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

/// Clears the bits of `block` that are set in `other`.
fn remove(block: &mut IdBlock, other: &IdBlock) {
    block.iter_mut().zip(other).for_each(|(word, other)| *word &= !other);
}

/// Clears the bits of the ids for which `fits` is false. `first` is the first id of the block.
#[inline]
fn keep(first: u64, block: &mut IdBlock, mut fits: impl FnMut(u64) -> bool) {
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

    /// The numbers for which `test` holds.
    ///
    /// `number` converts a literal at a byte offset to a number; its last argument is true if the comparison is one of
    /// equality. It returns `None` if no sample has the value. `takes_none`: comparisons of equality accept the literal
    /// `none`. `reason` is the message for a literal `none` that is not accepted.
    fn of_test(
        test: &Test,
        takes_none: bool,
        reason: &str,
        mut number: impl FnMut(&Literal, usize, bool) -> Result<Option<i64>, Problem>,
    ) -> Result<Ranges, Problem> {
        let is_equal = matches!(test.compare, Compare::Equal | Compare::In);
        let mut numbers = Vec::new();
        let mut is_none = false;
        for (value, at) in &test.values {
            match value {
                Literal::None if is_equal && takes_none => is_none = true,
                Literal::None => return Err(Problem::new(*at, reason)),
                value => numbers.extend(number(value, *at, is_equal)?),
            }
        }
        if is_equal {
            return Ok(Ranges::of(numbers, is_none));
        }
        Ok(Ranges::compared(test.compare, numbers[0]))
    }

    /// These numbers; with `is_none`, also samples without a value.
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

impl FilterNode {
    /// Relative cost per sample. Cheap tests are evaluated first, so that expensive ones see fewer samples.
    fn cost(&self) -> u32 {
        match self {
            FilterNode::All(nodes) | FilterNode::Any(nodes) => {
                nodes.iter().map(FilterNode::cost).max().unwrap_or(0)
            }
            FilterNode::Not(node) => node.cost(),
            FilterNode::Number { column, .. } => u32::from(*column == NumberColumn::Len),
            FilterNode::Name(_) => NAME_COST,
        }
    }
}

/// Binds a parsed expression: looks up its columns and classes in a directory.
struct Binding<'a> {
    directory: &'a Directory,
}

impl Binding<'_> {
    /// Binds an expression. The nodes of a list are sorted by cost.
    fn node(&self, expr: &Expr) -> Result<FilterNode, Problem> {
        let list = |list: &[Expr]| {
            let mut nodes =
                list.iter().map(|expr| self.node(expr)).collect::<Result<Vec<_>, _>>()?;
            nodes.sort_by_key(FilterNode::cost);
            Ok::<_, Problem>(nodes)
        };
        Ok(match expr {
            Expr::All(nodes) => FilterNode::All(list(nodes)?),
            Expr::Any(nodes) => FilterNode::Any(list(nodes)?),
            Expr::Not(inner) => FilterNode::Not(Box::new(self.node(inner)?)),
            Expr::Test(test) => self.test(test)?,
        })
    }

    fn test(&self, test: &Test) -> Result<FilterNode, Problem> {
        let column = match &*test.column {
            "id" => NumberColumn::Id,
            "label" => NumberColumn::Label,
            "len" => NumberColumn::Len,
            "name" => return self.name_test(test),
            other => match self.directory.columns().iter().position(|own| own.name() == other) {
                Some(at) => NumberColumn::Typed(at),
                None => return Err(Problem::new(test.at, self.no_column(other))),
            },
        };
        if column == NumberColumn::Label && self.directory.labels().is_none() {
            return Err(Problem::new(test.at, "no sample of this data set has a label"));
        }
        if test.compare == Compare::NotEqual {
            let equal = Test { compare: Compare::Equal, ..test.clone() };
            return Ok(FilterNode::Not(Box::new(self.test(&equal)?)));
        }
        Ok(FilterNode::Number { column, ranges: self.ranges(test, column)? })
    }

    fn no_column(&self, name: &str) -> String {
        let mut known = vec!["id", "label", "len", "name"];
        known.extend(self.directory.columns().iter().map(directory::Column::name));
        let last = known.pop().unwrap_or_default();
        format!("there is no column `{name}`: there are {} and {last}", known.join(", "))
    }

    /// The values of `column` for which `test` holds.
    fn ranges(&self, test: &Test, column: NumberColumn) -> Result<Ranges, Problem> {
        if let NumberColumn::Typed(at) = column {
            return self.typed_ranges(test, &self.directory.columns()[at]);
        }
        if test.compare == Compare::Glob {
            return self.classes_like(test, column);
        }
        let is_label = column == NumberColumn::Label;
        let reason = "only `label ==`, `!=` and `in` take `none`";
        Ranges::of_test(test, is_label, reason, |value, at, is_equal| match value {
            Literal::Number(number) => Ok(Some(*number)),
            Literal::Bytes(name) => self.class(test, column, is_equal, (name, at)).map(Some),
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
                (ColumnType::Int, Literal::Number(number)) => *number,
                (ColumnType::Float, Literal::Number(number)) => order_of(*number as f64),
                (ColumnType::Float, Literal::Decimal(order)) => *order,
                (ColumnType::Float32, Literal::Number(number)) => {
                    order_of(f64::from(*number as f32))
                }
                (ColumnType::Float32, Literal::Decimal(order)) => {
                    order_of(f64::from(number_at(*order) as f32))
                }
                (ColumnType::Bool, Literal::Bool(is_true)) if is_equal => (*is_true).into(),
                (ColumnType::Bool, Literal::Number(bit @ 0..=1)) if is_equal => *bit,
                (ColumnType::Text, Literal::Bytes(bytes)) => {
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

    /// The label of the class called `name`, a string at byte offset `at`. `is_equal`: the comparison is one of
    /// equality.
    fn class(
        &self,
        test: &Test,
        column: NumberColumn,
        is_equal: bool,
        (name, at): (&[u8], usize),
    ) -> Result<i64, Problem> {
        let classes = self.directory.classes();
        if column != NumberColumn::Label {
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
    fn classes_like(&self, test: &Test, column: NumberColumn) -> Result<Ranges, Problem> {
        let (glob, at) = self.glob(test)?;
        let classes = self.directory.classes();
        if column != NumberColumn::Label || classes.is_empty() {
            return Err(Problem::new(at, "`glob` compares names, and the labels of named classes"));
        }
        let fits = classes.iter().enumerate().filter(|(_, class)| glob.fits(class));
        Ok(Ranges::of(fits.map(|(label, _)| label as i64), false))
    }

    /// The pattern of a `glob` test, and its byte offset.
    fn glob(&self, test: &Test) -> Result<(Glob, usize), Problem> {
        let (value, at) = &test.values[0];
        let Literal::Bytes(pattern) = value else {
            return Err(Problem::new(*at, "a pattern is a string in quotes"));
        };
        Ok((Glob::parse(pattern).map_err(|what| Problem::new(*at, what))?, *at))
    }

    fn name_test(&self, test: &Test) -> Result<FilterNode, Problem> {
        if test.compare == Compare::Glob {
            return Ok(FilterNode::Name(NameTest::Glob(self.glob(test)?.0)));
        }
        let name = |(value, at): &(Literal, usize)| match value {
            Literal::Bytes(name) => Ok(name.clone()),
            _ => Err(Problem::new(*at, "a name is a string in quotes")),
        };
        let mut names = test.values.iter().map(name).collect::<Result<Vec<_>, _>>()?;
        names.sort_unstable();
        let first = names[0].clone();
        let not = |test| FilterNode::Not(Box::new(FilterNode::Name(test)));
        Ok(match test.compare {
            Compare::Equal | Compare::In => FilterNode::Name(NameTest::In(names)),
            Compare::NotEqual => not(NameTest::In(names)),
            Compare::Less => FilterNode::Name(NameTest::Less(first)),
            Compare::GreaterOrEqual => not(NameTest::Less(first)),
            Compare::Greater => FilterNode::Name(NameTest::Greater(first)),
            _ => not(NameTest::Greater(first)),
        })
    }
}

/// 64-bit words of a block: 4,096 samples.
const BLOCK_WORDS: usize = 64;

/// The cost of a test of the name: above that of all other tests.
const NAME_COST: u32 = 2;

/// Maximum classes that an error message lists.
const MOST_NAMED: usize = 10;
