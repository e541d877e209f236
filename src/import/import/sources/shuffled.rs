//! Shuffles the samples of a stream, a window at a time.
//!
//! A stream may be sorted by class, but the samples of a chunk should be a random choice. The order depends only on
//! the seed and the samples, so that a resumed import writes the same chunks.

use super::sample_stream::{SampleStream, StreamPlace, StreamSample};
use dlfs_base::Result;
use dlfs_base::permutation::{Key, Permutation};

/// A stream whose samples are shuffled within each window.
pub(in crate::import) struct Shuffled<'a> {
    from: Box<dyn SampleStream + 'a>,
    key: Key,
    window_bytes: usize,
    windows: u64,
    /// The current window; `None` for samples that were returned already.
    window: Vec<Option<StreamSample>>,
    /// A sample that is read in pieces. It ends the window, since it must be read before the next sample, and is
    /// returned last.
    alone: Option<StreamSample>,
    order: Option<Permutation>,
    next: usize,
}

impl<'a> Shuffled<'a> {
    /// Shuffles `from` in windows of `window_bytes`, after `windows` earlier windows.
    pub(in crate::import) fn new(
        from: Box<dyn SampleStream + 'a>,
        seed: u64,
        window_bytes: usize,
        windows: u64,
    ) -> Shuffled<'a> {
        Shuffled {
            from,
            key: Key::derive(seed, &[STREAM_WINDOW]),
            window_bytes,
            windows,
            window: Vec::new(),
            alone: None,
            order: None,
            next: 0,
        }
    }

    fn fill(&mut self) -> Result<()> {
        self.window.clear();
        let mut bytes = 0;
        let mut samples = 0;
        while bytes < self.window_bytes && samples < MAX_SAMPLES {
            let Some(sample) = self.from.next_sample()? else { break };
            if sample.unread > 0 {
                self.alone = Some(sample);
                break;
            }
            bytes += sample.len_bytes();
            samples += 1;
            self.window.push(Some(sample));
        }
        let key = self.key.with(self.windows);
        self.order = (samples > 0).then(|| Permutation::new(samples, key));
        self.windows += 1;
        self.next = 0;
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
        if self.next == self.window.len() && self.alone.is_none() {
            self.fill()?;
        }
        let Some(order) = self.order.as_ref().filter(|_| self.next < self.window.len()) else {
            return Ok(self.alone.take());
        };
        let at = order.forward(self.next as u64) as usize;
        self.next += 1;
        Ok(self.window[at].take())
    }

    fn place(&self) -> Option<StreamPlace> {
        let is_between = self.next == self.window.len() && self.alone.is_none();
        let place = self.from.place().filter(|_| is_between)?;
        Some(StreamPlace { windows: self.windows, ..place })
    }
}

/// Separates the keys of stream windows from other keys derived from the seed.
const STREAM_WINDOW: u64 = u64::from_be_bytes(*b"window_1");
/// Most samples of a window, since a small sample takes more memory than its bytes.
const MAX_SAMPLES: u64 = 1 << 18;
