//! Rows of JSON Lines: each line is an object whose keys are columns. A key may name files.
//!
//! A first pass reads all lines to find the columns and their types. Of an object in a store it reads only the first
//! lines, since the object would be fetched twice. Strings become a column of bytes. Numbers become `i64`, `u64` if a
//! number needs it, or `f64` if a number has a fraction; `true` and `false` become `bool`. Lists of these become
//! arrays. Other nested values, and values that fit none of these types, are stored as JSON. `NaN` and `Infinity` are
//! numbers, as Python writes them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::column::{CellKind, Cells, Column, is_wanted, places};
use super::input::{BUFFER_BYTES, InStore, Input, LOOKING_UP};
use super::json::{Lines, Object, Survey, lines, number_of, parse, read_line, spelled, unmarked};
use super::rows::{OpenRows, RowError, RowReader};
use crate::import::columns::put_number;
use crate::import::options::RowOptions;
use crate::import::sources::beneath::Root;
use crate::import::sources::index::MAX_SAMPLE_BYTES;
use crate::import::sources::objects::{self, push_origin};
use crate::import::sources::sample_stream::{FieldBytes, StreamPlace};
use crate::import::sources::tar_members::clean_name;
use crate::import::sources::{BadReason, shard_index};
use dlfs_base::error::zeroed_vec;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, Result};
use dlfs_format::format::field_type::Element;
use dlfs_places::Pending;

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
    /// Hashes of the names of the files read so far: a file that is named again counts as expansion.
    read_files: HashSet<u64>,
    /// The columns with a value in the previous line.
    filled: Vec<usize>,
    /// Set if all keys are wanted, so that a key without a column is an error.
    takes_all: bool,
    /// The key whose values must be texts.
    text: Option<String>,
    files: Option<Files>,
    name: Vec<u8>,
}

/// The lines of a file, as objects.
struct ObjectLines {
    /// The unread lines, once reading has begun.
    from: Lines,
    /// Offset of the next line to read.
    at: u64,
    line: Vec<u8>,
}

/// The files that lines name.
struct Files {
    /// The key that names the files.
    key: String,
    /// The index of the column that holds the files.
    column: usize,
    from: From,
}

/// The location of the files.
enum From {
    /// The files are in this folder.
    Folder(Root),
    /// The files are in a store, beside the file of lines.
    Store(Box<Ahead>),
}

/// Lines that were read ahead, so that the objects they name are requested early.
struct Ahead {
    lines_are: InStore,
    lines: VecDeque<Result<Line, RowError>>,
    /// Set once no lines follow those read ahead.
    has_ended: bool,
    /// Bytes of the outstanding requests.
    asked_bytes: u64,
}

/// A line, and the object that it names.
struct Line {
    object: Object,
    file: Option<Asked>,
    /// Offset of the line's end.
    end: u64,
}

/// A line, the name of its file, and the offset of the line's end.
type Named = Result<(Object, Option<String>, u64), RowError>;

/// An object that a line names; `pending` is `None` until there is room to request it.
struct Asked {
    object: dlfs_places::Object,
    pending: Option<Pending>,
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
        let files = of_files.map(|at| Files::new(at, &columns[at], input)).transpose()?;
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
        let JsonLines { lines, next, files, .. } = self;
        let Some(Files { key, from: From::Store(ahead), .. }) = files else {
            let Some(object) = lines.next()? else { return Ok(None) };
            *next = lines.at;
            let Some(Files { key, from: From::Folder(folder), .. }) = files else {
                return Ok(Some((object, None)));
            };
            let Some(name) = name_in(key, &object)? else { return Ok(Some((object, None))) };
            let file = read_file(folder, name.as_bytes())
                .map_err(|reason| BadReason::field(key, format!("names {name}: {reason}")))?;
            self.count_file(&name, &file);
            return Ok(Some((object, Some(file))));
        };
        if !ahead.has_ended && ahead.lines.len() <= LINES_AHEAD / 2 {
            let (lines, has_ended) = lines.named(key, u64::MAX);
            ahead.has_ended = has_ended;
            ahead.look_up(lines)?;
        }
        let Some(line) = ahead.lines.pop_front() else {
            *next = lines.at;
            return Ok(None);
        };
        let Line { object, file, end } = line?;
        *next = end;
        let Some(asked) = file else { return Ok(Some((object, None))) };
        let named = with(self.named, &asked.object);
        let name = asked.object.key.clone();
        let file = ahead.read(asked)?;
        self.count_file(&name, &file);
        self.named = named;
        Ok(Some((object, Some(file))))
    }

    fn count_file(&mut self, name: &str, file: &[u8]) {
        if self.read_files.insert(xxh3_64(name.as_bytes())) {
            self.input.expansion.read(file.len() as u64);
        }
    }

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
                let what = format!("is no text, but {}", shown(value));
                return Err(BadReason::field(name, what));
            }
            (_, Value::String(text)) => spelled(text).to_owned(),
            (_, other) => unmarked(&other.to_string()),
        };
        Ok(Some(text.into_bytes().into()))
    }
}

impl ObjectLines {
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

    /// Reads some lines that begin before `to`, with the names under `key`; returns whether no lines follow them.
    fn named(&mut self, key: &str, to: u64) -> (Vec<Named>, bool) {
        let mut lines = Vec::new();
        let mut has_ended = false;
        while lines.len() < LINES_AHEAD / 2 && self.at < to && !has_ended {
            let line = self.next().transpose();
            has_ended = matches!(line, None | Some(Err(RowError::File(_))));
            lines.extend(line.map(|object| -> Named {
                let object = object?;
                let name = name_in(key, &object)?;
                Ok((object, name, self.at))
            }));
        }
        (lines, has_ended)
    }
}

impl Files {
    /// The files that lines name for `column`, which has the index `at`.
    fn new(at: usize, column: &Column, input: &Input) -> Result<Files> {
        let key = column.files_of.clone().unwrap_or_default();
        let from = match &input.object {
            Some(lines) => From::Store(Box::new(Ahead {
                lines_are: lines.clone(),
                lines: VecDeque::new(),
                has_ended: false,
                asked_bytes: 0,
            })),
            None => {
                let folder = input.path.parent().filter(|folder| !folder.as_os_str().is_empty());
                From::Folder(Root::open(folder.unwrap_or(Path::new(".")), input.links)?)
            }
        };
        Ok(Files { key, column: at, from })
    }
}

/// The file that a line names under `key`, without `.` and repeated slashes; `None`: the line lacks the key.
fn name_in(key: &str, object: &Object) -> Result<Option<String>, BadReason> {
    match object.0.iter().find(|(own, _)| own == key) {
        None => Ok(None),
        Some((_, Value::String(name))) => {
            BadReason::LeavesSource
                .unless(!name.starts_with('/') && name.split('/').all(|part| part != ".."))?;
            let clean = clean_name(name.as_bytes())?;
            Ok(Some(String::from_utf8_lossy(&clean).into_owned()))
        }
        Some(_) => Err(BadReason::field(key, "names no file")),
    }
}

fn read_file(folder: &Root, name: &[u8]) -> Result<FieldBytes, BadReason> {
    folder.stat_file(name)?; // a pipe or a device has no length
    let file = File::from(folder.open_file(name)?);
    let len = file.metadata().map_err(BadReason::from)?.len();
    BadReason::TooLarge(len).unless(len <= MAX_SAMPLE_BYTES)?;
    let mut bytes = zeroed_vec(len).map_err(|_| BadReason::Unreadable(libc::ENOMEM))?;
    file.read_exact_at(&mut bytes, 0).map_err(|error| {
        BadReason::Unreadable(error.raw_os_error().unwrap_or(libc::EIO)) // EIO: the file is shorter now
    })?;
    Ok(bytes.into())
}

impl Ahead {
    /// Looks up the objects that lines name, concurrently, and requests them.
    fn look_up(&mut self, lines: Vec<Named>) -> Result<(), RowError> {
        let found = self.find(&lines).map_err(|error| self.failed(error))?;
        for (line, found) in lines.into_iter().zip(found) {
            let line = line.and_then(|(object, _, end)| {
                let file = found.transpose()?.map(|object| Asked { object, pending: None });
                Ok(Line { object, file, end })
            });
            self.lines.push_back(line);
        }
        self.ask();
        Ok(())
    }

    /// Looks up the objects that lines name, concurrently.
    fn find(&self, lines: &[Named]) -> Result<Vec<Option<Result<dlfs_places::Object, BadReason>>>> {
        let InStore { client, object: of, .. } = &self.lines_are;
        map_at_once(LOOKING_UP, lines, |line| {
            let Ok((_, Some(name), _)) = line else { return Ok(None) };
            let Some(key) = shard_index::beside(Path::new(&of.key), name.as_ref()) else {
                return Ok(Some(Err(BadReason::LeavesSource)));
            };
            match client.head(&key.to_string_lossy()) {
                Ok(object) if object.len_bytes > MAX_SAMPLE_BYTES => {
                    Ok(Some(Err(BadReason::TooLarge(object.len_bytes))))
                }
                Ok(object) => Ok(Some(Ok(object))),
                Err(error) => objects::reason(error).map(|reason| Some(Err(reason))),
            }
        })
    }

    /// Requests the objects of the next lines, up to the client's window.
    fn ask(&mut self) {
        let client = &self.lines_are.client;
        let asked = self.lines.iter_mut().flatten().filter_map(|line| line.file.as_mut());
        for Asked { object, pending } in asked.filter(|asked| asked.pending.is_none()) {
            if self.asked_bytes > 0 && self.asked_bytes + object.len_bytes > client.window_bytes() {
                break;
            }
            self.asked_bytes += object.len_bytes;
            *pending = Some(client.fetch(object, 0..object.len_bytes));
        }
    }

    /// Reads the object of the next line.
    fn read(&mut self, asked: Asked) -> Result<FieldBytes, RowError> {
        let Asked { object, pending } = asked;
        let InStore { client, origins, .. } = &self.lines_are;
        let pending = match pending {
            Some(pending) => {
                self.asked_bytes -= object.len_bytes;
                pending
            }
            None => client.fetch(&object, 0..object.len_bytes),
        };
        let mut bytes = zeroed_vec(object.len_bytes).map_err(|error| {
            let address = client.place().with_key(&*object.key).to_string();
            self.failed(error.target(address))
        })?;
        match pending.read_into(&mut bytes) {
            Ok(()) => push_origin(&mut origins.lock(), client, &object),
            Err(error) => {
                let reason = objects::reason(error).map_err(|error| self.failed(error))?;
                return Err(reason.into());
            }
        }
        self.ask();
        Ok(bytes.into())
    }

    /// Records a failure of the store, which ends the import.
    fn failed(&self, error: Error) -> RowError {
        self.lines_are.failure.lock().get_or_insert(error);
        RowError::File(BadReason::Decoder("the store failed".to_owned()))
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
        let Some(Files { key, from: From::Store(ahead), .. }) = &self.files else {
            return Ok(named);
        };
        self.lines.begin(&self.input, 0)?;
        loop {
            let (lines, has_ended) = self.lines.named(key, to.unwrap_or(u64::MAX));
            self.input.check()?;
            for found in ahead.find(&lines)?.into_iter().flatten() {
                // A missing object changes the hash, too.
                let Ok(object) = found else { return Ok(0) };
                push_origin(&mut ahead.lines_are.origins.lock(), &ahead.lines_are.client, &object);
                named = with(named, &object);
            }
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
                return Err(BadReason::field(&key, "is there twice in this line").into());
            }
            cells[at] = self.cell(&self.columns[at], &value)?;
            self.filled.push(at);
        }
        Ok(true)
    }
}

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

/// Adds an object to the hash of the named objects.
fn with(named: u64, object: &dlfs_places::Object) -> u64 {
    let mut hash = Xxh3::with_seed(named);
    hash.update(&(object.key.len() as u64).to_le_bytes());
    hash.update(object.key.as_bytes());
    hash.update(&object.len_bytes.to_le_bytes());
    hash.update(object.etag.as_deref().unwrap_or_default().as_bytes());
    hash.digest().max(1) // 0 stands for none
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

/// Most lines that are read ahead, to request their objects.
const LINES_AHEAD: usize = 128;
