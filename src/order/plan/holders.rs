//! Holders of samples' copies, with their addresses; computed for every rank without messages.

use dlfs_base::units::{Lba, SampleId};

/// A copy that a rank plans to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedCopy {
    /// The sample.
    pub sample: SampleId,
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// Its first block in the tier.
    pub lba: Lba,
    /// Position of its first access in the rank's access string, from 0.
    pub first_access: u64,
    /// The number of times that the rank reads it.
    pub frequency: u16,
}

/// A planned copy as seen by another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The rank that holds the copy.
    pub rank: u32,
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// Its first block in the tier. Tiers fill from block 0 up, so a lower block is copied earlier.
    pub lba: Lba,
}

/// The best copy of each sample among those of all ranks: 8 bytes per sample, for any world size.
///
/// The best copy has the fastest tier, then the lowest address, then the lowest rank. Tiers of different ranks are
/// compared by their numbers, so a number should mean the same kind of tier on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderMap {
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

fn unpack(packed: u64) -> Option<Holder> {
    (packed != NONE).then(|| Holder {
        rank: (packed & (MAX_RANKS as u64 - 1)) as u32,
        tier: (packed >> (LBA_BITS + RANK_BITS)) as u8,
        lba: Lba(packed >> RANK_BITS & (MAX_BLOCKS - 1)),
    })
}

/// The most ranks that an address can encode: 24 bits.
pub(super) const MAX_RANKS: usize = 1 << 24;
/// The most tiers that an address can encode: 4 bits; all ones mean no copy.
pub(super) const MAX_TIERS: usize = 15;
/// The most blocks of a tier that an address can encode: 36 bits, 32 TiB of 512-byte blocks.
pub(super) const MAX_BLOCKS: u64 = 1 << 36;
const RANK_BITS: u32 = MAX_RANKS.trailing_zeros();
const LBA_BITS: u32 = MAX_BLOCKS.trailing_zeros();
const _: () = assert!(RANK_BITS + LBA_BITS + 4 == u64::BITS);

/// No copy: tier 15, which does not exist.
const NONE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Tail;
    use crate::plan::access::tests::{GLOBAL, Samples};
    use crate::plan::{Planner, TrainingRun};

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
