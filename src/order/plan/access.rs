//! Access strings (NoPFS's term): the samples that a rank reads in a whole run, in order. An access string is computed
//! on each walk, and never stored.

use std::ops::Range;
use std::sync::Arc;

use crate::order::{
    Aligner, ByNode, EpochOrder, Locality, OrderKind, OrderSpec, Population, Shard, Sharding, Tail,
};
use crate::tier::Units;
use dlfs_base::error::{Result, ensure};
use dlfs_base::units::{Epoch, SampleId};
use dlfs_format::directory::Directory;

/// The access strings of all ranks of a run.
///
/// Implementations compute them on every walk; a plan walks each a few times.
pub trait Accesses {
    /// Number of ranks.
    fn num_ranks(&self) -> u32;

    /// Calls `visit` with consecutive pieces of the access string of `rank`, from the first access to the last.
    ///
    /// `rank` is below [`Accesses::num_ranks`].
    fn walk(&self, rank: u32, visit: &mut dyn FnMut(&[SampleId]));
}

/// A training run: epochs of one order, divided among the ranks as [`Shard`] does.
#[derive(Debug, Clone)]
pub struct TrainingRun<'a, P: ?Sized> {
    population: &'a P,
    order: OrderSpec,
    epochs: Range<u64>,
    /// The positions of the first epoch that were consumed before the run.
    consumed: u64,
    world_size: u32,
    tail: Tail,
    sharding: Sharding,
    /// The holder of each chunk, for local shares.
    locality: Option<Arc<Locality>>,
    /// The batch size of one rank.
    batch_size: u64,
}

impl<'a, P: Population + ?Sized> TrainingRun<'a, P> {
    /// A run of `epochs` over `population` by `world_size` ranks.
    ///
    /// # Errors
    /// A number of the order or an epoch is out of range, or the world size is 0. The order is weighted: a run has no
    /// weights.
    pub fn new(
        population: &'a P,
        order: OrderSpec,
        epochs: Range<u64>,
        world_size: u32,
        tail: Tail,
    ) -> Result<TrainingRun<'a, P>> {
        order.check()?;
        ensure(
            !matches!(order.kind, OrderKind::Weighted { .. }),
            || "a weighted order draws by weights, and there are none here",
        )?;
        if let Some(last) = epochs.end.checked_sub(1).filter(|_| !epochs.is_empty()) {
            order.check_epoch(Epoch(last))?;
        }
        Shard::new(0, world_size, tail)?;
        Ok(TrainingRun {
            population,
            order,
            epochs,
            consumed: 0,
            world_size,
            tail,
            sharding: Sharding::Strided,
            locality: None,
            batch_size: 1,
        })
    }

    /// The same run, resumed after all ranks together have consumed `consumed` positions of its
    /// first epoch.
    #[must_use]
    pub fn after(self, consumed: u64) -> TrainingRun<'a, P> {
        TrainingRun { consumed, ..self }
    }

    /// The same run with global batches divided by `sharding`; each rank takes `batch_size` samples of a batch (0
    /// counts as 1). `locality` is for local shares. Shares are strided instead if they are to be local without
    /// `locality`, or aligned in an order without chunks.
    #[must_use]
    pub fn shared(
        self,
        sharding: Sharding,
        locality: Option<&Arc<Locality>>,
        batch_size: u64,
    ) -> TrainingRun<'a, P> {
        let locality = locality.cloned();
        TrainingRun { sharding, locality, batch_size: batch_size.max(1), ..self }
    }
}

impl<P: Population + ?Sized> Accesses for TrainingRun<'_, P> {
    fn num_ranks(&self) -> u32 {
        self.world_size
    }

    fn walk(&self, rank: u32, visit: &mut dyn FnMut(&[SampleId])) {
        let mut ids = Vec::with_capacity(PIECE as usize);
        let mut aligner = Aligner::default();
        let mut picks = Vec::new();
        let locality = self.locality.clone().filter(|_| self.sharding == Sharding::Local);
        let mut by_node = locality.map(ByNode::new);
        let is_aligned =
            self.sharding == Sharding::Aligned && self.order.kind.lanes_and_group().is_some();
        for epoch in self.epochs.clone() {
            let mut order = EpochOrder::new(&self.order, Epoch(epoch), self.population)
                .expect("the order and the epochs were checked when the run was made");
            let consumed = if epoch == self.epochs.start { self.consumed } else { 0 };
            let Self { world_size, tail, .. } = *self;
            let shard = Shard { rank, world_size, consumed, tail, seats: 1 };
            let mut positions = shard.positions(order.len());
            let mut taken = 0;
            while positions.remaining() > 0 {
                ids.clear();
                if by_node.is_none() && !is_aligned {
                    order.ids(self.population, positions.split_front(PIECE), &mut ids);
                    visit(&ids);
                    continue;
                }
                let batch = shard.global_batch(order.len(), taken, self.batch_size);
                taken += positions.split_front(self.batch_size).remaining();
                if let Some(by_node) = &mut by_node {
                    let batch = (batch, self.batch_size);
                    order.local_ids(self.population, by_node, &shard, batch, &mut ids);
                } else {
                    picks.clear();
                    order.aligned_picks(self.population, &mut aligner, &shard, batch, &mut picks);
                    ids.extend(picks.iter().map(|p| self.population.id_in_chunk(p.chunk, p.nth)));
                }
                visit(&ids);
            }
        }
    }
}

/// The access strings of a run, with each sample replaced by its portion. Samples without a portion are left out.
///
/// A portion is read as often as all its samples together, and first with the first of its samples.
#[derive(Debug)]
pub struct ByPortion<'a, A: ?Sized> {
    accesses: &'a A,
    portion_of: &'a [u32],
}

impl<'a, A: Accesses + ?Sized> ByPortion<'a, A> {
    /// `portion_of` has the portion of each sample, by id: see [`Units::by_sample`].
    pub fn new(accesses: &'a A, portion_of: &'a [u32]) -> ByPortion<'a, A> {
        ByPortion { accesses, portion_of }
    }
}

impl<A: Accesses + ?Sized> Accesses for ByPortion<'_, A> {
    fn num_ranks(&self) -> u32 {
        self.accesses.num_ranks()
    }

    fn walk(&self, rank: u32, visit: &mut dyn FnMut(&[SampleId])) {
        let mut portions = Vec::new();
        self.accesses.walk(rank, &mut |ids| {
            portions.clear();
            let there = ids.iter().map(|id| self.portion_of[id.0 as usize]);
            let there = there.filter(|&portion| portion != Units::NO_UNIT);
            portions.extend(there.map(|portion| SampleId(portion.into())));
            visit(&portions);
        });
    }
}

impl Population for Directory {
    fn num_live(&self) -> u64 {
        Directory::num_live(self)
    }

    fn num_chunks(&self) -> u32 {
        Directory::num_chunks(self)
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        Directory::live_in_chunk(self, chunk)
    }

    fn span_of_chunk(&self, chunk: u32) -> u32 {
        let chunk_size = u64::from(self.layout().chunk_size_bytes);
        u32::try_from(self.chunk(chunk).len_bytes.div_ceil(chunk_size)).unwrap_or(u32::MAX)
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        Directory::id_of_live(self, rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        Directory::id_in_chunk(self, chunk, nth)
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        Directory::chunk_of(self, id)
    }

    fn blocks_of(&self, chunk: u32, nth: u32) -> u32 {
        let extent = self.extent_in_chunk(chunk, nth);
        let within = extent.offset_bytes % BLOCK_BYTES;
        (within + u64::from(extent.len_bytes)).div_ceil(BLOCK_BYTES) as u32
    }
}

/// The number of samples in a piece: few enough for the L1 cache.
const PIECE: u64 = 1024;

/// The block length for comparing samples that are read alone: the largest of usual media.
const BLOCK_BYTES: u64 = 4096;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::order::{HexId, Tail};

    /// Samples in chunks of 64, ids in slot order.
    #[derive(Debug)]
    pub(in crate::plan) struct Samples(pub(in crate::plan) u64);

    impl Population for Samples {
        fn num_live(&self) -> u64 {
            self.0
        }

        fn num_chunks(&self) -> u32 {
            self.0.div_ceil(64) as u32
        }

        fn live_in_chunk(&self, chunk: u32) -> u32 {
            (self.0 - u64::from(chunk) * 64).min(64) as u32
        }

        fn id_of_live(&self, rank: u64) -> SampleId {
            SampleId(rank)
        }

        fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
            SampleId(u64::from(chunk) * 64 + u64::from(nth))
        }

        fn chunk_of(&self, id: SampleId) -> Option<u32> {
            (id.0 < self.0).then_some((id.0 / 64) as u32)
        }
    }

    pub(in crate::plan) const GLOBAL: OrderSpec = OrderSpec { kind: OrderKind::Global, seed: 11 };

    pub(in crate::plan) fn string(accesses: &dyn Accesses, rank: u32) -> Vec<u64> {
        let mut string = Vec::new();
        accesses.walk(rank, &mut |ids| string.extend(ids.iter().map(|id| id.0)));
        string
    }

    #[test]
    fn the_strings_of_all_ranks_hold_each_sample_once_an_epoch() {
        for kind in [OrderKind::Global, OrderKind::Grouped { lanes: 3, group: 2 }] {
            let samples = Samples(5_000);
            let order = OrderSpec { kind, seed: 3 };
            let run = TrainingRun::new(&samples, order, 2..5, 7, Tail::Keep).unwrap();
            let mut counts = vec![0; 5_000];
            for rank in 0..run.num_ranks() {
                string(&run, rank).iter().for_each(|&id| counts[id as usize] += 1);
            }
            assert!(counts.iter().all(|&count| count == 3));
        }
    }

    #[test]
    fn a_string_is_what_the_rank_reads_also_after_a_restart_with_other_ranks() {
        let samples = Samples(1_000);
        let run = TrainingRun::new(&samples, GLOBAL, 4..6, 3, Tail::Keep).unwrap().after(100);
        let mut expected = Vec::new();
        for (epoch, consumed) in [(4, 100), (5, 0)] {
            let mut order = EpochOrder::new(&GLOBAL, Epoch(epoch), &samples).unwrap();
            let shard = Shard::new(1, 3, Tail::Keep).unwrap().after(consumed);
            order.ids(&samples, shard.positions(1_000), &mut expected);
        }
        assert_eq!(string(&run, 1), expected.iter().map(|id| id.0).collect::<Vec<_>>());
    }

    #[test]
    fn the_strings_of_aligned_shares_are_those_that_a_rank_reads() {
        let samples = Samples(1_000);
        let order = OrderSpec { kind: OrderKind::Grouped { lanes: 4, group: 2 }, seed: 3 };
        let run = TrainingRun::new(&samples, order, 0..2, 3, Tail::Keep).unwrap();
        let run = run.shared(Sharding::Aligned, None, 20);
        let shard = Shard::new(1, 3, Tail::Keep).unwrap();
        let mut expected = Vec::new();
        for epoch in 0..2 {
            let mut order = EpochOrder::new(&order, Epoch(epoch), &samples).unwrap();
            for taken in (0..334).step_by(20) {
                let batch = shard.global_batch(1_000, taken, 20);
                order.aligned_picks(
                    &samples,
                    &mut Aligner::default(),
                    &shard,
                    batch,
                    &mut expected,
                );
            }
        }
        let ids = expected.iter().map(|pick| samples.id_in_chunk(pick.chunk, pick.nth).0);
        assert_eq!(string(&run, 1), ids.collect::<Vec<_>>());
        let mut all: Vec<u64> = (0..3).flat_map(|rank| string(&run, rank)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..2_000).map(|i| i / 2).collect::<Vec<_>>());
    }

    #[test]
    fn the_strings_of_local_shares_hold_each_sample_once_an_epoch_mostly_where_it_is_held() {
        let samples = Samples(10_000);
        let holder = |chunk: u32| Some((chunk % 3) as u16);
        let locality = Arc::new(Locality::new(vec![0, 1, 2], (0..157).map(holder)));
        for kind in [OrderKind::Global, OrderKind::Grouped { lanes: 6, group: 4 }] {
            let order = OrderSpec { kind, seed: 3 };
            let run = TrainingRun::new(&samples, order, 0..2, 3, Tail::Keep).unwrap();
            let run = run.shared(Sharding::Local, Some(&locality), 200);
            let mut all = Vec::new();
            let mut at_home = 0;
            for rank in 0..3 {
                let read = string(&run, rank);
                at_home += read.iter().filter(|&&id| id / 64 % 3 == u64::from(rank)).count();
                all.extend(read);
            }
            all.sort_unstable();
            assert!(all == (0..20_000).map(|i| i / 2).collect::<Vec<_>>());
            assert!(at_home > 17_000, "{at_home} of 20,000");
        }
    }

    #[test]
    fn a_run_without_ranks_is_refused() {
        let error = TrainingRun::new(&Samples(1), GLOBAL, 0..1, 0, Tail::Keep).unwrap_err();
        assert!(error.to_string().contains("world size is at least 1"), "{error}");
    }

    #[test]
    fn a_run_of_a_weighted_order_is_refused() {
        let kind =
            OrderKind::Weighted { weights: HexId([7; 16]), replacement: true, epoch_size: 9 };
        let order = OrderSpec { kind, seed: 3 };
        let error = TrainingRun::new(&Samples(9), order, 0..1, 1, Tail::Keep).unwrap_err();
        assert!(error.to_string().contains("weighted"), "{error}");
    }

    #[test]
    fn a_portion_is_read_with_each_of_its_samples() {
        let samples = Samples(100);
        let portion_of: Vec<u32> =
            (0..100).map(|id| if id == 7 { Units::NO_UNIT } else { id / 10 }).collect();
        let run = TrainingRun::new(&samples, GLOBAL, 0..3, 1, Tail::Keep).unwrap();
        let portions = string(&ByPortion::new(&run, &portion_of), 0);
        let ids = string(&run, 0);
        let expected = ids.into_iter().filter(|&id| id != 7).map(|id| id / 10);
        assert!(portions.into_iter().eq(expected));
    }
}
