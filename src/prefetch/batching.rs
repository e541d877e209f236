//! How batches are brought in: what the user says, or else what fits the order and the medium.
//!
//! Whole chunks are read for a grouped order, and held until their group is over: a medium is read in
//! large pieces once. Where a local file goes through the page cache, though, that holds the chunks, and
//! to hold them again costs a pass through memory which no cache of a processor holds. Samples large
//! enough that a read of each costs little beside the copy are read by themselves there, just before
//! they are wanted. Samples of 110 KiB from the page cache, handed over in Python: 6.0 GB/s so, 4.5 by
//! chunks, with 0.25 and 0.36 s of processor time a GB (2 cores of a virtual Sapphire Rapids).

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::{OrderKind, SequentialBy};
use crate::qpair::Device;

use super::{LoaderOptions, working_set};

/// How the samples of a batch are brought in (DLFS's batching modes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// One command after the other: what a plain synchronous reader does.
    None,
    /// Many reads of single samples at once, neighbours merged, up to the depth of the queues.
    Sample,
    /// Whole chunks, samples handed out of them: needs an order that goes through whole chunks.
    Chunk,
}

impl LoaderOptions {
    /// What they say, or what the order alone asks for.
    pub(super) fn stated_batching(&self) -> Result<Batching> {
        let by_slot = OrderKind::Sequential { by: SequentialBy::Slot };
        let chunked = self.is_grouped() || self.order.kind == by_slot;
        match self.batching {
            None if chunked => Ok(Batching::Chunk),
            None => Ok(Batching::Sample),
            Some(Batching::Chunk) if !chunked => Err(Error::new(
                ErrorKind::InvalidArgument,
                "whole chunks can be read only for an order that goes through whole chunks",
            )
            .hint("use --order grouped, or --batching sample")),
            Some(batching) => Ok(batching),
        }
    }

    /// What they say, or what fits `devices`, too.
    pub(super) fn batching_on(
        &self,
        directory: &Directory,
        devices: &[Arc<dyn Device>],
    ) -> Result<Batching> {
        if !self.is_grouped() || matches!(self.batching, Some(Batching::None | Batching::Sample)) {
            return self.stated_batching();
        }
        let cost = working_set::sample_cost(directory);
        let passes = working_set::num_passes(directory, self);
        if self.batching == Some(Batching::Chunk) {
            // Whoever asks for chunks in a window that is far too small gets the same samples for less.
            let dear = passes.is_some_and(|passes| passes > cost);
            return if dear { Ok(Batching::Sample) } else { self.stated_batching() };
        }
        let held =
            page_cached(devices) && working_set::mean_sample_bytes(directory) >= LARGE_SAMPLE_BYTES;
        // Ranks that share chunks would each read them whole; chunks that do not fit the window, several times.
        let dear = || {
            let shared = working_set::shared_reads(directory, self);
            shared.is_some_and(|reads| reads.by_chunk(cost) > cost)
                || passes.is_some_and(|passes| passes.max(WORTH_NO_COPY) > cost)
        };
        if held || dear() { Ok(Batching::Sample) } else { self.stated_batching() }
    }

    fn is_grouped(&self) -> bool {
        self.order.kind.lanes_and_group().is_some()
    }
}

/// Whether the page cache holds what is read of all `devices`.
pub(super) fn page_cached(devices: &[Arc<dyn Device>]) -> bool {
    devices.iter().all(|device| device.capabilities().is_page_cached)
}

/// From here on a read of each sample costs little beside the copy of its bytes.
const LARGE_SAMPLE_BYTES: u64 = 64 << 10;

/// Samples that cost no more than this many times their bytes by themselves are not copied to save that.
const WORTH_NO_COPY: f64 = 2.0;
