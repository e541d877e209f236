//! Kinds of sources, by the names that users give them.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// Kinds of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceKind {
    /// Detect it from the first bytes.
    #[default]
    Auto,
    /// A folder tree; its top folders are the classes.
    Folder,
    /// A plain tar archive: every file is a sample.
    Tar,
    /// Tar shards in which files with the same key form a sample.
    WebDataset,
    /// TFRecord shards.
    TfRecord,
    /// A list of paths and labels.
    List,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SourceKind::Auto => "auto",
            SourceKind::Folder => "folder",
            SourceKind::Tar => "tar",
            SourceKind::WebDataset => "webdataset",
            SourceKind::TfRecord => "tfrecord",
            SourceKind::List => "list",
        })
    }
}

impl FromStr for SourceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<SourceKind> {
        Ok(match text {
            "auto" => SourceKind::Auto,
            "folder" => SourceKind::Folder,
            "tar" => SourceKind::Tar,
            "webdataset" => SourceKind::WebDataset,
            "tfrecord" => SourceKind::TfRecord,
            "list" => SourceKind::List,
            _ => {
                let message = format!("{text:?} is not a kind of source");
                return Err(Error::new(ErrorKind::InvalidArgument, message)
                    .hint("one of auto, folder, tar, webdataset, tfrecord, list"));
            }
        })
    }
}
