//! Storage of a catalogue.

use std::fmt;
use std::time::Instant;

use super::Index;
use dlfs_base::error::Result;

/// A log of a catalogue: numbered entries, from 1, that are created and never written again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Log {
    /// The versions of a data set.
    Versions(String),
    /// The past targets of an alias of a data set: name, then alias.
    Alias(String, String),
}

/// Keeps the logs and indices of a catalogue. Calls may block; names were checked
/// ([`dlfs_io::address::catalog_name::is_catalog_word`]).
pub trait Store: Send + Sync {
    /// Makes an empty catalogue, where there is none yet.
    ///
    /// # Errors
    /// `Refused`: something else lies there.
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

    /// The numbers of a log's entries, in any order; none if there is no such log.
    ///
    /// # Errors
    /// `NotFound`: there is no catalogue.
    fn numbers(&self, log: &Log) -> Result<Vec<u64>>;

    /// An entry.
    ///
    /// # Errors
    /// Those of the store.
    fn read(&self, log: &Log, number: u64) -> Result<Option<Vec<u8>>>;

    /// Creates the entry `number`, durably; false if it exists. Of several callers exactly one gets true, and an
    /// entry that others see is whole.
    ///
    /// # Errors
    /// Those of the store. The entry may exist then.
    fn append(&self, log: &Log, number: u64, bytes: &[u8]) -> Result<bool>;

    /// The index of a data set.
    ///
    /// # Errors
    /// `Corrupt`: there is one, and it is none of dlfs. Those of the store.
    fn read_index(&self, name: &str) -> Result<Option<Index>>;

    /// Replaces the index of a data set, or removes it.
    ///
    /// # Errors
    /// Those of the store.
    fn write_index(&self, name: &str, index: Option<&Index>) -> Result<()>;

    /// This store for one call, which fails with `TimedOut` from then on; `None`: it cannot be limited.
    fn until(&self, until: Instant) -> Option<Box<dyn Store>> {
        let _ = until; // a store that answers at once needs none
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

/// The number of an entry as its store spells it; `None`: this is none.
pub(super) fn number_of(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| *number > 0 && number.to_string() == text)
}

// The content of a catalogue is not trusted: whatever is read has a limit.
/// The longest entry.
pub(super) const MAX_ENTRY_BYTES: u64 = 1 << 20;
/// Bytes of a whole log.
pub(super) const MAX_LOG_BYTES: u64 = 256 << 20;
/// The longest index. A chunk takes about 100 bytes.
pub(super) const MAX_INDEX_BYTES: u64 = 1 << 30;
/// Names, aliases, or entries of a log.
pub(super) const MAX_LISTED: usize = 1 << 20;
