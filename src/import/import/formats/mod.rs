//! Files of rows as sources: each row is a sample, and its columns are the fields, the label, the name.
//!
//! | kind      | files                                                    | read by                          |
//! |-----------|----------------------------------------------------------|----------------------------------|
//! | `parquet` | Parquet, of pyarrow, Spark, the hub of Hugging Face       | `parquet.rs`                     |
//! | `arrow`   | Arrow files and streams, as Hugging Face keeps them       | `ipc.rs`                         |
//! | `mds`     | `index.json` of MosaicML Streaming, and its shards        | `mds.rs`, `items.rs`             |
//! | `litdata` | `index.json` of LitData, and its chunks                   | `litdata.rs`, `items.rs`         |
//! | `jsonl`   | JSON Lines, whose values may name files                   | `json_lines.rs`, `json_survey.rs` |
//!
//! All but JSON Lines need the feature `formats`.
//!
//! All are read front to back; before, local JSON Lines and shards with arrays are read to find out their types.
//! `rows.rs` unifies the columns of all files and makes samples of rows, `column.rs` says which column is what. They
//! are local files or objects of a store: `input.rs` opens both, and `blocks.rs` reads an object at several places.

#[cfg(feature = "formats")]
mod ahead;
#[cfg(feature = "formats")]
mod array_header;
#[cfg(feature = "formats")]
mod arrow_cells;
#[cfg(feature = "formats")]
mod blocks;
mod column;
#[cfg(feature = "formats")]
mod guard;
#[cfg(feature = "formats")]
mod hashes;
#[cfg(feature = "formats")]
mod indexed;
mod input;
#[cfg(feature = "formats")]
mod ipc;
#[cfg(feature = "formats")]
mod items;
mod json_lines;
mod json_object;
mod json_survey;
mod json_text;
#[cfg(feature = "formats")]
mod litdata;
#[cfg(feature = "formats")]
mod mds;
#[cfg(feature = "formats")]
mod pages;
#[cfg(feature = "formats")]
mod parquet;
mod rows;
#[cfg(feature = "formats")]
mod stated_buffers;
#[cfg(feature = "formats")]
mod stated_pages;

use std::sync::Arc;

use parking_lot::Mutex;

use self::column::Column;
#[cfg(feature = "formats")]
use self::hashes::Stated;
use self::input::{Failure, InStore, Input};
#[cfg(feature = "formats")]
use self::items::{ItemFormat, ItemRows};
use self::json_lines::JsonLines;
use self::rows::RowReader;
pub use self::rows::RowSource;
use crate::import::options::{ImportOptions, RowOptions};
use crate::import::sources::expansion::Expansion;
#[cfg(feature = "formats")]
use crate::import::sources::objects::push_origin;
use crate::import::sources::{FoundFile, SourceKind};
use dlfs_base::Result;
use dlfs_format::directory::Directory;
use dlfs_format::format::OriginsBuilder;

/// The objects that are imported, of which more are found while rows are read.
pub(crate) type SharedOrigins = Arc<Mutex<OriginsBuilder>>;

/// The rows of `files` as samples; `image`: what they are appended to. Those that are objects are in `origins` already.
/// As many bytes are made of them as `expansion` allows. What tells their columns is read, and nothing else yet.
///
/// # Errors
/// A file does not open, or they have not the columns that `options` ask for.
pub fn open<'a>(
    files: Vec<FoundFile>,
    kind: SourceKind,
    image: Option<&'a Directory>,
    options: &'a ImportOptions,
    origins: &SharedOrigins,
    expansion: &Expansion,
) -> Result<RowSource<'a>> {
    let links = options.folders.links;
    #[cfg(not(feature = "formats"))]
    if let Some(file) = files.first().filter(|_| kind != SourceKind::JsonLines) {
        return Err(without_formats(kind, &file.path));
    }
    let failure = Failure::default();
    let indexes = match kind {
        SourceKind::Mds | SourceKind::LitData => files.len() as u64,
        _ => 0,
    };
    let mut rows = Vec::new();
    for FoundFile { path, name, object } in files {
        let object = object.map(|(client, object)| InStore {
            client,
            object,
            failure: failure.clone(),
            origins: origins.clone(),
        });
        let expansion = expansion.clone();
        let file = Given { input: Input { path, object, links, expansion }, name };
        match kind {
            #[cfg(feature = "formats")]
            SourceKind::Mds => rows.extend(noted(mds::shards(&file, &options.rows)?, origins)),
            #[cfg(feature = "formats")]
            SourceKind::LitData => {
                rows.extend(noted(litdata::shards(&file, &options.rows)?, origins))
            }
            #[cfg(feature = "formats")]
            SourceKind::Parquet => rows.push(RowFile::new(file, How::Parquet)),
            #[cfg(feature = "formats")]
            SourceKind::Arrow => rows.push(RowFile::new(file, How::Arrow)),
            _ => rows.push(RowFile::new(file, How::JsonLines)),
        }
    }
    RowSource::new(rows, indexes, kind, image, options)
}

#[cfg(feature = "formats")]
/// `shards`, which an index names; `origins` gets those that are objects.
fn noted(shards: Vec<RowFile>, origins: &SharedOrigins) -> Vec<RowFile> {
    for InStore { client, object, .. } in
        shards.iter().filter_map(|shard| shard.input.object.as_ref())
    {
        push_origin(&mut origins.lock(), client, object);
    }
    shards
}

/// A file that the user named, or that lies in a folder that he named.
#[derive(Debug)]
struct Given {
    input: Input,
    /// The name from which those of its rows are made.
    name: Vec<u8>,
}

/// A file of rows, and how it is read.
#[derive(Debug, Clone)]
struct RowFile {
    input: Input,
    /// The name from which those of its rows are made.
    stem: Vec<u8>,
    how: How,
}

/// How a file of rows is read.
#[derive(Debug, Clone)]
enum How {
    #[cfg(feature = "formats")]
    Parquet,
    #[cfg(feature = "formats")]
    Arrow,
    JsonLines,
    #[cfg(feature = "formats")]
    /// A shard with this format of items, of which an index states something.
    Items(Arc<ItemFormat>, Stated),
}

impl RowFile {
    fn new(file: Given, how: How) -> RowFile {
        RowFile { input: file.input, stem: file.name, how }
    }

    #[cfg(feature = "formats")]
    /// A shard that the index `given` calls `name`, with rows named as if it had been given itself.
    fn beside(given: &Given, name: &str, input: Input, how: How) -> RowFile {
        let folder = given.name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        RowFile { stem: [&given.name[..folder], name.as_bytes()].concat(), input, how }
    }

    /// Opens it, and reads what tells its columns, unless its format leaves that to those which are `known`.
    fn open(&self, options: &RowOptions, known: Option<&[Column]>) -> Result<Box<dyn RowReader>> {
        let opened: Result<Box<dyn RowReader>> = match &self.how {
            #[cfg(feature = "formats")]
            How::Parquet => parquet::open(&self.input, options),
            #[cfg(feature = "formats")]
            How::Arrow => ipc::open(&self.input, options),
            How::JsonLines => JsonLines::open(&self.input, options, known),
            #[cfg(feature = "formats")]
            How::Items(format, stated) => {
                // Whoever asks for the columns alone wants nothing of a store ahead.
                let ahead_bytes = known.is_none().then_some(0);
                ItemRows::open(&self.input, format.clone(), stated.clone(), ahead_bytes)
            }
        };
        self.input.check()?;
        opened
    }
}

/// The error of a build that does not read files of `kind`.
#[cfg(not(feature = "formats"))]
fn without_formats(kind: SourceKind, path: &std::path::Path) -> dlfs_base::Error {
    let text = format!("this build does not read sources of the kind {kind}");
    dlfs_base::Error::new(dlfs_base::ErrorKind::Unsupported, text).path(path).hint(WITHOUT_FORMATS)
}

/// The way to a build that reads them.
#[cfg(not(feature = "formats"))]
const WITHOUT_FORMATS: &str =
    "build with --features formats; released packages and the Python package have it";
