//! Splits of data sets on the Hugging Face Hub, as the names of files tell them.
//!
//! A split here is a named part of a data set, such as `train`, made by the author of the data set. It is not one of
//! the splits by which dlfs divides samples by a hash.

use std::borrow::Cow;

/// The split of a file, detected from its path as the Hub's own library does: the name before a shard's numbers,
/// otherwise a word that stands for a split. `None`: the path names no split.
pub(super) fn split_of(name: &[u8]) -> Option<Cow<'_, str>> {
    let name = std::str::from_utf8(name).ok()?;
    if let Some(split) = split_of_shard(name) {
        return Some(canonical(split).map_or(split.into(), Cow::from));
    }
    let is_end = |letter: char| !letter.is_ascii_alphanumeric();
    // The last such word counts; it may be in a folder's name, as in `train/data.parquet`.
    name.rsplit(is_end).find_map(canonical).map(Cow::from)
}

/// `SPLIT`, if the last component of the path is `SPLIT-00000-of-00001.EXTENSION`.
fn split_of_shard(name: &str) -> Option<&str> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let stem = last.split('.').next().unwrap_or(last);
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (split, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(count) && !split.is_empty()).then_some(split)
}

/// The name of the split that a word stands for.
pub(super) fn canonical(word: &str) -> Option<&'static str> {
    let stands = |words: &[&str]| words.iter().any(|other| word.eq_ignore_ascii_case(other));
    SPLIT_WORDS.into_iter().find(|(_, words)| stands(words)).map(|(split, _)| split)
}

/// Splits, and the words that stand for each.
const SPLIT_WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

#[cfg(test)]
mod tests {
    use super::*;

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
