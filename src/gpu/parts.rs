//! The arrays of a batch, as slices of the host's memory, and their places on the device.

use std::ops::Range;

/// Arrays that are copied together, one behind the other. Each begins at a multiple of [`Parts::ALIGN`] and is made of
/// slices.
#[derive(Debug, Default)]
pub struct Parts<'a> {
    pub(crate) pieces: Vec<Piece<'a>>,
    pub(crate) arrays: Vec<Range<usize>>,
}

/// A slice, and its offset on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) at: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The alignment of arrays on the device: that of memory that CUDA allocates.
    pub const ALIGN: usize = 256;

    /// No array yet.
    pub fn new() -> Parts<'a> {
        Parts::default()
    }

    /// Begins the next array.
    pub fn begin(&mut self) {
        let at = self.len().next_multiple_of(Parts::ALIGN);
        self.arrays.push(at..at);
    }

    /// Appends bytes to the array that was begun last.
    ///
    /// # Panics
    /// If no array was begun.
    pub fn push(&mut self, bytes: &'a [u8]) {
        let array = self.arrays.last_mut().expect("an array was begun");
        if !bytes.is_empty() {
            self.pieces.push(Piece { at: array.end, bytes });
            array.end += bytes.len();
        }
    }

    /// The length of all arrays on the device.
    pub fn len(&self) -> usize {
        self.arrays.last().map_or(0, |array| array.end)
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Runs of slices that follow each other in both memories, so that one copy takes them.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[Piece<'a>]> {
        self.pieces.chunk_by(|one, next| {
            one.at + one.bytes.len() == next.at
                && std::ptr::eq(one.bytes.as_ptr_range().end, next.bytes.as_ptr())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_aligned_and_slices_that_follow_each_other_are_one_run() {
        let bytes = [7; 1000];
        let mut parts = Parts::new();
        parts.begin();
        for slice in [&bytes[..10], &bytes[10..300], &bytes[400..410], &[]] {
            parts.push(slice);
        }
        parts.begin();
        parts.begin();
        parts.push(&bytes[410..420]);
        assert_eq!(parts.arrays, [0..310, 512..512, 512..522]);
        assert_eq!((parts.len(), parts.is_empty()), (522, false));
        let runs: Vec<(usize, usize)> = parts
            .runs()
            .map(|run| (run[0].at, run.iter().map(|it| it.bytes.len()).sum()))
            .collect();
        assert_eq!(runs, [(0, 300), (300, 10), (512, 10)]);
    }
}
