//! Who holds a copy of a sample, at which address, for every rank and without a message.

use super::error::{MAX_BLOCKS, MAX_RANKS};
use super::{Accesses, Lengths, PlanError, PlannedCopy, Planner, Tier};
use crate::units::{Lba, SampleId};

/// A planned copy as another rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The rank whose tier it is in.
    pub rank: u32,
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// Its first block in the tier. Tiers fill from block 0 up, so that this also says how soon.
    pub lba: Lba,
}

/// For each sample the best copy that any rank plans: 8 bytes a sample, whatever the world size.
///
/// Best is the fastest tier, in it the lowest address, of several ranks the lowest. The tiers of the
/// ranks are compared by their numbers, so these should mean the same everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderMap {
    packed: Vec<u64>,
}

impl HolderMap {
    /// Plans all ranks; `tiers` gives those of a rank.
    ///
    /// Costs what [`Planner::place`] costs, for every rank.
    ///
    /// # Errors
    /// Tiers that an address cannot name.
    pub fn new<A: Accesses + ?Sized, L: Lengths + ?Sized>(
        planner: &mut Planner<'_, A, L>,
        tiers: impl Fn(u32) -> Vec<Tier>,
    ) -> Result<HolderMap, PlanError> {
        let mut map = HolderMap::empty(planner.num_samples());
        for rank in 0..planner.num_ranks() {
            planner.place(rank, &tiers(rank), &mut |copy| map.add(rank, &copy))?;
        }
        Ok(map)
    }

    /// A map of `num_samples` samples that nobody plans yet, for those who plan ranks on their own.
    pub fn empty(num_samples: u64) -> HolderMap {
        HolderMap { packed: vec![NONE; num_samples as usize] }
    }

    /// Enters a copy that `rank` plans; a better one stays.
    pub fn add(&mut self, rank: u32, copy: &PlannedCopy) {
        let entry = &mut self.packed[copy.sample.0 as usize];
        *entry = (*entry).min(pack(rank, copy));
    }

    /// The best copy of `sample`; `None` where nobody plans one.
    pub fn holder(&self, sample: SampleId) -> Option<Holder> {
        unpack(self.packed[sample.0 as usize])
    }

    /// Memory of the map.
    pub fn memory_bytes(&self) -> usize {
        self.packed.capacity() * size_of::<u64>()
    }
}

/// The copies that one rank plans for itself: 8 bytes a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement(HolderMap);

impl Placement {
    /// Plans `rank` with `tiers`.
    ///
    /// # Errors
    /// Tiers that an address cannot name.
    pub fn new<A: Accesses + ?Sized, L: Lengths + ?Sized>(
        planner: &mut Planner<'_, A, L>,
        rank: u32,
        tiers: &[Tier],
    ) -> Result<Placement, PlanError> {
        let mut map = HolderMap::empty(planner.num_samples());
        planner.place(rank, tiers, &mut |copy| map.add(rank, &copy))?;
        Ok(Placement(map))
    }

    /// The own copy of `sample`, where one is planned.
    pub fn copy(&self, sample: SampleId) -> Option<Holder> {
        self.0.holder(sample)
    }
}

/// Tier, address and rank in one word, most significant first: the lesser word is the better copy.
fn pack(rank: u32, copy: &PlannedCopy) -> u64 {
    u64::from(copy.tier) << (LBA_BITS + RANK_BITS) | copy.lba.0 << RANK_BITS | u64::from(rank)
}

fn unpack(packed: u64) -> Option<Holder> {
    (packed != NONE).then(|| Holder {
        rank: (packed & (MAX_RANKS as u64 - 1)) as u32,
        tier: (packed >> (LBA_BITS + RANK_BITS)) as u8,
        lba: Lba(packed >> RANK_BITS & (MAX_BLOCKS - 1)),
    })
}

const RANK_BITS: u32 = MAX_RANKS.trailing_zeros();
const LBA_BITS: u32 = MAX_BLOCKS.trailing_zeros();
const _: () = assert!(RANK_BITS + LBA_BITS + 4 == u64::BITS);

/// Tier 15, which no rank has.
const NONE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Tail;
    use crate::plan::Run;
    use crate::plan::access::tests::{GLOBAL, Samples};

    #[test]
    fn every_rank_finds_the_best_copy_of_every_sample() {
        let samples = Samples(3_000);
        let lengths: Vec<u32> = (0..3_000).map(|i| i * 7 % 5_000).collect();
        let run = Run::new(&samples, GLOBAL, 0..9, 5, Tail::Keep).unwrap();
        let mut planner = Planner::new(&run, &lengths[..], 512).unwrap();
        // Ranks need not have equal tiers.
        let tiers = |rank: u32| {
            let num_blocks = 500 + 300 * u64::from(rank);
            vec![Tier { num_blocks }, Tier { num_blocks: 900 }]
        };
        let map = HolderMap::new(&mut planner, tiers).unwrap();
        let mut best: Vec<Option<(u8, u64, u32)>> = vec![None; 3_000];
        for rank in 0..5 {
            let own = Placement::new(&mut planner, rank, &tiers(rank)).unwrap();
            for (id, best) in (0..).zip(&mut best) {
                let Some(copy) = own.copy(SampleId(id)) else { continue };
                assert_eq!(copy.rank, rank);
                let copy = (copy.tier, copy.lba.0, rank);
                *best = Some(best.map_or(copy, |best| best.min(copy)));
            }
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
