//! Counts of a source's files by their sort and by how the import treated them, for the report.

use std::fmt;

use super::source_kind::SourceKind;
use dlfs_base::{Error, ErrorKind};

/// The number and size of the files of one sort that the import treated alike.
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
    /// The name of the first file counted.
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
    /// A link out of the source that was followed to an imported file or folder.
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

    /// The hint for messages that names the option to treat these files differently; `None`: there is no such option.
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

    /// Counts the archives after the first one in the file `name`; `bytes`: their total length.
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

/// The description of folders that are hidden, or that file systems and tools leave behind.
pub(crate) const HIDDEN_FOLDER: &str = "hidden folder";

/// The description of archives that are members of an archive and are imported as samples.
pub(crate) const NESTED: &str = "archive within an archive";

/// The description of links out of the folder that is imported.
pub(crate) const LINK_OUT: &str = "link out of the source";

/// The description of archive members that a later member of the same name replaces.
pub(crate) const REPLACED: &str = "member that a later one replaces";

/// The description of pipes.
pub(crate) const PIPE: &str = "stream";

/// Sets the size of pipes, which is known only at their end.
pub(crate) fn set_piped_bytes(counts: &mut [FileCount], bytes: u64) {
    let piped = counts.iter_mut().filter(|count| count.what == PIPE);
    piped.for_each(|count| count.bytes = bytes);
}

/// One count per line, as the cause of an error.
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

/// The words of descriptions that get the `s` of a plural.
const NOUNS: [&str; 8] = ["archive", "shard", "file", "folder", "link", "list", "stream", "member"];

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
}
