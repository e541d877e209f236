//! Eviction between runs: selects the copies of an earlier run that make room for a new plan's copies.
//!
//! An existing copy is worth as much as a planned copy and costs nothing, so it is evicted only for a copy that the
//! coming run reads more often. A node that reads all samples equally often evicts nothing; a rank with a new share of
//! the samples keeps the copies that it still reads.

use std::cmp::Reverse;

/// A copy that exists or is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The portion that is copied.
    pub portion: u32,
    /// The pages that evicting an existing copy frees, or that a planned copy still needs, over all units that are kept
    /// together.
    pub pages: u64,
    /// The number of times that the run reads the portion.
    pub reads: u16,
}

/// The portions to evict from one tier. `present` are existing copies outside the plan, `wanted` are planned copies
/// that do not exist, `free` is the number of free pages of the tier.
pub fn copies_to_evict(
    mut present: Vec<Candidate>,
    mut wanted: Vec<Candidate>,
    mut free: u64,
) -> Vec<u32> {
    present.sort_by_key(|copy| (copy.reads, copy.portion));
    wanted.sort_by_key(|copy| (Reverse(copy.reads), copy.portion));
    let mut present = present.into_iter().peekable();
    let mut evicted = Vec::new();
    for copy in wanted {
        while free < copy.pages {
            let Some(least) = present.next_if(|least| least.reads < copy.reads) else {
                return evicted; // the remaining wanted copies are not read more often
            };
            free += least.pages;
            evicted.push(least.portion);
        }
        free -= copy.pages;
    }
    evicted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(list: &[(u32, u64, u16)]) -> Vec<Candidate> {
        list.iter().map(|&(portion, pages, reads)| Candidate { portion, pages, reads }).collect()
    }

    #[test]
    fn copies_read_less_are_evicted_least_read_first() {
        let present = copies(&[(0, 4, 2), (1, 4, 0), (2, 4, 5), (3, 4, 1)]);
        assert_eq!(copies_to_evict(present.clone(), copies(&[(9, 4, 3)]), 0), [1]);
        assert_eq!(copies_to_evict(present.clone(), copies(&[(9, 4, 3), (8, 4, 4)]), 0), [1, 3]);
        assert_eq!(copies_to_evict(present.clone(), copies(&[(9, 8, 3)]), 1), [1, 3]);
        assert_eq!(
            copies_to_evict(present.clone(), copies(&[(9, 4, 3)]), 4),
            [0_u32; 0],
            "there is room"
        );
        assert_eq!(copies_to_evict(present, copies(&[(7, 4, 1), (8, 4, 1)]), 0), [1]);
    }

    #[test]
    fn copies_that_are_read_equally_often_stay() {
        let present = copies(&[(0, 4, 3), (1, 4, 3)]);
        assert_eq!(copies_to_evict(present, copies(&[(5, 4, 3), (6, 4, 3)]), 0), [0_u32; 0]);
    }
}
