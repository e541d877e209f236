//! Errors of the decoders in this module.

use crate::format::Uuid;
use dlfs_base::error::{Error, ErrorKind};

/// An error in bytes from media, or in a request for them. `what` names the structure or field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Fewer bytes than the structure needs.
    #[error("{what}: {found} of {expected} bytes are there")]
    Truncated {
        /// The structure.
        what: &'static str,
        /// Bytes needed.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The structure does not begin with its magic number: something else lies here.
    #[error("{what}: the magic is missing")]
    Magic {
        /// The structure.
        what: &'static str,
    },
    /// Only zeroes lie where the structure should be: nothing was written there, or it was erased.
    #[error("{what}: nothing but zeroes lies here")]
    Blank {
        /// The structure.
        what: &'static str,
    },
    /// The device failed to read the bytes.
    #[error("{what}: cannot be read: {why}")]
    Unread {
        /// The structure.
        what: &'static str,
        /// The engine's error message.
        why: String,
    },
    /// The checksum of a structure differs.
    #[error("{what}: CRC32C {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The structure.
        what: &'static str,
        /// The stored checksum.
        expected: u32,
        /// The computed checksum.
        found: u32,
    },
    /// The structure has another format version: another release wrote it.
    #[error(
        "{what}: format version {found}, and this build knows only {known}; use a newer dlfs, or make it anew"
    )]
    Version {
        /// The structure.
        what: &'static str,
        /// The version found.
        found: u16,
        /// The version known here.
        known: u16,
    },
    /// The image needs features that this build does not know.
    #[error("the image requires unknown features {unknown:#x}; use a newer dlfs")]
    RequiredFeatures {
        /// The bits that are not known.
        unknown: u64,
    },
    /// Writing to the image needs features that this build does not know.
    #[error("writing requires unknown features {unknown:#x}; use a newer dlfs, or only read")]
    FeaturesToWrite {
        /// The bits that are not known.
        unknown: u64,
    },
    /// A number is outside its valid range.
    #[error("{what}: {value} is out of range (limit {limit})")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// The value that was found.
        value: u64,
        /// The limit that it exceeds or falls below.
        limit: u64,
    },
    /// A string is not UTF-8.
    #[error("{what}: a text is not UTF-8 from byte {at}")]
    NotUtf8 {
        /// The structure.
        what: &'static str,
        /// The first byte that is not UTF-8.
        at: u64,
    },
    /// A value differs from the required one: that of another copy of the same fact, or of the format.
    #[error("{what}: {found}, expected {expected}")]
    Mismatch {
        /// The field.
        what: &'static str,
        /// The value that is required.
        expected: u64,
        /// The value that was found.
        found: u64,
    },
    /// No contiguous free cell range is long enough.
    #[error("{needed_bytes} bytes are needed in one piece, and {free_bytes} are free in all")]
    NoSpace {
        /// Bytes needed in one piece.
        needed_bytes: u64,
        /// Bytes free in total, in shorter pieces.
        free_bytes: u64,
    },
    /// The requested data was not loaded: lookup tree, names and origins can be left on media when a directory is
    /// opened.
    #[error("{what} are not loaded")]
    NotLoaded {
        /// The missing data.
        what: &'static str,
    },
    /// The structure belongs to another image.
    #[error("{what} belongs to image {found}, not to {expected}")]
    OtherImage {
        /// The structure.
        what: &'static str,
        /// The image at hand.
        expected: Uuid,
        /// The image that the structure names.
        found: Uuid,
    },
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Error {
        let (kind, message) = match &error {
            FormatError::Version { .. }
            | FormatError::RequiredFeatures { .. }
            | FormatError::FeaturesToWrite { .. } => {
                (ErrorKind::Unsupported, "the image has a format that this build does not know")
            }
            FormatError::OtherImage { .. } => {
                (ErrorKind::InvalidArgument, "parts of different images were given as one")
            }
            FormatError::NoSpace { .. } => (ErrorKind::NoSpace, "the image is full"),
            FormatError::Unread { .. } => (ErrorKind::Io, "a part of the image cannot be read"),
            FormatError::NotLoaded { .. } => {
                (ErrorKind::InvalidArgument, "the directory was opened without what this needs")
            }
            _ => (ErrorKind::Corrupt, "the image is damaged"),
        };
        let is_full = kind == ErrorKind::NoSpace;
        let error = Error::new(kind, message).source(error);
        if is_full {
            error.hint(
                "make the file or device longer; or delete samples and purge, which gives their bytes back \
                 two generations later",
            )
        } else {
            error
        }
    }
}

/// Checks that `value` is at most `limit`.
#[doc(hidden)]
pub fn at_most(what: &'static str, value: u64, limit: u64) -> Result<u64, FormatError> {
    if value > limit { Err(out_of_range(what, value, limit)) } else { Ok(value) }
}

/// Checks that `value` is in its range, as `is_in` says; `limit` is the end of the range that an error names.
pub(crate) fn in_range(
    is_in: bool,
    what: &'static str,
    value: impl Into<u64>,
    limit: u64,
) -> Result<(), FormatError> {
    if is_in { Ok(()) } else { Err(out_of_range(what, value, limit)) }
}

pub(crate) fn out_of_range(what: &'static str, value: impl Into<u64>, limit: u64) -> FormatError {
    FormatError::OutOfRange { what, value: value.into(), limit }
}

/// Checks that `found` equals `expected`.
#[doc(hidden)]
pub fn equal(what: &'static str, expected: u64, found: u64) -> Result<(), FormatError> {
    if expected == found { Ok(()) } else { Err(FormatError::Mismatch { what, expected, found }) }
}

/// Checks that there are at least `expected` bytes.
#[doc(hidden)]
pub fn enough(what: &'static str, expected: u64, found: usize) -> Result<(), FormatError> {
    let found = found as u64;
    if found >= expected { Ok(()) } else { Err(FormatError::Truncated { what, expected, found }) }
}
