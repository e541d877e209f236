//! The result of detecting the kind and the files of an import's paths.
//!
//! On the Hugging Face Hub, names tell the splits of files. A split here is a named part of a data set, such as
//! `train`, made by the author of the data set. dlfs's own splits, which divide samples by a hash, have nothing to do
//! with it.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Source;
use super::file_counts::{FileCounts, SourceKind};
use super::index::BadEntry;
use super::tar::Pair;
use dlfs_base::Result;
use dlfs_places::{Client, Object, Place, Scheme};

/// The kind of a source, and its files.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Never [`SourceKind::Auto`].
    pub kind: SourceKind,
    /// Evidence for this kind, if it was detected among kinds that look alike.
    pub decided: Option<Decided>,
    /// Shards or lists, in order; empty if the samples are files of folders, or objects.
    pub files: Vec<FoundFile>,
    /// Indexed samples, if each sample is a file of a folder or an object.
    pub(super) samples: Option<Source>,
    /// Treatment of every file.
    pub file_counts: FileCounts,
    /// Entries beside shards that are not regular files.
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
    /// No shard begins with such a pair: each file is a sample, unless a pair is found later.
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
    /// Prefix of its records' names: its path beneath the given folder, or its file name.
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

/// The split of a file, detected from its path as the Hub's own library does: the name before a shard's numbers,
/// otherwise a word that stands for a split. `None`: the path names no split.
pub(super) fn split_of(name: &[u8]) -> Option<Cow<'_, str>> {
    let name = std::str::from_utf8(name).ok()?;
    if let Some(split) = of_shard(name) {
        return Some(canonical(split).map_or(split.into(), Cow::from));
    }
    let is_end = |letter: char| !letter.is_ascii_alphanumeric();
    // The last such word counts; it may be in a folder's name, as in `train/data.parquet`.
    name.rsplit(is_end).find_map(canonical).map(Cow::from)
}

/// Warns if the files, unless they are on the Hub, are shards of several splits: a user who imports the whole folder
/// may want only one split.
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

/// `SPLIT`, if the last component of the path is `SPLIT-00000-of-00001.EXTENSION`.
fn of_shard(name: &str) -> Option<&str> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let stem = last.split('.').next().unwrap_or(last);
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (split, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(count) && !split.is_empty()).then_some(split)
}

/// The name of the split that a word stands for.
pub(super) fn canonical(word: &str) -> Option<&'static str> {
    let is = |words: &[&str]| words.iter().any(|own| word.eq_ignore_ascii_case(own));
    match () {
        () if is(&["train", "training"]) => Some("train"),
        () if is(&["validation", "valid", "val", "dev"]) => Some("validation"),
        () if is(&["test", "testing", "eval", "evaluation"]) => Some("test"),
        () => None,
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

    #[test]
    fn splits_are_told_by_words_of_the_path_and_the_names_of_shards() {
        let of = |name: &'static str| split_of(name.as_bytes());
        assert_eq!(of("data/train-00000-of-00002.parquet").as_deref(), Some("train"));
        assert_eq!(of("mnist/Test-0.parquet").as_deref(), Some("test"));
        assert_eq!(of("default/validation/0000.parquet").as_deref(), Some("validation"));
        assert_eq!(of("data/val-00000-of-00001.parquet").as_deref(), Some("validation"));
        assert_eq!(of("data/train_sft-00000-of-00003.parquet").as_deref(), Some("train_sft"));
        assert_eq!(of("train/a-b-00002-of-00003.tar").as_deref(), Some("a-b"));
        assert_eq!(of("data/constraints-trained.parquet"), None);
        assert_eq!(of("data/-00000-of-00001.parquet"), None);
        assert_eq!(of("0000.parquet"), None);
    }
}
