//! The errors for entries of a source that cannot be imported, with hints how to import them.

use std::fmt;

use crate::import::sources::file_counts::FileCounts;
use crate::import::sources::{BadEntry, BadReason, FileCount, SourceKind};
use dlfs_base::{Error, ErrorKind};

/// All entries that prevent an import. Displays the first 20, one per line, and counts the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadEntries(pub Vec<BadEntry>);

impl fmt::Display for BadEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, entry) in self.0.iter().take(MOST_SHOWN).enumerate() {
            let separator = if at == 0 { "" } else { "\n    " };
            write!(f, "{separator}{entry}")?;
        }
        match self.0.len().saturating_sub(MOST_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n    and {more} more"),
        }
    }
}

impl std::error::Error for BadEntries {}

impl BadEntries {
    /// The error that lists these entries.
    pub(crate) fn into_error(self) -> Error {
        let hint = self.hint().unwrap_or("repair them, or leave them out with --on-error skip");
        let text = format!("{} entries of the source cannot be imported", self.0.len());
        Error::new(ErrorKind::BadSource, text).hint(hint).source(self)
    }

    /// A hint how to import the entries. `None`: no option helps to import them.
    fn hint(&self) -> Option<&'static str> {
        // An error has one hint: the one with the lowest number. Members that come again are first, since a stream with
        // them is refused even with --on-error skip, which the hint for `InStream` suggests.
        let hint_of = |bad: &BadEntry| match bad.reason {
            BadReason::ComesAgain => Some((0, COMES_AGAIN_HINT)),
            BadReason::OtherHost => Some((1, OTHER_HOST_HINT)),
            BadReason::InStream(_) => Some((2, IN_STREAM_HINT)),
            BadReason::TwiceInFolders => Some((3, TWICE_HINT)),
            _ => None,
        };
        self.0.iter().filter_map(hint_of).min().map(|(_, hint)| hint)
    }
}

// Hints how to import entries of these kinds.
const COMES_AGAIN_HINT: &str = "--spool DIR reads a stream as a file, where the later member of a name counts; \
                                copy objects of a store here first";
const OTHER_HOST_HINT: &str = "--list-hosts ADDRESS, such as s3://BUCKET or https://HOST, allows what a list may \
                               name beside its own";
const IN_STREAM_HINT: &str = "--spool DIR reads a stream as a file, which may have such members; copy objects of a \
                              store here first, or leave such members out with --on-error skip";
const TWICE_HINT: &str = "--prefix puts the folder or list in front of each name";

/// Maximum number of bad entries that an error lists.
const MOST_SHOWN: usize = 20;

/// The error for a source without any importable sample. `counts`: the source's files by sort and treatment, which
/// explain why none became a sample.
pub(super) fn no_samples(bad: Vec<BadEntry>, kind: SourceKind, counts: &[FileCount]) -> Error {
    if !bad.is_empty() {
        let bad = BadEntries(bad);
        let hint = bad.hint().unwrap_or("repair them: without them there is no sample");
        return bad.into_error().hint(hint);
    }
    FileCounts(counts.to_vec()).of_no_sample(kind)
}
