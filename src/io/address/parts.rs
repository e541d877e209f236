//! Ports, namespace identifiers, NQNs and percent escapes, which several address formats have; and the errors of
//! parsing addresses.

use std::fmt;

use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::percent::{escape, hex_pair, unescape};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::{Nqn, NqnError};

/// Errors of parsing an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is empty, or there is nothing between two commas.
    #[error("an address is empty")]
    Empty,
    /// A path with a NUL byte.
    #[error("a path must not contain a NUL byte")]
    Nul,
    /// Objects whose address has a control character, or is not UTF-8.
    #[error("'{0}' names no objects: their names are UTF-8 without control characters")]
    Objects(String),
    /// `%` without two hexadecimal digits, or escapes that stand for bytes which are not UTF-8.
    #[error("'{0}' has an invalid percent escape")]
    Escape(String),
    /// A malformed URL.
    #[error("'{0}' is not nvme-tcp://host[:port]/NQN[?ns=N]")]
    Url(String),
    /// A malformed address of a drive.
    #[error("'{0}' is not pcie:DOMAIN:BUS:DEVICE.FUNCTION[?ns=N], such as pcie:0000:5e:00.0")]
    Pcie(String),
    /// A malformed name in a catalogue.
    #[error(
        "'{0}' is not dlfs://CATALOGUE/NAME[@GENERATION|@ALIAS]: CATALOGUE is a configured one or a folder's \
             path, and names have 1 to 100 letters, digits, '.', '_' and '-'"
    )]
    CatalogName(String),
    /// `spdk:` before a path.
    #[error(
        "SPDK cannot open the file '{0}': spdk: precedes nvme-tcp: or trtype:, and a drive is \
             trtype:PCIE traddr:0000:5e:00.0"
    )]
    SpdkPath(String),
    /// A URL with a scheme that dlfs does not support.
    #[error(
        "'{0}' is a URL with a scheme that is not supported: use nvme-tcp://host[:port]/NQN[?ns=N], \
             s3://, gs://, az://, hf:// or https:// for objects, dlfs://CATALOGUE/NAME or a path (./{0} for a file \
             with this name)"
    )]
    Scheme(String),
    /// A URL of objects with a user or a query.
    #[error(
        "a URL of objects has neither a user nor a query here, since addresses are printed: put the \
             signed URLs in a list and import it"
    )]
    SecretUrl,
    /// A port that is not a number from 1 to 65535.
    #[error("'{0}' is not a port")]
    Port(String),
    /// A namespace identifier that is not a number from 1 to 2^32 - 2.
    #[error("'{0}' is not a namespace identifier")]
    Nsid(String),
    /// The subsystem NQN is invalid.
    #[error("in '{text}': {error}")]
    Nqn {
        /// The NQN as given.
        text: String,
        /// The error in it.
        #[source]
        error: NqnError,
    },
    /// A key of a `trtype:` address that is unknown, missing, or given twice.
    #[error("'{key}:' is {problem} in an address that begins with 'trtype:'")]
    Key {
        /// The key.
        key: String,
        /// `unknown`, `missing` or `given twice`.
        problem: &'static str,
    },
    /// A value that the key does not allow.
    #[error("'{key}:{value}' is none of {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value as given.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Error {
        Error::new(ErrorKind::InvalidArgument, error.to_string())
    }
}

pub(super) fn parse_port(text: &str) -> Result<u16, AddressError> {
    let port = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    port.filter(|&port| port != 0).ok_or_else(|| AddressError::Port(text.to_owned()))
}

pub(super) fn parse_nsid(text: &str) -> Result<Nsid, AddressError> {
    let nsid = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    nsid.filter(|nsid| (1..u32::MAX).contains(nsid))
        .map(Nsid)
        .ok_or_else(|| AddressError::Nsid(text.to_owned()))
}

pub(super) fn parse_nqn(text: &str) -> Result<Nqn, AddressError> {
    Nqn::new(text).map_err(|error| AddressError::Nqn { text: text.to_owned(), error })
}

/// Prints `text` as a value in a `trtype:` address, which ends at white space.
pub(super) fn escape_word(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    escape(f, text.as_bytes(), |c| matches!(c, '%' | ',') || c.is_whitespace())
}

/// Replaces every `%XX` in `text` by its byte.
///
/// # Errors
/// `Escape`: a percent sign without two hexadecimal digits, or the result is not UTF-8.
pub fn unescape_all(text: &str) -> Result<String, AddressError> {
    let error = |_| AddressError::Escape(text.to_owned());
    String::from_utf8(unescape_all_bytes(text)?).map_err(error)
}

/// As [`unescape_all`], but the result need not be UTF-8.
pub(super) fn unescape_all_bytes(text: &str) -> Result<Vec<u8>, AddressError> {
    let error = || AddressError::Escape(text.to_owned());
    let signs = text.bytes().enumerate().filter(|&(_, byte)| byte == b'%');
    for (at, _) in signs {
        hex_pair(&text.as_bytes()[at + 1..]).ok_or_else(error)?;
    }
    Ok(unescape(text, |_| true))
}
