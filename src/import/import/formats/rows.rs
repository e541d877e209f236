//! Samples from row files, read one file after the other. `row_set.rs` has the files and their columns.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::classes::Classes;
use super::column::{CellKind, Cells, Chosen, Column, places};
use super::input::{Failure, Input};
use super::row_set::RowSet;
use super::{RowError, RowFile, RowReader};
use crate::import::columns::{number, put_number};
use crate::import::sources::expansion::{Expands, Expansion};
use crate::import::sources::index::{MAX_NAME_BYTES, MAX_SAMPLE_BYTES, TOO_LONG_A_NAME};
use crate::import::sources::sample_stream::{FieldBytes, SampleStream, StreamPlace, StreamSample};
use crate::import::sources::{BadEntry, BadReason};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldTypes;
use dlfs_format::format::field_type::FieldType;
use dlfs_places::{Client, Object};

/// The rows of files of one kind as samples.
pub struct RowSource {
    /// The files and their columns.
    set: Arc<RowSet>,
    /// Numbers of the files that are not opened yet.
    left: Range<usize>,
    /// The file to open instead of the next one of the set.
    alone: Option<RowFile>,
    /// Number of the next input: index files come first, then the files opened or skipped so far.
    begun: u64,
    /// The place in the file that is opened next.
    from: StreamPlace,
    /// The file that is read. `None`: the next file is to be opened, if there is one.
    open: Option<OpenFile>,
    /// The classes, with those that rows have named so far.
    classes: Classes,
    /// The class name of the last row read, until the row is accepted.
    class: Option<FieldBytes>,
    /// Set until the classes that only rows name have numbers.
    has_unnumbered_classes: bool,
    /// Hashes of the sample names so far.
    names: HashSet<u128>,
    /// Hashes of the names of this file's rows, before a prefix is added.
    file_names: HashSet<u128>,
    /// The same hash of the last row read.
    file_name: u128,
    /// Set while the open file is the first one, and was resumed: then all hashes in `names` are of its rows.
    is_first: bool,
    /// The rows that cannot be imported.
    bad: Vec<BadEntry>,
    /// The error that ends the import.
    failure: Option<Error>,
    /// The values of the last row read.
    cells: Cells,
}

/// The file that is read.
struct OpenFile {
    reader: Box<dyn RowReader>,
    input: Input,
    /// Prefix of the names of rows.
    stem: Vec<u8>,
    /// For each column of all files, the column of this file; `None` if this file lacks it.
    columns: Vec<Option<FileColumn>>,
    /// Number of rows read or skipped.
    rows: u64,
    /// Set once the reader has begun.
    has_begun: bool,
}

/// A column of a file.
struct FileColumn {
    /// The index in the file.
    at: usize,
    /// The types of the values in the file and in the image, if these differ.
    types: Option<(FieldType, FieldType)>,
}

impl FileColumn {
    /// Takes the value from `cells`, and converts it to the image's type.
    fn take(&self, cells: &mut Cells, column: &Column) -> Result<Option<FieldBytes>, BadReason> {
        let Some(bytes) = cells.get_mut(self.at).and_then(Option::take) else { return Ok(None) };
        let wrong = |what| BadReason::field(&column.name, what);
        let bytes = self.converted(bytes).map_err(wrong)?;
        let beyond = match &column.kind {
            CellKind::Elements(kind) => beyond_vocabulary(kind, &bytes),
            _ => None,
        };
        beyond.map_or(Ok(Some(bytes)), |what| Err(wrong(what)))
    }

    /// The value in the image's type.
    fn converted(&self, bytes: FieldBytes) -> Result<FieldBytes, String> {
        let Some((from, to)) = &self.types else { return Ok(bytes) };
        let mut converted = Vec::with_capacity(bytes.len());
        for each in bytes.chunks_exact(from.element().len_bytes() as usize) {
            let number = number(from.element(), each);
            if !put_number(to.element(), number, &mut converted) {
                return Err(format!("is {to}, which does not hold {number}"));
            }
        }
        to.check_len(converted.len() as u64)?;
        Ok(converted.into())
    }
}

/// Describes the first token of a document that the tokenizer of its type does not have.
fn beyond_vocabulary(kind: &FieldType, document: &[u8]) -> Option<String> {
    let vocabulary = kind.tokenizer()?.vocabulary;
    let mut tokens = document.chunks_exact(kind.element().len_bytes() as usize);
    // Negative tokens are the largest ones here.
    let id = |token: &[u8]| token.iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte));
    let token = tokens.find(|token| id(token) >= vocabulary)?;
    let token = number(kind.element(), token);
    Some(format!("has token {token}, and its tokenizer has {vocabulary} tokens"))
}

impl OpenFile {
    /// The name of the last row read, for rows that define no name themselves.
    fn row_name(&self) -> Vec<u8> {
        [&self.stem[..], format!("/{}", self.rows - 1).as_bytes()].concat()
    }
}

impl RowSet {
    /// The rows of file number `number` alone, from `from` on. `part`: the offset before which rows are wanted, and
    /// their number, if they are known; a reader of an object requests no more than that if it can. `expansion` limits
    /// the bytes that the rows expand to.
    ///
    /// # Errors
    /// The file does not open.
    pub(crate) fn alone(
        self: &Arc<Self>,
        number: usize,
        from: StreamPlace,
        part: (Option<u64>, Option<u64>),
        expansion: Expansion,
    ) -> Result<RowSource> {
        let (mut file, _) = self.files[number].clone();
        file.input.object.iter_mut().for_each(|object| object.failure = Failure::default());
        (file.input.part_end, file.input.part_rows) = part;
        file.input.expansion = expansion;
        let mut rows = RowSource::of(self);
        (rows.left, rows.alone) = (number..number + 1, Some(file));
        (rows.from, rows.has_unnumbered_classes) = (from, false);
        rows.open_next()?;
        Ok(rows)
    }
}

impl RowSource {
    /// All rows of `set`.
    ///
    /// # Errors
    /// The first file does not open.
    pub(super) fn new(set: RowSet) -> Result<RowSource> {
        let mut rows = RowSource::of(&Arc::new(set));
        rows.open_next()?;
        Ok(rows)
    }

    /// The rows of `set`, of which no file is open.
    fn of(set: &Arc<RowSet>) -> RowSource {
        RowSource {
            left: 0..set.files.len(),
            alone: None,
            begun: set.indexes,
            from: StreamPlace::default(),
            open: None,
            classes: set.classes.clone(),
            class: None,
            has_unnumbered_classes: set.has_unnumbered_classes,
            names: HashSet::new(),
            file_names: HashSet::new(),
            file_name: 0,
            is_first: false,
            bad: Vec::new(),
            failure: None,
            cells: Cells::new(),
            set: Arc::clone(set),
        }
    }

    /// The objects that index files name. Places number them after the index files.
    pub(crate) fn shards(&self) -> &[(Client, Object)] {
        &self.set.shards
    }

    /// Resumes at `place`. `names` are the hashes of the names of earlier rows, and `classes` their
    /// [`found_classes`](SampleStream::found_classes). Only in the first file is it known which of these names the file
    /// itself has. Call this before any row is read.
    ///
    /// # Errors
    /// A file does not open. `BadSource`: an object that rows named before an interruption has changed.
    pub(crate) fn after(
        mut self,
        place: &StreamPlace,
        names: HashSet<u128>,
        classes: &[Vec<u8>],
    ) -> Result<RowSource> {
        self.is_first = place.input < self.begun;
        self.names = names;
        self.has_unnumbered_classes = false;
        self.classes.numbers(classes);
        self.go_to(place)?; // a file that this opens is not the first
        Ok(self)
    }

    /// Begins to read rows, if that has not happened; `false` if there are no more rows.
    ///
    /// # Errors
    /// The next file does not open.
    pub(crate) fn begin(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.has_unnumbered_classes) {
            self.classes.numbers(self.set.label_names()?);
        }
        if self.open.is_none() && !self.open_next()? {
            return Ok(false);
        }
        if let Some(open) = &mut self.open
            && !open.has_begun
        {
            let from = std::mem::take(&mut self.from);
            let begun = open.reader.begin(from);
            open.input.check()?;
            begun?;
            (open.has_begun, open.rows) = (true, from.record);
        }
        Ok(true)
    }

    /// Moves to `place`, and records again the objects that earlier rows name.
    fn go_to(&mut self, place: &StreamPlace) -> Result<()> {
        let names_objects = place.named > 0;
        let mut named = 0;
        while place.input >= self.begun {
            if let Some(mut open) = self.open.take()
                && names_objects
            {
                named = open.reader.recall(None, named)?;
            }
            let is_there = place.input == self.begun;
            if !is_there && !names_objects {
                self.left.next();
                self.begun += 1;
            } else if !self.open_next()? {
                break;
            }
        }
        self.from = *place;
        if let Some(open) = self.open.as_mut().filter(|_| names_objects) {
            named = open.reader.recall(Some(place.offset), named)?;
        }
        if named != place.named {
            let text = "an object that a line before the interruption names has changed since the import began";
            let error = Error::new(ErrorKind::BadSource, text).hint(
                "begin again with --force, or with --append if the image had a generation before",
            );
            return Err(match &self.open {
                Some(open) => error.path(&open.input.path),
                None => error,
            });
        }
        Ok(())
    }

    /// Opens the next file; `false` after the last.
    fn open_next(&mut self) -> Result<bool> {
        let Some(number) = self.left.next() else { return Ok(false) };
        let RowSet { files, columns, chosen, options, .. } = &*self.set;
        let (file, mut found) = files[number].clone();
        let file = self.alone.take().unwrap_or(file);
        let all = places(columns);
        for column in &mut found {
            if let Some(at) = all.get(&column.name) {
                column.kind = columns[*at].kind.clone();
            }
        }
        let (found, reader) = file.open(options, Some(&found))?;
        let index_of = places(&found);
        let in_file = |column: &Column| {
            let at = *index_of.get(&column.name)?;
            let types = match (&found[at].kind, &column.kind) {
                (CellKind::Elements(from), CellKind::Elements(to)) if !from.has_layout_of(to) => {
                    Some((from.clone(), to.clone()))
                }
                _ => None,
            };
            Some(FileColumn { at, types })
        };
        let columns: Vec<Option<FileColumn>> = columns.iter().map(in_file).collect();
        if let Some(label) = chosen.label.and_then(|at| columns[at].as_ref()) {
            self.classes.begin_file(&found[label.at]);
        }
        self.file_names.clear();
        self.is_first = false;
        self.cells.clear();
        let RowFile { input, stem, .. } = file;
        self.open = Some(OpenFile { reader, input, stem, columns, rows: 0, has_begun: false });
        self.begun += 1;
        Ok(true)
    }

    /// The sample of the next row. `None`: the file has no more rows, the row is bad, or `failure` is set.
    fn take_row(&mut self) -> Option<StreamSample> {
        let open = self.open.as_mut()?;
        let read = open.reader.next_row(&mut self.cells);
        if let Ok(false) = read {
            self.from.named = open.reader.place(open.rows).named;
            self.open = None;
            return None;
        }
        open.rows += 1;
        let ends = matches!(read, Err(RowError::File(_)));
        // A failure of the store ends the import; the row is not a bad entry.
        if ends && let Err(error) = open.input.check() {
            self.failure = Some(error);
            return None;
        }
        let sample = match read {
            Ok(_) => self.sample(),
            Err(RowError::Row(reason) | RowError::File(reason)) => Err((Vec::new(), reason)),
        };
        let (name, reason) = match sample {
            Ok(sample) => return Some(sample),
            Err(bad) => bad,
        };
        let of_file = self.open.as_ref().filter(|_| name.is_empty());
        let name = of_file.map_or(name, OpenFile::row_name);
        self.reject(&name, reason);
        if ends {
            self.open = None;
        }
        None
    }

    /// The last row read as a sample. If the row is bad, its name (empty if it has none) and the reason.
    fn sample(&mut self) -> Result<StreamSample, (Vec<u8>, BadReason)> {
        let set = Arc::clone(&self.set);
        let Chosen { name: named, label, fields: chosen } = &set.chosen;
        let mut take = |at| self.take(at).map_err(|reason| (Vec::new(), reason));
        let name = take(*named)?;
        let label = take(*label)?;
        let fields = chosen.iter().map(|at| take(Some(*at))).collect::<Result<_, _>>()?;
        let name = match (named, &self.open) {
            (None, Some(open)) => {
                open.reader.row_name().map_or_else(|| open.row_name(), <[u8]>::to_vec)
            }
            _ => name.map(|bytes| bytes.to_vec()).unwrap_or_default(),
        };
        let mut sample = StreamSample::new(name, fields);
        match self.check(&mut sample, label) {
            Ok(()) => Ok(sample),
            Err(reason) => Err((sample.name, reason)),
        }
    }

    /// The last row's value in column number `at` of all files.
    fn take(&mut self, at: Option<usize>) -> Result<Option<FieldBytes>, BadReason> {
        let Some(at) = at else { return Ok(None) };
        let column = self.open.as_ref().and_then(|open| open.columns[at].as_ref());
        column.map_or(Ok(None), |column| column.take(&mut self.cells, &self.set.columns[at]))
    }

    /// Checks the sample and sets its label. A label that is a class name is set when the sample is accepted, since a
    /// new class gets its number only then.
    fn check(
        &mut self,
        sample: &mut StreamSample,
        label: Option<FieldBytes>,
    ) -> Result<(), BadReason> {
        BadReason::Name("the row has none").unless(!sample.name.is_empty())?;
        if sample.name.contains(&0) {
            return Err(BadReason::Name("holds a NUL"));
        }
        self.add_prefix(sample)?;
        // The format cannot mark the only field of a sample as missing. So the field is empty, unless its type has a
        // fixed length.
        if let [only @ None] = &mut sample.fields[..] {
            if self.set.types.of(0).is_some_and(|kind| kind.len_bytes().is_some()) {
                let is_alone = self.set.columns.len() == 1;
                return Err(BadReason::Syntax(if is_alone { ALONE } else { NO_VALUE }));
            }
            *only = Some(Vec::new().into());
        }
        let len = sample.len_bytes() as u64;
        BadReason::TooLarge(len).unless(len <= MAX_SAMPLE_BYTES)?;
        if let Some(open) = &self.open {
            open.input.expansion.make(Expands::Rows, len)?;
        }
        self.class = None;
        match (self.classes.element, label) {
            (Some(element), Some(label)) => sample.label = self.classes.label(element, &label)?,
            (_, label) => {
                let is_known = |name: &FieldBytes| self.classes.number_of.contains_key(&name[..]);
                BadReason::Syntax(NO_CLASS)
                    .unless(!self.classes.are_all || label.as_ref().is_none_or(is_known))?;
                self.class = label;
            }
        }
        Ok(())
    }

    /// Prefixes the sample's name with its file if an earlier file has the name; with `prefix`, prefixes all names that
    /// rows define.
    fn add_prefix(&mut self, sample: &mut StreamSample) -> Result<(), BadReason> {
        if self.set.has_numbered_names {
            return TOO_LONG_A_NAME.unless(sample.name.len() <= MAX_NAME_BYTES);
        }
        self.file_name = xxh3_128(&sample.name);
        BadReason::Twice.unless(!self.file_names.contains(&self.file_name))?;
        let Some(open) = &self.open else { return Ok(()) };
        let is_given = self.set.chosen.name.is_some() || open.reader.row_name().is_some();
        let is_of_another = !self.is_first && self.names.contains(&self.file_name);
        if self.set.prefix && is_given || is_of_another {
            sample.name = [&open.stem[..], b"/", &sample.name].concat();
        }
        TOO_LONG_A_NAME.unless(sample.name.len() <= MAX_NAME_BYTES)?;
        BadReason::Twice.unless(!self.names.contains(&xxh3_128(&sample.name)))
    }
}

/// Reasons to reject a row.
const NO_CLASS: &str = "its class is none of those that --classes gives";
const ALONE: &str = "the row has no value in the only column, whose type has a length";
const NO_VALUE: &str = "the row has no value in the only field, whose type has a length: take another column as well, \
                        with --fields";

impl SampleStream for RowSource {
    fn fields(&self) -> &[Vec<u8>] {
        &self.set.fields
    }

    fn field_types(&self) -> FieldTypes {
        self.set.types.clone()
    }

    fn classes(&self) -> &[Vec<u8>] {
        &self.classes.names
    }

    fn found_classes(&self) -> &[Vec<u8>] {
        &self.classes.names[self.set.classes.names.len()..]
    }

    fn place(&self) -> Option<StreamPlace> {
        if !self.bad.is_empty() || self.failure.is_some() {
            return None;
        }
        let (input, record, place) = match &self.open {
            None => (self.begun, 0, self.from),
            Some(open) => (self.begun - 1, open.rows, open.reader.place(open.rows)),
        };
        Some(StreamPlace { input, record, windows: 0, ..place })
    }

    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        while self.begin()? {
            if let Some(sample) = self.take_row() {
                return Ok(Some(sample));
            }
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
        }
        Ok(None)
    }

    fn begin_ahead(&mut self) -> Result<()> {
        self.begin().map(drop)
    }

    fn is_decoded(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.reader.is_decoded())
    }

    fn accept(&mut self, sample: &mut StreamSample) {
        if let Some(class) = self.class.take() {
            sample.label = Some(self.classes.number(&class));
        }
        if !self.set.has_numbered_names {
            self.file_names.insert(self.file_name);
            self.names.insert(xxh3_128(&sample.name));
        }
    }

    fn reject(&mut self, name: &[u8], reason: BadReason) {
        let within = self.open.as_ref().map(|open| open.input.path.clone());
        self.bad.push(BadEntry { within, ..BadEntry::new(name, reason) });
    }

    fn bad(&self) -> &[BadEntry] {
        &self.bad
    }

    fn take_bad(&mut self) -> Vec<BadEntry> {
        std::mem::take(&mut self.bad)
    }
}
