//! Samples handed out of memory that is kept from epoch to epoch: verified again, on the caller's thread.
//!
//! What a batch shows is read-only, but a view of it that C or Python has may be made writable
//! (`torch.frombuffer`, DLPack, a NumPy flag), and a write through it changes the chunk that a later epoch is
//! handed out of. The poller may have put that epoch's batches together before the write, so only the
//! caller's thread can see it, right before it hands a batch out. What was changed is read again: at once for
//! this batch, into other memory for those to come. A write after that is one to the batch that the caller
//! has in hand.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::error::Result;
use crate::reader::{Batch, Reader, ReaderOptions};
use crate::units::SampleId;

use super::{OnError, Prefetcher, Received};

/// What reads again for the caller's thread, once that was needed.
#[derive(Default)]
pub(super) struct Kept {
    reader: Option<Reader>,
}

/// Chunks whose memory was written to, on their way to the poller: number, and which read brought it.
#[derive(Default)]
pub(super) struct Rewritten {
    any: AtomicBool,
    chunks: Mutex<Vec<(u32, u32)>>,
}

impl Rewritten {
    fn add(&self, chunks: impl Iterator<Item = (u32, u32)>) {
        self.chunks.lock().extend(chunks);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn each(&self, mut tell: impl FnMut(u32, u32)) {
        if self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Acquire) {
            let chunks = std::mem::take(&mut *self.chunks.lock());
            chunks.into_iter().for_each(|(chunk, load)| tell(chunk, load));
        }
    }
}

impl Prefetcher {
    /// What was received, with the bytes that were read wherever its memory was written to since.
    ///
    /// # Errors
    /// As [`Reader::read_batch`], where they cannot be read again.
    pub(super) fn verified(&mut self, mut received: Received) -> Result<Received> {
        if let Received::Batch(delivery) = &mut received {
            delivery.skipped += self.verify_kept(&mut delivery.batch)?;
        }
        Ok(received)
    }

    /// Returns how many samples had to be left out.
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
        let ids: Vec<SampleId> = wrong.iter().map(|kept| batch.id(kept.index as usize)).collect();
        let mut fresh = Batch::new();
        let mut failures = self.reader_again()?.read_batch_each(&ids, &mut fresh)?;
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
        batch.remove_missing();
        wrong.sort_unstable_by_key(|kept| (kept.chunk, kept.load));
        wrong.dedup_by_key(|kept| (kept.chunk, kept.load));
        if let Some(poller) = self.poller() {
            poller.shared.rewritten.add(wrong.iter().map(|kept| (kept.chunk, kept.load)));
            poller.waker.wake();
        }
        Ok(failures.len() as u64)
    }

    fn reader_again(&mut self) -> Result<&mut Reader> {
        let reader = match self.kept.reader.take() {
            Some(reader) => reader,
            None => {
                let options = ReaderOptions {
                    window_bytes: WINDOW_BYTES,
                    deadline: self.options.deadline,
                    ..ReaderOptions::default()
                };
                Reader::new(self.directory.clone(), self.devices.clone(), options)?
            }
        };
        Ok(self.kept.reader.insert(reader))
    }
}

/// Memory for what is read again at a time; a batch of more gets the rest from the system.
const WINDOW_BYTES: usize = 16 << 20;
