//! What the paths of an import were found to be.

use std::path::PathBuf;

use super::beneath::Root;
use super::file_counts::FileCount;
use super::index::{BadEntry, Index};
use super::kind::SourceKind;
use crate::places::{Client, Object};

/// The kind of a source, and its files.
#[derive(Debug)]
pub struct Found {
    /// Never [`SourceKind::Auto`].
    pub kind: SourceKind,
    /// Shards or lists, in order; empty if the source is folders of samples.
    pub files: Vec<FoundFile>,
    /// Folders of samples, indexed.
    pub folders: Option<(Index, Vec<Root>)>,
    /// Objects of stores that are shards, in the order of `files`, which are their addresses; empty for files.
    pub objects: Vec<(Client, Vec<Object>)>,
    /// How every file was treated.
    pub file_counts: Vec<FileCount>,
    /// Entries beside shards that are not files.
    pub bad: Vec<BadEntry>,
}

/// A shard, list or stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundFile {
    /// How to open it; `-` is standard input.
    pub path: PathBuf,
    /// Prefix of its records' names: its path beneath the given folder, or its file name.
    pub name: Vec<u8>,
}
