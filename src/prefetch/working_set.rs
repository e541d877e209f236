//! Decides how long the window is and how batches are read. Both follow from the working set of a run: the chunks that
//! its order has open at a time.
//!
//! [`LoaderOptions::batching_on`] selects how batches are read: as the options say, or else by the order, the window
//! and the medium. In grouped order, whole chunks are read and kept until their group has ended, so the medium is read
//! once, in large pieces. But if a local file goes through the page cache, the page cache keeps the chunks already,
//! and a second copy in the window would be read from DRAM instead of a processor cache. There, samples are read one
//! by one, just before they are needed, if they are so large that a read costs little beside the copy. See
//! `docs/performance.md`.
//!
//! The sequential order by slot is read by whole chunks, too; all other orders are read by samples. In global order,
//! tiny samples share blocks: they are read in passes if one pass uses enough samples of each block.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::{EpochOrder, OrderKind, Reads, SequentialBy, Sharding, gcd};
use crate::qpair::Device;
use crate::units::Epoch;

use super::LoaderOptions;
use super::options::Batching;
use super::passes::PassLengths;

/// The length of the window: as the options say, or else enough for the chunks that are open on this rank, for the
/// next group of each lane that changes groups, and for the first batch; within limits.
pub(super) fn window_bytes(directory: &Directory, options: &LoaderOptions) -> usize {
    let wanted = options.order.kind.lanes_and_group().map_or(0, |(_, group)| {
        let chunks = u64::from(lanes_of(options)).saturating_mul(u64::from(group) + 1);
        let chunks = chunks.saturating_add(FIRST_BATCH_ROOM_CHUNKS);
        chunks_len(directory, chunks).saturating_add(sorted_bytes(directory, options))
    });
    shared_window_bytes(options, wanted)
}

/// As [`window_bytes`], without room for the first batch where it is not read apart.
pub(super) fn window_bytes_on(
    directory: &Directory,
    devices: &[Arc<dyn Device>],
    options: &LoaderOptions,
) -> usize {
    let bytes = window_bytes(directory, options);
    let room = FIRST_BATCH_ROOM_CHUNKS * chunk_len(directory);
    let without = (bytes as u64).saturating_sub(room);
    let needed = kept_bytes(directory, options).saturating_add(sorted_bytes(directory, options));
    let is_enough = without >= needed;
    if options.window_bytes == 0 && is_enough && !reads_parts(devices) {
        (without as usize).max(DEFAULT_WINDOW)
    } else {
        bytes
    }
}

/// The length of a window that is to hold `wanted` bytes: as the options say, or else `wanted` within limits.
pub(super) fn shared_window_bytes(options: &LoaderOptions, wanted: u64) -> usize {
    match options.window_bytes {
        0 => {
            usize::try_from(wanted).unwrap_or(usize::MAX).clamp(DEFAULT_WINDOW, MAX_DEFAULT_WINDOW)
        }
        bytes => bytes,
    }
}

/// Bytes of the chunks that a data set or source has in use: the chunks open on this rank, and a chunk more of each
/// lane, since a lane's next group begins while batches still use the last chunks of its previous group. Orders other
/// than the grouped one have one chunk open, and the next one.
pub(super) fn kept_bytes(directory: &Directory, options: &LoaderOptions) -> u64 {
    let chunks = match options.order.kind.lanes_and_group() {
        Some((_, group)) => u64::from(lanes_of(options)) * (u64::from(group) + 1),
        None => 2,
    };
    chunks_len(directory, chunks)
}

/// Returns whether batches by a budget are better read by samples. Either the window cannot hold the chunks of the
/// samples sorted by length, or each of several ranks would read all chunks, since each has samples of every batch.
fn budget_declines_chunks(directory: &Directory, options: &LoaderOptions) -> bool {
    if options.budget.is_none() {
        return false;
    }
    let open = open_bytes(directory, options).max(chunks_len(directory, 2));
    let wanted = open.saturating_add(sorted_bytes(directory, options));
    let ranks = f64::from(options.world_size.max(1));
    (window_bytes(directory, options) as u64) < wanted || ranks > sample_cost(directory)
}

/// Bytes that batches by a budget need beside the open chunks of the order: a window of positions that is sorted by
/// length reaches into the next group, and its chunks stay for two such windows.
fn sorted_bytes(directory: &Directory, options: &LoaderOptions) -> u64 {
    let samples = sorted_positions(options).min(directory.num_live());
    samples.saturating_mul(3 * mean_sample_bytes(directory)).min(chunks_len(directory, u64::MAX))
}

/// As [`sorted_bytes`], for a mixture whose samples have `mean_bytes` on average.
pub(super) fn sorted_bytes_of(options: &LoaderOptions, mean_bytes: u64) -> u64 {
    sorted_positions(options).saturating_mul(mean_bytes.saturating_mul(3))
}

/// The positions within which batches by a budget reorder samples; 0 if they come in the order's sequence.
fn sorted_positions(options: &LoaderOptions) -> u64 {
    let sorts = options.budget.as_ref().filter(|budget| budget.has_windows());
    sorts.map_or(0, |budget| budget.window.into())
}

/// Batches for which a chunk stays after its last use; 0: until its group has ended. Batches by a budget return to
/// a chunk within the window of positions after its last use; rows that take documents in sequence do not.
pub(super) fn patience(options: &LoaderOptions) -> u64 {
    let positions = sorted_positions(options);
    if positions == 0 {
        return 0;
    }
    let of_window = positions.div_ceil(options.batch_size.max(1) as u64);
    3 * of_window.div_ceil(options.world_size.max(1).into()) + PATIENCE
}

/// Returns whether the open chunks of a grouped order exceed the window, so that they cannot stay until their last
/// sample is handed out.
fn exceeds_window(directory: &Directory, options: &LoaderOptions) -> bool {
    (window_bytes(directory, options) as u64) < open_bytes(directory, options)
}

/// Lengths of buffers if chunks are read in several passes; `None` if the open chunks fit the
/// window.
pub(super) fn pass_lengths(directory: &Directory, options: &LoaderOptions) -> Option<PassLengths> {
    let window = window_bytes(directory, options);
    let open = open_bytes(directory, options);
    let chunk = chunk_len(directory) as usize;
    let sample = mean_sample_bytes(directory) as usize;
    exceeds_window(directory, options).then(|| PassLengths::of(window, chunk, open, sample))
}

/// Lengths of buffers if tiny samples in global order are read in passes. `None` in other orders, if the options
/// select a batching, or if one pass would use too few samples of each block.
fn global_pass_lengths(directory: &Directory, options: &LoaderOptions) -> Option<PassLengths> {
    let is_open = options.batching.is_none() && options.order.kind == OrderKind::Global;
    if !is_open {
        return None;
    }
    let sample = mean_sample_bytes(directory);
    let num_samples = directory.num_samples();
    let data = sample * num_samples;
    // A pass reads all blocks, so most of them should hold live samples.
    let is_sparse = samples_for_a_live_one(directory) > SPARSE;
    if !(1..=TINY_SAMPLE_BYTES).contains(&sample) || data < WORTH_PASSES_BYTES || is_sparse {
        return None;
    }
    let window = window_bytes(directory, options);
    let chunk = chunk_len(directory) as usize;
    let lengths = PassLengths::of(window, chunk, data, sample as usize).beginning_early();
    let epochs = options.epochs.end.saturating_sub(options.epochs.start);
    let owed = epochs as f64 * num_samples as f64 / f64::from(options.world_size.max(1));
    let in_pass = lengths.samples_in_pass(num_samples, options.batch_size).min(owed);
    (in_pass * BLOCK_BYTES >= SAMPLES_OF_BLOCK * data as f64).then_some(lengths)
}

/// Returns whether to read the first batch by samples: its chunks are large, and there is memory for both.
pub(super) fn reads_first_batch_apart(directory: &Directory, options: &LoaderOptions) -> bool {
    if options.budget.is_some() {
        return false; // the first batch is known once the first window is cut
    }
    let awaited = open_bytes(directory, options);
    let room = (window_bytes(directory, options) as u64).saturating_sub(awaited);
    awaited >= FIRST_BATCH_FROM_BYTES && room >= FIRST_BATCH_ROOM_CHUNKS * chunk_len(directory)
}

/// The number of samples in whole chunks per live sample: deleted samples and those outside a view are not live.
fn samples_for_a_live_one(directory: &Directory) -> f64 {
    directory.num_samples() as f64 / directory.num_live().max(1) as f64
}

/// Warns if the window is smaller than the working set of the order.
pub(super) fn warn_of_small_window(directory: &Directory, options: &LoaderOptions) {
    let Some((lanes, group)) = options.order.kind.lanes_and_group() else { return };
    if exceeds_window(directory, options) {
        tracing::warn!(
            window_bytes = window_bytes(directory, options),
            enough_bytes = kept_bytes(directory, options),
            lanes,
            group,
            "the window is smaller than the chunks that a grouped order has open at a time, so samples are \
             read one by one, or chunks in several passes: give it enough_bytes, or take fewer lanes or \
             smaller groups"
        );
    }
}

/// Bytes of the chunks that a grouped order has open on one rank at a time: one group of each of
/// its lanes. 0 for other orders.
fn open_bytes(directory: &Directory, options: &LoaderOptions) -> u64 {
    let Some((_, group)) = options.order.kind.lanes_and_group() else { return 0 };
    chunks_len(directory, u64::from(lanes_of(options)) * u64::from(group))
}

/// The number of lanes that one rank reads: those of its class (see `order::aligned`), or its share of them.
fn lanes_of(options: &LoaderOptions) -> u32 {
    let Some((lanes, _)) = options.order.kind.lanes_and_group() else { return 0 };
    let world_size = options.world_size.max(1);
    let classes = gcd(lanes.into(), world_size.into()) as u32;
    match options.sharding {
        Sharding::Aligned if classes < world_size => (lanes / world_size + 2).min(lanes / classes),
        // The chunks that the node holds, of all lanes.
        Sharding::Local => {
            let (on_node, ranks) = options.locality.as_ref().map_or((1, 1), |locality| {
                (locality.ranks_on(locality.node_of(options.rank)), locality.num_ranks())
            });
            let of_node = u64::from(lanes) * u64::from(on_node) / u64::from(ranks);
            (of_node as u32 + 2).min(lanes)
        }
        _ => lanes / classes,
    }
}

/// The number of times that all ranks together read the chunks of this run, if the lanes of a grouped order are not a
/// multiple of the ranks. `None` otherwise, and for local shares and batches by a budget.
fn shared_reads(directory: &Directory, options: &LoaderOptions) -> Option<Reads> {
    let (lanes, _) = options.order.kind.lanes_and_group()?;
    if options.budget.is_some() {
        return None; // ranks have batches of all lanes
    }
    let is_local = options.sharding == Sharding::Local;
    if is_local || lanes == 0 || lanes.is_multiple_of(options.world_size.max(1)) {
        return None;
    }
    reads_as(directory, options, options.sharding)
}

/// Returns whether other processes of this node use samples of the same chunks: with local shares, each process
/// uses a part of every chunk that the node holds.
fn shares_chunks_on_node(options: &LoaderOptions) -> bool {
    options.sharding == Sharding::Local
        && options.locality.as_ref().is_some_and(|locality| {
            let processes = options.world_size / locality.num_ranks();
            locality.ranks_on(locality.node_of(options.rank)) * processes > 1
        })
}

/// The number of times that all ranks together read the chunks with this sharding.
fn reads_as(directory: &Directory, options: &LoaderOptions, sharding: Sharding) -> Option<Reads> {
    let epoch = Epoch(options.resume.as_ref().map_or(options.epochs.start, |state| state.epoch.0));
    let mut order = EpochOrder::new(&options.order, epoch, directory).ok()?;
    order.reads(sharding, options.world_size, options.batch_size as u64)
}

/// Warns on rank 0 if all ranks together will read much more than the data, by chunk or by sample.
pub(super) fn warn_of_shared_reads(directory: &Directory, options: &LoaderOptions, by_chunk: bool) {
    let Some(reads) = shared_reads(directory, options).filter(|_| options.rank == 0) else {
        return;
    };
    let cost = sample_cost(directory);
    let stray = stray_cost(directory);
    let now = if by_chunk { reads.by_chunk(stray) } else { cost };
    if now <= WORTH_A_WARNING {
        return;
    }
    let aligned =
        reads_as(directory, options, Sharding::Aligned).map(|reads| reads.by_chunk(stray));
    let better = aligned.filter(|&aligned| aligned < 0.9 * now);
    let remedy = match better {
        Some(aligned) => format!(
            "share batches by chunks (--shard aligned, shard=\"aligned\"), which reads {aligned:.2} times \
             the data, or begin"
        ),
        None => "begin".to_owned(),
    };
    let lanes = options.order.kind.lanes_and_group().map_or(0, |(lanes, _)| lanes);
    let world_size = options.world_size;
    tracing::warn!(
        lanes,
        world_size,
        "all ranks together will read {now:.2} times the data, since {lanes} lanes cannot be shared out to \
         {world_size} ranks: {remedy} a run whose lanes are a multiple of the ranks, as the default is"
    );
}

/// An estimate of the bytes read for a sample alone, relative to its length: whole blocks are read.
pub(super) fn sample_cost(directory: &Directory) -> f64 {
    1.0 + BLOCK_BYTES / (mean_sample_bytes(directory).max(1) as f64)
}

/// As [`sample_cost`], for a sample that aligned shares give to another rank: they choose one that touches few blocks.
fn stray_cost(directory: &Directory) -> f64 {
    let mean = mean_sample_bytes(directory).max(1) as f64;
    (mean / BLOCK_BYTES).ceil() * BLOCK_BYTES / mean
}

/// The mean length of a sample in bytes, with its share of headers and padding.
pub(super) fn mean_sample_bytes(directory: &Directory) -> u64 {
    let lengths = (0..directory.num_chunks()).map(|c| directory.chunk(c).len_bytes);
    lengths.sum::<u64>() / directory.num_samples().max(1)
}

/// Bytes of `chunks` chunks, or of all chunks if there are fewer.
fn chunks_len(directory: &Directory, chunks: u64) -> u64 {
    chunks.min(u64::from(directory.num_chunks())).saturating_mul(chunk_len(directory))
}

/// The length of a chunk in bytes.
fn chunk_len(directory: &Directory) -> u64 {
    directory.layout().chunk_size_bytes.into()
}

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
        if budget_declines_chunks(directory, self) && self.stated_batching()? == Batching::Chunk {
            return Ok(Batching::Sample);
        }
        if !self.is_grouped() || matches!(self.batching, Some(Batching::None | Batching::Sample)) {
            return self.stated_batching();
        }
        let cost = sample_cost(directory);
        // The estimated number of passes over chunks that exceed the window.
        let passes = pass_lengths(directory, self).map(|lengths| lengths.num_passes());
        if self.batching == Some(Batching::Chunk) {
            // If the window is so small that passes cost more than single reads, read samples.
            let dear = passes.is_some_and(|passes| passes > cost);
            return if dear { Ok(Batching::Sample) } else { self.stated_batching() };
        }
        let held = page_cached(devices) && mean_sample_bytes(directory) >= LARGE_SAMPLE_BYTES;
        // Ranks that share chunks would each read them whole; chunks that exceed the window are
        // read several times.
        let dear = || {
            let shared = shared_reads(directory, self);
            shared.is_some_and(|reads| reads.by_chunk(stray_cost(directory)) > cost)
                // In a view, or if most samples are deleted, whole chunks are mostly other bytes.
                || samples_for_a_live_one(directory) > cost.max(SPARSE)
                || shares_chunks_on_node(self)
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
            Batching::Chunk => pass_lengths(directory, self),
            Batching::Sample => global_pass_lengths(directory, self),
            Batching::None => None,
        }
    }

    fn is_grouped(&self) -> bool {
        self.order.kind.lanes_and_group().is_some()
    }
}

/// Returns whether a part of a chunk takes less to read from all `devices` than the whole chunk.
pub(super) fn reads_parts(devices: &[Arc<dyn Device>]) -> bool {
    devices.iter().all(|device| device.reads_parts())
}

/// Returns whether the page cache serves the reads of all `devices`.
pub(super) fn page_cached(devices: &[Arc<dyn Device>]) -> bool {
    devices.iter().all(|device| device.capabilities().is_page_cached)
}

/// Added to the batches for which a chunk stays because of sorting windows.
const PATIENCE: u64 = 8;

/// The limits of the default window; only large open chunks, or large batches by a budget, make it exceed the first.
const DEFAULT_WINDOW: usize = 256 << 20;
const MAX_DEFAULT_WINDOW: usize = 1 << 30;

/// The read amplification above which a warning is logged.
const WORTH_A_WARNING: f64 = 1.1;

/// With more samples than this per live one, reading whole chunks costs more than it saves in commands.
pub(super) const SPARSE: f64 = 2.0;

/// The least number of bytes that devices read.
const BLOCK_BYTES: f64 = 4096.0;

/// The longest mean sample length read in passes: larger samples gain little from sharing blocks, and pay for a
/// copy.
const TINY_SAMPLE_BYTES: u64 = 1 << 10;

/// The least data read in passes: less is read soon enough by samples.
const WORTH_PASSES_BYTES: u64 = 4 << 20;

/// The mean number of samples that a pass must take of each block. With k random samples a block, a pass reads
/// (1 - e^-k) / k of the blocks that single reads would read: half of them here.
const SAMPLES_OF_BLOCK: f64 = 1.6;

/// A first batch that would wait for at least this many bytes is read by samples (3 ms at 5 GB/s).
const FIRST_BATCH_FROM_BYTES: u64 = 16 << 20;

/// Memory for the first batch that must be free beside the open chunks, in chunks.
pub(super) const FIRST_BATCH_ROOM_CHUNKS: u64 = 8;

/// The least mean sample length at which one read per sample costs little beside the copy of its bytes.
const LARGE_SAMPLE_BYTES: u64 = 64 << 10;

/// The most read amplification at which reading by samples is still preferred, since it saves a copy.
const WORTH_NO_COPY: f64 = 2.0;
