//! The options of an import, and its report. `progress.rs` has the reports while it runs.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serializer;

use crate::import::field_types::{FieldColumn, FieldSpec, typed_fields};
pub use crate::import::progress::{Progress, Stage};
use crate::import::sources::expansion::{DEFAULT_MAX_EXPANSION, Expansion};
use crate::import::sources::{BadEntry, Decided, FileCount, SourceKind, SourceOptions};
use dlfs_base::error::invalid;
use dlfs_base::folders::FolderOptions;
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::directory::commit::Commit;
use dlfs_format::format::columns::ColumnType;
use dlfs_format::format::field_type::{Element, FieldType};
use dlfs_format::format::geometry::DEFAULT_CHUNK_BYTES;
use dlfs_format::format::superblock::{Superblock, used_bytes};
use dlfs_format::format::{DraftLen, ImageLayout, Pack, Uuid};
use dlfs_places::PlaceOptions;

/// Options of an import. The defaults are the same as on the command line.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// The kind of the sources.
    pub from: SourceKind,
    /// Treatment of the image's existing contents.
    pub onto: Onto,
    /// The order of samples on the media.
    pub placement: PlacementOrder,
    /// Seed of the shuffled placement.
    pub seed: u64,
    /// Chunk size in bytes: a power of two from 64 KiB to 256 MiB.
    pub chunk_size_bytes: u32,
    /// Packing of samples in a chunk.
    pub pack: Pack,
    /// Treatment of entries that cannot be imported.
    pub on_error: OnError,
    /// A file with values for the samples, which become typed columns.
    pub columns: Option<ColumnsFrom>,
    /// Typed columns whose values come from fields.
    pub field_columns: Vec<FieldColumn>,
    /// Types of fields. An append need not repeat the types of the image's fields.
    pub field_types: Vec<FieldSpec>,
    /// Treatment of the columns, if the source consists of rows.
    pub rows: RowOptions,
    /// Splits to take from data sets on the Hugging Face hub, as their files name them. Empty: all files.
    pub splits: Vec<String>,
    /// Folder to which pipes and compressed archives are copied before their import. `None`: these can be imported only
    /// with [`PlacementOrder::Source`].
    pub spool: Option<PathBuf>,
    /// The names of all classes, in the order of their numbers. Empty: the classes of the image that is appended to,
    /// then the other classes of the source, sorted by name.
    pub classes: Vec<Vec<u8>>,
    /// Selects the entries of folders, archives and stores that are samples.
    pub folders: FolderOptions,
    /// Adds the folder, list or shard as a prefix to each name, but not to names in lists of objects. Otherwise a shard
    /// is a prefix only of names that also occur in an earlier shard.
    pub prefix: bool,
    /// Takes the files inside nested archives as samples, instead of the nested archives.
    pub nested: bool,
    /// Limit on expansion, in output bytes per input byte. It applies separately to decompression, to links to
    /// data that was read already, and to rows that share values. Each of these may always produce 256 MiB.
    pub max_expansion: u64,
    /// Options for reading object stores.
    pub places: PlaceOptions,
    /// Number of threads that read the source; 0: chosen for this machine.
    pub reader_threads: usize,
    /// UUID of a new image. `None`: random. If `time_ns` is set too, the same source gives the same bytes.
    pub uuid: Option<Uuid>,
    /// The time stamp of the new generation, in ns since 1970. `None`: now. An append takes the previous
    /// generation's time stamp instead if that is later.
    pub time_ns: Option<u64>,
    /// Duration of the lease: a namespace without its own lock stays reserved for this time after the
    /// importer's last renewal.
    pub lease: Duration,
    /// If a bad superblock copy may have committed a newer generation, writes the generation after the older
    /// one and discards the newer one. Otherwise such an import is refused.
    pub accept_older_generation: bool,
}

/// A file that assigns values to samples by name. The first line of CSV (`.csv`) and of tab-separated values
/// (`.tsv`) names the columns. In JSON Lines (`.jsonl`, `.ndjson`) each line is an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnsFrom {
    /// The file.
    pub path: PathBuf,
    /// The column with the samples' names. `None`: the column called name, file, filename, file_name, path, key
    /// or `__key__`, or else, not in JSON Lines, the first column.
    pub key: Option<String>,
    /// The columns to take, with their types; a type of `None` is derived from the values. Empty: all columns.
    pub only: Vec<(String, Option<ColumnType>)>,
}

/// Treatment of the columns of a source that consists of rows: Parquet, Arrow, MDS, LitData, documents of tokens, JSON
/// Lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowOptions {
    /// The column of the names. `None`: the name of the file that a line of JSON Lines names; otherwise, a row's
    /// name is made of its own file and its number there.
    pub name: Option<String>,
    /// The column of the labels: integers, or names of classes. `None`: the only column that the file declares
    /// to hold classes, as Hugging Face files do.
    pub label: Option<String>,
    /// The columns that become fields. Empty: with a tokenizer only the tokens, otherwise all other columns.
    pub fields: Vec<String>,
    /// The JSON Lines key whose values are paths of files, relative to the folder of the JSON Lines file. The
    /// files become the field `file`; if `file` is a key of the lines, or `fields` has this key, the field has the
    /// name of this key instead. `None`: `file_name`, as in Hugging Face image folders, unless `fields` leaves it out.
    pub files: Option<String>,
    /// The type of the tokens in raw files of tokens. An `.npy` file has its own.
    pub tokens: Option<Element>,
    /// The token behind each document in raw or `.npy` files of tokens, which is left out. If it is given,
    /// [`SourceKind::Auto`] stands for [`SourceKind::Tokens`].
    pub end_of_document: Option<u32>,
    /// A `tokenizer.json` of Hugging Face. The texts of rows become documents of its tokens, the field `tok`; documents
    /// of tokens are only checked against its vocabulary. The type of the field names it.
    pub tokenizer: Option<PathBuf>,
    /// The column of the texts, for the tokenizer. `None`: `text`.
    pub text: Option<String>,
    /// Accepts files that lack columns of other files: their rows have no value there. Otherwise such files are
    /// refused.
    pub union: bool,
}

/// Matches between a table of values and the samples of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColumnCounts {
    /// Samples with a row in the table.
    pub samples: u64,
    /// Samples without a row in the table. They have no values.
    pub samples_without: u64,
    /// Rows whose name is not a sample of this import.
    pub rows_without: u64,
}

/// Options of a delete or purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EditOptions {
    /// Same as [`ImportOptions::accept_older_generation`].
    pub accept_older_generation: bool,
}

/// Treatment of the image's existing contents by an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Onto {
    /// The image must be empty: a new file, or zeroes.
    #[default]
    Empty,
    /// Keeps the samples of the image. The new samples follow, as a new generation.
    Append,
    /// Resumes an interrupted import, with the options that it started with.
    Resume,
    /// Discards the existing contents.
    Force,
}

/// The order of samples on the media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum PlacementOrder {
    /// Shuffled by the seed, so that each chunk is a random sample of the data set
    #[default]
    Shuffled,
    /// In the order of the source
    Source,
}

/// Treatment of entries that cannot be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnError {
    /// List all of them and import nothing
    #[default]
    Stop,
    /// Import the rest, and list what was skipped
    Skip,
}

/// The error of an import that was asked to stop.
pub(super) fn stopped() -> Error {
    let message = "the import was stopped";
    Error::new(ErrorKind::Interrupted, message).hint("resume with dlfs import --resume")
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// The image.
    pub uuid: Uuid,
    /// The committed generation.
    pub generation: Generation,
    /// The kind of the source.
    pub kind: SourceKind,
    /// The reason for that kind, if archives could be of two kinds.
    pub decided: Option<Decided>,
    /// Samples that this import added.
    pub samples: u64,
    /// Bytes of these samples.
    pub sample_bytes: u64,
    /// Live samples of the image after the import.
    pub live_samples: u64,
    /// Number of chunks, found ones included.
    pub chunks: u64,
    /// Chunks that a resumed import found on the media.
    pub chunks_found: u64,
    /// Bytes in use by the image, on all namespaces.
    pub image_bytes: u64,
    /// Bytes of the new chunks and of the directory, by purpose. All zero if a resumed import was complete
    /// already.
    pub media: MediaUse,
    /// Packing of samples in the image.
    pub pack: Pack,
    /// Entries that were skipped, with `OnError::Skip`.
    pub bad: Vec<BadEntry>,
    /// The treatment of every file of the source.
    pub file_counts: Vec<FileCount>,
    /// Matches between the table of values and the samples, if a table was given.
    pub columns: Option<ColumnCounts>,
    /// The typed fields of the image, with their types.
    pub field_types: Vec<(Vec<u8>, FieldType)>,
}

impl ImportReport {
    /// The report of an import of `kind` that committed `directory`, without what only the import knows.
    pub(super) fn of(
        kind: SourceKind,
        directory: &Directory,
        superblocks: &[Superblock],
    ) -> ImportReport {
        ImportReport {
            uuid: directory.uuid(),
            generation: directory.generation(),
            kind,
            live_samples: directory.num_live(),
            image_bytes: used_bytes(superblocks),
            pack: directory.layout().pack,
            field_types: typed_fields(directory),
            ..ImportReport::default()
        }
    }
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions {
            from: SourceKind::Auto,
            onto: Onto::Empty,
            placement: PlacementOrder::Shuffled,
            seed: 0,
            chunk_size_bytes: DEFAULT_CHUNK_BYTES,
            pack: Pack::Aligned,
            on_error: OnError::Stop,
            columns: None,
            field_columns: Vec::new(),
            field_types: Vec::new(),
            rows: RowOptions::default(),
            splits: Vec::new(),
            spool: None,
            classes: Vec::new(),
            folders: FolderOptions::default(),
            prefix: false,
            nested: false,
            max_expansion: DEFAULT_MAX_EXPANSION,
            places: PlaceOptions::default(),
            reader_threads: 0,
            uuid: None,
            time_ns: None,
            lease: Duration::from_secs(10),
            accept_older_generation: false,
        }
    }
}

impl FromStr for PlacementOrder {
    type Err = Error;

    fn from_str(text: &str) -> Result<PlacementOrder> {
        let choices = [("shuffled", PlacementOrder::Shuffled), ("source", PlacementOrder::Source)];
        chosen(text, choices)
    }
}

impl FromStr for OnError {
    type Err = Error;

    fn from_str(text: &str) -> Result<OnError> {
        chosen(text, [("stop", OnError::Stop), ("skip", OnError::Skip)])
    }
}

/// Serializes a value as its `Display` string.
pub(super) fn as_text<S: Serializer>(
    value: &impl fmt::Display,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The value of `choices` that is called `text`.
fn chosen<T>(text: &str, choices: [(&str, T); 2]) -> Result<T> {
    let names = choices.each_ref().map(|(name, _)| *name).join(" or ");
    let found = choices.into_iter().find(|(name, _)| *name == text).map(|(_, value)| value);
    found.ok_or_else(|| invalid(format!("{text:?} is neither {names}")))
}

impl ImportOptions {
    /// The initial list of classes for an import: the classes of the image, or those given in the options.
    ///
    /// # Errors
    /// `InvalidArgument`: the given list does not begin with the image's list.
    pub(super) fn numbered(&self, image: Option<&Directory>) -> Result<Vec<Vec<u8>>> {
        let known = image.map(Directory::classes).unwrap_or_default();
        if self.classes.is_empty() {
            return Ok(known.to_vec());
        }
        if !self.classes.starts_with(known) {
            let text = "the image numbers its classes in another way than --classes does";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(self.classes.clone())
    }

    /// Refuses a source with classes that are not in the given list.
    ///
    /// # Errors
    /// `BadSource`: there is such a class.
    pub(super) fn check_classes(&self, of_source: &[Vec<u8>]) -> Result<()> {
        let known: HashSet<&Vec<u8>> = self.classes.iter().collect();
        let is_new = |class: &&Vec<u8>| !known.is_empty() && !known.contains(class);
        of_source.iter().find(is_new).map_or(Ok(()), |class| {
            let class = class.escape_ascii();
            let text = format!("the class {class} is none of those that --classes gives");
            Err(Error::new(ErrorKind::BadSource, text))
        })
    }
}

/// The options to open an import's source, which ignores the files `exclude`.
pub(super) fn source_options(options: &ImportOptions, exclude: Vec<(u64, u64)>) -> SourceOptions {
    let kind = match options.from {
        SourceKind::Auto if options.rows.end_of_document.is_some() => SourceKind::Tokens,
        kind => kind,
    };
    SourceOptions {
        kind,
        spool: options.spool.clone(),
        exclude,
        folders: options.folders,
        prefix: options.prefix,
        nested: options.nested,
        expansion: Expansion::new(options.max_expansion),
    }
}

/// The error for samples with the fields `given`, which are not those of the image. `whose` names the origin of the
/// samples, such as the source.
pub(super) fn other_fields(whose: &str, given: &[Vec<u8>], image: &[Vec<u8>]) -> Error {
    let list = |fields: &[Vec<u8>]| fields.join(&b", "[..]).escape_ascii().to_string();
    let text = format!(
        "samples of the {whose} have the fields [{}], those of the image [{}]",
        list(given),
        list(image)
    );
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Bytes that an import wrote, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MediaUse {
    /// Records of samples.
    pub sample_bytes: u64,
    /// Headers of chunks: checksums, lengths, labels, names and typed columns.
    pub header_bytes: u64,
    /// Bytes that aligned packing (the default) takes in addition to `--pack tight`. Counted in both modes; 0
    /// if both give the same image.
    pub alignment_bytes: u64,
    /// Other padding, of headers and chunks.
    pub padding_bytes: u64,
    /// The directory: the generation's record and its snapshot.
    pub directory_bytes: u64,
}

impl MediaUse {
    /// All bytes but samples, in an image that is packed by `pack`.
    pub fn overhead_bytes(&self, pack: Pack) -> u64 {
        self.header_bytes + self.padding_of(pack) + self.directory_bytes
    }

    /// All padding, in an image that is packed by `pack`.
    pub fn padding_of(&self, pack: Pack) -> u64 {
        self.padding_bytes + if pack == Pack::Tight { 0 } else { self.alignment_bytes }
    }

    /// Adds a chunk.
    pub(super) fn add(&mut self, chunk: &DraftLen, layout: &ImageLayout) {
        let whole = layout.cells_of(chunk.len_bytes()) * layout.cell_bytes();
        self.sample_bytes += chunk.record_bytes;
        self.header_bytes += chunk.header_bytes;
        self.alignment_bytes += chunk.alignment_bytes;
        self.padding_bytes += whole - chunk.header_bytes - chunk.data_bytes;
    }

    /// Adds the bytes that the commit writes.
    pub(super) fn with_commit(self, commit: &Commit) -> MediaUse {
        let cells = commit.record_range.cells + commit.snapshot_range.cells;
        let directory_bytes = cells * commit.directory.layout().cell_bytes();
        MediaUse { directory_bytes, ..self }
    }
}
