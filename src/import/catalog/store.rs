//! The interface to the storage of a catalogue.

use std::fmt;
use std::time::Instant;

use super::Index;
use dlfs_base::error::Result;

/// A log of a catalogue: entries numbered from 1, which are created once and never overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Log {
    /// The versions of a data set.
    Versions(String),
    /// All targets of an alias of a data set: name of the data set, then alias.
    Alias(String, String),
}

/// Storage for the logs and indexes of a catalogue. Calls may block. The caller has checked all
/// names ([`dlfs_io::address::catalog_name::is_catalog_word`]). A store that cannot tell whether a
/// catalogue exists treats a missing one as empty.
pub trait Store: Send + Sync {
    /// Creates an empty catalogue, unless there is one.
    ///
    /// # Errors
    /// `Refused`: other data is in its place.
    fn create(&self) -> Result<()>;

    /// The names of data sets, in any order.
    ///
    /// # Errors
    /// `NotFound`: there is no catalogue.
    fn names(&self) -> Result<Vec<String>>;

    /// The aliases of a data set, in any order.
    ///
    /// # Errors
    /// `NotFound`: there is no catalogue.
    fn aliases(&self, name: &str) -> Result<Vec<String>>;

    /// The numbers of a log's entries, in any order. Empty if the log does not exist.
    ///
    /// # Errors
    /// `NotFound`: there is no catalogue.
    fn numbers(&self, log: &Log) -> Result<Vec<u64>>;

    /// Reads an entry. `None`: it does not exist.
    ///
    /// # Errors
    /// Errors of the store.
    fn read(&self, log: &Log, number: u64) -> Result<Option<Vec<u8>>>;

    /// Creates the entry `number`, durably. Returns false if it exists: of several callers exactly
    /// one gets true. Other callers see the whole entry or nothing.
    ///
    /// # Errors
    /// Errors of the store. The entry may exist afterwards.
    fn append(&self, log: &Log, number: u64, bytes: &[u8]) -> Result<bool>;

    /// The index of a data set.
    ///
    /// # Errors
    /// `Corrupt`: dlfs did not write this index. Errors of the store.
    fn read_index(&self, name: &str) -> Result<Option<Index>>;

    /// Replaces the index of a data set, or removes it.
    ///
    /// # Errors
    /// Errors of the store.
    fn write_index(&self, name: &str, index: Option<&Index>) -> Result<()>;

    /// Returns this store for one call, which fails with `TimedOut` after `until`. `None`: the
    /// store has no such limit.
    fn until(&self, until: Instant) -> Option<Box<dyn Store>> {
        let _ = until; // a store that answers at once needs no deadline
        None
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Log::Versions(name) => write!(f, "{name}: version"),
            Log::Alias(name, alias) => write!(f, "{name}: entry of alias {alias}"),
        }
    }
}

/// Parses the number of an entry as stores write it. `None`: not a number in that form.
pub(super) fn number_of(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| *number > 0 && number.to_string() == text)
}

// The content of a catalogue is not trusted, so everything that is read has a limit.
/// Maximum length of an entry.
pub(super) const MAX_ENTRY_BYTES: u64 = 1 << 20;
/// Maximum length of all entries of a log together.
pub(super) const MAX_LOG_BYTES: u64 = 256 << 20;
/// Maximum length of an index. A chunk takes about 100 bytes.
pub(super) const MAX_INDEX_BYTES: u64 = 1 << 30;
/// Maximum number of names, of aliases, or of entries of a log.
pub(super) const MAX_LISTED: usize = 1 << 20;
