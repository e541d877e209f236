//! Shuffles a stream of samples, a window at a time.
//!
//! A stream may be sorted by class, but the samples of a chunk should be a random choice. The order depends only on the
//! seed, the size of a window and the samples, so that a resumed import writes the same chunks.

use std::collections::VecDeque;

use super::sample_stream::{SampleStream, StreamPlace, StreamSample};
use dlfs_base::Result;
use dlfs_base::permutation::{Key, Permutation};

/// A stream whose samples are shuffled within each window.
pub(crate) struct Shuffled<'a> {
    from: Box<dyn SampleStream + 'a>,
    key: Key,
    /// A window ends with the sample that reaches this length, after [`MAX_SAMPLES`] samples, or with a sample that is
    /// read in pieces.
    window_bytes: usize,
    /// Number of windows filled so far.
    windows: u64,
    /// The samples of the current window that were not returned yet.
    window: VecDeque<StreamSample>,
}

impl<'a> Shuffled<'a> {
    /// Shuffles `from` in windows of `window_bytes`, after `windows` earlier windows.
    pub(crate) fn new(
        from: Box<dyn SampleStream + 'a>,
        seed: u64,
        window_bytes: usize,
        windows: u64,
    ) -> Shuffled<'a> {
        let key = Key::derive(seed, &[STREAM_WINDOW]);
        Shuffled { from, key, window_bytes, windows, window: VecDeque::new() }
    }

    /// Fills the next window.
    fn fill(&mut self) -> Result<()> {
        let mut samples = Vec::new();
        let mut alone = None;
        let mut bytes = 0;
        while bytes < self.window_bytes
            && samples.len() < MAX_SAMPLES
            && let Some(sample) = self.from.next_sample()?
        {
            if sample.unread > 0 {
                // The sample must be read before the next one, so it ends the window, and is returned last.
                alone = Some(sample);
                break;
            }
            bytes += sample.len_bytes();
            samples.push(Some(sample));
        }
        let count = samples.len() as u64;
        if count > 0 {
            let order = Permutation::new(count, self.key.with(self.windows));
            let take = |at| samples[order.forward(at) as usize].take();
            self.window.extend((0..count).filter_map(take));
        }
        self.window.extend(alone);
        self.windows += 1;
        Ok(())
    }
}

impl SampleStream for Shuffled<'_> {
    fn inner(&self) -> Option<&(dyn SampleStream + '_)> {
        Some(&*self.from)
    }

    fn inner_mut(&mut self) -> Option<&mut (dyn SampleStream + '_)> {
        Some(&mut *self.from)
    }

    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        if self.window.is_empty() {
            self.fill()?;
        }
        Ok(self.window.pop_front())
    }

    fn place(&self) -> Option<StreamPlace> {
        let place = self.from.place().filter(|_| self.window.is_empty())?;
        Some(StreamPlace { windows: self.windows, ..place })
    }
}

/// Separates the keys of stream windows from other keys derived from the seed.
const STREAM_WINDOW: u64 = u64::from_be_bytes(*b"window_1");
/// Most samples of a window, since a small sample takes more memory than its bytes.
const MAX_SAMPLES: usize = 1 << 18;
