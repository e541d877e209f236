//! The run's first batch read sample by sample, while the chunks that it draws from are on their way.
//!
//! A batch in grouped order draws from every chunk of its groups, so the first one would wait for
//! `lanes × group` chunks: 128 MiB where the samples are 1 MiB. They are read twice instead, once.

use crate::error::Result;
use crate::reader::{Batch, Fetched, Pump};

use super::chunks::ChunkDriver;
use super::memory::Memory;
use super::samples::SampleDriver;
use super::{Delivery, Driver};

/// Drives a few batches by samples, and all that follow by chunks.
pub(super) struct FirstBatchDriver {
    first: SampleDriver,
    rest: ChunkDriver,
}

impl FirstBatchDriver {
    /// `first` numbers its fetches from [`FIRST_BATCH_TOKEN`] on.
    pub(super) fn new(first: SampleDriver, rest: ChunkDriver) -> FirstBatchDriver {
        FirstBatchDriver { first, rest }
    }
}

impl Driver for FirstBatchDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let moved = !self.first.is_done() && self.first.advance(pump, memory)?;
        Ok(self.rest.advance(pump, memory)? || moved)
    }

    fn finished(&mut self, fetched: Fetched) {
        match fetched.token >= FIRST_BATCH_TOKEN {
            true => self.first.finished(fetched),
            false => self.rest.finished(fetched),
        }
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        match self.first.is_done() {
            true => self.rest.next_ready(),
            false => self.first.next_ready(),
        }
    }

    fn is_done(&self) -> bool {
        self.first.is_done() && self.rest.is_done()
    }

    fn recycle(&mut self, batch: Batch) {
        self.rest.recycle(batch);
    }

    fn read_again(&mut self, chunk: u32, load: u32) {
        self.rest.read_again(chunk, load);
    }
}

/// Above the numbers of chunks' fetches, which are places in a list.
pub(super) const FIRST_BATCH_TOKEN: u64 = 1 << 32;
