//! A unit being assembled for a tier: which of its pages have arrived.

use std::ops::Range;
use std::time::Instant;

use crate::buf::IoBuf;
use crate::tier::PAGE_BYTES;

/// The pages of one unit, collected in any order.
pub(super) struct Assembly {
    /// Empty until the first page arrives.
    buf: IoBuf,
    has: Vec<bool>,
    missing: usize,
    /// Reads by others that will bring some of it.
    pub(super) expected: u32,
    /// When it last changed.
    pub(super) touched: Instant,
    /// The copier's outstanding reads for it.
    pub(super) fetching: usize,
    pub(super) is_writing: bool,
    /// Failed fetches of it.
    pub(super) failures: u32,
}

impl Assembly {
    pub(super) fn new(pages: u32, touched: Instant) -> Assembly {
        Assembly {
            buf: IoBuf::empty(),
            has: vec![false; pages as usize],
            missing: pages as usize,
            expected: 0,
            touched,
            fetching: 0,
            is_writing: false,
            failures: 0,
        }
    }

    /// Length of the unit in bytes.
    pub(super) fn len_bytes(&self) -> usize {
        self.has.len() * PAGE_BYTES as usize
    }

    /// Length of the memory that it holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.buf.len()
    }

    /// Adds whole pages at byte `offset`.
    pub(super) fn add(&mut self, offset: usize, bytes: &[u8]) {
        if self.buf.is_empty() {
            self.buf = IoBuf::zeroed(self.len_bytes());
        }
        self.buf[offset..offset + bytes.len()].copy_from_slice(bytes);
        let page = PAGE_BYTES as usize;
        for has in &mut self.has[offset / page..(offset + bytes.len()) / page] {
            self.missing -= usize::from(!std::mem::replace(has, true));
        }
    }

    /// Whether all pages have arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// The complete data.
    pub(super) fn take(&mut self) -> IoBuf {
        assert!(self.is_whole(), "a unit is written when all of it is there");
        std::mem::take(&mut self.buf)
    }

    /// The first missing range of bytes at or after `from`.
    pub(super) fn next_missing(&self, from: usize) -> Option<Range<usize>> {
        let page = PAGE_BYTES as usize;
        let first = (from / page..self.has.len()).find(|&at| !self.has[at])?;
        let behind = (first..self.has.len()).find(|&at| self.has[at]).unwrap_or(self.has.len());
        Some(first * page..behind * page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_any_order_make_the_unit_and_what_is_missing_is_known() {
        let mut assembly = Assembly::new(6, Instant::now());
        assert_eq!((assembly.held_bytes(), assembly.next_missing(0)), (0, Some(0..24_576)));
        assembly.add(8192, &[2; 4096]);
        assembly.add(8192, &[3; 8192]);
        assert_eq!(assembly.next_missing(0), Some(0..8192));
        assert_eq!(assembly.next_missing(8192), Some(16_384..24_576));
        assembly.add(16_384, &[4; 8192]);
        assert!(!assembly.is_whole() && assembly.next_missing(8192).is_none());
        assembly.add(0, &[1; 8192]);
        assert!(assembly.is_whole());
        let bytes = assembly.take();
        let pages: Vec<u8> = bytes.chunks(4096).map(|page| page[0]).collect();
        assert_eq!(pages, [1, 1, 3, 3, 4, 4]);
    }
}
