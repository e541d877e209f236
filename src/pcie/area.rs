//! Memory that this process and a device both read and write, with the address by which the device knows it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory as words, which the device may write at any time.
pub type Words = Arc<dyn AsRef<[AtomicU32]> + Send + Sync>;

/// A part of [`Words`], with the address by which the device knows it.
#[derive(Clone)]
pub struct Area {
    words: Words,
    /// The first byte's offset in `words`.
    start: usize,
    /// Length in bytes.
    len: usize,
    address: u64,
}

impl Area {
    /// All of `words`, which the device knows by `address`.
    pub fn new(words: Words, address: u64) -> Area {
        let len = (*words).as_ref().len() * 4;
        Area { words, start: 0, len, address }
    }

    /// The `len` bytes from `start` on; both are multiples of 4.
    ///
    /// # Panics
    /// They are not in this area.
    pub fn part(&self, start: usize, len: usize) -> Area {
        assert!(start + len <= self.len && (start | len).is_multiple_of(4), "a part of the area");
        let address = self.address + start as u64;
        Area { words: Arc::clone(&self.words), start: self.start + start, len, address }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// The address by which the device knows it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Fills `bytes`, which is no longer than this area, with its first bytes.
    pub fn read(&self, bytes: &mut [u8]) {
        for (word, bytes) in self.words().iter().zip(bytes.chunks_mut(4)) {
            let word = u32::from_le(word.load(Ordering::Acquire));
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }

    /// Stores `bytes`, whole words, from the byte `at` on, a multiple of 4. The next write of a register makes them
    /// visible to the device.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let words = &self.words()[at / 4..][..bytes.len() / 4];
        for (word, bytes) in words.iter().zip(bytes.chunks_exact(4)) {
            let value = [bytes[0], bytes[1], bytes[2], bytes[3]];
            word.store(u32::from_le_bytes(value).to_le(), Ordering::Relaxed);
        }
    }

    /// The little-endian word at the byte `at`, a multiple of 4, before all later reads.
    pub fn load(&self, at: usize) -> u32 {
        u32::from_le(self.words()[at / 4].load(Ordering::Acquire))
    }

    /// Stores zeroes everywhere.
    pub fn clear(&self) {
        self.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn words(&self) -> &[AtomicU32] {
        &(*self.words).as_ref()[self.start / 4..][..self.len / 4]
    }
}
