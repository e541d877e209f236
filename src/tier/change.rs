//! From one plan to the next: which copies of an earlier run give way.
//!
//! A copy that is there is worth as much as one that is not, and costs nothing: it gives way only to one
//! that is read more often in the run to come. So a single node, that reads everything equally often,
//! changes nothing, and a rank whose samples are others now keeps those that it reads.

/// What a plan says of a tier's copies, and what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The unit, or the first of those kept together.
    pub unit: u32,
    /// Pages of all of them.
    pub pages: u64,
    /// How often the run reads it.
    pub reads: u16,
}

/// The copies that give way in one tier: `there` are those that the plan does not name, `wanted` those
/// that it names and that are not there, `free` the pages that nobody has.
pub fn give_way(mut there: Vec<Candidate>, mut wanted: Vec<Candidate>, mut free: u64) -> Vec<u32> {
    there.sort_by_key(|copy| (copy.reads, copy.unit));
    wanted.sort_by_key(|copy| (std::cmp::Reverse(copy.reads), copy.unit));
    let mut there = there.into_iter().peekable();
    let mut leaving = Vec::new();
    for copy in wanted {
        while free < copy.pages {
            let Some(least) = there.next_if(|least| least.reads < copy.reads) else {
                return leaving; // all others that are wanted are read less still
            };
            free += least.pages;
            leaving.push(least.unit);
        }
        free -= copy.pages;
    }
    leaving
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(list: &[(u32, u64, u16)]) -> Vec<Candidate> {
        list.iter().map(|&(unit, pages, reads)| Candidate { unit, pages, reads }).collect()
    }

    #[test]
    fn only_what_is_read_less_gives_way_and_the_least_first() {
        let there = copies(&[(0, 4, 2), (1, 4, 0), (2, 4, 5), (3, 4, 1)]);
        assert_eq!(give_way(there.clone(), copies(&[(9, 4, 3)]), 0), [1]);
        assert_eq!(give_way(there.clone(), copies(&[(9, 4, 3), (8, 4, 4)]), 0), [1, 3]);
        assert_eq!(give_way(there.clone(), copies(&[(9, 8, 3)]), 1), [1, 3]);
        assert_eq!(give_way(there.clone(), copies(&[(9, 4, 3)]), 4), [0_u32; 0], "there is room");
        assert_eq!(give_way(there, copies(&[(7, 4, 1), (8, 4, 1)]), 0), [1]);
    }

    #[test]
    fn what_is_read_as_often_stays() {
        let there = copies(&[(0, 4, 3), (1, 4, 3)]);
        assert_eq!(give_way(there, copies(&[(5, 4, 3), (6, 4, 3)]), 0), [0_u32; 0]);
    }
}
