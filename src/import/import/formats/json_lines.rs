//! Rows of JSON Lines: each line is an object whose keys are columns. A key may name files.
//!
//! A first pass reads all lines to find the columns and their types. Of an object in a store it reads only the first
//! lines, since the object would be fetched twice. Strings become a column of bytes. Numbers become `i64`, `u64` if a
//! number needs it, or `f64` if a number has a fraction; `true` and `false` become `bool`. Lists of these become
//! arrays. Other nested values, and values that fit none of these types, are stored as JSON. `NaN` and `Infinity` are
//! numbers, as Python writes them.
//!
//! Read on in `named_files.rs`, the files that lines name.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader};

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::column::{CellKind, Cells, Column, is_wanted, places};
use super::input::{BUFFER_BYTES, Input};
use super::json::{Lines, Object, lines, number_of, parse, read_line, spelled, unmarked};
use super::named_files::{
    FilesFrom, Line, MAX_LINES, Named, NamedFiles, hash_with, name_in, read_file,
};
use super::survey::Survey;
use super::{OpenRows, RowError, RowReader};
use crate::import::columns::put_number;
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::{FieldBytes, StreamPlace};
use dlfs_base::Result;
use dlfs_format::format::field_type::Element;

/// The rows of a file.
pub(super) struct JsonLines {
    input: Input,
    lines: ObjectLines,
    /// Offset of the next line to return; the lines from here on were read ahead.
    next: u64,
    /// Hash of the objects named by the lines so far, including lines of earlier files.
    named: u64,
    columns: Vec<Column>,
    /// Index of each key in `columns`.
    place_of: HashMap<String, usize>,
    /// A flag for each column, set if it is wanted.
    is_wanted: Vec<bool>,
    /// Numbers of the files read so far: a file that is named again, also by a link, counts as expansion.
    read_files: HashSet<u64>,
    /// The columns with a value in the previous line.
    filled: Vec<usize>,
    /// Set if all keys are wanted, so that a key without a column is an error.
    takes_all: bool,
    /// The key whose values must be texts, since they become tokens. `None`: there is no such key.
    text: Option<String>,
    /// The files that lines name, if a key names files.
    files: Option<NamedFiles>,
    /// The name of the file of the last line.
    name: Vec<u8>,
}

/// The lines of a file, as objects.
struct ObjectLines {
    /// The unread lines, once reading has begun.
    from: Lines,
    /// Offset of the next line to read.
    at: u64,
    /// The bytes of the last line.
    line: Vec<u8>,
}

impl JsonLines {
    /// Opens the file `input`, with the columns `known`; `None`: the first pass finds them.
    ///
    /// # Errors
    /// The file cannot be read, or no line is an object.
    pub(super) fn open(
        input: &Input,
        options: &RowOptions,
        known: Option<&[Column]>,
    ) -> Result<OpenRows> {
        let columns = match known {
            Some(known) => known.to_vec(),
            None => Survey::columns_of(input, options)?,
        };
        let of_files = columns.iter().position(|column| column.files_of.is_some());
        let files = of_files.map(|at| NamedFiles::new(at, &columns[at], input)).transpose()?;
        let rows = JsonLines {
            is_wanted: columns.iter().map(|column| is_wanted(column, options)).collect(),
            read_files: HashSet::new(),
            filled: Vec::new(),
            place_of: places(&columns),
            takes_all: options.fields.is_empty(),
            text: options.text.clone(),
            input: input.clone(),
            lines: ObjectLines {
                from: BufReader::new(Box::new(io::empty())),
                at: 0,
                line: Vec::new(),
            },
            next: 0,
            named: 0,
            columns: columns.clone(),
            files,
            name: Vec::new(),
        };
        Ok((columns, Box::new(rows)))
    }

    /// The next line, and the file that it names; `None` after the last line.
    fn next_with_file(&mut self) -> Result<Option<(Object, Option<FieldBytes>)>, RowError> {
        // Lines whose files are in a store were read ahead; others are read one by one.
        let JsonLines { lines, next, files, .. } = self;
        match files.as_mut().map(|NamedFiles { key, from, .. }| (&*key, from)) {
            Some((key, FilesFrom::Store(ahead))) => {
                if ahead.needs_lines() {
                    let (lines, has_ended) = lines.named(key, u64::MAX);
                    ahead.add(lines, has_ended)?;
                }
                let Some(line) = ahead.take_next() else {
                    *next = lines.at;
                    return Ok(None);
                };
                let Line { object, file, end } = line?;
                *next = end;
                let Some(asked) = file else { return Ok(Some((object, None))) };
                let named = hash_with(self.named, &asked.object);
                let number = xxh3_64(asked.object.key.as_bytes());
                let file = ahead.read(asked)?;
                self.count_file(number, &file);
                self.named = named;
                Ok(Some((object, Some(file))))
            }
            local => {
                let Some(object) = lines.next()? else { return Ok(None) };
                *next = lines.at;
                let Some((key, FilesFrom::Folder(folder))) = local else {
                    return Ok(Some((object, None)));
                };
                let Some(name) = name_in(key, &object)? else { return Ok(Some((object, None))) };
                let (file, number) = read_file(folder, name.as_bytes())
                    .map_err(|reason| BadReason::field(key, format!("names {name}: {reason}")))?;
                self.count_file(number, &file);
                Ok(Some((object, Some(file))))
            }
        }
    }

    /// Counts the bytes of a file when it is read for the first time.
    fn count_file(&mut self, number: u64, file: &[u8]) {
        if self.read_files.insert(number) {
            self.input.expansion.read(file.len() as u64);
        }
    }

    /// The value of a column in a line.
    fn cell(&self, column: &Column, value: &Value) -> Result<Option<FieldBytes>, BadReason> {
        let name = &column.name;
        let must_be_text = self.text.as_ref() == Some(name);
        let text = match (&column.kind, value) {
            (_, Value::Null) => return Ok(None),
            (CellKind::Elements(kind), _) => {
                let mut bytes = Vec::new();
                let dims = kind.dims().collect::<Vec<_>>();
                if put_values(kind.element(), &dims, value, &mut bytes) {
                    return Ok(Some(bytes.into()));
                }
                let shown = shown(value);
                let what = format!(
                    "is {kind}, which does not hold {shown}; --field-type {name}:TYPE gives it another type"
                );
                return Err(BadReason::field(name, what));
            }
            _ if must_be_text && (!value.is_string() || number_of(value).is_some()) => {
                return Err(BadReason::field(name, format!("is no text, but {}", shown(value))));
            }
            (_, Value::String(text)) => spelled(text).to_owned(),
            (_, other) => unmarked(&other.to_string()),
        };
        Ok(Some(text.into_bytes().into()))
    }
}

impl ObjectLines {
    /// Begins to read at the line at `offset`.
    fn begin(&mut self, input: &Input, offset: u64) -> Result<()> {
        (self.from, self.at) = match offset {
            0 => lines(input, None)?,
            at => (BufReader::with_capacity(BUFFER_BYTES, input.read_plain_from(at)?), at),
        };
        Ok(())
    }

    /// The next line that is not empty; `None` after the last.
    fn next(&mut self) -> Result<Option<Object>, RowError> {
        loop {
            let read = read_line(&mut self.from, &mut self.line);
            self.at += self.line.len() as u64;
            match read {
                Ok(false) => return Ok(None),
                Ok(true) if self.line.trim_ascii().is_empty() => {}
                Ok(true) => break,
                Err(error) => return Err(RowError::File(BadReason::Decoder(error.to_string()))),
            }
        }
        let broken = |error| BadReason::Decoder(format!("the line is no JSON object: {error}"));
        Ok(Some(parse(&self.line).map_err(broken)?))
    }

    /// Reads up to [`MAX_LINES`] lines that begin before the offset `to`, with the names under `key`. Also returns
    /// whether no lines follow.
    fn named(&mut self, key: &str, to: u64) -> (Vec<Named>, bool) {
        let mut lines = Vec::new();
        let mut has_ended = false;
        while lines.len() < MAX_LINES && self.at < to && !has_ended {
            let line = self.next().transpose();
            has_ended = matches!(line, None | Some(Err(RowError::File(_))));
            lines.extend(line.map(|object| -> Named {
                let object = object?;
                let name = name_in(key, &object)?;
                Ok(Line { object, file: name, end: self.at })
            }));
        }
        (lines, has_ended)
    }
}

impl RowReader for JsonLines {
    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        self.lines.begin(&self.input, from.offset)?;
        (self.next, self.named) = (self.lines.at, from.named);
        Ok(())
    }

    fn place(&self, _: u64) -> StreamPlace {
        StreamPlace { offset: self.next, named: self.named, ..StreamPlace::default() }
    }

    fn recall(&mut self, to: Option<u64>, mut named: u64) -> Result<u64> {
        let Some(NamedFiles { key, from: FilesFrom::Store(ahead), .. }) = &self.files else {
            return Ok(named);
        };
        self.lines.begin(&self.input, 0)?;
        loop {
            let (lines, has_ended) = self.lines.named(key, to.unwrap_or(u64::MAX));
            self.input.check()?;
            // A missing object changes the hash, too.
            let Some(with_lines) = ahead.recall(&lines, named)? else { return Ok(0) };
            named = with_lines;
            if lines.is_empty() || has_ended {
                return Ok(named);
            }
        }
    }

    fn row_name(&self) -> Option<&[u8]> {
        self.files.as_ref().map(|_| &self.name[..])
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        self.name.clear();
        let Some((object, file)) = self.next_with_file()? else { return Ok(false) };
        if let Some(files) = &self.files
            && let Some(name) = name_in(&files.key, &object)?
        {
            self.name.extend_from_slice(name.as_bytes());
        }
        // Clear only the cells that the previous line filled: a line may have few of many keys.
        self.filled.drain(..).for_each(|at| drop(cells.get_mut(at).and_then(Option::take)));
        cells.resize(self.columns.len(), None);
        for (key, value) in object.0 {
            if let Some(files) = self.files.as_ref().filter(|files| files.key == key) {
                if cells[files.column].is_some() {
                    return Err(BadReason::field(&key, TWICE).into());
                }
                cells[files.column].clone_from(&file);
                self.filled.push(files.column);
                continue;
            }
            let Some(at) = self.place_of.get(&key).copied() else {
                if !self.takes_all || value.is_null() {
                    continue;
                }
                let what = "is a key that the first lines do not have: name it with the others in --fields";
                return Err(BadReason::field(&key, what).into());
            };
            if !self.is_wanted[at] {
                continue;
            }
            if cells[at].is_some() {
                return Err(BadReason::field(&key, TWICE).into());
            }
            cells[at] = self.cell(&self.columns[at], &value)?;
            self.filled.push(at);
        }
        Ok(true)
    }
}

/// The defect of a key of which a line has two.
const TWICE: &str = "is there twice in this line";

/// A value for messages.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "another list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if number_of(value).is_some() => spelled(text).to_owned(),
        Value::String(_) => "text".to_owned(),
        number => number.to_string(),
    }
}

/// Appends the elements of the array `value`. `false`: it is not an array with these dimensions and elements.
fn put_values(element: Element, dims: &[Option<u32>], value: &Value, into: &mut Vec<u8>) -> bool {
    match (value, dims) {
        (Value::Array(all), [dim, dims @ ..]) => {
            dim.is_none_or(|dim| all.len() as u64 == u64::from(dim))
                && all.iter().all(|each| put_values(element, dims, each, into))
        }
        (one, []) => put_value(element, one, into),
        _ => false,
    }
}

/// Appends the number `value` as an element. `false`: the element type does not hold it.
fn put_value(element: Element, value: &Value, into: &mut Vec<u8>) -> bool {
    match (value, number_of(value)) {
        (Value::Bool(bit), _) if element == Element::Bool => {
            into.push(u8::from(*bit));
            true
        }
        (_, Some(number)) => put_number(element, number, into),
        _ => false,
    }
}
