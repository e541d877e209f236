//! Kinds of sources; counts of files by their sort and by how the import treated them; and counts of the samples that
//! indexing finds.

use std::fmt;
use std::str::FromStr;

use super::SourceOptions;
use crate::import::progress::{Progress, Stage};
use dlfs_base::{Error, ErrorKind, Result};

/// Kinds of sources.
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

/// Files of one sort, and how the import treated them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCount {
    /// The sort of the files: `tar archive`, `file .jpg`.
    pub what: String,
    /// Treatment of the files.
    pub role: Role,
    /// Number of files.
    pub files: u64,
    /// Their total size in the source.
    pub bytes: u64,
    /// The name of one of them.
    pub example: Vec<u8>,
}

/// Treatment of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Each is one sample, as it is.
    Sample,
    /// Each holds samples.
    Shard,
    /// An archive after another one in the same file; its samples are imported as well.
    Appended,
    /// Each lists samples.
    List,
    /// Not imported.
    SetAside,
    /// A link that was followed to an imported file or folder.
    Followed,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Sample => "sample",
            Role::Shard => "shard",
            Role::Appended => "appended archive",
            Role::List => "list",
            Role::SetAside => "set aside",
            Role::Followed => "followed",
        })
    }
}

impl FileCount {
    /// The description of the files, in the plural if there are several: `tar archives in gzip`.
    pub fn noun(&self) -> String {
        let ends = NOUNS.iter().filter_map(|noun| Some(self.what.find(noun)? + noun.len()));
        match ends.min() {
            Some(end) if self.files != 1 => format!("{}s{}", &self.what[..end], &self.what[end..]),
            _ => self.what.clone(),
        }
    }

    /// Names the option that treats these files differently, for messages.
    pub fn option(&self) -> Option<&'static str> {
        match &*self.what {
            HIDDEN | HIDDEN_FOLDER => Some("--hidden takes them"),
            NESTED => Some("--nested takes their files"),
            _ => None,
        }
    }
}

impl fmt::Display for FileCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let such_as = if self.files == 1 { "" } else { "such as " };
        let example = String::from_utf8_lossy(&self.example);
        let example = example.escape_debug();
        write!(f, "{} {}, {} bytes ({such_as}{example})", self.files, self.noun(), self.bytes)
    }
}

/// Counts of files by sort and role.
#[derive(Debug, Default, Clone)]
pub(crate) struct FileCounts(pub Vec<FileCount>);

impl FileCounts {
    /// Counts a file.
    pub(crate) fn add(&mut self, what: &str, role: Role, bytes: u64, name: &[u8]) {
        let what = what.to_owned();
        let example = name.to_vec();
        self.append([FileCount { what, role, files: 1, bytes, example }]);
    }

    /// Counts archives that follow the first one of the file `name`.
    pub(crate) fn add_appended(&mut self, archives: u64, bytes: u64, name: &[u8]) {
        let what = "archive behind another".to_owned();
        let example = name.to_vec();
        self.append([FileCount { what, role: Role::Appended, files: archives, bytes, example }]);
    }

    /// Adds counts; sums up counts of the same sort and role.
    pub(crate) fn append(&mut self, counts: impl IntoIterator<Item = FileCount>) {
        for more in counts {
            let same = |count: &&mut FileCount| count.what == more.what && count.role == more.role;
            match self.0.iter_mut().find(same) {
                Some(count) => {
                    count.files += more.files;
                    count.bytes = count.bytes.saturating_add(more.bytes);
                }
                None => self.0.push(more),
            }
        }
    }

    /// The error for a source of this kind without any sample.
    pub(crate) fn of_no_sample(self, kind: SourceKind) -> Error {
        let error = Error::new(ErrorKind::BadSource, format!("there is no sample in this {kind}"));
        let is_hidden = |count: &FileCount| [HIDDEN, HIDDEN_FOLDER].contains(&&*count.what);
        if self.0.is_empty() {
            return error;
        }
        let hint = "--hidden takes hidden files, and what file systems and tools leave behind";
        let has_hidden = self.0.iter().any(is_hidden);
        let error = error.source(self);
        if has_hidden { error.hint(hint) } else { error }
    }
}

/// The description of files that are hidden, or that file systems and tools leave behind.
pub(crate) const HIDDEN: &str = "hidden file";

/// The description of folders with such names.
pub(crate) const HIDDEN_FOLDER: &str = "hidden folder";

/// The description of archives that are members of an archive and are imported as samples.
pub(crate) const NESTED: &str = "archive within an archive";

/// The description of links out of the folder that is imported.
pub(crate) const LINK_OUT: &str = "link out of the source";

/// The description of archive members that a later member of the same name replaces.
pub(crate) const REPLACED: &str = "member that a later one replaces";

/// The description of pipes.
pub(crate) const PIPE: &str = "stream";

/// Sets the length of pipes, which is known only at their end.
pub(crate) fn set_piped_bytes(counts: &mut [FileCount], bytes: u64) {
    let piped = counts.iter_mut().filter(|count| count.what == PIPE);
    piped.for_each(|count| count.bytes = bytes);
}

/// Used as the cause of an error: one count per line.
impl fmt::Display for FileCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, count) in self.0.iter().enumerate() {
            let separator = if at == 0 { "there are " } else { "\n    and " };
            write!(f, "{separator}{count}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileCounts {}

/// Indexing by some options: counts the samples and bytes found, and reports them.
pub(crate) struct Indexing<'p> {
    progress: &'p mut dyn Progress,
    pub(super) options: &'p SourceOptions,
    samples: u64,
    bytes: u64,
    /// Files or records since the last report.
    since: u64,
    is_stopped: bool,
}

impl<'p> Indexing<'p> {
    /// Begins the stage and its counts.
    pub(crate) fn new(progress: &'p mut dyn Progress, options: &'p SourceOptions) -> Indexing<'p> {
        let mut indexing =
            Indexing { progress, options, samples: 0, bytes: 0, since: 0, is_stopped: false };
        indexing.again();
        indexing
    }

    /// Counts `samples` more samples (0: a part of one) and their `bytes`; returns whether to go on.
    pub(super) fn found(&mut self, samples: u64, bytes: u64) -> bool {
        self.samples += samples;
        self.bytes = self.bytes.saturating_add(bytes); // a source may claim any length
        self.since += 1;
        if self.since == MANY {
            self.progress.advance(self.samples, self.bytes);
            (self.samples, self.bytes, self.since) = (0, 0, 0);
            self.is_stopped |= self.progress.stop();
        }
        !self.is_stopped
    }

    /// Returns false once indexing was asked to stop.
    pub(super) fn goes_on(&self) -> bool {
        !self.is_stopped
    }

    /// Restarts the counts from zero: the entries found so far will be found again.
    pub(super) fn again(&mut self) {
        (self.samples, self.bytes, self.since) = (0, 0, 0);
        self.progress.stage(Stage::Indexing, 0, 0);
        self.is_stopped |= self.progress.stop();
    }

    /// # Errors
    /// `Interrupted`: indexing was asked to stop, so the index is incomplete.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_stopped {
            let message = "the import was stopped while it indexed the source; nothing is written";
            return Err(Error::new(ErrorKind::Interrupted, message));
        }
        Ok(())
    }
}

/// The names of the kinds, in the order of [`SourceKind::ALL`].
const NAMES: &str =
    "auto folder tar webdataset tfrecord list parquet arrow mds litdata megatron tokens jsonl";
const NOUNS: [&str; 8] = ["archive", "shard", "file", "folder", "link", "list", "stream", "member"];
/// Files or records between two reports: some milliseconds.
const MANY: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_by_kind_and_by_outcome() {
        let mut file_counts = FileCounts::default();
        file_counts.add("tar archive", Role::Shard, 10, b"a.tar");
        file_counts.add("tar archive in gzip", Role::Shard, 5, b"b.tgz");
        file_counts.add("tar archive in gzip", Role::Shard, 5, b"c.tgz");
        file_counts.add("file .md", Role::SetAside, 1, b"x.md");
        file_counts.add("file .md", Role::SetAside, 1, b"y.md");
        let text = file_counts.to_string();
        assert_eq!(
            text,
            "there are 1 tar archive, 10 bytes (a.tar)\n    \
             and 2 tar archives in gzip, 10 bytes (such as b.tgz)\n    \
             and 2 files .md, 2 bytes (such as x.md)"
        );
    }

    #[test]
    fn lengths_that_a_source_claims_add_up_to_any_sum() {
        struct Told(Vec<(u64, u64)>);
        impl Progress for Told {
            fn stage(&mut self, _: Stage, samples: u64, bytes: u64) {
                self.0.push((samples, bytes));
            }

            fn advance(&mut self, samples: u64, bytes: u64) {
                self.0.push((samples, bytes));
            }
        }
        let mut told = Told(Vec::new());
        let options = SourceOptions::default();
        let mut indexing = Indexing::new(&mut told, &options);
        assert!((0..MANY).all(|_| indexing.found(1, u64::MAX)));
        assert_eq!(told.0, [(0, 0), (MANY, u64::MAX)]);
    }
}
