//! Entries of a source that cannot be imported, and the reasons.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustix::io::Errno;

/// An entry of a source that cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadEntry {
    /// Name in the source; the shard's name if the entry's could not be read.
    pub name: Vec<u8>,
    /// Why it cannot be imported.
    pub reason: BadReason,
    /// The shard or list that contains the entry; its folder if the source has several folders.
    pub within: Option<PathBuf>,
    /// The byte range of the shard that cannot be read because of the entry; empty if the end of the range is unknown.
    /// `None`: all other entries can be read.
    pub rest: Option<Range<u64>>,
}

/// The reason why an entry cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadReason {
    /// The operating system refused to open or read it.
    #[error("unreadable: {}", io::Error::from_raw_os_error(*.0))]
    Unreadable(i32),
    /// Not a regular file: a FIFO, a socket, a device.
    #[error("is a {0}")]
    Special(&'static str),
    /// A dangling link.
    #[error("is a link to nothing")]
    Dangling,
    /// A link to itself, or to a folder that it lies in.
    #[error("is a link that leads back to itself")]
    Cyclic,
    /// A link or a path out of the source.
    #[error("leads out of the source")]
    LeavesSource,
    /// A list of one store names another store, which would be asked with the user's credentials.
    #[error("leads to another store or server than that of the list")]
    OtherHost,
    /// It changed since it was indexed.
    #[error("changed while it was imported")]
    Changed,
    /// It exceeds the limit of 4 GiB - 1 bytes per sample.
    #[error("holds {0} bytes, more than the limit of 4 GiB - 1")]
    TooLarge(u64),
    /// Its name is not valid: the predicate of the message.
    #[error("name: {0}")]
    Name(&'static str),
    /// Another entry has the same name.
    #[error("name appears twice")]
    Twice,
    /// An entry of another folder or list has the same name.
    #[error("name appears twice, in two folders or lists")]
    TwiceInFolders,
    /// A member of a stream would replace an earlier one, which may be written already.
    #[error(
        "comes again, and replaces what was read of it before, to which a stream does not lead back"
    )]
    ComesAgain,
    /// The entry is supported in a file, but not in a stream; the predicate of the message.
    #[error("{0}")]
    InStream(&'static str),
    /// The image that is appended to has a sample of this name.
    #[error("the image has a sample of this name")]
    NameTaken,
    /// The archive or shard ends within the entry, or without an end mark.
    #[error("ends early: {0}")]
    Truncated(&'static str),
    /// A checksum of the source's format does not match.
    #[error("{what} CRC is {found:#010x}, its bytes give {expected:#010x}")]
    BadCrc {
        /// The name of the checksum.
        what: &'static str,
        /// The computed checksum.
        expected: u32,
        /// The stored checksum.
        found: u32,
    },
    /// A field does not hold a value of its type.
    #[error("field {field} {what}")]
    Field {
        /// The name of the field.
        field: String,
        /// The defect, as the predicate of the message.
        what: String,
    },
    /// It expands to more than this multiple of the bytes read.
    #[error(
        "expands to more than {0} times the bytes that were read, and more than 256 MiB: if you trust the source, \
         --max-expansion allows more"
    )]
    Expands(u64),
    /// The message of the decoder of the source's format.
    #[error("{0}")]
    Decoder(String),
    /// The archive or list has invalid syntax here.
    #[error("{0}")]
    Syntax(&'static str),
}

impl From<io::Error> for BadReason {
    /// Only errors of the operating system have a number; other errors wrap a reason, or come from a decoder.
    fn from(error: io::Error) -> BadReason {
        match (error.raw_os_error(), BadReason::within(&error)) {
            (Some(number), _) => BadReason::Unreadable(number),
            (None, Some(reason)) => reason.clone(),
            (None, None) => BadReason::Decoder(format!("cannot be read: {error}")),
        }
    }
}

impl From<Errno> for BadReason {
    fn from(errno: Errno) -> BadReason {
        BadReason::Unreadable(errno.raw_os_error())
    }
}

impl BadReason {
    /// The defect `what` of a field, as the predicate of the message.
    pub(crate) fn field(field: &str, what: impl Into<String>) -> BadReason {
        BadReason::Field { field: field.to_owned(), what: what.into() }
    }

    /// Checks a condition: this reason is the error, unless `is_well`.
    pub(crate) fn unless(self, is_well: bool) -> Result<(), BadReason> {
        if is_well { Ok(()) } else { Err(self) }
    }

    /// The reason in an error of a reader that wrapped one; `None`: another error.
    pub(crate) fn within(error: &io::Error) -> Option<&BadReason> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for BadEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(within) = &self.within {
            write!(f, "{}: ", within.as_os_str().as_bytes().escape_ascii())?;
        }
        write!(f, "{}: {}", self.name.escape_ascii(), self.why())
    }
}

impl BadEntry {
    /// Entry `name`, which cannot be imported because of `reason`.
    pub(crate) fn new(name: &[u8], reason: BadReason) -> BadEntry {
        BadEntry { name: name.to_vec(), reason, within: None, rest: None }
    }

    /// Describes the defect and the data lost because of it.
    pub fn why(&self) -> String {
        let reason = &self.reason;
        match &self.rest {
            Some(rest) if rest.is_empty() => format!("{reason}; not read from byte {}", rest.start),
            Some(Range { start, end }) => {
                format!("{reason}; {} bytes not read, from byte {start} to the end", end - start)
            }
            None => reason.to_string(),
        }
    }

    /// Sets the shard, list or folder that contains the entry.
    pub(crate) fn within(self, path: &Path) -> BadEntry {
        BadEntry { within: Some(path.to_path_buf()), ..self }
    }
}
