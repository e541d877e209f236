//! Typed columns: named, typed metadata that the user gives for each sample, besides the label.
//!
//! In a chunk's header, all typed columns together are one column of the [table](super::table): `kind::TYPED`. It has
//! the number of typed columns and, for each of them, its name, the number of its type, and its encoded values with a
//! length prefix. There is one value per sample of the chunk, in the order of slots:
//!
//! | type | number | a value                                                                              |
//! |------|--------|--------------------------------------------------------------------------------------|
//! | int  | 1      | LEB128: 0 for no value; else 2n + 1 for n >= 0, or -2n for n < 0                     |
//! | float| 2      | f64; NaN is no value                                                                 |
//! | f32  | 3      | f32; NaN is no value                                                                 |
//! | bool | 4      | as int: 0 for false, 1 for true                                                      |
//! | str  | 5      | LEB128: 0 for no value, else 1 plus the index of a string in the list                |
//!
//! The values of a str column follow a list of its distinct strings: their number, and the strings. A string's index
//! counts from 0. A reader skips a typed column whose type it does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::format::FormatError;
use crate::format::cursor::{
    Cursor, label_code, label_of, number_len, put_number, put_string, utf8,
};
use crate::format::error::{at_most, equal};

/// The type of a typed column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum ColumnType {
    /// Signed 64-bit integers, except `i64::MIN`, which stands for no value.
    Int,
    /// f64.
    Float,
    /// f32.
    Float32,
    /// True or false.
    Bool,
    /// UTF-8 strings. Each distinct string is stored once: meant for few strings that many samples share.
    Text,
}

impl ColumnType {
    /// The number of the type on media.
    pub(crate) fn number(self) -> u64 {
        self as u64 + 1
    }

    /// The type with this number; `None` if this release does not know it.
    pub(crate) fn from_number(number: u64) -> Option<ColumnType> {
        TYPES.into_iter().find(|(kind, _)| kind.number() == number).map(|(kind, _)| kind)
    }

    /// Returns whether values are floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, ColumnType::Float | ColumnType::Float32)
    }

    /// Name of the type: `int`, `float`, `f32`, `bool` or `str`.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// Returns whether a column of this type can hold `value`. An f32 column may round a float in its range; integers
    /// must be held exactly.
    #[doc(hidden)]
    pub fn holds(self, value: Value<'_>) -> bool {
        match (self, value) {
            (_, Value::None)
            | (ColumnType::Float, Value::Float(_))
            | (ColumnType::Bool, Value::Bool(_))
            | (ColumnType::Text, Value::Text(_)) => true,
            (ColumnType::Int, Value::Int(number)) => number != i64::MIN,
            (ColumnType::Float, Value::Int(number)) => number as f64 as i128 == i128::from(number),
            (ColumnType::Float32, Value::Int(number)) => {
                number as f32 as i128 == i128::from(number)
            }
            (ColumnType::Float32, Value::Float(number)) => {
                !number.is_finite() || (number as f32).is_finite()
            }
            _ => false,
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ColumnType {
    type Err = String;

    fn from_str(text: &str) -> Result<ColumnType, String> {
        Ok(match text {
            "int" | "i64" | "int64" => ColumnType::Int,
            "float" | "f64" | "float64" => ColumnType::Float,
            "f32" | "float32" => ColumnType::Float32,
            "bool" => ColumnType::Bool,
            "str" | "string" | "text" => ColumnType::Text,
            _ => return Err(format!("{text:?} is none of int, float, f32, bool and str")),
        })
    }
}

/// Name and type of a typed column.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ColumnSpec {
    /// Name of the column: see [`check_column_name`].
    pub name: String,
    /// The type of its values.
    pub kind: ColumnType,
}

/// Checks that `name` is valid for a typed column: 1 to 64 bytes, no control characters or backquotes, and not one of
/// the built-in columns `id`, `label`, `len` and `name`.
pub fn check_column_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("a column has a name"),
        _ if BUILT_IN.contains(&name) => Err("every data set has a column of this name"),
        _ if name.len() > MAX_COLUMN_NAME_BYTES => Err("a name has at most 64 bytes"),
        _ if name.chars().any(|c| c.is_control() || c == '`') => {
            Err("a name has no control characters and no backquotes")
        }
        _ => Ok(()),
    }
}

/// Checks that an image may have these typed columns: their number, and their names.
#[doc(hidden)]
pub fn check_columns(columns: &[ColumnSpec]) -> Result<(), FormatError> {
    at_most("number of typed columns", columns.len() as u64, MAX_COLUMNS as u64)?;
    let bytes: usize = columns.iter().map(|column| column.name.len()).sum();
    at_most("length of the names of typed columns", bytes as u64, MAX_NAMES_BYTES as u64)?;
    let mut names = BTreeSet::new();
    for column in columns {
        let is_wrong = check_column_name(&column.name).is_err() || !names.insert(&column.name);
        equal("wrong names of typed columns", 0, is_wrong.into())?;
    }
    Ok(())
}

/// The value of a sample in a typed column, whose string is a `T`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TypedValue<T> {
    /// The sample has no value in this column.
    None,
    /// A value of a column of type int.
    Int(i64),
    /// A value of a column of type float or f32. NaN is stored as no value.
    Float(f64),
    /// A value of a column of type bool.
    Bool(bool),
    /// A value of a column of type str.
    Text(T),
}

/// A value that borrows its string.
pub type Value<'a> = TypedValue<&'a str>;

/// A [`Value`] that owns its string.
pub type OwnedValue = TypedValue<String>;

impl OwnedValue {
    /// Borrows the value.
    pub fn as_value(&self) -> Value<'_> {
        match self {
            OwnedValue::None => Value::None,
            OwnedValue::Int(number) => Value::Int(*number),
            OwnedValue::Float(number) => Value::Float(*number),
            OwnedValue::Bool(is_true) => Value::Bool(*is_true),
            OwnedValue::Text(text) => Value::Text(text),
        }
    }

    /// The length of a string in bytes; 0 for other values.
    pub fn text_len(&self) -> usize {
        if let OwnedValue::Text(text) = self { text.len() } else { 0 }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => Ok(()),
            Value::Int(number) => number.fmt(f),
            Value::Float(number) => number.fmt(f),
            Value::Bool(is_true) => is_true.fmt(f),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// The values of one row of a [`ColumnTable`]. The default has no row: all its values are `Value::None`.
#[derive(Clone, Copy, Default)]
pub struct RowValues<'a> {
    /// The table, and the index of the row, which the table has.
    of: Option<(&'a ColumnTable, usize)>,
}

impl<'a> RowValues<'a> {
    /// The value in the column of this name and type; `Value::None` if there is no such column.
    pub fn get(&self, column: &ColumnSpec) -> Value<'a> {
        let Some((table, row)) = self.of else { return Value::None };
        let found = table.columns.iter().find(|own| own.spec == *column);
        found.map_or(Value::None, |column| column.value(row))
    }

    /// Checks that the strings of the row together have at most [`MAX_TEXTS_BYTES`].
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        let Some((table, row)) = self.of else { return Ok(()) };
        let len = |column: &TableColumn| match column.value(row) {
            Value::Text(text) => text.len() as u64,
            _ => 0,
        };
        let texts = table.columns.iter().map(len).sum();
        at_most("length of the texts of a sample", texts, MAX_TEXTS_BYTES as u64).map(drop)
    }

    fn all(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let columns = self.of.map_or(&[][..], |(table, _)| &table.columns);
        let row = self.of.map_or(0, |(_, row)| row);
        columns.iter().map(move |column| (&*column.spec.name, column.value(row)))
    }
}

impl fmt::Debug for RowValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.all()).finish()
    }
}

impl PartialEq for RowValues<'_> {
    fn eq(&self, other: &RowValues<'_>) -> bool {
        self.all().eq(other.all())
    }
}

impl Eq for RowValues<'_> {}

/// Typed columns of consecutive rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnTable {
    columns: Vec<TableColumn>,
    num_rows: usize,
}

/// The values of a column, encoded as integers: see [`TableColumn::value`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableColumn {
    pub(crate) spec: ColumnSpec,
    /// By row: an int; the bits of an f64; a bool as 0 or 1; or an index into `texts`. No value is [`none_of`] the
    /// type.
    raw: Vec<i64>,
    /// The distinct strings, and the index of each.
    texts: Vec<String>,
    index_of: BTreeMap<String, i64>,
}

impl ColumnTable {
    /// A table of these columns, without rows.
    pub fn new(columns: &[ColumnSpec]) -> ColumnTable {
        let columns = columns.iter().cloned().map(TableColumn::new).collect();
        ColumnTable { columns, num_rows: 0 }
    }

    /// A table of the same columns, without rows.
    #[doc(hidden)]
    pub fn without_rows(&self) -> ColumnTable {
        ColumnTable::new(&self.specs().cloned().collect::<Vec<_>>())
    }

    /// A table of `num_rows` rows, without columns.
    pub(crate) fn of_rows(num_rows: usize) -> ColumnTable {
        ColumnTable { columns: Vec::new(), num_rows }
    }

    /// Returns whether the table has no columns, whatever its number of rows.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.num_rows
    }

    /// Names and types of the columns.
    pub fn specs(&self) -> impl Iterator<Item = &ColumnSpec> {
        self.columns.iter().map(|column| &column.spec)
    }

    pub(crate) fn columns(&self) -> &[TableColumn] {
        &self.columns
    }

    /// The values of a row.
    pub fn row(&self, row: usize) -> RowValues<'_> {
        RowValues { of: (row < self.num_rows).then_some((self, row)) }
    }

    /// Appends a row: `value` gives the value for each column. A value of another type is stored as no value, except
    /// that a column of floats also takes integers.
    pub fn push<'v>(&mut self, mut value: impl FnMut(&ColumnSpec) -> Value<'v>) {
        for column in &mut self.columns {
            let value = value(&column.spec);
            column.push(value);
        }
        self.num_rows += 1;
    }

    /// Adds the missing ones of `columns`; existing rows have no value there.
    ///
    /// # Errors
    /// `Mismatch`: the table has a column of the same name and another type. The errors of [`check_columns`].
    pub(crate) fn grow<'c>(
        &mut self,
        columns: impl Iterator<Item = &'c ColumnSpec>,
    ) -> Result<(), FormatError> {
        let before = self.columns.len();
        for spec in columns {
            match self.columns.iter().find(|own| own.spec.name == spec.name) {
                Some(own) => {
                    let expected = own.spec.kind.number();
                    let found = spec.kind.number();
                    equal("type of a typed column", expected, found)?;
                }
                None => {
                    let mut column = TableColumn::new(spec.clone());
                    column.raw.resize(self.num_rows, none_of(spec.kind));
                    self.columns.push(column);
                }
            }
        }
        if self.columns.len() == before {
            return Ok(());
        }
        check_columns(&self.specs().cloned().collect::<Vec<_>>())
    }

    /// Removes all rows after the first `num_rows`. Their strings stay.
    #[doc(hidden)]
    pub fn truncate(&mut self, num_rows: usize) {
        self.num_rows = self.num_rows.min(num_rows);
        self.columns.iter_mut().for_each(|column| column.raw.truncate(num_rows));
    }

    /// Removes all rows.
    #[doc(hidden)]
    pub fn clear(&mut self) {
        self.num_rows = 0;
        for column in &mut self.columns {
            column.raw.clear();
            column.texts.clear();
            column.index_of.clear();
        }
    }

    /// Appends the content of the column `kind::TYPED` of a chunk's table.
    #[doc(hidden)]
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, self.columns.len() as u64);
        let mut values = Vec::new();
        for column in &self.columns {
            put_string(out, column.spec.name.as_bytes());
            put_number(out, column.spec.kind.number());
            values.clear();
            column.encode(&mut values);
            put_string(out, &values);
        }
    }

    /// Decodes the column `kind::TYPED` of a chunk with `num_rows` samples.
    ///
    /// # Errors
    /// The bytes are damaged or exceed a limit.
    #[doc(hidden)]
    pub fn decode(bytes: &[u8], num_rows: usize) -> Result<ColumnTable, FormatError> {
        let mut from = Cursor::new(WHAT, bytes);
        let count = from.count(3)?;
        let mut columns = Vec::new();
        at_most("number of typed columns", count as u64, MAX_COLUMNS as u64)?;
        let mut names = Vec::new();
        for _ in 0..count {
            let name = from.string()?;
            let kind = from.number()?;
            let values = from.string()?;
            let name = utf8(WHAT, name)?;
            names.push(ColumnSpec { name: name.to_owned(), kind: ColumnType::Int });
            if let Some(kind) = ColumnType::from_number(kind) {
                let spec = ColumnSpec { name: name.to_owned(), kind };
                columns.push(TableColumn::decode(spec, values, num_rows)?);
            }
        }
        check_columns(&names)?;
        equal("bytes behind the typed columns of a chunk", 0, from.len() as u64)?;
        Ok(ColumnTable { columns, num_rows })
    }
}

impl TableColumn {
    fn new(spec: ColumnSpec) -> TableColumn {
        TableColumn { spec, raw: Vec::new(), texts: Vec::new(), index_of: BTreeMap::new() }
    }

    pub(crate) fn value(&self, row: usize) -> Value<'_> {
        let raw = self.raw.get(row).copied().unwrap_or(none_of(self.spec.kind));
        value_of(self.spec.kind, raw, &self.texts)
    }

    fn push(&mut self, value: Value<'_>) {
        let raw = match (self.spec.kind, value) {
            (ColumnType::Int, Value::Int(number)) => number,
            (ColumnType::Bool, Value::Bool(is_true)) => is_true.into(),
            (ColumnType::Float, Value::Float(number)) => raw_of(number),
            (ColumnType::Float, Value::Int(number)) => raw_of(number as f64),
            (ColumnType::Float32, Value::Float(number)) => raw_of(f64::from(number as f32)),
            (ColumnType::Float32, Value::Int(number)) => raw_of(f64::from(number as f32)),
            (ColumnType::Text, Value::Text(text)) => self.index(text),
            (kind, _) => none_of(kind),
        };
        self.raw.push(raw);
    }

    /// The index of `text` in `texts`, where it is added if it is new.
    fn index(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.index_of.get(text) {
            return index;
        }
        let index = self.texts.len() as i64;
        self.texts.push(text.to_owned());
        self.index_of.insert(text.to_owned(), index);
        index
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let code = |raw: i64| label_code((raw != i64::MIN).then_some(raw));
        match self.spec.kind {
            ColumnType::Int | ColumnType::Bool => {
                self.raw.iter().for_each(|&raw| put_number(out, code(raw)));
            }
            ColumnType::Float => {
                self.raw.iter().for_each(|raw| out.extend_from_slice(&raw.to_le_bytes()));
            }
            ColumnType::Float32 => {
                let narrow = |raw: i64| f64::from_bits(raw as u64) as f32;
                self.raw.iter().for_each(|&raw| out.extend(narrow(raw).to_le_bytes()));
            }
            ColumnType::Text => {
                put_number(out, self.texts.len() as u64);
                self.texts.iter().for_each(|text| put_string(out, text.as_bytes()));
                let code = |raw: i64| if raw == i64::MIN { 0 } else { raw as u64 + 1 };
                self.raw.iter().for_each(|&raw| put_number(out, code(raw)));
            }
        }
    }

    fn decode(spec: ColumnSpec, bytes: &[u8], num_rows: usize) -> Result<TableColumn, FormatError> {
        let mut from = Cursor::new(WHAT, bytes);
        let mut column = TableColumn::new(spec);
        if column.spec.kind == ColumnType::Text {
            for _ in 0..from.count(1)? {
                let bytes = from.string()?;
                at_most("length of a text", bytes.len() as u64, MAX_TEXTS_BYTES as u64)?;
                column.index(utf8(WHAT, bytes)?);
            }
        }
        for _ in 0..num_rows {
            let raw = match column.spec.kind {
                ColumnType::Int => label_of(from.number()?).unwrap_or(i64::MIN),
                ColumnType::Bool => match label_of(from.number()?) {
                    None => i64::MIN,
                    Some(bit) => at_most("value of a column of type bool", bit as u64, 1)? as i64,
                },
                ColumnType::Float => {
                    let bytes = from.bytes(8)?.try_into().expect("8 bytes");
                    raw_of(f64::from_le_bytes(bytes))
                }
                ColumnType::Float32 => {
                    let bytes = from.bytes(4)?.try_into().expect("4 bytes");
                    raw_of(f32::from_le_bytes(bytes).into())
                }
                ColumnType::Text => match from.number()? {
                    0 => i64::MIN,
                    code => {
                        at_most("number of a text", code, column.texts.len() as u64)? as i64 - 1
                    }
                },
            };
            column.raw.push(raw);
        }
        equal("bytes behind a typed column of a chunk", 0, from.len() as u64)?;
        Ok(column)
    }
}

/// Decodes a raw integer of [`TableColumn`].
pub(crate) fn value_of(kind: ColumnType, raw: i64, texts: &[String]) -> Value<'_> {
    if raw == none_of(kind) {
        return Value::None;
    }
    match kind {
        ColumnType::Int => Value::Int(raw),
        ColumnType::Bool => Value::Bool(raw != 0),
        ColumnType::Float | ColumnType::Float32 => Value::Float(f64::from_bits(raw as u64)),
        ColumnType::Text => {
            let text = usize::try_from(raw).ok().and_then(|index| texts.get(index));
            text.map_or(Value::None, |text| Value::Text(text))
        }
    }
}

/// The raw integer that stands for no value.
fn none_of(kind: ColumnType) -> i64 {
    if kind.is_float() { NAN_BITS } else { i64::MIN }
}

/// The raw integer of a floating-point number. Every NaN becomes no value.
fn raw_of(number: f64) -> i64 {
    if number.is_nan() { NAN_BITS } else { number.to_bits() as i64 }
}

/// An upper bound of the bytes that the typed columns take in a chunk's table. Changing it would move the ends of
/// chunks, so a resumed import would not continue its earlier chunks.
#[derive(Debug, Clone, Default)]
pub(crate) struct ColumnBound {
    columns: Vec<ColumnSpec>,
    /// Bytes of `kind::TYPED` before the typed columns; 0 without typed columns.
    fixed: usize,
    /// Bytes of the typed columns: names, types, lengths, and the values of all samples so far.
    columns_len: usize,
    /// By typed column: the strings so far.
    texts: Vec<BTreeSet<String>>,
}

impl ColumnBound {
    pub(crate) fn new(columns: &[ColumnSpec]) -> ColumnBound {
        // The length of the name, the name, its type, the length of the values, and the number of strings.
        let head = |column: &ColumnSpec| 2 + column.name.len() + 1 + 5 + 3;
        ColumnBound {
            columns: columns.to_vec(),
            // The kind, the length, and the number of typed columns.
            fixed: if columns.is_empty() { 0 } else { 1 + 5 + 1 },
            columns_len: columns.iter().map(head).sum(),
            texts: vec![BTreeSet::new(); columns.len()],
        }
    }

    /// The bound with one more sample.
    pub(crate) fn with(&self, values: &RowValues<'_>) -> usize {
        if self.columns.is_empty() {
            return 0;
        }
        let columns = self.columns.iter().zip(&self.texts);
        let more: usize = columns.map(|(column, texts)| cost(column, values, texts)).sum();
        self.fixed + self.columns_len + more
    }

    /// Adds a sample.
    pub(crate) fn take(&mut self, values: &RowValues<'_>) {
        for (column, texts) in self.columns.iter().zip(&mut self.texts) {
            self.columns_len += cost(column, values, texts);
            if let Value::Text(text) = values.get(column) {
                texts.insert(text.to_owned());
            }
        }
    }
}

/// The most bytes that one more row takes in `column`; `texts` are the strings of the column so far. An index of a
/// string takes at most 3 bytes, and the length of a string at most 2.
fn cost(column: &ColumnSpec, values: &RowValues<'_>, texts: &BTreeSet<String>) -> usize {
    match (column.kind, values.get(column)) {
        (ColumnType::Float, _) => 8,
        (ColumnType::Float32, _) => 4,
        (_, Value::Int(number)) => number_len(label_code(Some(number))),
        (_, Value::Text(text)) if texts.contains(text) => 3,
        (_, Value::Text(text)) => 3 + 2 + text.len(),
        _ => 1,
    }
}

/// Maximum typed columns of an image.
pub const MAX_COLUMNS: usize = 32;
/// Maximum bytes of the name of a typed column.
pub(crate) const MAX_COLUMN_NAME_BYTES: usize = 64;
/// Maximum bytes of the names of all typed columns. With this limit, [`MAX_TEXTS_BYTES`] and the limits of sample and
/// field names, a sample's entry still fits into the header of the smallest chunk.
pub const MAX_NAMES_BYTES: usize = 1 << 10;
/// Maximum bytes of the strings of a sample in all columns together.
pub const MAX_TEXTS_BYTES: usize = 2 << 10;
/// The built-in columns, which every data set has.
pub(crate) const BUILT_IN: [&str; 4] = ["id", "label", "len", "name"];
/// The types with their names, in the order of [`ColumnType`].
const TYPES: [(ColumnType, &str); 5] = [
    (ColumnType::Int, "int"),
    (ColumnType::Float, "float"),
    (ColumnType::Float32, "f32"),
    (ColumnType::Bool, "bool"),
    (ColumnType::Text, "str"),
];
/// The bits of the NaN that stands for no value.
const NAN_BITS: i64 = 0x7ff8 << 48;
/// The floating-point number that stands for no value.
pub(crate) const NONE_FLOAT: f64 = f64::from_bits(NAN_BITS as u64);
/// The name of these columns in errors.
const WHAT: &str = "typed columns of a chunk";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(name: &str, kind: ColumnType) -> ColumnSpec {
        ColumnSpec { name: name.to_owned(), kind }
    }

    #[test]
    fn every_type_has_a_number_and_a_name_of_its_own() {
        for (kind, name) in TYPES {
            assert_eq!(ColumnType::from_number(kind.number()), Some(kind));
            assert_eq!(name.parse(), Ok(kind));
        }
        assert_eq!(ColumnType::from_number(0), None);
        assert_eq!(ColumnType::from_number(6), None);
        assert!("i32".parse::<ColumnType>().is_err());
    }

    #[test]
    fn a_column_of_a_later_type_is_left_out_and_others_stay() {
        let mut table =
            ColumnTable::new(&[spec("a", ColumnType::Int), spec("b", ColumnType::Bool)]);
        table.push(|column| match &*column.name {
            "a" => Value::Int(7),
            _ => Value::Bool(true),
        });
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        assert_eq!(bytes[3], 1, "the type of column a");
        bytes[3] = 77;
        let found = ColumnTable::decode(&bytes, 1).unwrap();
        assert_eq!(found.specs().collect::<Vec<_>>(), [&spec("b", ColumnType::Bool)]);
        assert_eq!(found.row(0).get(&spec("b", ColumnType::Bool)), Value::Bool(true));
        assert_eq!(found.row(0).get(&spec("b", ColumnType::Int)), Value::None);
    }

    #[test]
    fn names_that_no_column_may_have_are_refused() {
        for name in ["", "id", "label", "len", "name", "a`b", "a\n", &"x".repeat(65)] {
            assert!(check_column_name(name).is_err(), "{name:?}");
        }
        assert!(check_columns(&[spec("a", ColumnType::Int), spec("a", ColumnType::Int)]).is_err());
        assert!(check_column_name("breite in px").is_ok());
    }

    fn value() -> impl Strategy<Value = (Option<i64>, Option<f64>, Option<bool>, Option<String>)> {
        let int = prop::option::of(any::<i64>().prop_filter("reserved", |n| *n != i64::MIN));
        let float = prop::option::of(any::<f64>().prop_filter("none", |n| !n.is_nan()));
        (int, float, prop::option::of(any::<bool>()), prop::option::of("[a-d]{0,2}"))
    }

    proptest! {
        #[test]
        fn values_read_back_and_stay_within_the_bound(rows in prop::collection::vec(value(), 1..60)) {
            let columns = [
                spec("int", ColumnType::Int), spec("float", ColumnType::Float),
                spec("f32", ColumnType::Float32), spec("bool", ColumnType::Bool), spec("str", ColumnType::Text),
            ];
            let mut table = ColumnTable::new(&columns);
            let mut bound = ColumnBound::new(&columns);
            let mut limit = 0;
            for (int, float, bit, text) in &rows {
                table.push(|column| match column.kind {
                    ColumnType::Int => int.map_or(Value::None, Value::Int),
                    ColumnType::Float | ColumnType::Float32 => float.map_or(Value::None, Value::Float),
                    ColumnType::Bool => bit.map_or(Value::None, Value::Bool),
                    ColumnType::Text => text.as_ref().map_or(Value::None, |text| Value::Text(text)),
                });
                let row = table.row(table.len() - 1);
                limit = bound.with(&row);
                bound.take(&row);
            }
            let mut bytes = Vec::new();
            table.encode(&mut bytes);
            prop_assert!(bytes.len() + 6 <= limit, "{} bytes, bound {limit}", bytes.len());
            let found = ColumnTable::decode(&bytes, rows.len()).unwrap();
            prop_assert_eq!(&found, &table);
            for (at, (int, float, _, text)) in rows.iter().enumerate() {
                let row = found.row(at);
                prop_assert_eq!(row.get(&columns[0]), int.map_or(Value::None, Value::Int));
                prop_assert_eq!(row.get(&columns[1]), float.map_or(Value::None, Value::Float));
                prop_assert_eq!(row.get(&columns[4]), text.as_ref().map_or(Value::None, |text| Value::Text(text)));
            }
            for cut in 0..bytes.len() {
                prop_assert!(ColumnTable::decode(&bytes[..cut], rows.len()).is_err());
            }
        }

        #[test]
        fn damaged_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), rows in 0usize..20) {
            let _ = ColumnTable::decode(&bytes, rows); // only a panic would matter
            bytes.insert(0, 1);
            let _ = ColumnTable::decode(&bytes, rows); // likewise
        }
    }
}
