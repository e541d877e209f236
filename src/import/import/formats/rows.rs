//! Samples from row files, read one file after the other.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::RowFile;
use super::classes::Classes;
use super::column::{CellKind, Cells, Chosen, Column, is_wanted, places};
use super::input::{Failure, FoundPages, Input, LOOKING_UP};
use crate::import::columns::{number, put_number};
use crate::import::field_types::{FieldSpec, is_named, type_in_image};
use crate::import::options::{ImportOptions, RowOptions};
use crate::import::sources::expansion::{Expands, Expansion};
use crate::import::sources::index::{MAX_NAME_BYTES, MAX_SAMPLE_BYTES, TOO_LONG_A_NAME};
use crate::import::sources::sample_stream::{FieldBytes, SampleStream, StreamPlace, StreamSample};
use crate::import::sources::{BadEntry, BadReason, FoundFile, SourceKind};
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::FieldTypes;
use dlfs_format::format::field_type::{FieldType, FileForm};
use dlfs_places::{Client, Object};

/// The columns of each row of a file, and its reader.
pub(super) type OpenRows = (Vec<Column>, Box<dyn RowReader>);

/// Reads the rows of a file, front to back.
pub(super) trait RowReader {
    /// Begins to read rows at `from`. Before, only the data that defines the columns was read.
    ///
    /// # Errors
    /// The file cannot be read, or does not have its format.
    fn begin(&mut self, from: StreamPlace) -> Result<()>;

    /// The place of the next row, after `rows` rows of the file, in the form that this reader's [`begin`](Self::begin)
    /// takes. In a file with batches, `offset` is the offset or the number of a batch.
    fn place(&self, rows: u64) -> StreamPlace {
        StreamPlace { left_out: rows, ..StreamPlace::default() }
    }

    /// Records again the objects that the rows up to byte `to` (`None`: all rows) name. `named` is the hash of the
    /// objects that earlier files name; returns the hash with these objects added.
    ///
    /// # Errors
    /// Errors of the store.
    fn recall(&mut self, _to: Option<u64>, named: u64) -> Result<u64> {
        Ok(named)
    }

    /// The name that the last row read defines itself, if it does.
    fn row_name(&self) -> Option<&[u8]> {
        None
    }

    /// Reads the next row into `cells`, one cell per column; `false` after the last row.
    ///
    /// # Errors
    /// A defect of the row, or of the rest of the file.
    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError>;
}

/// The reason why a row cannot be read.
#[derive(Debug)]
pub(super) enum RowError {
    /// The row is bad; the next one can be read.
    Row(BadReason),
    /// The row and the rest of the file cannot be read.
    File(BadReason),
}

impl From<BadReason> for RowError {
    fn from(reason: BadReason) -> RowError {
        RowError::Row(reason)
    }
}

/// The files of a source of rows, and the columns of all of them.
pub(crate) struct RowSet {
    /// The files, with the columns found in them.
    files: Vec<(RowFile, Vec<Column>)>,
    /// Number of index files that name them; 0 if the user named the files.
    indexes: u64,
    /// The objects that index files name.
    shards: Vec<(Client, Object)>,
    options: RowOptions,
    /// The columns of all files, each with the kind that holds its values in all files.
    columns: Vec<Column>,
    chosen: Chosen,
    fields: Vec<Vec<u8>>,
    types: FieldTypes,
    /// The classes that are known without reading rows.
    classes: Classes,
    /// Set until the classes that only rows name have numbers.
    is_unnumbered: bool,
    /// Set if all names are those of files and numbers, so that none comes twice and no hashes are kept.
    is_numbered: bool,
    /// Set if each name is prefixed with its file.
    prefix: bool,
}

/// The rows of files of one kind as samples.
pub struct RowSource {
    set: Arc<RowSet>,
    /// Numbers of the files that are not opened yet.
    left: Range<usize>,
    /// The file to open instead of the next one of the set.
    alone: Option<RowFile>,
    /// Number of the next input: index files come first, then the files opened or skipped so far.
    begun: u64,
    /// The place in the file that is opened next.
    from: StreamPlace,
    open: Option<OpenFile>,
    classes: Classes,
    /// The class name of the last row read, until the row is accepted.
    class: Option<FieldBytes>,
    /// Set until the classes that only rows name have numbers.
    is_unnumbered: bool,
    /// Hashes of the sample names so far.
    names: HashSet<u128>,
    /// Hashes of the names of this file's rows, before a prefix is added.
    own_names: HashSet<u128>,
    /// The same hash of the last row read.
    own_name: u128,
    /// Set while `names` are all of the open file, which is the first one and was resumed.
    is_first: bool,
    bad: Vec<BadEntry>,
    /// The error that ends the import.
    failure: Option<Error>,
    cells: Cells,
}

struct OpenFile {
    reader: Box<dyn RowReader>,
    input: Input,
    /// Prefix of its rows' names.
    stem: Vec<u8>,
    /// For each column of all files, its place in this file; `None` if this file lacks the column.
    places: Vec<Option<Place>>,
    rows: u64,
    has_begun: bool,
}

/// The index of a column in a file, and the types of its values in the file and in the image, if these differ.
struct Place {
    at: usize,
    types: Option<(FieldType, FieldType)>,
}

impl Place {
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
    /// The rows of `files`. `indexes`: number of index files that name them; 0 if the user named the files. `image`:
    /// the image that the rows are appended to.
    ///
    /// # Errors
    /// A file does not open, or lacks a column that the options select, or the files' columns differ.
    pub(super) fn new(
        files: Vec<RowFile>,
        indexes: u64,
        kind: SourceKind,
        image: Option<&Directory>,
        given: &ImportOptions,
    ) -> Result<RowSet> {
        let options = &given.rows;
        let Some(first) = files.first() else {
            let text = format!("there is no {kind} file");
            return Err(Error::new(ErrorKind::BadSource, text));
        };
        let path = first.input.path.clone();
        let objects = files.iter().filter(|_| indexes > 0).filter_map(RowFile::object);
        let shards = objects.collect();
        let own = map_at_once(LOOKING_UP, &files, |file| Ok(file.open(options, None)?.0))?;
        let types = Types { given: &given.field_types, image, kind };
        let columns = unified(&files, &own, options, &types)?;
        let stems = files.iter().map(|file| &file.stem).collect::<HashSet<_>>().len();
        let is_numbered =
            matches!(kind, SourceKind::Megatron | SourceKind::Tokens) && stems == files.len();
        let type_in_image = image.map(Directory::fields);
        let chosen =
            Chosen::new(&columns, options, type_in_image).map_err(|error| error.path(path))?;
        let field = |at: &usize| columns[*at].name.clone().into_bytes();
        let label = chosen.label.map(|at| &columns[at]);
        let classes = Classes::new(image, &given.classes, label);
        let is_by_name = label.is_some() && classes.element.is_none() && given.classes.is_empty();
        Ok(RowSet {
            files: files.into_iter().zip(own).collect(),
            indexes,
            shards,
            options: options.clone(),
            fields: chosen.fields.iter().map(field).collect(),
            types: chosen.types(&columns),
            columns,
            chosen,
            classes,
            is_unnumbered: is_by_name,
            is_numbered,
            prefix: given.prefix,
        })
    }

    /// Names of the fields, and the types that the files define.
    pub(crate) fn layout(&self) -> (Vec<Vec<u8>>, FieldTypes) {
        (self.fields.clone(), self.types.clone())
    }

    /// The names of the classes that are known.
    pub(crate) fn classes(&self) -> &[Vec<u8>] {
        &self.classes.names
    }

    /// Numbers the classes of all files in the order in which an import would, so that each file can be read alone.
    ///
    /// # Errors
    /// As [`RowSource::begin`].
    pub(crate) fn with_all_classes(mut self) -> Result<RowSet> {
        let Some(label) = self.chosen.label else { return Ok(self) };
        let name = self.columns[label].name.clone();
        for (_, own) in &self.files {
            if let Some(column) = own.iter().find(|column| column.name == name) {
                self.classes.numbers(&column.classes);
            }
        }
        if std::mem::take(&mut self.is_unnumbered) {
            let names = self.label_names()?;
            self.classes.numbers(names);
        }
        Ok(self)
    }

    /// The names of the classes that rows name. They are read before the rows, so that classes are numbered in the
    /// order of their names, as folders are. Bad rows are reported when rows are read.
    ///
    /// # Errors
    /// A file does not open. Errors of the store.
    fn label_names(&self) -> Result<BTreeSet<Vec<u8>>> {
        let Some(label) = self.chosen.label else { return Ok(BTreeSet::new()) };
        let label = &self.columns[label].name;
        let only = RowOptions {
            label: Some(label.clone()),
            fields: vec![label.clone()],
            union: true,
            ..RowOptions::default()
        };
        let mut columns = self.columns.clone();
        columns.iter_mut().for_each(|column| column.files_of = None); // do not read files that rows name
        let names = |(file, _): &(RowFile, Vec<Column>)| names_in(file, &columns, &only, label);
        Ok(map_at_once(LOOKING_UP, &self.files, names)?.into_iter().flatten().collect())
    }

    /// The path, the object and the prefix of names of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = FoundFile> + '_ {
        self.files.iter().map(|(file, _)| {
            let RowFile { input, stem, .. } = file;
            FoundFile { path: input.path.clone(), name: stem.clone(), object: file.object() }
        })
    }

    /// The known pages of file number `number`; see [`FoundPages`].
    pub(crate) fn pages(&self, number: usize) -> &FoundPages {
        &self.files[number].0.input.pages
    }

    /// The rows of file number `number` alone, from `from` on. `part`: only those before this offset, and as many, are
    /// wanted, and no more is requested of an object where that can be. `expansion` limits the bytes that they expand
    /// to.
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
        (rows.from, rows.is_unnumbered) = (from, false);
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

    fn of(set: &Arc<RowSet>) -> RowSource {
        RowSource {
            left: 0..set.files.len(),
            alone: None,
            begun: set.indexes,
            from: StreamPlace::default(),
            open: None,
            classes: set.classes.clone(),
            class: None,
            is_unnumbered: set.is_unnumbered,
            names: HashSet::new(),
            own_names: HashSet::new(),
            own_name: 0,
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
        self.is_unnumbered = false;
        self.classes.numbers(classes);
        self.go_to(place)?; // a file that this opens is not the first
        Ok(self)
    }

    /// Begins to read rows, if that has not happened; `false` if there are no more rows.
    ///
    /// # Errors
    /// The next file does not open.
    pub(crate) fn begin(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.is_unnumbered) {
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
        let (file, mut own) = files[number].clone();
        let file = self.alone.take().unwrap_or(file);
        let all = places(columns);
        for own in &mut own {
            if let Some(at) = all.get(&own.name) {
                own.kind = columns[*at].kind.clone();
            }
        }
        let (own, reader) = file.open(options, Some(&own))?;
        let place_of = places(&own);
        let place = |all: &Column| {
            let at = *place_of.get(&all.name)?;
            let types = match (&own[at].kind, &all.kind) {
                (CellKind::Elements(own), CellKind::Elements(all)) if !own.has_layout_of(all) => {
                    Some((own.clone(), all.clone()))
                }
                _ => None,
            };
            Some(Place { at, types })
        };
        let places: Vec<Option<Place>> = columns.iter().map(place).collect();
        if let Some(place) = chosen.label.and_then(|at| places[at].as_ref()) {
            self.classes.begin_file(&own[place.at]);
        }
        self.own_names.clear();
        self.is_first = false;
        self.cells.clear();
        let RowFile { input, stem, .. } = file;
        self.open = Some(OpenFile { reader, input, stem, places, rows: 0, has_begun: false });
        self.begun += 1;
        Ok(true)
    }

    /// The sample of the next row. `None`: the file has no more rows, or the row is bad.
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
        let place = self.open.as_ref().and_then(|open| open.places[at].as_ref());
        place.map_or(Ok(None), |place| place.take(&mut self.cells, &self.set.columns[at]))
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
        self.put_in_front(sample)?;
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
    fn put_in_front(&mut self, sample: &mut StreamSample) -> Result<(), BadReason> {
        if self.set.is_numbered {
            return TOO_LONG_A_NAME.unless(sample.name.len() <= MAX_NAME_BYTES);
        }
        self.own_name = xxh3_128(&sample.name);
        BadReason::Twice.unless(!self.own_names.contains(&self.own_name))?;
        let Some(open) = &self.open else { return Ok(()) };
        let brings = self.set.chosen.name.is_some() || open.reader.row_name().is_some();
        let is_of_another = !self.is_first && self.names.contains(&self.own_name);
        if self.set.prefix && brings || is_of_another {
            sample.name = [&open.stem[..], b"/", &sample.name].concat();
        }
        TOO_LONG_A_NAME.unless(sample.name.len() <= MAX_NAME_BYTES)?;
        BadReason::Twice.unless(!self.names.contains(&xxh3_128(&sample.name)))
    }
}

const NO_CLASS: &str = "its class is none of those that --classes gives";

const ALONE: &str = "the row has no value in the only column, whose type has a length";
const NO_VALUE: &str = "the row has no value in the only field, whose type has a length: take another column as well, \
                        with --fields";

/// The options and the image, which define the types of columns in the image.
struct Types<'a> {
    given: &'a [FieldSpec],
    image: Option<&'a Directory>,
    kind: SourceKind,
}

impl Types<'_> {
    /// The kind that a column with `kind` in the files has in the image. `None`: its values stay as they are, since
    /// options and image define no type, or since they are the bytes of elements already.
    fn of(&self, name: &str, kind: &CellKind) -> Option<CellKind> {
        let given = self.given.iter().find(|spec| is_named(name.as_bytes(), &spec.field));
        let kept = given
            .map_or_else(|| type_in_image(self.image, name.as_bytes()), |spec| spec.kind.clone());
        let kept = kept.filter(|kept| kept.form() == FileForm::Raw)?;
        // Bytes in binary files are the elements themselves; strings in JSON Lines are not.
        let is_raw = *kind == CellKind::Bytes && self.kind != SourceKind::JsonLines;
        (!is_raw).then_some(CellKind::Elements(kept))
    }
}

const HOW_TO_UNITE: &str = "--columns union imports the rows of such files without a value there, \
                            --fields takes other columns";

/// Combines the columns of all files. Each gets the kind that holds its values in all files.
fn unified(
    files: &[RowFile],
    own: &[Vec<Column>],
    options: &RowOptions,
    types: &Types<'_>,
) -> Result<Vec<Column>> {
    let shown = |file: &RowFile| file.input.path.display().to_string();
    // Each column, with the first file that has values in it.
    let mut all: Vec<(Column, usize)> = Vec::new();
    let mut known_at: HashMap<&str, usize> = HashMap::new();
    for (file, own) in own.iter().enumerate() {
        for column in own.iter().filter(|column| is_wanted(column, options)) {
            let known = known_at.get(&*column.name).copied();
            let Some(known) = known.filter(|_| file > 0) else {
                known_at.entry(&column.name).or_insert(all.len());
                all.push((column.clone(), file));
                continue;
            };
            let (known, first) = &mut all[known];
            if known.kind == CellKind::Nothing {
                *first = file;
            }
            let both = known.kind.with(&column.kind);
            let is_given = types.of(&known.name, &known.kind).is_some()
                && types.of(&known.name, &column.kind).is_some();
            known.kind = both.or(is_given.then(|| known.kind.clone())).ok_or_else(|| {
                let name = &known.name;
                let one = known.shown();
                let other = column.shown();
                let first = shown(&files[*first]);
                let file = shown(&files[file]);
                let text = format!("column {name} holds {one} in {first}, and {other} in {file}");
                Error::new(ErrorKind::BadSource, text).hint(match (&known.kind, &column.kind) {
                    (CellKind::Elements(_), CellKind::Elements(_)) => format!(
                        "--field-type {name}:TYPE gives it a type that holds both, --fields takes other columns"
                    ),
                    _ => "choose other columns with --fields".to_owned(),
                })
            })?;
        }
    }
    let places: Vec<_> = own.iter().map(|own| places(own)).collect();
    for (column, first) in &mut all {
        let is_without = |own: &HashMap<String, usize>| !own.contains_key(&column.name);
        if let Some(without) = places.iter().position(is_without).filter(|_| !options.union) {
            let with = shown(&files[*first]);
            let without = shown(&files[without]);
            let text = format!("column {} is in {with}, and not in {without}", column.name);
            return Err(Error::new(ErrorKind::BadSource, text).hint(HOW_TO_UNITE));
        }
        if let Some(kind) = types.of(&column.name, &column.kind) {
            column.kind = kind;
        }
    }
    // Columns that are not selected appear only in messages.
    let others = own.iter().take(1).flatten().filter(|column| !is_wanted(column, options));
    Ok(all.into_iter().map(|(column, _)| column).chain(others.cloned()).collect())
}

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

    fn accept(&mut self, sample: &mut StreamSample) {
        if let Some(class) = self.class.take() {
            sample.label = Some(self.classes.number(&class));
        }
        if !self.set.is_numbered {
            self.own_names.insert(self.own_name);
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

/// The strings in the column `label` of a file.
fn names_in(
    file: &RowFile,
    columns: &[Column],
    only: &RowOptions,
    label: &str,
) -> Result<BTreeSet<Vec<u8>>> {
    let mut names = BTreeSet::new();
    let (own, mut reader) = file.open(only, Some(columns))?;
    let Some(at) = places(&own).get(label).copied() else { return Ok(names) };
    reader.begin(StreamPlace::default())?;
    let mut cells = Cells::new();
    loop {
        match reader.next_row(&mut cells) {
            Ok(true) => {
                if let Some(Some(name)) = cells.get(at)
                    && !names.contains(&name[..])
                {
                    names.insert(name.to_vec());
                }
            }
            Err(RowError::Row(_)) => {}
            Ok(false) | Err(RowError::File(_)) => break,
        }
    }
    file.input.check()?;
    Ok(names)
}
