//! Indexes of data sets whose shards hold rows: `index.json` of MosaicML Streaming and of LitData.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::kind::SourceKind;

/// The name of the index in both formats.
pub(crate) const INDEX: &[u8] = b"index.json";

/// The part of both formats' indexes that is read here: the names of the shard files.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AnyIndex {
    Mds { shards: Vec<Shard> },
    LitData { chunks: Vec<Chunk> },
}

#[derive(Debug, Deserialize)]
struct Shard {
    raw_data: Part,
    zip_data: Option<Part>,
}

#[derive(Debug, Deserialize)]
struct Part {
    basename: String,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    filename: String,
}

/// The kind of a data set with this `index.json`; `None`: the file is not an index of shards.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn kind_of(index: impl Read) -> io::Result<Option<SourceKind>> {
    let index = io::BufReader::new(index.take(MAX_INDEX_BYTES));
    match serde_json::from_reader(index) {
        Ok(AnyIndex::Mds { .. }) => Ok(Some(SourceKind::Mds)),
        Ok(AnyIndex::LitData { .. }) => Ok(Some(SourceKind::LitData)),
        Err(error) if error.is_io() => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// The paths of the shard files that an index names. The index is at `path` and has the bytes `index`. These files
/// are not samples themselves.
pub(crate) fn parts_of(path: &Path, index: &[u8]) -> Vec<PathBuf> {
    let names: Vec<String> = match serde_json::from_slice(index).ok() {
        Some(AnyIndex::Mds { shards }) => {
            let both = shards.into_iter().flat_map(|shard| [Some(shard.raw_data), shard.zip_data]);
            both.flatten().map(|part| part.basename).collect()
        }
        Some(AnyIndex::LitData { chunks }) => {
            chunks.into_iter().map(|chunk| chunk.filename).collect()
        }
        None => Vec::new(),
    };
    names.iter().filter_map(|name| beside(path, name)).collect()
}

/// The indexes that a merged index in a folder above replaces: all their parts are parts of such an index. Takes the
/// parts and the path of each index.
pub(crate) fn merged(indexes: &[(Vec<PathBuf>, PathBuf)]) -> HashSet<PathBuf> {
    let depth = |path: &Path| path.components().count();
    let mut by_depth: Vec<_> = indexes.iter().collect();
    by_depth.sort_by_key(|(_, path)| depth(path));
    let mut above = HashSet::new();
    let mut merged = HashSet::new();
    for level in by_depth.chunk_by(|a, b| depth(&a.1) == depth(&b.1)) {
        let is_merged =
            |parts: &[PathBuf]| !parts.is_empty() && parts.iter().all(|part| above.contains(part));
        merged.extend(level.iter().filter(|(parts, _)| is_merged(parts)).map(|it| it.1.clone()));
        above.extend(level.iter().flat_map(|(parts, _)| parts));
    }
    merged
}

/// The report's description of an index that a merged index replaces.
pub(crate) const MERGED: &str = "index file of shards that another index has";

/// The path of a file that an index names; `None` if the file is not beneath the folder of the index.
pub(crate) fn beside(index: &Path, name: &str) -> Option<PathBuf> {
    let is_beneath = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let folder = index.parent().unwrap_or(Path::new(""));
    (is_beneath && !name.is_empty()).then(|| folder.join(name))
}

/// Limit of an index's length: the index of a million shards is far smaller.
pub(crate) const MAX_INDEX_BYTES: u64 = 1 << 30;
