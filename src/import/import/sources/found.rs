//! The result of detecting an import's paths: the kind of the source, and its files.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::bad::BadEntry;
use super::file_counts::FileCounts;
use super::hub_splits::split_of;
use super::source_kind::SourceKind;
use super::tar::Pair;
use super::{Source, spool};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_places::{Client, Object, Place, Scheme};

/// The kind of a source, and its files.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Never [`SourceKind::Auto`].
    pub kind: SourceKind,
    /// Evidence for this kind, if it was detected among kinds that look alike.
    pub decided: Option<Decided>,
    /// Shards or lists, in order; empty if each sample is a file of a folder or an object.
    pub files: Vec<FoundFile>,
    /// The indexed source, if each sample is a file of a folder or an object.
    pub(super) samples: Option<Source>,
    /// Treatment of every file.
    pub file_counts: FileCounts,
    /// Entries beside shards that cannot be imported, such as dangling links and FIFOs.
    pub bad: Vec<BadEntry>,
}

/// Evidence that tells a plain tar archive, in which each file is a sample, from a WebDataset shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// The shards are WebDataset's: two consecutive files have one key.
    Pair {
        /// The shard.
        shard: Vec<u8>,
        /// The two files.
        pair: Pair,
    },
    /// No shard begins with a pair: each file is a sample, unless a pair is found later.
    NoPair,
}

impl Found {
    /// The shards `files`, with names that differ.
    pub(super) fn of_shards(
        kind: SourceKind,
        mut files: Vec<FoundFile>,
        file_counts: FileCounts,
    ) -> Found {
        tell_apart(&mut files);
        warn_of_splits(&files);
        Found { kind, files, file_counts, ..Found::default() }
    }

    /// Returns whether the files are streams, which are imported in the order in which they are read: pipes, objects or
    /// compressed archives.
    ///
    /// # Errors
    /// A path does not open. `InvalidArgument`: only some are streams.
    pub(crate) fn is_streams(&self) -> Result<bool> {
        if self.kind == SourceKind::List {
            return Ok(false);
        }
        let mut streams = 0;
        for FoundFile { path, object, .. } in &self.files {
            let is_packed = || spool::open(path).map(|(.., packed)| packed.is_some());
            let is_stream = object.is_some() || spool::is_stream(path) || is_packed()?;
            streams += usize::from(is_stream);
        }
        match streams {
            0 => Ok(false),
            all if all == self.files.len() => Ok(true),
            _ => {
                let message = "some of the sources are streams and some are not";
                Err(Error::new(ErrorKind::InvalidArgument, message).hint("use --spool DIR"))
            }
        }
    }
}

impl Decided {
    /// Decides from the name of each archive and the pair at its beginning, if any; stops at the first pair.
    ///
    /// # Errors
    /// Errors of reading an archive.
    pub(super) fn by(
        archives: impl Iterator<Item = Result<(Vec<u8>, Option<Pair>)>>,
    ) -> Result<Decided> {
        for archive in archives {
            if let (shard, Some(pair)) = archive? {
                return Ok(Decided::Pair { shard, pair });
            }
        }
        Ok(Decided::NoPair)
    }

    /// The kind that the evidence shows.
    pub(super) fn kind(&self) -> SourceKind {
        match self {
            Decided::Pair { .. } => SourceKind::WebDataset,
            Decided::NoPair => SourceKind::Tar,
        }
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decided::Pair { shard, pair: (first, second) } => write!(
                f,
                "{} and {} in {} have one key and are one sample; --from tar makes each file a sample",
                first.escape_ascii(),
                second.escape_ascii(),
                shard.escape_ascii()
            ),
            Decided::NoPair => f.write_str(
                "no two files that follow each other have one key, so each is a sample; --from webdataset takes keys",
            ),
        }
    }
}

/// Makes equal names distinct: prefixes them with as many components of their paths as that takes.
fn tell_apart(files: &mut [FoundFile]) {
    let mut by_name: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
    for (at, file) in files.iter().enumerate() {
        by_name.entry(file.name.clone()).or_default().push(at);
    }
    for same in by_name.into_values().filter(|same| same.len() > 1) {
        let paths: Vec<&Path> = same.iter().map(|&at| &*files[at].path).collect();
        for (&at, name) in same.iter().zip(ends_of(&paths)) {
            files[at].name = name;
        }
    }
}

/// The shortest suffixes of `paths`, in components, that are distinct; whole paths if no suffixes are.
pub(super) fn ends_of(paths: &[&Path]) -> Vec<Vec<u8>> {
    let absolute = |path: &&Path| {
        let absolute = std::path::absolute(path).ok().filter(|_| !Place::is_place(path));
        absolute.unwrap_or_else(|| path.to_path_buf())
    };
    let paths: Vec<PathBuf> = paths.iter().map(absolute).collect();
    let parts = |path: &PathBuf| -> Vec<Vec<u8>> {
        let parts = path.as_os_str().as_bytes().split(|&byte| byte == b'/');
        parts.filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let parts: Vec<_> = paths.iter().map(parts).collect();
    let most = parts.iter().map(Vec::len).max().unwrap_or(0);
    let mut ends = Vec::new();
    for count in 1..=most.max(1) {
        let end = |parts: &Vec<Vec<u8>>| parts[parts.len().saturating_sub(count)..].join(&b'/');
        ends = parts.iter().map(end).collect();
        if ends.iter().collect::<HashSet<_>>().len() == ends.len() {
            break;
        }
    }
    ends
}

/// A shard, list or stream: a file, or an object of a store.
#[derive(Debug, Clone)]
pub struct FoundFile {
    /// Path to open; `-` is standard input. For an object, its address.
    pub path: PathBuf,
    /// The path beneath the given folder, or the file name, with more of the path in front if other files have the same
    /// name. A prefix of the names of records.
    pub name: Vec<u8>,
    /// The object, if it is one.
    pub(crate) object: Option<(Client, Object)>,
}

impl FoundFile {
    /// A local file or stream.
    pub fn new(path: PathBuf, name: Vec<u8>) -> FoundFile {
        FoundFile { path, name, object: None }
    }
}

/// Warns if the files are shards of several splits: a user who names a whole folder may want only one split. Says
/// nothing about files on the Hub, for which `--split` exists.
fn warn_of_splits(files: &[FoundFile]) {
    let is_on_hub = |(client, _): &(Client, Object)| client.place().scheme() == Scheme::Hf;
    if files.iter().filter_map(|file| file.object.as_ref()).any(is_on_hub) {
        return;
    }
    let splits: BTreeSet<_> = files.iter().filter_map(|file| split_of(&file.name)).collect();
    if splits.len() > 1 {
        let splits = splits.into_iter().collect::<Vec<_>>().join(", ");
        tracing::warn!(
            "files of the splits {splits} become one data set; name those of one split to have it alone"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_get_what_tells_them_apart_in_front() {
        let file = |path: &str, name: &str| FoundFile::new(path.into(), name.into());
        let mut files = [
            file("/data/train/00.tar", "00.tar"),
            file("/data/val/00.tar", "00.tar"),
            file("/data/val/01.tar", "01.tar"),
            file("s3://a/x/p-0", "p-0"),
            file("s3://b/x/p-0", "p-0"),
        ];
        tell_apart(&mut files);
        let names = files.map(|file| String::from_utf8(file.name).unwrap());
        assert_eq!(names, ["train/00.tar", "val/00.tar", "01.tar", "a/x/p-0", "b/x/p-0"]);
        assert_eq!(ends_of(&[Path::new("/data/train/")]), [b"train"]);
    }
}
