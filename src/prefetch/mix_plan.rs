//! Decides how a mixture is read: which sources by whole chunks, how large the shared window is, and how many
//! batches are read together (a span).

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::reader::SLOT_LEN_BYTES;
use crate::units::Epoch;

use super::driver::MAX_PLANNED;
use super::mix::Mix;
use super::options::{Batching, LoaderOptions};
use super::sample_driver::MAX_UNDER_WAY;
use super::window::Window;
use super::working_set;

/// The batching of each source, and the sizes of window and spans.
#[derive(Debug, Clone)]
pub(super) struct MixPlan {
    /// For each source: by chunks, by samples, or one command at a time.
    pub(super) batching: Vec<Batching>,
    /// Spans for which a chunk stays after its last use; 0: until its group has ended.
    pub(super) patience: u64,
    pub(super) window_bytes: usize,
    /// The number of batches in a span.
    pub(super) span: usize,
    /// The most spans planned ahead.
    pub(super) max_spans: usize,
}

/// The window that all sources share.
pub(super) fn window(mix: &Mix, options: &LoaderOptions) -> Result<Arc<Window>> {
    let plan = plan(mix, options)?;
    let by_chunk =
        || mix.directories.iter().zip(&plan.batching).filter(|(_, how)| **how == Batching::Chunk);
    let chunk_lens = by_chunk().map(|(directory, _)| directory.layout().chunk_size_bytes as usize);
    let shortest = chunk_lens.clone().min();
    let longest = chunk_lens.max();
    let is_chunked = by_chunk().count() == plan.batching.len();
    // Slots of one length keep the window free of gaps that are too small for a chunk.
    let slot_len_bytes = match shortest.zip(longest) {
        Some((shortest, longest)) if is_chunked && longest.is_multiple_of(shortest) => shortest,
        _ => SLOT_LEN_BYTES,
    };
    let data = |directory: &Arc<Directory>| {
        u64::from(directory.num_chunks()) * u64::from(directory.layout().chunk_size_bytes)
    };
    let all: u64 = mix.directories.iter().map(data).sum();
    let used = usize::try_from(all).unwrap_or(usize::MAX);
    Ok(Arc::new(Window::new(plan.window_bytes, slot_len_bytes, used, options)?))
}

/// Selects how each source is read, and the size of the window.
///
/// A source is read by chunks if a data set alone in its order would be, and if its open chunks fit the window
/// together with those of the sources before it. Sources with more samples per open byte come first: their chunks
/// serve more reads from the same memory. If samples sorted by length need half of the window, no source is read by
/// chunks. The remaining sources are read by samples.
pub(super) fn plan(mix: &Mix, options: &LoaderOptions) -> Result<MixPlan> {
    let order = options.order.started(options.world_size);
    let of_source = |at: usize| LoaderOptions {
        order: mix.order_of(at, &order),
        mixture: None,
        resume: None,
        ..options.clone()
    };
    let mut batching = Vec::new();
    let mut open = Vec::new();
    for (at, (directory, devices)) in mix.directories.iter().zip(&mix.devices).enumerate() {
        let options = of_source(at);
        open.push(working_set::kept_bytes(directory, &options));
        // Modes for one data set alone, such as passes, are not used here.
        batching.push(options.batching_on(directory, devices)?);
    }
    let wanted: u64 = open
        .iter()
        .zip(&batching)
        .filter(|(_, how)| **how == Batching::Chunk)
        .map(|(b, _)| b)
        .sum();
    let sorted = working_set::sorted_bytes_of(options, mean_bytes(mix));
    let window_bytes = working_set::shared_window_bytes(options, wanted + sorted);
    let is_sorted = sorted > window_bytes as u64 / 2;
    let room = (window_bytes as u64).saturating_sub(sorted);
    let mut by_use: Vec<usize> =
        (0..batching.len()).filter(|&at| batching[at] == Batching::Chunk).collect();
    let shares = mix.mixture.counts(Epoch(0));
    // Descending by samples per open byte: a/b > c/d, compared as a*d > c*b.
    by_use.sort_by(|&one, &other| {
        let of = |a: usize, b: usize| u128::from(shares[a]) * u128::from(open[b]);
        of(other, one).cmp(&of(one, other))
    });
    let mut held = 0_u64;
    let mut declined = 0;
    for at in by_use {
        let fits = held + open[at] <= room && !is_sorted;
        if fits {
            held += open[at]
        } else {
            batching[at] = Batching::Sample;
            declined += 1;
        }
    }
    if declined > 0 {
        tracing::debug!(
            declined,
            window_bytes,
            "sources are read by samples: their chunks exceed the window"
        );
    }
    let span = span_of(mix, options, window_bytes);
    let patience = working_set::patience(options).div_ceil(span as u64);
    let max_spans = if batching.iter().all(|how| *how == Batching::Chunk) {
        MAX_PLANNED
    } else {
        // As many batches are in flight as in a run over one data set.
        (MAX_UNDER_WAY / span).max(2)
    };
    Ok(MixPlan { batching, patience, window_bytes, span, max_spans })
}

/// The number of batches read together (a span): enough that each source has [`PART_SAMPLES`] samples, but at most
/// 1 / [`SPANS_A_WINDOW`] of the window.
fn span_of(mix: &Mix, options: &LoaderOptions, window_bytes: usize) -> usize {
    let batch_size = options.batch_size.max(1);
    let for_parts = (PART_SAMPLES * mix.devices.len()).div_ceil(batch_size);
    let batch_bytes = mean_bytes(mix).saturating_mul(batch_size as u64).max(1);
    let for_window = window_bytes as u64 / SPANS_A_WINDOW / batch_bytes;
    for_parts.min(usize::try_from(for_window).unwrap_or(usize::MAX)).clamp(1, MAX_SPAN)
}

/// The mean length of a sample of the mixture, in bytes.
fn mean_bytes(mix: &Mix) -> u64 {
    let counts = mix.mixture.counts(Epoch(0));
    let bytes = counts.iter().zip(mix.directories.iter()).map(|(&count, directory)| {
        u128::from(count) * u128::from(working_set::mean_sample_bytes(directory))
    });
    let all: u128 = bytes.sum();
    (all / u128::from(mix.mixture.epoch_size().max(1))) as u64
}

/// Samples of a source in a span: enough that the fixed cost of its part is small for each sample.
const PART_SAMPLES: usize = 128;

/// The window holds at least this many spans, if a span has several batches.
const SPANS_A_WINDOW: u64 = 32;

/// The most batches in a span.
const MAX_SPAN: usize = 64;
