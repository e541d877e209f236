//! Splits by file name, as on the Hugging Face Hub: finds the split of each file, selects splits of data sets on
//! the Hub, and warns if files from elsewhere are of several splits.
//!
//! A split here is a named part of a data set, such as `train`, made by the author of the data set. dlfs's own
//! splits, which divide samples by a hash, have nothing to do with it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::listed::Listed;
use crate::import::sources::content::is_side_file;
use crate::import::sources::found::FoundFile;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_places::Scheme;

/// The split of a file, detected from its path as the Hub's own library does: the name before a shard's numbers,
/// otherwise a word that stands for a split. `None`: the path names no split.
pub(super) fn split_of(name: &str) -> Option<Cow<'_, str>> {
    if let Some(split) = of_shard(name) {
        return Some(canonical(split).map_or(split.into(), Cow::from));
    }
    let is_end = |letter: char| !letter.is_ascii_alphanumeric();
    // The last such word counts; it may be in a folder's name, as in `train/data.parquet`.
    name.rsplit(is_end).find_map(canonical).map(Cow::from)
}

/// Warns if the files are shards of several splits: a user who imports the whole folder may want only one split.
pub(in crate::import) fn warn_of_splits(files: &[FoundFile]) {
    let names: Vec<_> = files.iter().map(|file| String::from_utf8_lossy(&file.name)).collect();
    let splits: BTreeSet<_> = names.iter().filter_map(|name| split_of(name)).collect();
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
fn canonical(word: &str) -> Option<&'static str> {
    let is = |words: &[&str]| words.iter().any(|own| word.eq_ignore_ascii_case(own));
    match () {
        () if is(&["train", "training"]) => Some("train"),
        () if is(&["validation", "valid", "val", "dev"]) => Some("validation"),
        () if is(&["test", "testing", "eval", "evaluation"]) => Some("test"),
        () => None,
    }
}

/// Keeps only the objects of these splits, and side files, such as the data set's description.
///
/// # Errors
/// `InvalidArgument`: a source is not on the Hub, or the sources have no splits or lack one of these; the error names
/// the splits that exist.
pub(super) fn only(listed: Vec<Listed>, splits: &[String]) -> Result<Vec<Listed>> {
    if splits.is_empty() {
        return Ok(listed);
    }
    if let Some(other) = listed.iter().find(|one| one.client.place().scheme() != Scheme::Hf) {
        let text = "splits are taken of data sets on the hub: hf://datasets/OWNER/NAME";
        return Err(Error::new(ErrorKind::InvalidArgument, text).target(other.address()));
    }
    let data = |name: &str| !is_side_file(name.as_bytes());
    let names = listed.iter().flat_map(|one| (0..one.len()).map(|row| one.name(row)));
    let found: BTreeSet<Cow<'_, str>> =
        names.filter(|name| data(name)).filter_map(split_of).collect();
    let wanted: Vec<&str> = splits.iter().map(|own| canonical(own).unwrap_or(own)).collect();
    if let Some(missing) = wanted.iter().find(|own| !found.contains(**own)) {
        let text = if found.is_empty() {
            format!("the files do not say of which split they are, so {missing} cannot be taken")
        } else {
            let found = found.iter().map(|split| &**split).collect::<Vec<_>>().join(", ");
            format!("there is no split {missing}; there are {found}")
        };
        let address = listed.first().map(Listed::address).unwrap_or_default();
        return Err(Error::new(ErrorKind::InvalidArgument, text).target(address));
    }
    let is_wanted = |name: &str| match split_of(name) {
        Some(split) => wanted.contains(&&*split) || !data(name),
        None => !data(name),
    };
    Ok(listed.iter().map(|one| one.only(&is_wanted)).filter(|one| !one.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_told_by_words_of_the_path_and_the_names_of_shards() {
        let of = |name| split_of(name);
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
