//! Chooses which samples a rank keeps in which tier, and at which address.
//!
//! A rank's samples are sorted by access frequency, highest first, then by first access. In this order they fill
//! the first tier until a sample does not fit; that sample closes the tier, and starts the next tier that is large
//! enough for it. Inside a tier, addresses follow the order of first access of all its samples. [`HolderMap`] then
//! keeps the best copy of each sample among all ranks.
//!
//! This planner handles single samples, for simulations. In `cache`, a run plans the portions of a data set's units:
//! it ranks them in the same way, but assigns tiers to whole units, by their reads per page.

use std::cmp::Reverse;

use super::Accesses;
use dlfs_base::error::{Result, ensure, invalid};
use dlfs_base::units::{Lba, SampleId};

/// Plans one rank after another.
#[derive(Debug)]
pub struct Planner<'a, A: ?Sized> {
    accesses: &'a A,
    /// Lengths in bytes, by sample.
    lengths: &'a [u32],
    block_len_bytes: u32,
    frequencies: Frequencies,
}

impl<'a, A: Accesses + ?Sized> Planner<'a, A> {
    /// A planner for samples of these lengths, and for tiers with blocks of `block_len_bytes`; each copy starts at
    /// a block boundary.
    ///
    /// # Errors
    /// The block length is not 512, 1024, 2048 or 4096, there is no rank, or more than [`HolderMap`]
    /// can encode.
    pub fn new(
        accesses: &'a A,
        lengths: &'a [u32],
        block_len_bytes: u32,
    ) -> Result<Planner<'a, A>> {
        ensure([512, 1024, 2048, 4096].contains(&block_len_bytes), || {
            format!("blocks have 512, 1024, 2048 or 4096 bytes, not {block_len_bytes}")
        })?;
        let ranks = accesses.num_ranks() as usize;
        ensure((1..=MAX_RANKS).contains(&ranks), || {
            format!("a plan is for 1 to {MAX_RANKS} ranks, not {ranks}")
        })?;
        let frequencies = Frequencies::new(lengths.len());
        Ok(Planner { accesses, lengths, block_len_bytes, frequencies })
    }

    /// Calls `visit` with each copy that `rank` plans in `tiers`, in the order of first access. Tiers are given by
    /// their quotas in blocks.
    ///
    /// Costs a walk of the rank's access string, and some 30 bytes for each of its samples.
    ///
    /// # Errors
    /// There are more tiers or larger ones than [`HolderMap`] can encode; `visit` was not called.
    pub fn plan(
        &mut self,
        rank: u32,
        tiers: &[u64],
        visit: &mut dyn FnMut(PlannedCopy),
    ) -> Result<()> {
        ensure(tiers.len() <= MAX_TIERS, || {
            format!("a rank has at most {MAX_TIERS} tiers, not {}", tiers.len())
        })?;
        if let Some(blocks) = tiers.iter().find(|&&blocks| blocks > MAX_BLOCKS) {
            return Err(invalid(format!("a tier has at most {MAX_BLOCKS} blocks, not {blocks}")));
        }
        if tiers.is_empty() {
            return Ok(());
        }
        let first_accesses = self.frequencies.count(self.accesses, rank);
        let mut ranked: Vec<usize> = (0..first_accesses.len()).collect();
        // Stable: of samples with equal frequency, the earliest comes first.
        ranked.sort_by_key(|&at| Reverse(self.frequencies.of(first_accesses[at].0)));
        let mut tier_of = vec![None; first_accesses.len()];
        let mut tier = 0;
        let mut used = 0;
        for at in ranked {
            let blocks = self.blocks(first_accesses[at].0);
            while tiers.get(tier).is_some_and(|quota| blocks > quota - used) {
                (tier, used) = (tier + 1, 0);
            }
            if tier == tiers.len() {
                break;
            }
            used += blocks;
            tier_of[at] = Some(tier as u8);
        }
        let mut next_lba = [0; MAX_TIERS];
        for ((sample, first_access), tier) in first_accesses.into_iter().zip(tier_of) {
            let Some(tier) = tier else { continue };
            let next = &mut next_lba[usize::from(tier)];
            let lba = Lba(*next);
            *next += self.blocks(sample);
            let frequency = self.frequencies.of(sample);
            visit(PlannedCopy { sample, tier, lba, first_access, frequency });
        }
        Ok(())
    }

    /// The access frequencies of the last planned rank.
    pub fn frequencies(&self) -> &Frequencies {
        &self.frequencies
    }

    /// The number of blocks that a sample occupies: at least one.
    fn blocks(&self, sample: SampleId) -> u64 {
        u64::from(self.lengths[sample.0 as usize].div_ceil(self.block_len_bytes).max(1))
    }
}

/// Access frequencies of one rank: one count per sample, 2 bytes each.
///
/// Counts are small numbers around E / N with a binomial distribution (E epochs, N ranks). Since it has variance,
/// ranks differ, and planning gains over random placement. Counts saturate at 65,535.
#[derive(Debug, Clone, Default)]
pub struct Frequencies {
    /// By sample.
    counts: Vec<u16>,
}

impl Frequencies {
    /// Counts of zero for all ids below `num_samples`.
    pub fn new(num_samples: usize) -> Frequencies {
        Frequencies { counts: vec![0; num_samples] }
    }

    /// Counts the accesses of `rank`; clears earlier counts. Costs one walk. Returns each sample in the order of first
    /// access, with the position of that access in the access string.
    ///
    /// # Panics
    /// If the access string contains a sample that does not exist.
    pub fn count(
        &mut self,
        accesses: &(impl Accesses + ?Sized),
        rank: u32,
    ) -> Vec<(SampleId, u64)> {
        self.counts.fill(0);
        let counts = &mut self.counts;
        let mut position = 0;
        let mut first = Vec::new();
        accesses.walk(rank, &mut |ids| {
            for &id in ids {
                let count = &mut counts[id.0 as usize];
                first.extend((*count == 0).then_some((id, position)));
                *count = count.saturating_add(1);
                position += 1;
            }
        });
        first
    }

    /// The number of times that `sample` is read.
    pub fn of(&self, sample: SampleId) -> u16 {
        self.counts[sample.0 as usize]
    }
}

/// A copy that a rank plans to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedCopy {
    /// The sample.
    pub sample: SampleId,
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// The copy's first block in the tier.
    pub lba: Lba,
    /// Position of the sample's first access in the rank's access string, from 0.
    pub first_access: u64,
    /// The number of times that the rank reads the sample.
    pub frequency: u16,
}

/// A planned copy as seen by another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The rank that holds the copy.
    pub rank: u32,
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// The copy's first block in the tier. Tiers fill from block 0 up, so a lower block is copied earlier.
    pub lba: Lba,
}

/// The best copy of each sample among those of all ranks: 8 bytes per sample, for any world size.
///
/// The best copy has the fastest tier, then the lowest address, then the lowest rank. Tiers of different ranks are
/// compared by their numbers, so a number should mean the same kind of tier on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderMap {
    /// By sample: the best copy so far, or `NONE`.
    packed: Vec<u64>,
}

impl HolderMap {
    /// A map without copies.
    pub fn empty(num_samples: u64) -> HolderMap {
        HolderMap { packed: vec![NONE; num_samples as usize] }
    }

    /// Adds a copy that `rank` plans, unless the map has a better one.
    pub fn add(&mut self, rank: u32, copy: &PlannedCopy) {
        let entry = &mut self.packed[copy.sample.0 as usize];
        *entry = (*entry).min(pack(rank, copy));
    }

    /// The best copy of `sample`; `None` if no rank plans one.
    pub fn holder(&self, sample: SampleId) -> Option<Holder> {
        unpack(self.packed[sample.0 as usize])
    }

    /// Memory of the map in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.packed.capacity() * size_of::<u64>()
    }
}

/// Tier, address and rank in one word, most significant first: the smaller word is the better copy.
fn pack(rank: u32, copy: &PlannedCopy) -> u64 {
    u64::from(copy.tier) << (LBA_BITS + RANK_BITS) | copy.lba.0 << RANK_BITS | u64::from(rank)
}

/// The inverse of [`pack`]; `None` for `NONE`.
fn unpack(packed: u64) -> Option<Holder> {
    (packed != NONE).then(|| Holder {
        rank: (packed & (MAX_RANKS as u64 - 1)) as u32,
        tier: (packed >> (LBA_BITS + RANK_BITS)) as u8,
        lba: Lba(packed >> RANK_BITS & (MAX_BLOCKS - 1)),
    })
}

/// The most ranks that [`HolderMap`] can encode: 24 bits.
pub(super) const MAX_RANKS: usize = 1 << 24;
/// The most tiers of a rank, which [`HolderMap`] can encode: 4 bits; all ones mean no copy.
pub const MAX_TIERS: usize = 15;
/// The most blocks of a tier that [`HolderMap`] can encode: 36 bits, 32 TiB of 512-byte blocks.
const MAX_BLOCKS: u64 = 1 << 36;
/// The number of bits of a rank.
const RANK_BITS: u32 = MAX_RANKS.trailing_zeros();
/// The number of bits of a block's number.
const LBA_BITS: u32 = MAX_BLOCKS.trailing_zeros();
const _: () = assert!(RANK_BITS + LBA_BITS + 4 == u64::BITS);

/// No copy: tier 15, which does not exist.
const NONE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{OrderKind, OrderSpec, Tail};
    use crate::plan::access::tests::{GLOBAL, Samples, string};
    use crate::plan::{Planner, TrainingRun};
    use proptest::prelude::*;

    /// The definition, in memory: sort, fill, then assign addresses by first access.
    fn by_definition(string: &[u64], lengths: &[u32], tiers: &[u64]) -> Vec<PlannedCopy> {
        let mut samples: Vec<PlannedCopy> = Vec::new();
        for (index, &id) in string.iter().enumerate() {
            match samples.iter_mut().find(|copy| copy.sample.0 == id) {
                Some(copy) => copy.frequency += 1,
                None => samples.push(PlannedCopy {
                    sample: SampleId(id),
                    tier: 0,
                    lba: Lba(0),
                    first_access: index as u64,
                    frequency: 1,
                }),
            }
        }
        samples.sort_by_key(|copy| (std::cmp::Reverse(copy.frequency), copy.first_access));
        let blocks =
            |copy: &PlannedCopy| u64::from(lengths[copy.sample.0 as usize].div_ceil(512).max(1));
        let mut tier = 0;
        let mut used = 0;
        samples.retain_mut(|copy| {
            while tier < tiers.len() && used + blocks(copy) > tiers[tier] {
                (tier, used) = (tier + 1, 0);
            }
            used += blocks(copy);
            copy.tier = tier as u8;
            tier < tiers.len()
        });
        samples.sort_by_key(|copy| copy.first_access);
        let mut next = vec![0; tiers.len()];
        for copy in &mut samples {
            copy.lba = Lba(next[usize::from(copy.tier)]);
            next[usize::from(copy.tier)] += blocks(copy);
        }
        samples
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_placement_is_the_one_that_the_definition_gives(
            lengths in prop::collection::vec(0_u32..3_000, 1..150),
            capacities in prop::collection::vec(0_u64..300, 0..5),
            epochs in 1_u64..12, ranks in 1_u32..5, seed: u64, grouped: bool,
        ) {
            let kind =
                if grouped { OrderKind::Grouped { lanes: 2, group: 1 } } else { OrderKind::Global };
            let population = Samples(lengths.len() as u64);
            let order = OrderSpec { kind, seed };
            let run = TrainingRun::new(&population, order, 0..epochs, ranks, Tail::Pad).unwrap();
            let mut planner = Planner::new(&run, &lengths[..], 512).unwrap();
            for rank in 0..ranks {
                let mut copies = Vec::new();
                planner.plan(rank, &capacities, &mut |copy| copies.push(copy)).unwrap();
                let expected = by_definition(&string(&run, rank), &lengths, &capacities);
                prop_assert_eq!(copies, expected, "rank {}", rank);
            }
        }
    }

    #[test]
    fn a_tier_smaller_than_one_sample_stays_empty_and_the_next_is_filled() {
        let population = Samples(10);
        let lengths = [1_024; 10];
        let run = TrainingRun::new(&population, GLOBAL, 0..2, 1, Tail::Keep).unwrap();
        let mut planner = Planner::new(&run, &lengths[..], 512).unwrap();
        let mut copies = Vec::new();
        planner.plan(0, &[1, 4], &mut |copy| copies.push(copy)).unwrap();
        assert_eq!(
            copies.iter().map(|copy| (copy.tier, copy.lba.0)).collect::<Vec<_>>(),
            [(1, 0), (1, 2)]
        );
        assert_eq!(planner.frequencies().of(copies[0].sample), 2);
    }

    #[test]
    fn a_rank_without_tiers_plans_nothing() {
        let population = Samples(10);
        let lengths = [1; 10];
        let run = TrainingRun::new(&population, GLOBAL, 0..2, 1, Tail::Keep).unwrap();
        let mut planner = Planner::new(&run, &lengths[..], 4096).unwrap();
        planner.plan(0, &[], &mut |copy| panic!("{copy:?}")).unwrap();
    }

    #[test]
    fn tiers_and_blocks_that_an_address_cannot_name_are_refused() {
        let population = Samples(10);
        let lengths = [1; 10];
        let run = TrainingRun::new(&population, GLOBAL, 0..2, 1, Tail::Keep).unwrap();
        for len_bytes in [0, 256, 1_000, 8_192] {
            let error = Planner::new(&run, &lengths[..], len_bytes).unwrap_err();
            assert!(error.to_string().contains(&format!("bytes, not {len_bytes}")), "{error}");
        }
        let mut planner = Planner::new(&run, &lengths[..], 512).unwrap();
        let mut plan = |blocks: &[u64]| planner.plan(0, blocks, &mut |_| ());
        plan(&[1; 15]).unwrap();
        assert!(plan(&[1; 16]).unwrap_err().to_string().contains("at most 15 tiers, not 16"));
        plan(&[MAX_BLOCKS]).unwrap();
        let error = plan(&[MAX_BLOCKS + 1]).unwrap_err().to_string();
        assert!(error.contains("blocks, not 68719476737"), "{error}");
    }

    /// A fraction of integers, so that a threshold is rounded alike on all machines.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Ratio {
        /// The numerator.
        numerator: u32,
        /// The denominator, not 0.
        denominator: u32,
    }

    /// The expected number of `samples` that a rank reads strictly more than (1 + `excess`) *
    /// `epochs` / `ranks` times, if each epoch gives each sample to one of `ranks` at random.
    ///
    /// The thesis prints ceil((1 + d) E / N) as the lower limit of the sum, which also counts samples read exactly
    /// that often. Its example and its text count only samples read more often. Costs `epochs` steps. `ranks` and
    /// the denominator are not 0.
    fn expected_readers_above(samples: u64, epochs: u32, ranks: u32, excess: Ratio) -> f64 {
        let n = u64::from(ranks);
        let d = u64::from(excess.denominator);
        let limit = u128::from(d + u64::from(excess.numerator)) * u128::from(epochs);
        let least = (limit / u128::from(n * d)) as u64 + 1;
        if ranks == 1 {
            return if u64::from(epochs) >= least { samples as f64 } else { 0.0 };
        }
        let p = 1.0 / f64::from(ranks);
        // Terms as logarithms: C(1000, 500) alone exceeds a double.
        let mut ln_term = f64::from(epochs) * (-p).ln_1p();
        let mut sum = if least == 0 { ln_term.exp() } else { 0.0 };
        for k in 1..=epochs {
            let step = f64::from(epochs - k + 1) / f64::from(k);
            ln_term += (step * p / (1.0 - p)).ln();
            if u64::from(k) >= least {
                sum += ln_term.exp();
            }
        }
        samples as f64 * sum
    }

    const EIGHT_TENTHS: Ratio = Ratio { numerator: 8, denominator: 10 };
    const ONE_TENTH: Ratio = Ratio { numerator: 1, denominator: 10 };

    #[test]
    fn sixteen_nodes_read_31_635_images_of_imagenet_more_than_ten_times_in_90_epochs() {
        let expected = expected_readers_above(1_281_167, 90, 16, EIGHT_TENTHS);
        assert_eq!(expected.round(), 31_635.0, "the value printed in SC'21, section 3.1");
    }

    #[test]
    fn four_nodes_read_323_of_10_000_samples_more_than_275_times_in_1_000_epochs() {
        let expected = expected_readers_above(10_000, 1_000, 4, ONE_TENTH);
        assert_eq!(expected.round(), 323.0, "the value printed in the thesis, section 3.2.1");
        // Samples read exactly 275 times do not count; with them it would be 378.
        let just_below = Ratio { numerator: 99, denominator: 1_000 };
        assert_eq!(expected_readers_above(10_000, 1_000, 4, just_below).round(), 378.0);
    }

    #[test]
    fn the_order_gives_ranks_the_frequencies_that_chance_has() {
        let samples = Samples(1_281_167);
        let run = TrainingRun::new(&samples, GLOBAL, 0..90, 16, Tail::Keep).unwrap();
        let mut frequencies = Frequencies::new(1_281_167);
        frequencies.count(&run, 5);
        let above = (0..1_281_167).filter(|&id| frequencies.of(SampleId(id)) > 10).count() as f64;
        let expected = expected_readers_above(1_281_167, 90, 16, EIGHT_TENTHS);
        // The authors' simulation gave 31,863; a standard deviation is 176.
        assert!((above - expected).abs() < 6.0 * 176.0, "{above} samples, {expected} expected");
    }

    /// For each sample, the number of times that each rank reads it.
    fn by_sample(samples: u64, epochs: u64, ranks: u32, order: OrderSpec) -> Vec<Vec<u64>> {
        let population = Samples(samples);
        let run = TrainingRun::new(&population, order, 0..epochs, ranks, Tail::Keep).unwrap();
        let mut frequencies = Frequencies::new(samples as usize);
        let mut by_sample = vec![Vec::new(); samples as usize];
        for rank in 0..ranks {
            frequencies.count(&run, rank);
            let counts = (0..samples).map(|id| u64::from(frequencies.of(SampleId(id))));
            by_sample.iter_mut().zip(counts).for_each(|(ranks, count)| ranks.push(count));
        }
        by_sample
    }

    /// Pairs the reads of each rank with those of all other ranks.
    fn each_and_others(counts: &[u64]) -> impl Iterator<Item = (u64, Vec<u64>)> + '_ {
        (0..counts.len())
            .map(|rank| (counts[rank], [&counts[..rank], &counts[rank + 1..]].concat()))
    }

    // If a rank reads x = (1 + d) E / N times, the (N - 1 - d) / (N - 1) * E / N of lemma 1 is (E - x) / (N - 1):
    // the mean over the other ranks. Lemma 2 has -d for d.
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn lemma_1_a_rank_that_reads_a_sample_often_leaves_another_that_reads_it_seldom(
            samples in 1_u64..300, epochs in 1_u64..60, ranks in 2_u32..9, seed: u64,
            grouped: bool,
        ) {
            let kind =
                if grouped { OrderKind::Grouped { lanes: 2, group: 2 } } else { OrderKind::Global };
            for counts in by_sample(samples, epochs, ranks, OrderSpec { kind, seed }) {
                for (often, others) in each_and_others(&counts) {
                    let at_most = (epochs - often).div_ceil(u64::from(ranks) - 1);
                    prop_assert!(others.iter().any(|&count| count <= at_most), "{:?}", counts);
                }
            }
        }

        #[test]
        fn lemma_2_a_rank_that_reads_a_sample_seldom_leaves_another_that_reads_it_often(
            samples in 1_u64..300, epochs in 1_u64..60, ranks in 2_u32..9, seed: u64,
        ) {
            let order = OrderSpec { kind: OrderKind::Global, seed };
            for counts in by_sample(samples, epochs, ranks, order) {
                for (seldom, others) in each_and_others(&counts) {
                    let at_least = (epochs - seldom) / (u64::from(ranks) - 1);
                    prop_assert!(others.iter().any(|&count| count >= at_least), "{:?}", counts);
                }
            }
        }
    }

    #[test]
    fn every_rank_finds_the_best_copy_of_every_sample() {
        let samples = Samples(3_000);
        let lengths: Vec<u32> = (0..3_000).map(|i| i * 7 % 5_000).collect();
        let run = TrainingRun::new(&samples, GLOBAL, 0..9, 5, Tail::Keep).unwrap();
        let mut planner = Planner::new(&run, &lengths[..], 512).unwrap();
        // Ranks may have different tiers.
        let tiers = |rank: u32| [500 + 300 * u64::from(rank), 900];
        let mut map = HolderMap::empty(3_000);
        let mut best: Vec<Option<(u8, u64, u32)>> = vec![None; 3_000];
        for rank in 0..5 {
            let mut own = |planned: PlannedCopy| {
                map.add(rank, &planned);
                let best = &mut best[planned.sample.0 as usize];
                let copy = (planned.tier, planned.lba.0, rank);
                *best = Some(best.map_or(copy, |best| best.min(copy)));
            };
            planner.plan(rank, &tiers(rank), &mut own).unwrap();
        }
        let found = (0..3_000).map(|id| map.holder(SampleId(id)));
        let found: Vec<_> = found.map(|h| h.map(|h| (h.tier, h.lba.0, h.rank))).collect();
        assert_eq!(found, best);
        assert!(found.iter().any(Option::is_none) && found.iter().flatten().any(|h| h.0 == 1));
        assert_eq!(map.memory_bytes(), 8 * 3_000);
    }

    #[test]
    fn the_largest_address_that_can_be_named_comes_back() {
        let largest = PlannedCopy {
            sample: SampleId(0),
            tier: 14,
            lba: Lba(MAX_BLOCKS - 1),
            first_access: 0,
            frequency: 1,
        };
        let rank = MAX_RANKS as u32 - 1;
        let holder = Holder { rank, tier: 14, lba: largest.lba };
        assert_eq!(unpack(pack(rank, &largest)), Some(holder));
        assert_eq!(unpack(NONE), None);
    }
}
