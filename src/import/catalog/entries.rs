//! Reads and appends the entries of a catalogue's logs. The store is not trusted: entries are checked and limited.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::catalog::record::{decode, encode};
use crate::catalog::store::{Log, MAX_LOG_BYTES, Store};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_io::address::catalog_name::is_catalog_word;

/// All entries of a log with their numbers, oldest first.
///
/// # Errors
/// `Corrupt`: an entry is missing or damaged, or there are too many. Errors of the store.
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

/// The last entry of a log, with its number. `None`: the log is empty.
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

/// Largest number of entries that may be added while a log is listed.
const MAX_MISSED: u64 = 1000;
