//! Index files that name the shards of a data set: `index.json` of MosaicML Streaming (MDS) and of LitData,
//! `PREFIX.idx` of Megatron. An import reads the shards through their index.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::source_kind::SourceKind;
use dlfs_base::Result;

/// The name of the index of MosaicML Streaming and LitData.
pub(crate) const INDEX: &[u8] = b"index.json";

/// The first bytes of an index of Megatron.
pub(crate) const MEGATRON_INDEX: &[u8] = b"MMIDIDX\0\0";

/// The part of an `index.json` that is read here: the names of the shard files.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AnyIndex {
    Mds { shards: Vec<MdsShard> },
    LitData { chunks: Vec<Chunk> },
}

/// A shard of MosaicML Streaming. A data set may have its file uncompressed, compressed, or both.
#[derive(Debug, Deserialize)]
struct MdsShard {
    raw_data: MdsFile,
    zip_data: Option<MdsFile>,
}

#[derive(Debug, Deserialize)]
struct MdsFile {
    basename: String,
}

/// A chunk of LitData.
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

/// The path of the tokens that Megatron's index at `index` describes; `None`: this is not the name of such an index.
pub(crate) fn tokens_of(index: &Path) -> Option<PathBuf> {
    let is_one = index.extension() == Some(OsStr::new("idx"));
    is_one.then(|| index.with_extension("bin"))
}

/// The path of Megatron's index, if `path` is an index, the tokens beside an index, or the prefix of both names.
pub(crate) fn megatron_index(path: &Path) -> Option<PathBuf> {
    let index = match path.extension().and_then(OsStr::to_str) {
        Some("idx" | "bin") => path.with_extension("idx"),
        _ if path.symlink_metadata().is_ok() => return None,
        _ => [path.as_os_str(), OsStr::new(".idx")].into_iter().collect::<OsString>().into(),
    };
    let mut head = [0; MEGATRON_INDEX.len()];
    // Opening a pipe would wait for its writer.
    let is_file = std::fs::metadata(&index).is_ok_and(|found| found.is_file());
    let mut read = || File::open(&index)?.read_exact(&mut head);
    (is_file && read().is_ok() && head == *MEGATRON_INDEX).then_some(index)
}

/// The paths of the shard files that the index at `path` names; `read` returns the bytes of the index. The shard files
/// are not samples themselves. A file that is not an index names none.
///
/// # Errors
/// Errors of `read`.
pub(crate) fn parts_of(
    path: &Path,
    read: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<PathBuf>> {
    if let Some(tokens) = tokens_of(path) {
        return Ok(vec![tokens]);
    }
    let names: Vec<String> = match serde_json::from_slice(&read()?).ok() {
        Some(AnyIndex::Mds { shards }) => {
            let both = shards.into_iter().flat_map(|shard| [Some(shard.raw_data), shard.zip_data]);
            both.flatten().map(|part| part.basename).collect()
        }
        Some(AnyIndex::LitData { chunks }) => {
            chunks.into_iter().map(|chunk| chunk.filename).collect()
        }
        None => Vec::new(),
    };
    Ok(names.iter().filter_map(|name| beside(path, name.as_ref())).collect())
}

/// The files beneath a folder or prefix that are not shards by themselves, because of the indexes there.
#[derive(Default)]
pub(crate) struct Indexed {
    /// Shard files that an index names.
    pub(crate) parts: HashSet<PathBuf>,
    /// Indexes that a merged index in a folder above replaces: the merged index names all of their shard files.
    pub(crate) merged: HashSet<PathBuf>,
}

impl Indexed {
    /// The files of `indexes`: for each, the paths of its shard files, and its own path.
    pub(crate) fn new(mut indexes: Vec<(Vec<PathBuf>, PathBuf)>) -> Indexed {
        let depth = |path: &Path| path.components().count();
        indexes.sort_by_key(|(_, path)| depth(path));
        let mut all = Indexed::default();
        for level in indexes.chunk_by(|a, b| depth(&a.1) == depth(&b.1)) {
            let is_merged = |parts: &[PathBuf]| {
                !parts.is_empty() && parts.iter().all(|part| all.parts.contains(part))
            };
            let merged = level.iter().filter(|(parts, _)| is_merged(parts));
            all.merged.extend(merged.map(|(_, path)| path.clone()));
            all.parts.extend(level.iter().flat_map(|(parts, _)| parts.iter().cloned()));
        }
        all
    }
}

/// The report's description of an index that a merged index replaces.
pub(crate) const MERGED: &str = "index file of shards that another index has";

/// The path of a file that an index names; `None` if the file is not beneath the folder of the index.
pub(crate) fn beside(index: &Path, name: &Path) -> Option<PathBuf> {
    let is_beneath = name.components().all(|part| matches!(part, Component::Normal(_)));
    let folder = index.parent().unwrap_or(Path::new(""));
    (is_beneath && !name.as_os_str().is_empty()).then(|| folder.join(name))
}

/// Limit of an index's length: the index of a million shards is far smaller.
pub(crate) const MAX_INDEX_BYTES: u64 = 1 << 30;
