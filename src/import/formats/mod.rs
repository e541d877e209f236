//! Files of rows as sources: each row is a sample, and its columns are the fields, the label, the name.
//!
//! | kind      | files                                                    | read by                          |
//! |-----------|----------------------------------------------------------|----------------------------------|
//! | `parquet` | Parquet, of pyarrow, Spark, the hub of Hugging Face       | `parquet.rs` (feature `formats`) |
//! | `arrow`   | Arrow files and streams, as Hugging Face keeps them       | `ipc.rs` (feature `formats`)     |
//! | `mds`     | `index.json` of MosaicML Streaming, and its shards        | `mds.rs`, `items.rs`             |
//! | `litdata` | `index.json` of LitData, and its chunks                   | `litdata.rs`, `items.rs`         |
//! | `jsonl`   | JSON Lines, whose values may name files                   | `json_lines.rs`                  |
//!
//! All are read front to back, once; `rows.rs` makes samples of rows, and `column.rs` says which column is what.

#[cfg(feature = "formats")]
mod ahead;
mod array_header;
#[cfg(feature = "formats")]
mod arrow_cells;
mod column;
#[cfg(feature = "formats")]
mod ipc;
mod items;
mod json_lines;
mod litdata;
mod mds;
#[cfg(feature = "formats")]
mod parquet;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;

use self::items::{ItemFormat, ItemRows};
use self::json_lines::JsonLines;
use self::rows::{RowReader, RowSource};
use crate::Result;
use crate::directory::Directory;
use crate::import::options::RowOptions;
use crate::import::sources::sample_stream::SampleStream;
use crate::import::sources::{FoundFile, SourceKind};

/// The rows of `files` as samples; `image`: what they are appended to.
///
/// # Errors
/// The first file does not open, or has not the columns that `options` ask for.
pub fn open<'a>(
    files: Vec<FoundFile>,
    kind: SourceKind,
    image: Option<&'a Directory>,
    options: &'a RowOptions,
) -> Result<Box<dyn SampleStream + 'a>> {
    let mut rows = Vec::new();
    for file in files {
        match kind {
            SourceKind::Mds => rows.extend(mds::shards(&file)?),
            SourceKind::LitData => rows.extend(litdata::shards(&file)?),
            SourceKind::Parquet => rows.push(RowFile::new(file, How::Parquet)),
            SourceKind::Arrow => rows.push(RowFile::new(file, How::Arrow)),
            _ => rows.push(RowFile::new(file, How::JsonLines)),
        }
    }
    Ok(Box::new(RowSource::new(rows, kind, image, options)?))
}

/// A file of rows, and how it is read.
#[derive(Debug)]
struct RowFile {
    path: PathBuf,
    /// What its rows are named after.
    stem: Vec<u8>,
    how: How,
}

/// How a file of rows is read.
#[derive(Debug, Clone)]
enum How {
    Parquet,
    Arrow,
    JsonLines,
    /// A shard with this format of items.
    Items(Arc<ItemFormat>),
}

impl RowFile {
    fn new(file: FoundFile, how: How) -> RowFile {
        RowFile { path: file.path, stem: file.name, how }
    }

    /// A shard of the index `found`, named as if it had been given itself.
    fn beside(found: &FoundFile, path: PathBuf, how: How) -> RowFile {
        let folder = found.name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let below = found.path.parent().and_then(|folder| path.strip_prefix(folder).ok());
        let name = below.unwrap_or(&path).as_os_str().as_encoded_bytes();
        RowFile { stem: [&found.name[..folder], name].concat(), path, how }
    }

    fn open(&self, options: &RowOptions) -> Result<Box<dyn RowReader>> {
        match &self.how {
            #[cfg(feature = "formats")]
            How::Parquet => parquet::open(&self.path, options),
            #[cfg(feature = "formats")]
            How::Arrow => ipc::open(&self.path),
            #[cfg(not(feature = "formats"))]
            How::Parquet | How::Arrow => Err(without_formats(&self.path)),
            How::JsonLines => JsonLines::open(&self.path, options),
            How::Items(format) => ItemRows::open(&self.path, format.clone()),
        }
    }
}

/// The error of a build that does not read these files.
#[cfg(not(feature = "formats"))]
fn without_formats(path: &std::path::Path) -> crate::Error {
    let text = "this build does not read Parquet and Arrow files";
    crate::Error::new(crate::ErrorKind::Unsupported, text)
        .path(path)
        .hint("build dlfs with the feature `formats`, which the released command and wheel have")
}
