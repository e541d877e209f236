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
pub(super) struct LedDriver {
    lead: SampleDriver,
    rest: ChunkDriver,
}

impl LedDriver {
    /// `lead` numbers its fetches from [`LEAD_TOKEN`] on.
    pub(super) fn new(lead: SampleDriver, rest: ChunkDriver) -> LedDriver {
        LedDriver { lead, rest }
    }
}

impl Driver for LedDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let moved = !self.lead.is_done() && self.lead.advance(pump, memory)?;
        Ok(self.rest.advance(pump, memory)? || moved)
    }

    fn finished(&mut self, fetched: Fetched) {
        match fetched.token >= LEAD_TOKEN {
            true => self.lead.finished(fetched),
            false => self.rest.finished(fetched),
        }
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        match self.lead.is_done() {
            true => self.rest.next_ready(),
            false => self.lead.next_ready(),
        }
    }

    fn is_done(&self) -> bool {
        self.lead.is_done() && self.rest.is_done()
    }

    fn recycle(&mut self, batch: Batch) {
        self.rest.recycle(batch);
    }

    fn read_again(&mut self, chunk: u32, load: u32) {
        self.rest.read_again(chunk, load);
    }
}

/// Above the numbers of chunks' fetches, which are places in a list.
pub(super) const LEAD_TOKEN: u64 = 1 << 32;
