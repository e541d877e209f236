//! The logs of a catalogue: [`Store`], the interface to the storage of logs and indexes, and the entries of a log read
//! and appended through it. The store is not trusted: entries are checked and limited.

use std::fmt;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::catalog::Index;
use crate::catalog::record::{decode, encode};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_io::address::catalog_name::is_catalog_word;

/// A log of a catalogue: entries numbered from 1, which are created once and never overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Log {
    /// The versions of a data set.
    Versions(String),
    /// All targets of an alias of a data set: name of the data set, then alias.
    Alias(String, String),
}

/// Storage for the logs and indexes of a catalogue. Calls may block. A name is checked ([`is_catalog_word`]) before
/// anything is created under it; other calls may have any name. A store that cannot tell whether a catalogue exists
/// treats a missing one as empty.
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

    /// The index of a data set. `None`: there is none.
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

/// All entries of a log with their numbers, oldest first.
///
/// # Errors
/// `Corrupt`: an entry is missing or damaged, or the entries have more than [`MAX_LOG_BYTES`] together. `Unsupported`:
/// a later release wrote an entry. Errors of the store.
pub(super) fn entries_of<T: DeserializeOwned>(
    store: &dyn Store,
    log: &Log,
) -> Result<Vec<(u64, T)>> {
    let mut left = MAX_LOG_BYTES;
    let entry = |number| {
        let bytes = bytes_of(store, log, number)?;
        left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            corrupt(format!("the entries of {log} have more than {MAX_LOG_BYTES} bytes"))
        })?;
        Ok((number, decode(&bytes, &format!("{log} {number}"))?))
    };
    (1..=last_of(store, log)?).map(entry).collect()
}

/// The last entry of a log, with its number. `None`: the log is empty. Reads earlier entries only if the store does
/// not list them.
///
/// # Errors
/// As [`entries_of`].
pub(super) fn newest_entry<T: DeserializeOwned>(
    store: &dyn Store,
    log: &Log,
) -> Result<Option<(u64, T)>> {
    let last = last_of(store, log)?;
    (last > 0).then(|| Ok((last, read_entry(store, log, last)?))).transpose()
}

/// The number of a log's last entry, 0 if the log is empty. Checks that all entries before it
/// exist.
fn last_of(store: &dyn Store, log: &Log) -> Result<u64> {
    let mut numbers = store.numbers(log)?;
    numbers.sort_unstable();
    let last = numbers.last().copied().unwrap_or(0);
    // While a folder is listed, entries may be added of which the listing shows only the last.
    let missed = last.abs_diff(numbers.len() as u64);
    if missed > MAX_MISSED {
        return Err(corrupt(format!("the last of {} is {log} {last}", numbers.len())));
    }
    if missed > 0 {
        let unlisted = |number: &u64| numbers.binary_search(number).is_err();
        (1..last).filter(unlisted).try_for_each(|n| bytes_of(store, log, n).map(drop))?;
    }
    Ok(last)
}

/// Reads the entry `number` of a log.
///
/// # Errors
/// As [`entries_of`].
pub(super) fn read_entry<T: DeserializeOwned>(
    store: &dyn Store,
    log: &Log,
    number: u64,
) -> Result<T> {
    decode(&bytes_of(store, log, number)?, &format!("{log} {number}"))
}

/// The bytes of an entry that must exist.
fn bytes_of(store: &dyn Store, log: &Log, number: u64) -> Result<Vec<u8>> {
    store.read(log, number)?.ok_or_else(|| corrupt(format!("{log} {number} is missing")))
}

/// The error for a damaged catalogue.
pub(super) fn corrupt(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the catalogue is damaged: {what}"))
        .hint("dlfs never removes entries: restore them, or remove one that it did not write")
}

/// Creates the entry `number` of a log. Returns false if it exists.
///
/// # Errors
/// Errors of the store.
pub(super) fn append<T: Serialize>(
    store: &dyn Store,
    log: &Log,
    number: u64,
    entry: &T,
) -> Result<bool> {
    store.append(log, number, &encode(entry)?)
}

/// Checks `names`, which the store returned: each must be a valid word, and so cannot lead out of
/// the catalogue.
///
/// # Errors
/// `Corrupt`: one is not.
pub(super) fn words(names: Vec<String>) -> Result<Vec<String>> {
    match names.iter().find(|name| !is_catalog_word(name)) {
        Some(name) => {
            let begins: String = name.chars().take(100).collect();
            Err(corrupt(format!("{begins:?} is no name of a data set or alias")))
        }
        None => Ok(names),
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
/// Maximum number of entries that may be added while a log is listed.
const MAX_MISSED: u64 = 1000;
