//! Kinds of sources, and their names on the command line.

use std::fmt;
use std::str::FromStr;

use dlfs_base::{Error, Result};

/// The kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum SourceKind {
    /// Detect the kind from the first bytes.
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
    /// Parquet files: every row is a sample.
    Parquet,
    /// Arrow files or streams: every row is a sample.
    Arrow,
    /// Shards of MosaicML Streaming, found through their `index.json`.
    Mds,
    /// Chunks of LitData, found through their `index.json`.
    LitData,
    /// Documents of tokens that Megatron-LM wrote, found through their `.idx` files.
    Megatron,
    /// Raw or `.npy` files of tokens: a token ends each document.
    Tokens,
    /// JSON Lines: every line is a sample, and may name a file that becomes a field.
    JsonLines,
}

impl SourceKind {
    /// All kinds.
    pub const ALL: [SourceKind; 13] = {
        use SourceKind::{Arrow, Auto, Folder, JsonLines, List, LitData, Mds, Megatron, Parquet};
        use SourceKind::{Tar, TfRecord, Tokens, WebDataset};
        [
            Auto, Folder, Tar, WebDataset, TfRecord, List, Parquet, Arrow, Mds, LitData, Megatron,
            Tokens, JsonLines,
        ]
    };

    /// The kind's name.
    pub fn name(self) -> &'static str {
        NAMES.split(' ').nth(self as usize).unwrap_or_default()
    }

    /// Returns whether index files name the shards.
    pub(crate) fn has_index(self) -> bool {
        matches!(self, SourceKind::Mds | SourceKind::LitData | SourceKind::Megatron)
    }

    /// Returns whether the source consists of rows, which are read once, front to back.
    pub fn is_rows(self) -> bool {
        use SourceKind::{Arrow, JsonLines, LitData, Mds, Megatron, Parquet, Tokens};
        matches!(self, Parquet | Arrow | Mds | LitData | Megatron | Tokens | JsonLines)
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SourceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<SourceKind> {
        let found = SourceKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let names = SourceKind::ALL.map(SourceKind::name);
            let message = format!("{text:?} is not a kind of source");
            Error::invalid(message, format!("one of {}", names.join(", ")))
        })
    }
}

/// The names of the kinds, in the order of [`SourceKind::ALL`].
const NAMES: &str =
    "auto folder tar webdataset tfrecord list parquet arrow mds litdata megatron tokens jsonl";
