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
use crate::import::sources::sample_stream::{FieldBytes, SampleStream, StreamSample};
use crate::import::sources::{BadEntry, BadReason, SourceKind};
use crate::{Error, ErrorKind, Result};

/// Reads the rows of a file, front to back.
pub(super) trait RowReader {
    /// The columns of each row.
    fn columns(&self) -> &[Column];

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
pub(super) struct RowSource<'a> {
    files: std::vec::IntoIter<RowFile>,
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
}

impl<'a> RowSource<'a> {
    /// The rows of `files`, to become samples of `image` if it is appended to.
    ///
    /// # Errors
    /// The first file does not open, or has other columns than `options` ask for.
    pub(super) fn new(
        files: Vec<RowFile>,
        kind: SourceKind,
        image: Option<&'a Directory>,
        options: &'a RowOptions,
    ) -> Result<RowSource<'a>> {
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
        let open = OpenFile { reader, input: first.input, stem: first.stem, places, rows: 0 };
        Ok(RowSource {
            files,
            options,
            open: Some(open),
            types: chosen.types(&columns),
            columns,
            chosen,
            fields,
            classes,
            class: None,
            names: HashSet::new(),
            bad: Vec::new(),
            failure: None,
            cells: Cells::new(),
        })
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
        self.open = Some(OpenFile { reader, input: file.input, stem: file.stem, places, rows: 0 });
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

    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        while self.open.is_some() || self.open_next()? {
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
