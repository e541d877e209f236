//! Reads the first batch of a run by samples while the chunks that it draws from are read.
//!
//! A batch in grouped order draws from every chunk of its groups, so the first one would wait for
//! `lanes × group` chunks: 128 MiB of samples of 1 MiB. The first batch's samples are read twice
//! instead, once per run.

use crate::error::Result;
use crate::reader::{Batch, Fetched, Pump};

use super::chunks::ChunkDriver;
use super::memory::Memory;
use super::samples::SampleDriver;
use super::{Delivery, Driver};

/// Drives the first batch by samples, and all others by chunks.
pub(super) struct FirstBatchDriver {
    first: SampleDriver,
    rest: ChunkDriver,
}

impl FirstBatchDriver {
    /// `first` must number its fetches from [`FIRST_BATCH_TOKEN`].
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
        if fetched.token >= FIRST_BATCH_TOKEN {
            self.first.finished(fetched)
        } else {
            self.rest.finished(fetched)
        }
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        if self.first.is_done() { self.rest.next_ready() } else { self.first.next_ready() }
    }

    fn is_done(&self) -> bool {
        self.first.is_done() && self.rest.is_done()
    }

    fn recycle(&mut self, batch: Batch) {
        self.rest.recycle(batch);
    }

    fn read_again(&mut self, _source: u32, chunk: u32, load: u32) {
        self.rest.read_again(0, chunk, load);
    }
}

/// Greater than every token of a chunk's fetch, which is an index of a resident.
pub(super) const FIRST_BATCH_TOKEN: u64 = 1 << 32;
