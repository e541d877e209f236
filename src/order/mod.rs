//! Which sample comes next: one sequence an epoch, known in advance by everybody.
//!
//! An epoch is one sequence of positions 0..N over the live samples of one generation. It follows from
//! {image, generation, order, seed, epoch} and nothing else: not from the world size, the batch size
//! or the past. So a rank takes its share by arithmetic ([`Shard`]), a run resumes from a few numbers
//! ([`State`]) under another world size, and every node can compute what every other node will read.
//! (`local` and `partial` depend on the world size by their nature; their specification names it.)
//!
//! Everything is made of keyed permutations ([`crate::permutation`]): any position is computed
//! directly, nothing is allocated for a sample, and memory is a few words a chunk at most. What an
//! order returns for a specification is frozen; `tests/golden/orders.txt` pins it.
//!
//! It reads nothing and knows no bytes: [`Population`] says how many samples there are and how they
//! lie in chunks, a reader makes reads of ids or [`Pick`]s, and `report` says how random the result is.
//!
//! Read [`EpochOrder`] first, then `chunked.rs` (the algorithm of grouped orders) and `interleave.rs`;
//! `shard.rs` says how ranks share an epoch, and `aligned.rs` how they share it by chunks.

mod aligned;
mod chunked;
mod interleave;
mod partial;
mod reads;
pub mod report;
mod shard;
mod spec;
mod state;

use std::ops::Range;

use crate::permutation::{Key, Permutation};
use crate::units::{Epoch, SampleId};

pub use aligned::{Aligner, Counted};
pub use chunked::Pick;
pub use reads::Reads;
pub use shard::{GlobalBatch, Positions, Shard, Sharding, Tail};
pub use spec::{LANES_A_RANK, MAX_EPOCHS, OrderError, OrderKind, OrderSpec, SequentialBy};
pub use state::{ImageId, Refusal, State};

use chunked::{Chunked, Dealing};
use partial::Partial;

/// The samples that an order runs over: the live samples of one generation, as a directory knows them.
pub trait Population {
    /// Live samples of the whole image.
    fn num_live(&self) -> u64;

    /// Chunks, in slot order; those without live samples count too.
    fn num_chunks(&self) -> u32;

    /// Live samples of `chunk`.
    fn live_in_chunk(&self, chunk: u32) -> u32;

    /// How many chunk sizes `chunk` is long: more than one only for a run that holds one oversize sample.
    fn span_of_chunk(&self, _chunk: u32) -> u32 {
        1
    }

    /// The live sample of `rank` among all live samples in the order of their ids.
    fn id_of_live(&self, rank: u64) -> SampleId;

    /// The `nth` live sample of `chunk` in slot order.
    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId;
}

/// The sequence of one epoch: position -> sample.
///
/// It keeps a little state that makes consecutive positions quick and changes no answer, so a thread
/// that walks has one of its own.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    len: u64,
    epoch: Epoch,
    sequence: Sequence,
}

#[derive(Debug, Clone)]
enum Sequence {
    ById,
    Global(Permutation),
    Chunked(Chunked),
    Partial(Partial),
}

impl EpochOrder {
    /// The order that `spec` gives the samples of `population` in `epoch`.
    ///
    /// Costs nothing to speak of for `global` and `sequential` by id; the others look once at each
    /// chunk and keep 20 bytes of it.
    ///
    /// # Errors
    /// `spec` has a number out of its range, or there is no such epoch.
    pub fn new(
        spec: &OrderSpec,
        epoch: Epoch,
        population: &(impl Population + ?Sized),
    ) -> Result<EpochOrder, OrderError> {
        spec.check()?;
        spec.check_epoch(epoch)?;
        let len = population.num_live();
        let key = Key::derive(spec.seed, &[spec.kind.label(), epoch.0]);
        let sequence = match spec.kind {
            OrderKind::Sequential { by: SequentialBy::Id } => Sequence::ById,
            OrderKind::Sequential { by: SequentialBy::Slot } => {
                Sequence::Chunked(Chunked::in_slot_order(population))
            }
            OrderKind::Global => Sequence::Global(Permutation::new(len, key)),
            OrderKind::Grouped { lanes, group } => Sequence::Chunked(Chunked::shuffled(
                population,
                Dealing::Equal,
                (lanes, group),
                key,
            )),
            OrderKind::GroupedV1 { lanes, group } => Sequence::Chunked(Chunked::shuffled(
                population,
                Dealing::Whole,
                (lanes, group),
                key,
            )),
            OrderKind::Local { world_size } => {
                Sequence::Partial(Partial::new(population, spec.seed, epoch, world_size, 0.0))
            }
            OrderKind::Partial { q, world_size } => {
                Sequence::Partial(Partial::new(population, spec.seed, epoch, world_size, q))
            }
        };
        Ok(EpochOrder { len, epoch, sequence })
    }

    /// Becomes what [`EpochOrder::new`] makes; a grouped order in the memory that it has, so that to
    /// walk from epoch to epoch allocates nothing.
    ///
    /// # Errors
    /// As [`EpochOrder::new`]; the order is then what it was.
    pub fn begin_epoch(
        &mut self,
        spec: &OrderSpec,
        epoch: Epoch,
        population: &(impl Population + ?Sized),
    ) -> Result<(), OrderError> {
        match (spec.kind.lanes_and_group(), &mut self.sequence) {
            (Some(lanes_and_group), Sequence::Chunked(chunked)) => {
                spec.check()?;
                spec.check_epoch(epoch)?;
                let key = Key::derive(spec.seed, &[spec.kind.label(), epoch.0]);
                let dealing = match spec.kind {
                    OrderKind::GroupedV1 { .. } => Dealing::Whole,
                    _ => Dealing::Equal,
                };
                chunked.shuffle_anew(population, dealing, lanes_and_group, key);
                (self.len, self.epoch) = (population.num_live(), epoch);
            }
            _ => *self = EpochOrder::new(spec, epoch, population)?,
        }
        Ok(())
    }

    /// Positions of the epoch: one a live sample.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no sample at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The epoch it was made for.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Appends the samples at `positions`, in their order. `population` is the one it was made from.
    ///
    /// A position past the end counts on from the start: this is how a padded shard repeats samples. An
    /// epoch without samples has none to repeat.
    /// Costs some tens of nanoseconds a sample (for `partial`, times the epoch's number).
    pub fn ids(
        &mut self,
        population: &(impl Population + ?Sized),
        positions: Positions,
        out: &mut Vec<SampleId>,
    ) {
        let len = self.len;
        let positions = among(positions, len).map(|position| wrap(position, len));
        match &mut self.sequence {
            Sequence::ById => out.extend(positions.map(|rank| population.id_of_live(rank))),
            Sequence::Global(permutation) => {
                out.extend(
                    positions.map(|position| population.id_of_live(permutation.forward(position))),
                );
            }
            Sequence::Chunked(chunked) => out.extend(positions.map(|position| {
                let pick = chunked.pick(position);
                population.id_in_chunk(pick.chunk, pick.nth)
            })),
            Sequence::Partial(partial) => out.extend(positions.map(|position| {
                let (chunk, nth) = partial.locate(position);
                population.id_in_chunk(chunk, nth)
            })),
        }
    }

    /// Whether the order goes through whole chunks, group after group: then [`EpochOrder::picks`]
    /// answers, and reading chunks instead of samples pays.
    pub fn is_chunked(&self) -> bool {
        matches!(self.sequence, Sequence::Chunked(_))
    }

    /// Appends what `positions` take, in their order, as places in chunks.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn picks(&mut self, positions: Positions, out: &mut Vec<Pick>) {
        let len = self.len;
        let chunked = self.chunked_mut();
        out.extend(among(positions, len).map(|position| chunked.pick(wrap(position, len))));
    }

    /// Appends what the rank of `shard` takes of `batch` where global batches are shared
    /// [by chunks](Sharding::Aligned), by position. `shard` is as it was where the run began, and `batch`
    /// one of its [`Shard::global_batch`]es.
    ///
    /// Looks up the chunk of each position that this rank's lanes have in the batch: some tens of
    /// nanoseconds each.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn aligned_picks(
        &mut self,
        aligner: &mut Aligner,
        shard: &Shard,
        batch: GlobalBatch,
        out: &mut Vec<Pick>,
    ) {
        let len = self.len;
        if len > 0 {
            aligner.share(self.chunked_mut(), shard, batch, len, out);
        }
    }

    /// The lane that goes through `group`, a group that [`EpochOrder::picks`] named.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn lane_of(&self, group: u32) -> u32 {
        self.chunked().lane_of(group)
    }

    /// The samples of `chunk` that `group` takes, in slot order: all, unless the border of a lane cuts
    /// the chunk. Empty where the group does not go through the chunk.
    ///
    /// # Panics
    /// If the order [is not chunked](EpochOrder::is_chunked).
    pub fn part(&self, group: u32, chunk: u32) -> Range<u32> {
        self.chunked().part(group, chunk)
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

/// Where samples lie, counted through all chunks: rank in slot order -> chunk and place in it.
#[derive(Debug, Clone)]
struct SlotRanks {
    /// Live samples up to and with each chunk.
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

    fn locate(&self, rank: u64) -> (u32, u32) {
        let chunk = self.ends.partition_point(|&end| end <= rank);
        let first = if chunk == 0 { 0 } else { self.ends[chunk - 1] };
        (chunk as u32, (rank - first) as u32)
    }
}

/// `positions`, or none where there are no samples.
fn among(positions: Positions, len: u64) -> Positions {
    if len == 0 { Positions::new(0, 1, 0) } else { positions }
}

#[inline(always)]
fn wrap(position: u64, len: u64) -> u64 {
    if position < len { position } else { position % len }
}

const NOT_CHUNKED: &str = "asked an order that is not chunked for its chunks";

impl From<Range<u64>> for Positions {
    fn from(range: Range<u64>) -> Positions {
        Positions::new(range.start, 1, range.end.saturating_sub(range.start))
    }
}
