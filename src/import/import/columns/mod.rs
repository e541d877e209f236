//! Typed columns for samples, from a file of the user: CSV, tab-separated values, or JSON Lines.
//!
//! Columns can also come from fields of the samples: see `of_fields.rs`, and `numbers.rs` for the
//! bytes of their numbers.
//!
//! The file is read into memory and parsed in two passes: first for the types, then for the values. A pass over JSON
//! Lines before these collects the keys. A row belongs to the sample that it names. Read `records.rs` for the syntax of
//! the files.

mod numbers;
mod of_fields;
mod records;

use std::collections::HashMap;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

pub(super) use self::numbers::{Number, number, put_number};
pub(super) use self::of_fields::FieldColumns;
use self::records::{Cell, Record, Records, Title};
use crate::import::options::{ColumnCounts, ColumnsFrom};
use crate::import::sources::Index;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::columns::{
    ColumnSpec, ColumnTable, ColumnType, MAX_COLUMNS, MAX_NAMES_BYTES, MAX_TEXTS_BYTES, RowValues,
    Value, check_column_name,
};

/// A table of values, and the sample of each row.
#[derive(Debug)]
pub(super) struct ColumnFile {
    /// The path, and the choice of columns.
    from: ColumnsFrom,
    /// Hash of the bytes of the file.
    content: u64,
    columns: Vec<ColumnSpec>,
    /// For each column, true if the user or its title gave the type.
    is_typed: Vec<bool>,
    table: ColumnTable,
    /// The row of each sample, by the sample's name.
    row_of: HashMap<Vec<u8>, u32>,
}

/// The values of samples, in the order of rows of a source or of a stream.
#[derive(Debug)]
pub(super) struct RowColumns<'a> {
    file: &'a ColumnFile,
    /// The row of each sample in the file, or [`NO_ROW`].
    rows: Vec<u32>,
}

impl ColumnFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read. `BadSource`: it is invalid; the error names the line.
    pub(super) fn read(from: &ColumnsFrom) -> Result<ColumnFile> {
        let bytes = bytes_of(&from.path)?;
        parse(from, &bytes).map_err(|what| Error::new(ErrorKind::BadSource, what).path(&from.path))
    }

    /// Adapts the file to an image: columns that the image has keep the image's types.
    ///
    /// # Errors
    /// `BadSource`: a column has another type in the image, there are too many columns, or the file changed.
    pub(super) fn for_image(self, image: Option<&Directory>) -> Result<ColumnFile> {
        let Some(image) = image else { return Ok(self) };
        let path = self.from.path.clone();
        let bad = |what: String| Error::new(ErrorKind::BadSource, what).path(&path);
        let mut from = self.from.clone();
        let mut differs = false;
        from.only.clear();
        for (column, is_typed) in self.columns.iter().zip(&self.is_typed) {
            let ColumnSpec { name, kind } = column;
            let other = image.column(name).map(|column| column.kind());
            let other = other.filter(|other| other != kind);
            if let Some(other) = other.filter(|_| *is_typed) {
                return Err(bad(format!(
                    "column `{name}` is {kind}, and in the image it is {other}"
                )));
            }
            differs |= other.is_some();
            from.only.push((name.clone(), Some(other.unwrap_or(*kind))));
        }
        let file = if differs {
            let bytes = bytes_of(&from.path)?;
            if xxh3_64(&bytes) != self.content {
                return Err(bad("changed while it was imported".to_owned()));
            }
            parse(&from, &bytes).map_err(bad)?
        } else {
            self
        };
        check_room(file.join(Some(image)).iter().map(|column| &column.name)).map_err(bad)?;
        Ok(file)
    }

    /// A hash of the file's content, of the column of names, and of the columns chosen.
    pub(super) fn fingerprint(&self) -> u64 {
        let taken = format!("{:?} {:?}", self.from.key, self.from.only);
        self.content.rotate_left(1) ^ xxh3_64(taken.as_bytes())
    }

    /// The columns of the image, then the other columns of the file.
    pub(super) fn join(&self, image: Option<&Directory>) -> Vec<ColumnSpec> {
        joined(columns_of(image), self.columns.iter())
    }

    /// The values of the sample with this name.
    fn values(&self, name: &[u8]) -> RowValues<'_> {
        self.table.row(self.row(name) as usize)
    }

    /// The values of the rows of a source.
    ///
    /// # Errors
    /// `BadSource`: no row of the file names a sample.
    pub(super) fn of_rows(&self, index: &Index) -> Result<RowColumns<'_>> {
        let rows = (0..index.len()).map(|row| self.row(index.name(row))).collect();
        let rows = RowColumns { file: self, rows };
        rows.check(if index.is_empty() { None } else { Some(index.name(0)) })?;
        Ok(rows)
    }

    /// The values of the samples of a stream, which [`RowColumns::next`] returns in the order of the samples.
    pub(super) fn of_stream(&self) -> RowColumns<'_> {
        RowColumns { file: self, rows: Vec::new() }
    }

    /// The row of the sample with this name, or [`NO_ROW`].
    fn row(&self, name: &[u8]) -> u32 {
        self.row_of.get(name).copied().unwrap_or(NO_ROW)
    }
}

fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::from(error).path(path))
}

/// The typed columns of an image.
pub(super) fn columns_of(image: Option<&Directory>) -> Vec<ColumnSpec> {
    let columns = image.map_or(&[][..], Directory::columns);
    columns.iter().map(|column| column.spec().clone()).collect()
}

/// `columns`, then the columns of `more` with other names.
fn joined<'c>(
    mut columns: Vec<ColumnSpec>,
    more: impl Iterator<Item = &'c ColumnSpec>,
) -> Vec<ColumnSpec> {
    for column in more {
        if !columns.iter().any(|other| other.name == column.name) {
            columns.push(column.clone());
        }
    }
    columns
}

impl<'a> RowColumns<'a> {
    /// The values of a sample.
    pub(super) fn of(&self, sample: u64) -> RowValues<'a> {
        let row = self.rows.get(sample as usize).copied().unwrap_or(NO_ROW);
        self.file.table.row(row as usize)
    }

    /// The values of the next sample of a stream.
    pub(super) fn next(&mut self, name: &[u8]) -> RowValues<'a> {
        self.rows.push(self.file.row(name));
        self.of(self.rows.len() as u64 - 1)
    }

    /// Undoes the last call of [`next`](Self::next): that sample is not imported.
    pub(super) fn forget_last(&mut self) {
        self.rows.pop();
    }

    /// The matches between the samples so far and the rows of the file.
    pub(super) fn counts(&self) -> ColumnCounts {
        let samples = self.rows.iter().filter(|row| **row != NO_ROW).count() as u64;
        let rows = self.file.table.len() as u64;
        ColumnCounts {
            samples,
            samples_without: self.rows.len() as u64 - samples,
            rows_without: rows.saturating_sub(samples),
        }
    }

    /// Checks that a row names a sample; `example` is the name of a sample, for the message.
    pub(super) fn check(&self, example: Option<&[u8]>) -> Result<()> {
        let (Some(example), 0) = (example, self.counts().samples) else { return Ok(()) };
        let row = self.file.row_of.iter().min_by_key(|(_, row)| **row);
        let named = row.map_or_else(String::new, |(name, _)| name.escape_ascii().to_string());
        let text = format!(
            "none of {} rows names a sample: the first row is of `{named}`, and the first sample is `{}`",
            self.file.table.len(),
            example.escape_ascii()
        );
        let hint = "--columns-key chooses the column of names";
        Err(Error::new(ErrorKind::BadSource, text).path(self.file.from.path.clone()).hint(hint))
    }
}

/// Parses `bytes`, the content of the file: first finds the types of the columns, then reads the values.
fn parse(from: &ColumnsFrom, bytes: &[u8]) -> Result<ColumnFile, String> {
    let records = Records::new(&from.path, bytes)?;
    let key = key_of(from, &records.names, records.is_json())?;
    let mut columns = Vec::new();
    let mut is_typed = Vec::new();
    let chosen = chosen(from, &records.names, key)?;
    check_room(chosen.iter().map(|column| &column.name))?; // first, since all columns of each row are read below
    let found = types_of(&records, &chosen)?;
    for (ChosenColumn { name, given, .. }, found) in chosen.iter().zip(found) {
        let Some(kind) = given.or(found) else {
            return Err(format!("column `{name}` has no values: give its type as {name}:TYPE"));
        };
        check_column_name(name).map_err(|what| {
            format!("column `{name}`: {what}; rename it, or choose others with --column")
        })?;
        columns.push(ColumnSpec { name: name.clone(), kind });
        is_typed.push(given.is_some());
    }
    if columns.is_empty() {
        return Err("there is no column beside that of names".to_owned());
    }
    let mut table = ColumnTable::new(&columns);
    let mut row_of = HashMap::new();
    records.each(&mut |record: &Record<'_>| {
        let name = record.key(key)?;
        let row = u32::try_from(table.len()).ok().filter(|row| *row != NO_ROW);
        let row = row.ok_or_else(|| "more than 4,294,967,294 rows".to_owned())?;
        if let Some(before) = row_of.insert(name.as_bytes().to_vec(), row) {
            let before = u64::from(before) + 1;
            return Err(format!("line {}: `{name}` is in row {before} already", record.line()));
        }
        let mut values = Vec::with_capacity(columns.len());
        for (ChosenColumn { at, .. }, column) in chosen.iter().zip(&columns) {
            let cell = record.cell(*at);
            values.push(cell.to_value(column.kind).ok_or_else(|| {
                let line = record.line();
                let ColumnSpec { name, kind } = column;
                format!("line {line}: column `{name}` is {kind}, and this is {cell}")
            })?);
        }
        let texts = values.iter().map(|value| value.text_len()).sum::<usize>();
        if texts > MAX_TEXTS_BYTES {
            let line = record.line();
            return Err(format!("line {line}: {texts} bytes of text, more than {MAX_TEXTS_BYTES}"));
        }
        let mut values = values.iter();
        table.push(|_| values.next().map_or(Value::None, |value| value.as_value()));
        Ok(())
    })?;
    if row_of.is_empty() {
        return Err("there are no rows".to_owned());
    }
    let content = xxh3_64(bytes);
    Ok(ColumnFile { from: from.clone(), content, columns, is_typed, table, row_of })
}

/// The index of the column with the samples' names: the one that the user chose, else one with a title of [`KEYS`],
/// else the first one, but not in JSON Lines.
fn key_of(from: &ColumnsFrom, names: &[Title], is_json: bool) -> Result<usize, String> {
    let find = |name: &str| names.iter().position(|(title, _)| title == name);
    if let Some(key) = &from.key {
        return find(key).ok_or_else(|| no_column(key, names));
    }
    let first = Some(0).filter(|_| !is_json && !names.is_empty());
    KEYS.into_iter().find_map(find).or(first).ok_or_else(|| {
        let all = all_of(names);
        let keys = KEYS.join(", ");
        format!("none of the columns {all} is called as names are: {keys}")
    })
}

/// A column of a file that is imported.
struct ChosenColumn {
    /// The index among the columns of the file.
    at: usize,
    name: String,
    /// The type that the user or the title gives, if they do.
    given: Option<ColumnType>,
}

/// The columns to import, of the columns `names`, of which `key` has the names of samples.
fn chosen(from: &ColumnsFrom, names: &[Title], key: usize) -> Result<Vec<ChosenColumn>, String> {
    let choose = |at: usize, kind: Option<ColumnType>| {
        let (name, of_title) = &names[at];
        ChosenColumn { at, name: name.clone(), given: kind.or(*of_title) }
    };
    if from.only.is_empty() {
        let others = (0..names.len()).filter(|at| *at != key);
        return Ok(others.map(|at| choose(at, None)).collect());
    }
    let mut chosen: Vec<ChosenColumn> = Vec::new();
    for (name, kind) in &from.only {
        let at = names.iter().position(|(title, _)| title == name);
        let at = at.ok_or_else(|| no_column(name, names))?;
        if chosen.iter().any(|other| other.at == at) {
            return Err(format!("column `{name}` is chosen twice"));
        }
        chosen.push(choose(at, *kind));
    }
    Ok(chosen)
}

/// The error for a column that the file lacks.
fn no_column(name: &str, names: &[Title]) -> String {
    format!("there is no column `{name}` among {}", all_of(names))
}

/// The names of all columns, for messages.
fn all_of(names: &[Title]) -> String {
    names.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ")
}

/// The types of the chosen columns, from their values; `None` for a column without values, or whose type is given.
/// Refuses lists and objects.
fn types_of(
    records: &Records<'_>,
    chosen: &[ChosenColumn],
) -> Result<Vec<Option<ColumnType>>, String> {
    let mut found: Vec<Option<ColumnType>> = vec![None; chosen.len()];
    records.each(&mut |record: &Record<'_>| {
        for (ChosenColumn { at, name, given }, found) in chosen.iter().zip(&mut found) {
            let cell = record.cell(*at);
            if let Cell::Nested(what) = cell {
                let line = record.line();
                return Err(format!(
                    "line {line}: column `{name}` is {what}: choose others with --column"
                ));
            }
            if given.is_none() && *found != Some(ColumnType::Text) {
                *found = wider(*found, cell.kind());
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// The type that holds the values of both types.
fn wider(a: Option<ColumnType>, b: Option<ColumnType>) -> Option<ColumnType> {
    match (a, b) {
        (None, one) | (one, None) => one,
        (Some(a), Some(b)) if a == b => Some(a),
        (Some(ColumnType::Int), Some(ColumnType::Float))
        | (Some(ColumnType::Float), Some(ColumnType::Int)) => Some(ColumnType::Float),
        _ => Some(ColumnType::Text),
    }
}

/// Checks that an image has room for columns with these names.
fn check_room<'n>(names: impl Iterator<Item = &'n String>) -> Result<(), String> {
    let (count, bytes) = names.fold((0, 0), |(count, bytes), name| (count + 1, bytes + name.len()));
    if count <= MAX_COLUMNS && bytes <= MAX_NAMES_BYTES {
        Ok(())
    } else {
        Err(format!(
            "an image has at most {MAX_COLUMNS} columns and {MAX_NAMES_BYTES} bytes of their names, \
             and these are {count} and {bytes}: choose some with --column"
        ))
    }
}

/// The usual titles of a column of names, the likeliest first.
const KEYS: [&str; 7] = ["name", "file", "filename", "file_name", "path", "key", "__key__"];

/// The row of a sample that the file does not name.
const NO_ROW: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn from(path: &str) -> ColumnsFrom {
        ColumnsFrom { path: PathBuf::from(path), key: None, only: Vec::new() }
    }

    fn types(path: &str, text: &str) -> Vec<(String, ColumnType)> {
        let file = parse(&from(path), text.as_bytes()).unwrap();
        file.columns.into_iter().map(|column| (column.name, column.kind)).collect()
    }

    fn value<'f>(file: &'f ColumnFile, sample: &str, column: &str) -> Value<'f> {
        let spec = file.columns.iter().find(|spec| spec.name == column).unwrap();
        file.table.row(file.row(sample.as_bytes()) as usize).get(spec)
    }

    #[test]
    fn types_follow_from_the_values_unless_they_are_given() {
        let text = "file,i,f,b,s,z,big,g:f32\na,1,1,true,x,007,9223372036854775808,1\nb,,2.5,False,1,2,3,\n";
        let kinds = types("x.csv", text);
        let kinds: Vec<(&str, ColumnType)> =
            kinds.iter().map(|(name, kind)| (&**name, *kind)).collect();
        use ColumnType::{Bool, Float, Float32, Int, Text};
        let expected = [
            ("i", Int),
            ("f", Float),
            ("b", Bool),
            ("s", Text),
            ("z", Text),
            ("big", Text),
            ("g", Float32),
        ];
        assert_eq!(kinds, expected);
        let file = parse(&from("x.csv"), text.as_bytes()).unwrap();
        assert_eq!(value(&file, "b", "i"), Value::None);
        assert_eq!(value(&file, "a", "f"), Value::Float(1.0));
        assert_eq!(value(&file, "b", "b"), Value::Bool(false));
        assert_eq!(value(&file, "a", "z"), Value::Text("007"));
        assert_eq!(value(&file, "c", "z"), Value::None);
    }

    #[test]
    fn a_few_of_any_number_of_columns_can_be_chosen() {
        let names: Vec<String> = (0..40_000).map(|at| format!("k{at}")).collect();
        let csv = format!("name,{}\na{}\n", names.join(","), ",1".repeat(names.len()));
        let pairs: Vec<String> = names.iter().map(|name| format!("\"{name}\": 1")).collect();
        let json = format!("{{\"name\": \"a\", {}}}\n", pairs.join(", "));
        for (path, text) in [("x.csv", csv), ("x.jsonl", json)] {
            let refused = parse(&from(path), text.as_bytes()).unwrap_err();
            assert!(refused.contains("40000"), "{refused}");
            let only = vec![("k7".to_owned(), None)];
            let file = parse(&ColumnsFrom { only, ..from(path) }, text.as_bytes()).unwrap();
            assert_eq!(value(&file, "a", "k7"), Value::Int(1));
        }
    }

    #[test]
    fn quotes_hold_separators_lines_and_quotes() {
        let text = "\u{feff}name,s\r\n\"a,b\",\"one\ntwo \"\"three\"\"\"\r\n\r\nc,plain\n";
        let file = parse(&from("x.CSV"), text.as_bytes()).unwrap();
        assert_eq!(value(&file, "a,b", "s"), Value::Text("one\ntwo \"three\""));
        assert_eq!(value(&file, "c", "s"), Value::Text("plain"));
        let file = parse(&from("x.tsv"), b"s\tname\n\"x\ta\n").unwrap();
        assert_eq!(value(&file, "a", "s"), Value::Text("\"x"));
    }

    #[test]
    fn json_lines_have_types_and_columns_of_their_own() {
        let text = concat!(
            "{\"key\": \"a\", \"n\": 1, \"t\": \"1\"}\n\n",
            "{\"t\": null, \"key\": \"b\", \"n\": 0.9407520306285343, \"m\": true}\n"
        );
        let file = parse(&from("x.jsonl"), text.as_bytes()).unwrap();
        assert_eq!(value(&file, "a", "n"), Value::Float(1.0));
        assert_eq!(value(&file, "a", "t"), Value::Text("1"));
        assert_eq!((value(&file, "b", "t"), value(&file, "a", "m")), (Value::None, Value::None));
        assert_eq!(value(&file, "b", "m"), Value::Bool(true));
        assert_eq!(value(&file, "b", "n"), Value::Float(0.9407520306285343), "every digit");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let cases: [(&str, &str, &str); 15] = [
            ("x.csv", "", "no line"),
            ("x.csv", "name,a\n", "no values"),
            ("x.csv", "name\na\n", "no column beside"),
            ("x.csv", "name,a,a\nx,1,2\n", "`a` is there twice"),
            ("x.csv", "name,a\nx,1\ny\n", "line 3: 1 value in place of 2"),
            ("x.csv", "name,a\nx,\"1\n", "line 2: a quote is not closed"),
            ("x.csv", "name,a\n\"x\"\"y\",\"1\"2\n", "line 2: text behind a closed quote"),
            ("x.csv", "name,a\nx,1\nx,2\n", "line 3: `x` is in row 1 already"),
            ("x.csv", "name,label\nx,1\n", "every data set has a column of this name"),
            ("x.csv", "name,a:int\nx,b\n", "line 2: column `a` is int, and this is `b`"),
            ("x.csv", "name,a:f32\nx,1e300\n", "column `a` is f32, and this is `1e300`"),
            ("x.jsonl", "{\"n\": 1}\n", "is called as names are"),
            ("x.jsonl", "{\"name\": \"a\", \"n\": [1]}\n", "line 1: column `n` is a list"),
            ("x.jsonl", "{\"name\": \"a\"\n", "line 1: "),
            ("x.parquet", "PAR1", "csv, .tsv, .jsonl"),
        ];
        for (path, text, expected) in cases {
            let what = parse(&from(path), text.as_bytes()).unwrap_err();
            assert!(what.contains(expected), "{text:?}: {what}");
        }
        let only = vec![("b".to_owned(), None)];
        let chosen = ColumnsFrom { only, ..from("x.csv") };
        assert!(
            parse(&chosen, b"name,a\nx,1\n").unwrap_err().contains("no column `b` among name, a")
        );
        let long = format!("name,a\nx,{}\n", "y".repeat(3000));
        assert!(parse(&from("x.csv"), long.as_bytes()).unwrap_err().contains("line 2: 3000 bytes"));
    }
}
