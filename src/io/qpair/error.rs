//! Errors of I/Os, and the library errors that they become.

use std::cmp::Ordering;

use super::Namespace;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Lba;
use dlfs_nvme::nvme::Status;

/// Errors of an I/O.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The controller answered with an error status.
    #[error("the controller answered {0}")]
    Status(Status),
    /// The connection was lost. For a read, reconnecting failed until its timeout; a write or flush may have taken
    /// effect. Or this process cannot continue the I/O after a fork.
    #[error("disconnected: {0}")]
    Disconnected(String),
    /// The target or the operating system reported success with fewer bytes than requested.
    #[error("only {found} of {expected} bytes arrived, without an error: the rest is missing")]
    Short {
        /// Bytes requested.
        expected: u64,
        /// Bytes that arrived.
        found: u64,
    },
    /// The data digest of the transfer differs.
    #[error("the data digest of the transfer differs")]
    DataDigest,
    /// The operating system reports more bytes than it was asked to transfer, so no byte can be trusted.
    #[error("the operating system moved {found} bytes where {expected} were asked for")]
    Excess {
        /// Bytes requested.
        expected: u64,
        /// Bytes reported.
        found: u64,
    },
    /// The thread that ran the I/O panicked with this message.
    #[error("{0}")]
    Panicked(String),
    /// The system call failed with this error number.
    #[error("operating system error {0} ({name})", name = std::io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// The fence of the writer was closed before the write was sent, see [`Fence`](super::Fence).
    #[error("the write was not sent: the time of its writer has passed")]
    Fenced,
    /// A file of a folder namespace has changed since it was listed; the text names it.
    #[error("{0} has changed since the folder was listed: open the folder again")]
    Changed(String),
    /// A mistake of the caller: the request is not whole blocks, passes the end of the namespace, is too large,
    /// writes to a read-only namespace, or is a flush with bytes.
    #[error("{0}")]
    Invalid(&'static str),
}

impl IoError {
    /// Checks the total number of bytes that the operating system has transferred: `found` must equal
    /// `expected`.
    ///
    /// # Errors
    /// The numbers differ.
    pub fn check_count(expected: u64, found: u64) -> Result<(), IoError> {
        match found.cmp(&expected) {
            Ordering::Equal => Ok(()),
            Ordering::Less => Err(IoError::Short { expected, found }),
            Ordering::Greater => Err(IoError::Excess { expected, found }),
        }
    }

    /// Returns whether other blocks of the namespace can probably still be read: the failure is a medium error, or the
    /// bytes arrived damaged or incomplete.
    pub(crate) fn affects_only_blocks(&self) -> bool {
        match self {
            IoError::Short { .. } | IoError::DataDigest => true,
            IoError::Status(status) => {
                const OF_BLOCKS: [Status; 2] =
                    [Status::INTERNAL_ERROR, Status::DATA_TRANSFER_ERROR];
                // Status code types 2h, media and data integrity errors, and 7h, vendor specific.
                matches!(status.sct, 2 | 7) || OF_BLOCKS.iter().any(|known| status.is(*known))
            }
            // For a device's medium error, Linux answers ENODATA, EREMOTEIO or EIO, for wrong protection
            // information EILSEQ; file systems answer EBADMSG or EUCLEAN for damaged data.
            IoError::Os(errno) => [
                libc::EIO,
                libc::EILSEQ,
                libc::ENODATA,
                libc::EREMOTEIO,
                libc::EBADMSG,
                libc::EUCLEAN,
            ]
            .contains(errno),
            _ => false,
        }
    }

    /// The error kind that a caller can act on.
    pub fn kind(&self) -> ErrorKind {
        match self {
            // Status code type 2h: media and data integrity errors.
            IoError::Status(status) if status.sct == 2 => ErrorKind::Corrupt,
            IoError::Status(_) => ErrorKind::Refused,
            IoError::Disconnected(_) | IoError::Fenced => ErrorKind::Disconnected,
            IoError::Short { .. } | IoError::DataDigest => ErrorKind::Corrupt,
            IoError::Os(libc::ENOSPC | libc::EDQUOT) => ErrorKind::NoSpace,
            IoError::Os(errno) => Error::from(std::io::Error::from_raw_os_error(*errno)).kind(),
            IoError::Excess { .. } => ErrorKind::Io,
            IoError::Panicked(_) => ErrorKind::Internal,
            IoError::Changed(_) => ErrorKind::Stale,
            IoError::Invalid(_) => ErrorKind::InvalidArgument,
        }
    }

    /// The library's error for a failed I/O on `namespace`.
    #[doc(hidden)]
    pub fn on(self, namespace: &Namespace) -> Error {
        Error::new(self.kind(), "an I/O failed").target(namespace.address.clone()).source(self)
    }

    /// The library's error for a failed I/O on `namespace` at `slba`.
    pub fn at(self, namespace: &Namespace, slba: Lba) -> Error {
        self.on(namespace).lba(slba)
    }
}

/// Separates failures of single blocks from others. `Ok(Err(reason))`: only these blocks cannot be read, see
/// [`IoError::affects_only_blocks`].
///
/// # Errors
/// The namespace as a whole cannot be read.
#[doc(hidden)]
pub fn or_unreadable<T>(result: Result<T>) -> Result<Result<T, String>> {
    let error = match result {
        Ok(found) => return Ok(Ok(found)),
        Err(error) => error,
    };
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<IoError>());
    match cause.filter(|cause| cause.affects_only_blocks()) {
        Some(cause) => Ok(Err(cause.to_string())),
        None => Err(error),
    }
}
