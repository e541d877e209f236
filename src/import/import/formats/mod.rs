//! Row files as sources: each row is a sample, and its columns are the fields, the label and the name.
//!
//! | kind      | files                                                    | read by                          |
//! |-----------|----------------------------------------------------------|----------------------------------|
//! | `parquet` | Parquet, of pyarrow, Spark, the hub of Hugging Face       | `binary/parquet.rs`              |
//! | `arrow`   | Arrow files and streams, as Hugging Face keeps them       | `binary/ipc.rs`                  |
//! | `mds`     | `index.json` of MosaicML Streaming, and its shards        | `binary/mds.rs`, `binary/items.rs` |
//! | `litdata` | `index.json` of LitData, and its chunks                   | `binary/litdata.rs`, `binary/items.rs` |
//! | `megatron` | `PREFIX.idx` of Megatron-LM, beside `PREFIX.bin`         | `megatron.rs`                    |
//! | `tokens`  | raw `.bin` and `.npy` files of tokens                     | `tokens.rs`                      |
//! | `jsonl`   | JSON Lines, whose values may name files                   | `json_lines.rs`, `survey.rs`     |
//!
//! The first four need the feature `formats`. With the feature `tokens`, texts of rows become tokens: `texts.rs`.
//!
//! Rows are read front to back. A first pass reads JSON Lines, and shards with arrays, to find their types; in a store,
//! it reads only the beginning of an object. `row_set.rs` combines the columns of all files, `column.rs` chooses their
//! roles, and `rows.rs` makes samples of rows, which a `RowReader` of each format reads. Files are local, or objects of
//! a store: `input.rs` opens both, and `binary/blocks.rs` reads an object at several places.

#[cfg(feature = "formats")]
mod binary;
mod classes;
mod column;
mod input;
mod json;
mod json_lines;
mod megatron;
mod named_files;
mod row_set;
mod rows;
mod survey;
#[cfg(feature = "tokens")]
mod texts;
mod tokens;

use std::sync::Arc;

use parking_lot::Mutex;

use self::column::{Cells, Column};
use self::input::{Failure, FoundPages, InStore, Input};
use self::json_lines::JsonLines;
use self::megatron::megatron_file;
pub(crate) use self::row_set::RowSet;
pub use self::rows::RowSource;
#[cfg(feature = "tokens")]
pub use self::texts::Encoder;
pub(crate) use self::tokens::FIELD as TOKENS_FIELD;
use self::tokens::TokenFile;
use crate::import::field_types::{FieldSpec, is_named, type_in_image};
use crate::import::options::{ImportOptions, RowOptions};
use crate::import::sources::expansion::Expansion;
use crate::import::sources::sample_stream::StreamPlace;
use crate::import::sources::{BadReason, FoundFile, SourceKind};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::OriginsBuilder;
use dlfs_places::{Client, Object};

/// The imported objects; reading rows may add more.
pub(crate) type SharedOrigins = Arc<Mutex<OriginsBuilder>>;

/// Opens the rows of `files`, all of the kind `kind`, as samples. Reads only the data that defines the columns.
///
/// `image` is the image that the rows are appended to, if any. `encoder` makes tokens of texts; the type of their field
/// is in `options`. `origins` has the objects among `files` already. `expansion` limits the bytes that rows expand to.
///
/// # Errors
/// A file does not open, or lacks a column that `options` select.
pub fn open(
    files: Vec<FoundFile>,
    kind: SourceKind,
    image: Option<&Directory>,
    options: &ImportOptions,
    encoder: Option<&Arc<Encoder>>,
    origins: &SharedOrigins,
    expansion: &Expansion,
) -> Result<RowSource> {
    RowSource::new(survey(files, kind, image, options, encoder, origins, expansion)?)
}

/// As [`open`], for rows that are read later. Opens all files to find their columns.
///
/// # Errors
/// As [`open`].
pub(crate) fn survey(
    files: Vec<FoundFile>,
    kind: SourceKind,
    image: Option<&Directory>,
    options: &ImportOptions,
    encoder: Option<&Arc<Encoder>>,
    origins: &SharedOrigins,
    expansion: &Expansion,
) -> Result<RowSet> {
    let links = options.folders.links;
    let failure = Failure::default();
    let indexes = if kind.has_index() { files.len() as u64 } else { 0 };
    let RowOptions { tokens, end_of_document, .. } = &options.rows;
    if kind != SourceKind::Tokens && (tokens.is_some() || end_of_document.is_some()) {
        let text =
            format!("only raw files of tokens have an end of documents, and these are {kind}");
        let hint = "leave out --tokens and --end-of-document";
        return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
    }
    let is_given = |spec: &&FieldSpec| is_named(tokens::FIELD.as_bytes(), &spec.field);
    let given = options.field_types.iter().find(is_given);
    let is_typed = given.is_some() || type_in_image(image, tokens::FIELD.as_bytes()).is_some();
    let mut rows = Vec::new();
    for FoundFile { path, name, object } in files {
        let object = object.map(|(client, object)| InStore {
            client,
            object,
            failure: failure.clone(),
            origins: origins.clone(),
        });
        let expansion = expansion.clone();
        let pages = FoundPages::default();
        let input =
            Input { path, object, links, expansion, part_end: None, part_rows: None, pages };
        rows.extend(row_files(input, name, kind, is_typed, &options.rows)?);
    }
    if let (Some(encoder), Some(kind)) = (encoder, given.and_then(|spec| spec.kind.as_ref())) {
        rows = rows.into_iter().map(|file| encoder.encoding(file, kind)).collect();
    }
    let rows = RowSet::new(rows, indexes, kind, image, options)?;
    if matches!(kind, SourceKind::Megatron | SourceKind::Tokens)
        && !is_typed
        && let Some(of_all) = rows.layout().1.of(0)
    {
        tokens::column(of_all.element(), is_typed)?; // files of different types may need a wider one
    }
    Ok(rows)
}

/// The file `input`, called `name`, or the files that it names if it is an index. `is_typed`: options or image define
/// the type of the field of tokens.
///
/// # Errors
/// An index cannot be read. `Unsupported`: this build does not read files of this kind.
fn row_files(
    input: Input,
    name: Vec<u8>,
    kind: SourceKind,
    is_typed: bool,
    options: &RowOptions,
) -> Result<Vec<RowFile>> {
    let open: Arc<Open> = match kind {
        SourceKind::JsonLines => Arc::new(JsonLines::open),
        SourceKind::Tokens => {
            Arc::new(move |input, options, _| TokenFile::open(input, options, is_typed))
        }
        SourceKind::Megatron => return Ok(vec![megatron_file(input, &name, is_typed)?]),
        #[cfg(feature = "formats")]
        kind => return binary::files(input, name, kind, options),
        #[cfg(not(feature = "formats"))]
        kind => {
            let _ = options; // only the other formats choose columns when they open an index
            let text = format!("this build does not read sources of the kind {kind}");
            return Err(Error::new(ErrorKind::Unsupported, text)
                .path(input.path)
                .hint(WITH_FORMATS));
        }
    };
    Ok(vec![RowFile { input, stem: name, open }])
}

/// Hint in errors of a build without these formats.
#[cfg(not(feature = "formats"))]
const WITH_FORMATS: &str =
    "build with --features formats; released packages and the Python package have it";

/// An encoder of texts, which this build does not have.
#[cfg(not(feature = "tokens"))]
pub enum Encoder {}

#[cfg(not(feature = "tokens"))]
impl Encoder {
    pub(crate) fn new(path: &std::path::Path, _: &[u8], _: u32, _: usize) -> Result<Encoder> {
        let error = Error::new(ErrorKind::Unsupported, "this build does not encode texts");
        let hint = "build with --features tokens; released packages and the Python package have it";
        Err(error.path(path).hint(hint))
    }

    fn encoding(self: &Arc<Encoder>, _: RowFile, _: &dlfs_format::format::FieldType) -> RowFile {
        match **self {}
    }
}

/// A row file, and the function that opens it.
#[derive(Clone)]
struct RowFile {
    input: Input,
    /// Prefix of the names of its rows.
    stem: Vec<u8>,
    open: Arc<Open>,
}

/// Opens a file and finds its columns. With known columns, a format may skip the search.
type Open = dyn Fn(&Input, &RowOptions, Option<&[Column]>) -> Result<OpenRows> + Send + Sync;

impl RowFile {
    /// The object of a store that the file is, if it is one.
    fn object(&self) -> Option<(Client, Object)> {
        let at = self.input.object.as_ref()?;
        Some((at.client.clone(), at.object.clone()))
    }

    fn open(&self, options: &RowOptions, known: Option<&[Column]>) -> Result<OpenRows> {
        let opened = (self.open)(&self.input, options, known);
        self.input.check()?;
        opened
    }
}

/// The columns of a file, and the reader of its rows.
type OpenRows = (Vec<Column>, Box<dyn RowReader>);

/// Reads the rows of a file, front to back.
trait RowReader {
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

    /// The name that the last row read gives itself; `None`: rows have no names.
    fn row_name(&self) -> Option<&[u8]> {
        None
    }

    /// Returns whether all rows were decoded ahead: nothing more is read of the file.
    fn is_decoded(&self) -> bool {
        false
    }

    /// Reads the next row into `cells`, one cell per column; `false` after the last row.
    ///
    /// # Errors
    /// A defect of the row, or of the rest of the file.
    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError>;
}

/// The reason why a row cannot be read.
#[derive(Debug)]
enum RowError {
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
