//! Limits of expansion: an import produces only so many bytes for each byte that it reads.
//!
//! A few bytes can stand for many: compressed data, links to a file, rows that share a value. Code that expands
//! input counts the bytes read and produced here, and fails beyond the limit. So a small source cannot fill a
//! disk. All sources of an import share the counts.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bad::BadReason;

/// Counts of the bytes read, and of the bytes produced from them. Clones share the counts.
#[derive(Debug, Clone)]
pub struct Expansion(Arc<ExpansionCounts>);

/// The limit and the counts that clones share.
#[derive(Debug)]
struct ExpansionCounts {
    /// Maximum bytes produced for each byte read.
    most: u64,
    /// Bytes read.
    read: AtomicU64,
    /// Bytes produced, indexed by [`Expands`].
    made: [AtomicU64; 3],
}

/// Causes of expansion. Each has its own limit, since one cause may expand the output of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expands {
    /// Compression.
    Packed,
    /// Links to files or members that were imported already.
    Links,
    /// Rows, which may share their values.
    Rows,
}

impl Default for Expansion {
    fn default() -> Expansion {
        Expansion::new(DEFAULT_MAX_EXPANSION)
    }
}

impl Expansion {
    /// Allows `most` bytes for each byte read, and 256 MiB in any case.
    pub fn new(most: u64) -> Expansion {
        let read = AtomicU64::new(0);
        let made = Default::default();
        Expansion(Arc::new(ExpansionCounts { most, read, made }))
    }

    /// Counts bytes that were read, or will be.
    pub(crate) fn read(&self, bytes: u64) {
        add(&self.0.read, bytes);
    }

    /// Counts bytes that are produced by `how`.
    ///
    /// # Errors
    /// `Expands`: the sum would exceed the limit; these bytes are not counted.
    pub(crate) fn make(&self, how: Expands, bytes: u64) -> Result<(), BadReason> {
        let ExpansionCounts { most, read, made } = &*self.0;
        let limit = read.load(Ordering::Relaxed).saturating_mul(*most);
        let made = &made[how as usize];
        let all = add(made, bytes);
        if all <= limit.max(FREE_BYTES) {
            return Ok(());
        }
        made.fetch_sub(bytes.min(all), Ordering::Relaxed);
        Err(BadReason::Expands(*most))
    }
}

/// Adds, saturating at `u64::MAX`; returns the sum.
fn add(to: &AtomicU64, bytes: u64) -> u64 {
    let sum = |before: u64| Some(before.saturating_add(bytes));
    let before = to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    before.unwrap_or_else(|before| before).saturating_add(bytes)
}

/// Reader of a source's bytes, compressed or not, that counts them as read.
#[derive(Debug)]
pub(crate) struct CountedBytes<R>(pub R, pub Expansion);

impl<R: Read> Read for CountedBytes<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.1.read(read as u64);
        Ok(read)
    }
}

/// Reader of decompressed bytes that fails beyond the limit.
#[derive(Debug)]
pub(crate) struct Decompressed<R>(pub R, pub Expansion);

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.1.make(Expands::Packed, read as u64).map_err(io::Error::other)?;
        Ok(read)
    }
}

/// The default of [`ImportOptions::max_expansion`](crate::import::ImportOptions::max_expansion).
pub const DEFAULT_MAX_EXPANSION: u64 = 100;
/// Bytes that any source may expand to by each cause, however small it is.
const FREE_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_may_make_a_multiple_of_what_was_read_or_256_mib() {
        let expansion = Expansion::new(100);
        assert_eq!(expansion.make(Expands::Packed, FREE_BYTES), Ok(()));
        let refused = Err(BadReason::Expands(100));
        assert_eq!(expansion.make(Expands::Packed, 1), refused);
        expansion.read(3 << 20);
        assert_eq!(expansion.make(Expands::Packed, 44 << 20), Ok(()));
        assert_eq!(expansion.clone().make(Expands::Packed, 1), refused, "clones share it");
        assert_eq!(expansion.make(Expands::Packed, u64::MAX), refused);
        assert_eq!(expansion.make(Expands::Links, 300 << 20), Ok(()));
        expansion.read(u64::MAX);
        assert_eq!(expansion.make(Expands::Rows, u64::MAX), Ok(()));
    }
}
