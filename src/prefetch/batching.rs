//! Selects how batches are read: as the options say, or else by the order and the medium.
//!
//! In grouped order, whole chunks are read and kept until their group has ended, so the medium is
//! read once, in large pieces. But if a local file goes through the page cache, the page cache keeps the chunks
//! already, and a second copy in the window would be read from DRAM instead of a processor cache. There, samples
//! are read one by one, just before they are needed, if they are so large that a read costs little beside the copy.
//! See `docs/performance.md`.
//!
//! Other orders are read by samples. In global order, tiny samples share blocks: they are read in passes if one
//! pass uses enough samples of each block.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::{OrderKind, SequentialBy};
use crate::qpair::Device;

use super::options::{Batching, LoaderOptions};
use super::passes::PassLengths;
use super::working_set;

impl LoaderOptions {
    /// The batching that the options or the order prescribe.
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

    /// The batching that the options prescribe, or else the best one on `devices`.
    pub(super) fn batching_on(
        &self,
        directory: &Directory,
        devices: &[Arc<dyn Device>],
    ) -> Result<Batching> {
        if working_set::budget_declines_chunks(directory, self)
            && self.stated_batching()? == Batching::Chunk
        {
            return Ok(Batching::Sample);
        }
        if !self.is_grouped() || matches!(self.batching, Some(Batching::None | Batching::Sample)) {
            return self.stated_batching();
        }
        let cost = working_set::sample_cost(directory);
        let passes = working_set::num_passes(directory, self);
        if self.batching == Some(Batching::Chunk) {
            // If the window is so small that passes cost more than single reads, read samples.
            let dear = passes.is_some_and(|passes| passes > cost);
            return if dear { Ok(Batching::Sample) } else { self.stated_batching() };
        }
        let held =
            page_cached(devices) && working_set::mean_sample_bytes(directory) >= LARGE_SAMPLE_BYTES;
        // Ranks that share chunks would each read them whole; chunks that exceed the window are
        // read several times.
        let dear = || {
            let shared = working_set::shared_reads(directory, self);
            shared.is_some_and(|reads| reads.by_chunk(working_set::stray_cost(directory)) > cost)
                // In a view, or if most samples are deleted, whole chunks are mostly other bytes.
                || working_set::samples_for_a_live_one(directory) > cost.max(working_set::SPARSE)
                || working_set::shares_chunks_on_node(self)
                || passes.is_some_and(|passes| passes.max(WORTH_NO_COPY) > cost)
        };
        if held || dear() { Ok(Batching::Sample) } else { self.stated_batching() }
    }

    /// Lengths of buffers if this batching, returned by [`batching_on`](Self::batching_on), reads in passes.
    pub(super) fn pass_lengths(
        &self,
        batching: Batching,
        directory: &Directory,
    ) -> Option<PassLengths> {
        match batching {
            // Batches by a budget return to earlier groups, and passes cannot.
            Batching::Chunk if self.budget.is_some() => None,
            Batching::Chunk => working_set::pass_lengths(directory, self),
            Batching::Sample => working_set::global_pass_lengths(directory, self),
            Batching::None => None,
        }
    }

    fn is_grouped(&self) -> bool {
        self.order.kind.lanes_and_group().is_some()
    }
}

/// Returns whether the page cache serves the reads of all `devices`.
pub(super) fn page_cached(devices: &[Arc<dyn Device>]) -> bool {
    devices.iter().all(|device| device.capabilities().is_page_cached)
}

/// The least mean sample length at which one read per sample costs little beside the copy of its bytes.
const LARGE_SAMPLE_BYTES: u64 = 64 << 10;

/// The most read amplification at which reading by samples is still preferred, since it saves a copy.
const WORTH_NO_COPY: f64 = 2.0;
