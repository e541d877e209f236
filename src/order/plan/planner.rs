//! Chooses which samples a rank keeps in which tier, and at which address.
//!
//! A rank's samples are sorted by access frequency, highest first, then by first access. In this order they fill
//! the first tier until a sample does not fit; that sample closes the tier and starts the next. Inside a tier,
//! addresses follow the order of first access of all its samples.
//!
//! This planner handles single samples, for simulations. In `cache`, a run plans the units of a data set by the
//! same rule.

use std::cmp::Reverse;

use super::holders::{MAX_BLOCKS, MAX_RANKS, MAX_TIERS, PlannedCopy};
use super::{Accesses, Frequencies};
use dlfs_base::error::{Result, invalid};
use dlfs_base::units::{Lba, SampleId};
use dlfs_format::directory::IdSet;

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
    /// The block length is not 512, 1024, 2048 or 4096, or there are more ranks than an address can encode.
    pub fn new(
        accesses: &'a A,
        lengths: &'a [u32],
        block_len_bytes: u32,
    ) -> Result<Planner<'a, A>> {
        if !(512..=4096).contains(&block_len_bytes) || !block_len_bytes.is_power_of_two() {
            return Err(invalid(format!(
                "blocks have 512, 1024, 2048 or 4096 bytes, not {block_len_bytes}"
            )));
        }
        let ranks = accesses.num_ranks() as usize;
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(invalid(format!("a plan is for 1 to {MAX_RANKS} ranks, not {ranks}")));
        }
        let frequencies = Frequencies::new(lengths.len());
        Ok(Planner { accesses, lengths, block_len_bytes, frequencies })
    }

    /// Calls `visit` with each copy that `rank` plans in `tiers`, in the order of first access. Tiers are given by
    /// their quotas in blocks.
    ///
    /// Costs two walks of the rank's access string, and some 30 bytes for each of its samples.
    ///
    /// # Errors
    /// The tiers are more or larger than an address can encode; `visit` was not called.
    pub fn plan(
        &mut self,
        rank: u32,
        tiers: &[u64],
        visit: &mut dyn FnMut(PlannedCopy),
    ) -> Result<()> {
        if tiers.len() > MAX_TIERS {
            let text = format!("a rank has at most {MAX_TIERS} tiers, not {}", tiers.len());
            return Err(invalid(text));
        }
        if let Some(blocks) = tiers.iter().find(|&&blocks| blocks > MAX_BLOCKS) {
            return Err(invalid(format!("a tier has at most {MAX_BLOCKS} blocks, not {blocks}")));
        }
        if tiers.is_empty() {
            return Ok(());
        }
        self.frequencies.count(self.accesses, rank);
        let first_accesses = self.first_accesses(rank);
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

    /// Each sample of the rank in the order of first access, with the position of that access in the access string.
    fn first_accesses(&self, rank: u32) -> Vec<(SampleId, u64)> {
        let mut seen = IdSet::new(self.lengths.len() as u64);
        let mut accesses = 0..;
        let mut first = Vec::new();
        self.accesses.walk(rank, &mut |ids| {
            let new = ids.iter().copied().zip(&mut accesses).filter(|(id, _)| seen.insert(id.0));
            first.extend(new);
        });
        first
    }

    /// The number of blocks that a sample occupies: at least one.
    fn blocks(&self, sample: SampleId) -> u64 {
        u64::from(self.lengths[sample.0 as usize].div_ceil(self.block_len_bytes).max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::order::{OrderKind, OrderSpec, Tail};
    use crate::plan::TrainingRun;
    use crate::plan::access::tests::{GLOBAL, Samples, string};

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
}
