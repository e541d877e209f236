//! Surveys folder trees: tells whether a folder holds samples or shards, and counts its files by their extensions.
//!
//! Shards are recognised by their bytes. Reading the first bytes of every file in a folder of samples would take ten
//! seconds per million files. So files are grouped by extension, and only the first, second, third, fifth, ninth and so
//! on of each group are read. Files with a shard's extension are read, too, up to a limit. All files are read only if
//! this finds a shard.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::bad::BadEntry;
use super::beneath::Root;
use super::content::{Content, is_shard_name, is_side_file};
use super::file_counts::{FileCount, FileCounts, Role};
use super::index::MAX_SAMPLE_BYTES;
use super::listing::Listing;
use super::shard::FileAt;
use super::shard_index;

/// A file of a tree: its name beneath the folder, its length in bytes, and its content.
pub(crate) type DetectedFile = (Vec<u8>, u64, Content);

impl Listing<Root> {
    /// Counts the files by sort, and detects the content of some of each sort if `detects` is set.
    pub(crate) fn survey(&self, detects: bool) -> Survey {
        let mut counts: HashMap<String, SortCount> = HashMap::new();
        let mut survey = Survey::default();
        // Numbers of files that were read: `named`, only because of their names; `read`, all but side files; `unread`,
        // those in unsupported formats.
        let mut named = 0;
        let mut read = 0;
        let mut unread = 0;
        for (name, len_bytes) in self.files().filter(|(_, len)| *len <= MAX_SAMPLE_BYTES) {
            let sort = sort_of(name);
            let is_known = counts.len() < MAX_SORTS || counts.contains_key(&sort);
            let sort = if is_known { sort } else { ANOTHER.to_owned() };
            let count = counts.entry(sort).or_insert_with_key(|sort| {
                let what = sort.clone();
                let example = name.to_vec();
                let total = FileCount { what, role: Role::Sample, files: 0, bytes: 0, example };
                SortCount { total, candidates: 0, named_as_shards: is_shard_name(name) }
            });
            count.total.files += 1;
            count.total.bytes = count.total.bytes.saturating_add(len_bytes);
            if !detects || len_bytes == 0 && !count.named_as_shards {
                continue;
            }
            let drawn = count.candidates < 2 || count.candidates.is_power_of_two();
            count.candidates += 1;
            let by_name = !drawn && count.named_as_shards && named < MOST_BY_NAME;
            named += u64::from(by_name);
            if drawn || by_name {
                let content = self.content(name);
                survey.shards |= content.is_shard();
                read += u64::from(!is_side_file(name));
                if let Content::Unread(format) = content {
                    unread += 1;
                    survey.unread.get_or_insert((format, name.to_vec()));
                }
            }
        }
        if detects {
            let large = self.files().filter(|(_, len)| *len > MAX_SAMPLE_BYTES);
            let mut large = large.take(MOST_BY_NAME as usize);
            survey.shards |= large.any(|(name, _)| self.content(name).is_shard());
        }
        if unread < read {
            survey.unread = None;
        }
        let mut counts: Vec<_> = counts.into_values().map(|count| count.total).collect();
        counts.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then(a.what.cmp(&b.what)));
        survey.file_counts = FileCounts(counts);
        survey
    }

    /// Detects the content of every file, in the order of their names.
    ///
    /// The second list has the bad entries. With `may_give_up`, opens no more files except indexes once it has found
    /// many, shards and others: such a source is refused anyway.
    pub(crate) fn detect(&self, may_give_up: bool) -> (Vec<DetectedFile>, Vec<BadEntry>) {
        let mut names: Vec<(&[u8], u64)> = self.files().collect();
        names.sort_unstable();
        let mut shards = 0_u64;
        let mut others = 0_u64;
        let mut detected = Vec::new();
        for (name, len_bytes) in names {
            // The file beside an index is not a sample, so indexes must be found in any case.
            let is_index = shard_index::tokens_of(Path::new(OsStr::from_bytes(name))).is_some();
            let is_mixed = shards > 0 && others > 0 && shards + others > MOST_OPENED;
            let gives_up = may_give_up && is_mixed && !is_index;
            let content = if gives_up { NOT_OPENED } else { self.content(name) };
            if content.is_shard() {
                shards += 1
            } else {
                others += u64::from(!is_side_file(name))
            }
            detected.push((name.to_vec(), len_bytes, content));
        }
        (detected, self.bad.clone())
    }

    /// The name and length of each file.
    fn files(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.len()).map(|row| (self.name(row), self.len_bytes(row)))
    }

    /// The content of a file; `Other` for an unreadable file, since reading it later reports the error.
    fn content(&self, name: &[u8]) -> Content {
        let is_file = |file: &std::fs::File| file.metadata().is_ok_and(|found| found.is_file());
        let file = self.root.open_file(name).ok().map(std::fs::File::from).filter(is_file);
        let content =
            file.and_then(|file| Content::of(|offset| FileAt::from(&file, offset), name).ok());
        content.unwrap_or(Content::Other)
    }

    /// The path of a file beneath the folder.
    pub(crate) fn path_of(&self, name: &[u8]) -> PathBuf {
        self.root.path.join(OsStr::from_bytes(name))
    }
}

/// The sorts of files in a tree, judging by the files that were read.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Set if one of the files that were read is a shard.
    pub shards: bool,
    /// An unsupported format of many samples, and the name of a file in it, if all files that were read are in such
    /// formats, side files not counted.
    pub unread: Option<(&'static str, Vec<u8>)>,
    /// All files that are not too large for a sample, counted by extension.
    pub file_counts: FileCounts,
}

/// The files of one sort.
struct SortCount {
    total: FileCount,
    /// Number of files that may be read: not empty, or of a sort that is named as shards.
    candidates: u64,
    /// Set if the first file of this sort has the name of a shard.
    named_as_shards: bool,
}

/// The sort of a file, by its extension in lower case, in which `#` replaces each run of digits.
fn sort_of(name: &[u8]) -> String {
    let base = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    let dot = base.iter().rposition(|&byte| byte == b'.').filter(|&dot| dot > 0);
    let mut extension = dot.map_or(&[][..], |dot| &base[dot + 1..]).to_ascii_lowercase();
    extension.iter_mut().filter(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b'#');
    extension.dedup_by(|a, b| (*a, *b) == (b'#', b'#'));
    match extension.len() {
        0 => "file without extension".to_owned(),
        1..=MAX_EXTENSION_BYTES => format!("file .{}", extension.escape_ascii()),
        _ => ANOTHER.to_owned(),
    }
}

/// The sort of files with a long extension, or any further one after [`MAX_SORTS`].
const ANOTHER: &str = "file with another extension";
/// Space for `tfrecord-#-of-#`.
const MAX_EXTENSION_BYTES: usize = 16;
/// Extensions that are counted separately: more than a data set has.
const MAX_SORTS: usize = 64;
/// Most files that are read only because of their names.
const MOST_BY_NAME: u64 = 4096;
/// Placeholder for the content of files that were not opened.
const NOT_OPENED: Content = Content::Unread("file not opened");
/// Most files that are opened to count them for an error message.
const MOST_OPENED: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_by_their_extensions() {
        let label = |name: &str| sort_of(name.as_bytes());
        assert_eq!(label("d/a.JPG"), "file .jpg");
        assert_eq!(label("a.tar.gz"), "file .gz");
        assert_eq!(label("a.0001"), "file .#");
        assert_eq!(label("train-00000-of-00002"), "file without extension");
        assert_eq!(label("d.x/a"), "file without extension");
        assert_eq!(label("a.averyveryverylongextension"), "file with another extension");
    }
}
