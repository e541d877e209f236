//! Samples from files of rows, one file after the other.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_128;

use super::RowFile;
use super::column::{CellKind, Cells, Chosen, Column};
use super::input::Input;
use crate::directory::Directory;
use crate::format::FieldTypes;
use crate::format::field_type::Element;
use crate::format::meta::check_label;
use crate::import::columns::{Number, number};
use crate::import::options::RowOptions;
use crate::import::sources::index::{MAX_NAME_BYTES, MAX_SAMPLE_BYTES};
use crate::import::sources::sample_stream::{FieldBytes, SampleStream, StreamPlace, StreamSample};
use crate::import::sources::{BadEntry, BadReason, SourceKind};
use crate::places::{Client, Object};
use crate::{Error, ErrorKind, Result};

/// Reads the rows of a file, front to back.
pub(super) trait RowReader {
    /// The columns of each row.
    fn columns(&self) -> &[Column];

    /// Begins to read the rows that follow `from`. Before, only what tells the columns is read.
    ///
    /// # Errors
    /// The file cannot be read, or is none of its format.
    fn begin(&mut self, from: Entry) -> Result<()>;

    /// Where the next row is, behind `rows` rows of the file.
    fn entry(&self, rows: u64) -> Entry {
        Entry { at: 0, rows, named: 0 }
    }

    /// Notes again which objects the rows up to byte `to`, or all of them, have named, behind those whose hash is
    /// `named`; returns the hash of all.
    ///
    /// # Errors
    /// Those of the store.
    fn recall(&mut self, _to: Option<u64>, named: u64) -> Result<u64> {
        Ok(named)
    }

    /// The name that the row which was read last brings along.
    fn row_name(&self) -> Option<&[u8]> {
        None
    }

    /// Reads the next row into `cells`, one a column. `false`: there is none.
    ///
    /// # Errors
    /// What is wrong with the row, or with the rest of the file.
    fn next_row(&mut self, cells: &mut Cells) -> std::result::Result<bool, RowError>;
}

/// A place between two rows of a file, as the reader of its format finds it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    /// Where the file may be entered: a byte, or the number of a batch.
    pub(super) at: u64,
    /// Rows from there to the place.
    pub(super) rows: u64,
    /// Hash of the objects that rows before it named, also those of other files; 0: none.
    pub(super) named: u64,
}

/// Why a row is not read.
#[derive(Debug)]
pub(super) enum RowError {
    /// The row is bad; the next one can be read.
    Row(BadReason),
    /// Nothing behind it in this file can be read.
    File(BadReason),
}

impl From<BadReason> for RowError {
    fn from(reason: BadReason) -> RowError {
        RowError::Row(reason)
    }
}

/// The rows of files of one kind as samples.
pub struct RowSource<'a> {
    files: std::vec::IntoIter<RowFile>,
    /// The objects that an index names.
    shards: Vec<(Client, Object)>,
    /// How many files were opened or left out, and the objects of indexes, which come before them.
    begun: u64,
    /// Where the import goes on, until it does.
    go_on: Option<StreamPlace>,
    /// Where the file that is opened next is read from, and the number of the row there.
    from: (Entry, u64),
    options: &'a RowOptions,
    open: Option<OpenFile>,
    /// The columns of the first file, which all have.
    columns: Vec<Column>,
    chosen: Chosen,
    fields: Vec<Vec<u8>>,
    types: FieldTypes,
    classes: Classes,
    /// The class of the row that was read last, until it is accepted.
    class: Option<FieldBytes>,
    /// How many classes there were before the first row.
    known_classes: usize,
    /// Fingerprints of the names so far.
    names: HashSet<u128>,
    bad: Vec<BadEntry>,
    /// What ends the import.
    failure: Option<Error>,
    cells: Cells,
}

struct OpenFile {
    reader: Box<dyn RowReader>,
    input: Input,
    /// What its rows are named after.
    stem: Vec<u8>,
    /// Of each column of the first file: its number in this one.
    places: Vec<usize>,
    rows: u64,
    has_begun: bool,
}

impl OpenFile {
    fn new(reader: Box<dyn RowReader>, file: RowFile, places: Vec<usize>) -> OpenFile {
        let RowFile { input, stem, .. } = file;
        OpenFile { reader, input, stem, places, rows: 0, has_begun: false }
    }
}

impl<'a> RowSource<'a> {
    /// The rows of `files`, which so many indexes name, to become samples of `image` if it is appended to.
    ///
    /// # Errors
    /// The first file does not open, or has other columns than `options` ask for.
    pub(super) fn new(
        files: Vec<RowFile>,
        indexes: u64,
        kind: SourceKind,
        image: Option<&'a Directory>,
        options: &'a RowOptions,
    ) -> Result<RowSource<'a>> {
        let in_store = |file: &RowFile| {
            let object = file.input.object.as_ref().filter(|_| indexes > 0)?;
            Some((object.client.clone(), object.object.clone()))
        };
        let shards = files.iter().filter_map(in_store).collect();
        let mut files = files.into_iter();
        let Some(first) = files.next() else {
            let text = format!("there is no {kind} file");
            return Err(Error::new(ErrorKind::BadSource, text));
        };
        let reader = first.open(options)?;
        let columns = reader.columns().to_vec();
        let of_image = image.map(Directory::fields);
        let chosen = Chosen::new(&columns, options, of_image)
            .map_err(|error| error.path(&first.input.path))?;
        let field = |at: &usize| columns[*at].name.clone().into_bytes();
        let fields = chosen.fields.iter().map(field).collect();
        let classes = Classes::new(image, chosen.label.map(|at| &columns[at]));
        let places = (0..columns.len()).collect();
        let open = OpenFile::new(reader, first, places);
        Ok(RowSource {
            files,
            shards,
            begun: indexes + 1,
            go_on: None,
            from: (Entry::default(), 0),
            options,
            open: Some(open),
            types: chosen.types(&columns),
            columns,
            chosen,
            fields,
            known_classes: classes.names.len(),
            classes,
            class: None,
            names: HashSet::new(),
            bad: Vec::new(),
            failure: None,
            cells: Cells::new(),
        })
    }

    /// The objects of stores that are read and were not given, but named by an index: places count them behind those.
    pub(in crate::import) fn shards(&self) -> &[(Client, Object)] {
        &self.shards
    }

    /// Goes on at `place`, behind rows with these names, as their fingerprints, and these
    /// [`found_classes`](SampleStream::found_classes). Nothing has been read yet.
    pub(in crate::import) fn after(
        mut self,
        place: &StreamPlace,
        names: HashSet<u128>,
        classes: &[Vec<u8>],
    ) -> RowSource<'a> {
        self.go_on = Some(*place);
        self.names = names;
        for name in classes {
            self.classes.number(name);
        }
        self
    }

    /// Begins to read rows, unless that has happened. `false`: there are none.
    ///
    /// # Errors
    /// The file that is next does not open, or has other columns than the first one.
    pub(in crate::import) fn begin(&mut self) -> Result<bool> {
        if let Some(place) = self.go_on.take() {
            self.go_to(&place)?;
        }
        if self.open.is_none() && !self.open_next()? {
            return Ok(false);
        }
        if let Some(open) = &mut self.open
            && !open.has_begun
        {
            let (from, rows) = std::mem::take(&mut self.from);
            let begun = open.reader.begin(from);
            open.input.check()?;
            begun?;
            (open.has_begun, open.rows) = (true, rows);
        }
        Ok(true)
    }

    /// Goes to `place`, and notes again which objects rows before it have named.
    fn go_to(&mut self, place: &StreamPlace) -> Result<()> {
        let (names_objects, mut named) = (place.named > 0, 0);
        while place.input >= self.begun {
            if let Some(mut open) = self.open.take()
                && names_objects
            {
                named = open.reader.recall(None, named)?;
            }
            let is_there = place.input == self.begun;
            if !is_there && !names_objects {
                self.files.next();
                self.begun += 1;
            } else if !self.open_next()? {
                break;
            }
        }
        let StreamPlace { offset: at, left_out: rows, record, .. } = *place;
        self.from = (Entry { at, rows, named: place.named }, record);
        if let Some(open) = self.open.as_mut().filter(|_| names_objects) {
            named = open.reader.recall(Some(at), named)?;
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

    /// Opens the next file. `false`: there is none.
    fn open_next(&mut self) -> Result<bool> {
        let Some(file) = self.files.next() else { return Ok(false) };
        let reader = file.open(self.options)?;
        let places = self.columns.iter().map(|column| self.place(column, reader.columns()));
        let places = places.collect::<Result<Vec<_>>>();
        let places = places.map_err(|error| error.path(&file.input.path))?;
        if let Some(at) = self.chosen.label {
            self.classes.begin_file(&reader.columns()[places[at]]);
        }
        self.open = Some(OpenFile::new(reader, file, places));
        self.begun += 1;
        Ok(true)
    }

    /// The number of a column of the first file among those of another one.
    fn place(&self, column: &Column, columns: &[Column]) -> Result<usize> {
        let at = columns.iter().position(|own| own.name == column.name);
        let alike = |at: &usize| columns[*at].kind == column.kind;
        at.filter(alike).ok_or_else(|| {
            let (name, what) = (&column.name, column.shown());
            let has = at.map_or("has no such column".to_owned(), |at| {
                format!("has {} there", columns[at].shown())
            });
            let text = format!("column {name} of the first file holds {what}, and this file {has}");
            Error::new(ErrorKind::BadSource, text).hint("import such files one after the other")
        })
    }

    fn take_row(&mut self) -> Option<StreamSample> {
        let open = self.open.as_mut()?;
        let number = open.rows;
        let row_name = |open: &OpenFile| [&open.stem[..], format!("/{number}").as_bytes()].concat();
        match open.reader.next_row(&mut self.cells) {
            Ok(true) => open.rows += 1,
            Ok(false) => {
                self.from.0.named = open.reader.entry(number).named;
                self.open = None;
                return None;
            }
            Err(RowError::Row(reason)) => {
                open.rows += 1;
                self.bad.push(BadEntry::new(&row_name(open), reason).within(&open.input.path));
                return None;
            }
            Err(RowError::File(reason)) => {
                // What a store does not give is not bad: the import fails.
                if let Err(error) = open.input.check() {
                    self.failure = Some(error);
                    return None;
                }
                self.bad.push(BadEntry::new(&row_name(open), reason).within(&open.input.path));
                self.open = None;
                return None;
            }
        }
        let mut take = |column: usize| self.cells.get_mut(open.places[column])?.take();
        let name = match self.chosen.name {
            Some(at) => take(at).map(|bytes| bytes.to_vec()).unwrap_or_default(),
            None => open.reader.row_name().map_or_else(|| row_name(open), <[u8]>::to_vec),
        };
        let label = self.chosen.label.and_then(&mut take);
        let fields = self.chosen.fields.iter().map(|at| take(*at)).collect();
        let mut sample = StreamSample::new(name, fields);
        match self.check(&mut sample, label) {
            Ok(()) => Some(sample),
            Err(reason) => {
                let name = if sample.name.is_empty() {
                    row_name(self.open.as_ref()?)
                } else {
                    sample.name
                };
                self.reject(&name, reason);
                None
            }
        }
    }

    /// Gives the sample its label, unless that is a class: one that is new has no number before the sample is accepted.
    fn check(
        &mut self,
        sample: &mut StreamSample,
        label: Option<FieldBytes>,
    ) -> std::result::Result<(), BadReason> {
        if sample.name.is_empty() {
            return Err(BadReason::Name("the row has none"));
        }
        if sample.name.len() > MAX_NAME_BYTES {
            return Err(BadReason::Name("is longer than 4,096 bytes"));
        }
        if sample.name.contains(&0) {
            return Err(BadReason::Name("holds a NUL"));
        }
        if self.names.contains(&xxh3_128(&sample.name)) {
            return Err(BadReason::Twice);
        }
        if sample.fields.iter().all(Option::is_none) {
            return Err(BadReason::Syntax("the row has none of the fields"));
        }
        if sample.len_bytes() as u64 > MAX_SAMPLE_BYTES {
            return Err(BadReason::TooLarge(sample.len_bytes() as u64));
        }
        self.class = None;
        match (self.classes.element, label) {
            (Some(element), Some(label)) => sample.label = self.classes.label(element, &label)?,
            (_, label) => self.class = label,
        }
        Ok(())
    }
}

impl SampleStream for RowSource<'_> {
    fn fields(&self) -> &[Vec<u8>] {
        &self.fields
    }

    fn field_types(&self) -> FieldTypes {
        self.types.clone()
    }

    fn classes(&self) -> &[Vec<u8>] {
        &self.classes.names
    }

    fn found_classes(&self) -> &[Vec<u8>] {
        &self.classes.names[self.known_classes..]
    }

    fn place(&self) -> Option<StreamPlace> {
        if !self.bad.is_empty() || self.failure.is_some() {
            return None;
        }
        let (input, entry, record) = match &self.open {
            None => (self.begun, self.from.0, 0),
            Some(open) => (self.begun - 1, open.reader.entry(open.rows), open.rows),
        };
        let Entry { at: offset, rows: left_out, named } = entry;
        Some(StreamPlace { input, offset, left_out, record, named, windows: 0 })
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

    fn accept(&mut self, sample: &mut StreamSample) {
        if let Some(class) = self.class.take() {
            sample.label = Some(self.classes.number(&class));
        }
        self.names.insert(xxh3_128(&sample.name));
    }

    fn reject(&mut self, name: &[u8], reason: BadReason) {
        let bad = BadEntry::new(name, reason);
        self.bad.push(match &self.open {
            Some(open) => bad.within(&open.input.path),
            None => bad,
        });
    }

    fn bad(&self) -> &[BadEntry] {
        &self.bad
    }
}

/// Labels as numbers, and the names of those that are classes.
struct Classes {
    names: Vec<Vec<u8>>,
    number_of: HashMap<Vec<u8>, i64>,
    /// The type of labels that are numbers.
    element: Option<Element>,
    /// Of each class that the open file numbers: its number in the image.
    of_file: Vec<i64>,
}

impl Classes {
    fn new(image: Option<&Directory>, column: Option<&Column>) -> Classes {
        let element = column.and_then(|column| match &column.kind {
            CellKind::Elements(kind) => Some(kind.element()),
            _ => None,
        });
        let mut classes =
            Classes { names: Vec::new(), number_of: HashMap::new(), element, of_file: Vec::new() };
        for name in image.map(Directory::classes).unwrap_or_default() {
            classes.number(name);
        }
        let of_file = column.map(|column| &column.classes[..]).unwrap_or_default();
        classes.of_file = classes.numbers(of_file);
        classes
    }

    /// The labels that follow are those of another file, in this column. Each file may number the classes in its own
    /// way; one that does not name them has the numbers of the one before.
    fn begin_file(&mut self, column: &Column) {
        if !self.of_file.is_empty() && !column.classes.is_empty() {
            self.of_file = self.numbers(&column.classes);
        }
    }

    fn numbers(&mut self, names: &[String]) -> Vec<i64> {
        names.iter().map(|name| self.number(name.as_bytes())).collect()
    }

    /// The number of a class; one that is new gets the next.
    fn number(&mut self, name: &[u8]) -> i64 {
        if let Some(number) = self.number_of.get(name) {
            return *number;
        }
        let number = self.names.len() as i64;
        self.names.push(name.to_vec());
        self.number_of.insert(name.to_vec(), number);
        number
    }

    /// The label that a number gives; one below 0 stands for none where numbers are those of classes.
    fn label(&self, element: Element, cell: &[u8]) -> std::result::Result<Option<i64>, BadReason> {
        let Number::Int(number) = number(element, cell) else {
            return Err(BadReason::Syntax("its label is no integer"));
        };
        if !self.of_file.is_empty() && number < 0 {
            return Ok(None);
        }
        let number = i64::try_from(number)
            .map_err(|_| BadReason::Syntax("its label is no number of 64 bits"))?;
        if !self.of_file.is_empty() {
            let class = usize::try_from(number).ok().and_then(|at| self.of_file.get(at));
            let class = class.copied().ok_or(BadReason::Syntax("its label is none of the classes"));
            return class.map(Some);
        }
        check_label(Some(number)).map_err(|_| BadReason::Syntax("its label cannot be stored"))?;
        Ok(Some(number))
    }
}
