//! Second verification, on the caller's thread, of samples in memory kept from an earlier epoch.
//!
//! A batch is read-only, but a view of it in C or Python can be made writable (`torch.frombuffer`,
//! DLPack, a NumPy flag). A write through it changes a chunk that later epochs use. The poller may
//! have assembled a later batch before that write, so only the caller's thread can detect it, just before it
//! returns the batch. Overwritten samples are read again: at once for this batch, and into other memory for later
//! ones. A write after that changes a batch that the caller already holds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::error::Result;
use crate::reader::{Batch, Reader, ReaderOptions};
use crate::units::SampleId;

use super::{OnError, Prefetcher, Received};

/// The readers that read overwritten samples again, created when first needed.
#[derive(Default)]
pub(super) struct Kept {
    /// By source; only one, unless the run is over a mixture.
    readers: BTreeMap<u32, Reader>,
}

/// Overwritten chunks that the poller is to read again: source, chunk number, and number of the read that filled
/// the memory.
#[derive(Default)]
pub(super) struct Rewritten {
    any: AtomicBool,
    chunks: Mutex<Vec<(u32, u32, u32)>>,
}

impl Rewritten {
    fn add(&self, chunks: impl Iterator<Item = (u32, u32, u32)>) {
        self.chunks.lock().extend(chunks);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn each(&self, mut tell: impl FnMut(u32, u32, u32)) {
        if self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Acquire) {
            let chunks = std::mem::take(&mut *self.chunks.lock());
            chunks.into_iter().for_each(|(source, chunk, load)| tell(source, chunk, load));
        }
    }
}

impl Prefetcher {
    /// Verifies the kept samples of a received batch, and reads overwritten ones again.
    ///
    /// # Errors
    /// As [`Reader::read_batch`].
    pub(super) fn verified(&mut self, mut received: Received) -> Result<Received> {
        if let Received::Batch(delivery) = &mut received {
            delivery.skipped += self.verify_kept(&mut delivery.batch)?;
        }
        Ok(received)
    }

    /// Returns the number of samples that could not be read again and were skipped.
    fn verify_kept(&mut self, batch: &mut Batch) -> Result<u64> {
        let mut wrong = batch.rewritten();
        if wrong.is_empty() {
            return Ok(0);
        }
        if self.stats.rewritten == 0 {
            tracing::warn!(
                sample = batch.id(wrong[0].index as usize).0,
                "somebody wrote to the memory of a batch (torch.frombuffer, DLPack or a writable NumPy view \
                 of it): it is kept for later epochs, so what was changed is read again, now and whenever \
                 that happens; copy samples before changing them"
            );
        }
        self.stats.rewritten += wrong.len() as u64;
        let mut num_failed = 0;
        wrong.sort_by_key(|kept| kept.source);
        for wrong in wrong.chunk_by(|one, other| one.source == other.source) {
            let ids: Vec<SampleId> =
                wrong.iter().map(|kept| batch.id(kept.index as usize)).collect();
            let mut fresh = Batch::new();
            let reader = self.reader_again(wrong[0].source)?;
            let mut failures = reader.read_batch_each(&ids, &mut fresh)?;
            if self.options.on_error == OnError::Raise && !failures.is_empty() {
                return Err(failures.swap_remove(0).1);
            }
            for (nth, kept) in wrong.iter().enumerate() {
                batch.replace(kept.index as usize, &fresh, nth);
            }
            for (nth, error) in &failures {
                tracing::warn!(%error, "a sample is left out");
                batch.clear_location(wrong[*nth].index as usize);
            }
            num_failed += failures.len() as u64;
        }
        batch.remove_missing();
        wrong.sort_unstable_by_key(|kept| (kept.source, kept.chunk, kept.load));
        wrong.dedup_by_key(|kept| (kept.source, kept.chunk, kept.load));
        if let Some(poller) = self.poller() {
            let chunks = wrong.iter().map(|kept| (kept.source, kept.chunk, kept.load));
            poller.shared.rewritten.add(chunks);
            poller.waker.wake();
        }
        Ok(num_failed)
    }

    fn reader_again(&mut self, source: u32) -> Result<&mut Reader> {
        let (directory, devices) = match &self.options.mixture {
            Some(mix) => mix.source(source),
            None => (&self.directory, &self.devices[..]),
        };
        match self.kept.readers.entry(source) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let options = ReaderOptions {
                    window_bytes: WINDOW_BYTES,
                    deadline: self.options.deadline,
                    ..ReaderOptions::default()
                };
                Ok(place.insert(Reader::new(Arc::clone(directory), devices.to_vec(), options)?))
            }
        }
    }
}

/// Memory for samples read again; larger batches allocate the rest from the system.
const WINDOW_BYTES: usize = 16 << 20;
