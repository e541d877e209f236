//! Orders: the sequence of samples in each epoch. Every rank can compute it in advance.
//!
//! An epoch is a sequence of positions 0..N over the live samples of one generation. It depends only on {image,
//! generation, order, seed, epoch}, and not on the world size, the batch size or earlier epochs. So a rank computes
//! its share ([`Shard`]), a run resumes from a few numbers ([`State`]) with another world size, and every node can
//! compute what every other node will read. (`local` and `partial` depend on the world size; their specification
//! contains it.)
//!
//! All shuffles are keyed permutations ([`dlfs_base::permutation`]): any position is computed directly, nothing is
//! allocated per sample, and memory is a few words for each chunk (and in `partial` order, for each past epoch).
//! Weighted order is the exception. The sequence of a specification is frozen; `tests/golden/orders.txt` pins it.
//!
//! This module does not read samples. A [`Population`] provides the number of samples and their chunks, a reader
//! reads the ids or [`Pick`]s, and `report` measures how random an order is.
//!
//! Read [`EpochOrder`] first, then `chunked.rs` (the algorithm of grouped order). Three files divide an epoch among
//! ranks: `shard.rs` by position, `aligner.rs` by chunk, `by_node.rs` by holder. `shares.rs` computes the samples and
//! exchanges of ranks in `local` and `partial` order. [`mixture`] makes one sequence of several data sets. [`weighted`]
//! draws samples by weights. [`budget`] cuts any order into batches by a token budget. [`lanes`] goes over shards whose
//! numbers of samples are not known yet.

mod aligner;
pub mod budget;
mod by_node;
mod chunked;
pub mod lanes;
pub mod mixture;
pub mod report;
mod shard;
mod shares;
mod spec;
mod state;
pub mod weighted;

use std::ops::Range;
use std::sync::Arc;

use dlfs_base::error::{Result, ensure, invalid};
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::{Epoch, SampleId};

pub use aligner::{Aligner, Counted, Reads, gcd};
pub use by_node::{ByNode, Locality, deal};
pub use chunked::Pick;
pub use shard::{GlobalBatch, Positions, Shard, Sharding, Tail};
pub use shares::{Exchanged, Shares};
pub use spec::{HexId, LANES_A_RANK, MAX_EPOCHS, OrderKind, OrderSpec, SequentialBy};
pub use state::State;

use chunked::Chunked;
use shares::Partial;
use weighted::{Weighted, Weights};

/// The samples of an order: the live samples of one generation.
pub trait Population {
    /// The number of live samples in the whole image.
    fn num_live(&self) -> u64;

    /// The number of chunks, including those without live samples. Chunks are numbered in slot order.
    fn num_chunks(&self) -> u32;

    /// The number of live samples in `chunk`.
    fn live_in_chunk(&self, chunk: u32) -> u32;

    /// The length of `chunk` in chunk sizes, rounded up: more than one only if it holds one oversize sample.
    fn span_of_chunk(&self, _chunk: u32) -> u32 {
        1
    }

    /// The live sample number `rank`, in the order of ids.
    fn id_of_live(&self, rank: u64) -> SampleId;

    /// The live sample number `nth` of `chunk`, in slot order.
    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId;

    /// The chunk of a live sample; `None` if the sample does not exist.
    fn chunk_of(&self, id: SampleId) -> Option<u32>;

    /// The number of blocks of the medium that the live sample number `nth` of `chunk` touches: the cost of reading
    /// it alone. If this is unknown, the same number for all samples.
    fn blocks_of(&self, _chunk: u32, _nth: u32) -> u32 {
        1
    }
}

/// The sequence of one epoch: position -> sample.
///
/// An `EpochOrder` caches the state of the last position, which makes consecutive positions fast and changes no result.
/// So each thread needs a separate value.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    len: u64,
    epoch: Epoch,
    sequence: Sequence,
}

/// The algorithm of a kind of order, for one epoch.
#[derive(Debug, Clone)]
enum Sequence {
    ById,
    Global(Permutation),
    Chunked(Chunked),
    Partial(Partial),
    Weighted(Weighted),
}

impl EpochOrder {
    /// The order of the samples of `population` in `epoch`, by `spec`.
    ///
    /// Takes constant time for `global` and `sequential` by id. The other orders visit each chunk once, and keep some
    /// 20 bytes per chunk at most; `partial` also prepares the exchanges of all earlier epochs.
    ///
    /// # Errors
    /// A number of `spec` is out of range, or the epoch does not exist. The order is weighted: use
    /// [`EpochOrder::weighted`].
    pub fn new(
        spec: &OrderSpec,
        epoch: Epoch,
        population: &(impl Population + ?Sized),
    ) -> Result<EpochOrder> {
        EpochOrder::along(spec, epoch, population, None, None)
    }

    /// The order of `spec`, which draws by `weights` if they are given. A grouped order reuses the memory of `before`.
    fn along(
        spec: &OrderSpec,
        epoch: Epoch,
        population: &(impl Population + ?Sized),
        weights: Option<&Arc<Weights>>,
        before: Option<Chunked>,
    ) -> Result<EpochOrder> {
        spec.check()?;
        spec.check_epoch(epoch)?;
        let samples = population.num_live();
        if let Some(weights) = weights {
            let weighed = weights.num_samples();
            ensure(spec.kind == weights.kind() && weighed == samples, || {
                format!(
                    "the order names other weights: these weigh {weighed} samples, and there are {samples}"
                )
            })?;
        }
        let key = Key::derive(spec.seed, &[spec.kind.label(), epoch.0]);
        let sequence = match spec.kind {
            OrderKind::Sequential { by: SequentialBy::Id } => Sequence::ById,
            OrderKind::Sequential { by: SequentialBy::Slot } => {
                Sequence::Chunked(Chunked::in_slot_order(population))
            }
            OrderKind::Global => Sequence::Global(Permutation::new(samples, key)),
            OrderKind::Grouped { lanes, group } => {
                let mut chunked = before.unwrap_or_default();
                chunked.shuffle(population, (lanes, group), key);
                Sequence::Chunked(chunked)
            }
            OrderKind::Local { .. } | OrderKind::Partial { .. } => {
                let shares = Shares::new(spec, population).expect("its world size is checked");
                Sequence::Partial(Partial::new(shares, epoch))
            }
            OrderKind::Weighted { .. } => {
                let none = || invalid("a weighted order draws by weights, and there are none here");
                Sequence::Weighted(Weighted::new(weights.ok_or_else(none)?, key))
            }
        };
        Ok(EpochOrder { len: spec.kind.epoch_len(samples), epoch, sequence })
    }

    /// The weighted order of the samples of `population` in `epoch`, by `spec`.
    ///
    /// Takes constant time with replacement. Without replacement, it sorts all samples, in some 100 ns each.
    ///
    /// # Errors
    /// `spec` contains the hash of other weights, or the number of weights differs from that of samples. The epoch
    /// does not exist.
    pub fn weighted(
        spec: &OrderSpec,
        epoch: Epoch,
        population: &(impl Population + ?Sized),
        weights: &Arc<Weights>,
    ) -> Result<EpochOrder> {
        EpochOrder::along(spec, epoch, population, Some(weights), None)
    }

    /// Replaces this order with that of another epoch, as [`EpochOrder::new`] or, with the same weights,
    /// [`EpochOrder::weighted`] returns it. A grouped order reuses its memory: the next epoch allocates next to
    /// nothing.
    ///
    /// # Errors
    /// As [`EpochOrder::new`]; the order is then unchanged.
    pub fn begin_epoch(
        &mut self,
        spec: &OrderSpec,
        epoch: Epoch,
        population: &(impl Population + ?Sized),
    ) -> Result<()> {
        spec.check()?;
        spec.check_epoch(epoch)?;
        *self = match &mut self.sequence {
            Sequence::Chunked(chunked) if spec.kind.lanes_and_group().is_some() => {
                let before = Some(std::mem::take(chunked)); // no error follows
                EpochOrder::along(spec, epoch, population, None, before)?
            }
            Sequence::Weighted(weighted) => {
                EpochOrder::weighted(spec, epoch, population, &Arc::clone(&weighted.weights))?
            }
            _ => EpochOrder::new(spec, epoch, population)?,
        };
        Ok(())
    }

    /// The number of positions of the epoch: one per live sample, except in weighted order.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the epoch has no positions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Appends the samples at `positions`, in the order of `positions`. `population` must be that of
    /// [`EpochOrder::new`].
    ///
    /// A position past the end wraps around to the start, so a padded shard repeats samples. An epoch without
    /// samples appends nothing. Takes tens of nanoseconds per sample (for `partial`, times the epoch).
    pub fn ids(
        &mut self,
        population: &(impl Population + ?Sized),
        positions: impl Iterator<Item = u64>,
        out: &mut Vec<SampleId>,
    ) {
        let len = self.len;
        if len > 0 {
            out.extend(positions.map(|position| self.id_at(population, wrap(position, len))));
        }
    }

    /// The sample at `position`, which is below the length of the epoch.
    #[inline]
    fn id_at(&mut self, population: &(impl Population + ?Sized), position: u64) -> SampleId {
        match &mut self.sequence {
            Sequence::ById => population.id_of_live(position),
            Sequence::Global(permutation) => population.id_of_live(permutation.forward(position)),
            Sequence::Chunked(chunked) => {
                let pick = chunked.pick(position);
                population.id_in_chunk(pick.chunk, pick.nth)
            }
            Sequence::Partial(partial) => {
                let (chunk, nth) = partial.locate(position);
                population.id_in_chunk(chunk, nth)
            }
            Sequence::Weighted(weighted) => population.id_of_live(weighted.rank_at(position)),
        }
    }

    /// Returns whether the order visits whole chunks, group after group. Only then [`EpochOrder::picks`] is
    /// available, and a reader can read chunks instead of samples.
    pub fn is_chunked(&self) -> bool {
        matches!(self.sequence, Sequence::Chunked(_))
    }

    /// Appends the samples at `positions`, in the order of `positions`, as samples of chunks.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn picks(&mut self, positions: impl Iterator<Item = u64>, out: &mut Vec<Pick>) {
        let len = self.len;
        let chunked = self.chunked_mut();
        if len > 0 {
            out.extend(positions.map(|position| chunked.pick(wrap(position, len))));
        }
    }

    /// Appends the samples that the rank of `shard` takes of `batch` with [`Sharding::Aligned`], by position.
    /// `population` must be that of the order, `shard` the one from the start of the run, and `batch` one of its
    /// [`Shard::global_batch`]es.
    ///
    /// Looks up the chunk of each position of the batch in this rank's lanes, in tens of nanoseconds each.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn aligned_picks(
        &mut self,
        population: &(impl Population + ?Sized),
        aligner: &mut Aligner,
        shard: &Shard,
        batch: GlobalBatch,
        out: &mut Vec<Pick>,
    ) {
        let len = self.len;
        if len > 0 {
            let blocks_of = |chunk, nth| population.blocks_of(chunk, nth);
            aligner.share(self.chunked_mut(), blocks_of, shard, batch, len, out);
        }
    }

    /// Appends the samples that the rank of `shard` takes of `batch` with [`Sharding::Local`], by position;
    /// `batch_size` is that of each rank.
    ///
    /// Looks up the chunk of each position of the global batch, in tens of nanoseconds each.
    pub fn local_ids(
        &mut self,
        population: &(impl Population + ?Sized),
        by_node: &mut ByNode,
        shard: &Shard,
        (batch, batch_size): (GlobalBatch, u64),
        out: &mut Vec<SampleId>,
    ) {
        let locality = Arc::clone(by_node.locality());
        let own = by_node.share(shard, batch, (self.len, batch_size), |position| {
            self.chunk_at(population, position).and_then(|chunk| locality.holder(chunk))
        });
        self.ids(population, own.iter().copied(), out);
    }

    /// As [`EpochOrder::local_ids`], as samples of chunks. Samples that this node does not hold are to be read
    /// [alone](Pick::alone): this rank takes few samples of their chunks.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn local_picks(
        &mut self,
        by_node: &mut ByNode,
        shard: &Shard,
        (batch, batch_size): (GlobalBatch, u64),
        out: &mut Vec<Pick>,
    ) {
        let locality = Arc::clone(by_node.locality());
        let len = self.len;
        let chunked = self.chunked_mut();
        let own = by_node.share(shard, batch, (len, batch_size), |position| {
            locality.holder(chunked.pick(position).chunk)
        });
        let node = locality.node_of(shard.rank);
        out.extend(own.iter().map(|&position| {
            let pick = chunked.pick(position);
            Pick { alone: locality.holder(pick.chunk) != Some(node), ..pick }
        }));
    }

    /// The chunk of the sample at `position`, a position of the epoch.
    fn chunk_at(&mut self, population: &(impl Population + ?Sized), position: u64) -> Option<u32> {
        match &mut self.sequence {
            Sequence::Chunked(chunked) => Some(chunked.pick(position).chunk),
            Sequence::Partial(partial) => Some(partial.locate(position).0),
            _ => population.chunk_of(self.id_at(population, position)),
        }
    }

    /// The lane of `group`, a group of a [`Pick`].
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn lane_of(&self, group: u32) -> u32 {
        self.chunked().lane_of(group)
    }

    /// The samples of `chunk` that belong to `group`, in slot order: all samples, unless a lane border divides the
    /// chunk. Empty if the chunk is not in the group.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn samples_in_group(&self, group: u32, chunk: u32) -> Range<u32> {
        self.chunked().samples_in_group(group, chunk)
    }

    /// As [`EpochOrder::samples_in_group`], restricted to the samples that the rank of `shard` owns with
    /// [`Sharding::Aligned`]. They are contiguous; the rank takes other samples of the chunk [alone](Pick::alone).
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn aligned_samples_in_group(&self, shard: &Shard, group: u32, chunk: u32) -> Range<u32> {
        aligner::own_in_group(self.chunked(), shard, group, chunk)
    }

    fn chunked(&self) -> &Chunked {
        match &self.sequence {
            Sequence::Chunked(chunked) => chunked,
            _ => panic!("{NOT_CHUNKED}"),
        }
    }

    fn chunked_mut(&mut self) -> &mut Chunked {
        match &mut self.sequence {
            Sequence::Chunked(chunked) => chunked,
            _ => panic!("{NOT_CHUNKED}"),
        }
    }
}

/// Maps a sample's rank in slot order, over all chunks, to its chunk and its index in the chunk.
#[derive(Debug, Clone)]
struct SlotRanks {
    /// The number of live samples up to and including each chunk.
    ends: Vec<u64>,
}

impl SlotRanks {
    fn new(population: &(impl Population + ?Sized)) -> SlotRanks {
        let mut end = 0;
        let chunks = 0..population.num_chunks();
        let ends = chunks.map(|chunk| {
            end += u64::from(population.live_in_chunk(chunk));
            end
        });
        SlotRanks { ends: ends.collect() }
    }

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The chunk of the sample with this rank, and the index of the sample in the chunk.
    fn locate(&self, rank: u64) -> (u32, u32) {
        let chunk = self.ends.partition_point(|&end| end <= rank);
        let first = if chunk == 0 { 0 } else { self.ends[chunk - 1] };
        (chunk as u32, (rank - first) as u32)
    }
}

/// The position of an epoch of `len` at `position`, which may be past the end: the epoch repeats.
#[inline(always)]
fn wrap(position: u64, len: u64) -> u64 {
    if position < len { position } else { position % len }
}

const NOT_CHUNKED: &str = "this order does not visit chunks";
