//! The survey of JSON Lines, which finds the columns, and for each column a type that holds all of its surveyed values.

use std::collections::HashMap;

use serde_json::Value;

use super::column::{CellKind, Column};
use super::input::Input;
use super::json::{Lines, lines, number_of, parse, read_line};
use crate::import::columns::Number;
use crate::import::options::RowOptions;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::field_type::{Element, FieldType};

/// The keys of the lines surveyed so far.
#[derive(Default)]
pub(super) struct Survey {
    /// The keys in the order in which they appear, with the properties of their values.
    columns: Vec<(String, Seen)>,
    /// Index of each key in `columns`.
    index_by_key: HashMap<String, usize>,
    /// Set if only a part of the lines was surveyed.
    is_part: bool,
}

/// Properties of the values of a key, as bits. Bits of scalar types also describe the elements of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen(u16);

impl Survey {
    /// The columns of the file `input`. If a key names files, its column holds the files.
    ///
    /// # Errors
    /// `InvalidArgument`: the lines lack the key of `options` that names files. `BadSource`: no line is an object.
    /// Errors of reading.
    pub(super) fn columns_of(input: &Input, options: &RowOptions) -> Result<Vec<Column>> {
        let mut survey = Survey::default();
        // Request nothing ahead from a store: most of it would not be needed.
        survey.read(lines(input, Some(0))?.0, input, input.object.is_none())?;
        let mut columns = survey.columns();
        let position =
            |name: &str, columns: &[Column]| columns.iter().position(|column| column.name == name);
        let key = match &options.files {
            Some(key) => Some(key.clone()),
            None => Some(FILE_NAME.to_owned()).filter(|key| {
                let is_wanted = |field: &String| field == FILE || field == key;
                position(key, &columns).is_some_and(|at| columns[at].kind == CellKind::Bytes)
                    && (options.fields.is_empty() || options.fields.iter().any(is_wanted))
            }),
        };
        if let Some(key) = key {
            let column = position(&key, &columns).ok_or_else(|| {
                let text = format!("the lines have no key {key} that could name files");
                Error::new(ErrorKind::InvalidArgument, text).path(&input.path)
            })?;
            let keeps_its_name =
                position(FILE, &columns).is_some() || options.fields.contains(&key);
            let name = if keeps_its_name { key.as_str() } else { FILE };
            columns[column] =
                Column { files_of: Some(key.clone()), ..Column::new(name, CellKind::Bytes) };
        }
        // Lines that were not surveyed may have these keys.
        for name in options.fields.iter().filter(|_| survey.is_part) {
            if position(name, &columns).is_none() {
                columns.push(Column::new(name, CellKind::Nothing));
            }
        }
        Ok(columns)
    }

    /// Surveys the lines `from` of `input`: all of them if `is_whole`, otherwise the first ones.
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

    /// Adds a value of a key.
    fn see(&mut self, key: &str, value: &Value) {
        let seen = Seen::of(value);
        match self.index_by_key.get(key) {
            Some(index) => self.columns[*index].1.0 |= seen.0,
            None => {
                self.index_by_key.insert(key.to_owned(), self.columns.len());
                self.columns.push((key.to_owned(), seen));
            }
        }
    }

    /// The columns, each with the kind that holds its values.
    fn columns(&self) -> Vec<Column> {
        self.columns.iter().map(|(name, seen)| Column::new(name, seen.kind())).collect()
    }
}

impl Seen {
    /// Values that are no lists.
    const ONE: u16 = 1;
    /// Lists.
    const LIST: u16 = 2;
    const BOOL: u16 = 4;
    /// Integers of up to 64 bits.
    const WHOLE: u16 = 8;
    /// Negative integers.
    const NEGATIVE: u16 = 16;
    /// Integers above the range of an `i64`.
    const LARGE: u16 = 32;
    /// Integers that an `f64` does not hold exactly.
    const LONG: u16 = 64;
    /// Numbers with a fraction or an exponent, NaN and infinities.
    const FRACTION: u16 = 128;
    /// Values that only bytes can hold.
    const OTHER: u16 = 256;

    /// The properties of a value of a key; none of `null`.
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

    /// The properties of a value that is no list.
    fn kind_of(value: &Value) -> u16 {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        match (value, number_of(value)) {
            (Value::Bool(_), _) => Seen::BOOL,
            (_, Some(Number::Float(_))) => Seen::FRACTION,
            (_, Some(Number::Int(whole))) => match u64::try_from(whole) {
                Err(_) if i64::try_from(whole).is_err() => Seen::OTHER,
                unsigned => {
                    Seen::WHOLE
                        | flag(unsigned.is_err(), Seen::NEGATIVE)
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

/// The key that names files in Hugging Face's image folders.
const FILE_NAME: &str = "file_name";
/// The name of the column that holds the files. But the column keeps the name of its key if the lines also have the
/// key `file`, or if the fields in the options include its key.
const FILE: &str = "file";
/// Limit of the survey of an object in a store, in lines.
const SURVEYED_LINES: usize = 1024;
/// The same limit in bytes.
const SURVEYED_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

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
