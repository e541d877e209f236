//! The sequence of blocks: direction, offset and length of each.

use dlfs::permutation::{Key, Permutation};

use super::random::{Random, derive};
use crate::options::Job;

/// One block to read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// 0 read, 1 write.
    pub(crate) direction: usize,
    /// From the start of the target, in bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The blocks of a job on one target, pass after pass. A clone continues identically.
#[derive(Debug, Clone)]
pub(crate) struct Positions {
    begin: u64,
    len: u64,
    mix: Mix,
    sizes: [Sizes; 2],
    walk: Walk,
    random: Random,
}

/// The mix of directions.
#[derive(Debug, Clone, Copy)]
enum Mix {
    Only(usize),
    /// Percentage of reads.
    Reads(u64),
}

/// The lengths of blocks.
#[derive(Debug, Clone)]
enum Sizes {
    Fixed(u64),
    /// Multiples of the lowest.
    Range {
        low: u64,
        high: u64,
    },
    /// Cumulative share in percent, and the size.
    Split(Vec<(u32, u64)>),
}

#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // one per target, not per block
enum Walk {
    /// The next offset of each direction.
    Sequential([u64; 2]),
    /// Every block once per pass, in the order of a keyed permutation.
    Covering { permutation: Permutation, block: u64, at: u64, pass: u64, seed: u64 },
    /// Each block drawn at random: the number of positions for each direction, and the bytes
    /// between them.
    Drawn([(u64, u64); 2]),
}

impl Positions {
    /// The blocks of `job` on `len` bytes from `begin`; `len` is at least one block.
    pub(crate) fn new(job: &Job, begin: u64, len: u64, seed: u64) -> Positions {
        let sizes = [Sizes::new(job, 0), Sizes::new(job, 1)];
        let mix = match (job.pattern.reads, job.pattern.writes) {
            (true, true) => Mix::Reads(job.rwmixread),
            (_, writes) => Mix::Only(usize::from(writes)),
        };
        let walk = Walk::new(job, len, seed);
        Positions { begin, len, mix, sizes, walk, random: Random::new(derive(seed, 1)) }
    }

    /// The next block of one direction, also after the end of a pass.
    #[inline]
    pub(crate) fn next_of(&mut self, direction: usize) -> Block {
        let len = self.sizes[direction].next(&mut self.random);
        let offset = self.walk.next(direction, len, self.len, &mut self.random);
        Block { direction, offset: self.begin + offset, len }
    }

    /// The next direction; the block is requested separately, since a rate may delay it.
    #[inline]
    pub(crate) fn direction(&mut self) -> usize {
        match self.mix {
            Mix::Only(direction) => direction,
            Mix::Reads(percent) => usize::from(self.random.below(100) >= percent),
        }
    }

    /// Length of the range in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

impl Sizes {
    fn new(job: &Job, direction: usize) -> Sizes {
        let split = &job.bssplit[direction];
        if !split.is_empty() {
            let mut end = 0;
            return Sizes::Split(
                split
                    .iter()
                    .map(|&(size, share)| {
                        end += share;
                        (end, size)
                    })
                    .collect(),
            );
        }
        match job.bsrange[direction] {
            Some((low, high)) if low < high => Sizes::Range { low, high },
            Some((low, _)) => Sizes::Fixed(low),
            None => Sizes::Fixed(job.bs[direction]),
        }
    }

    #[inline]
    fn next(&self, random: &mut Random) -> u64 {
        match self {
            Sizes::Fixed(len) => *len,
            Sizes::Range { low, high } => low * (1 + random.below(high / low)),
            Sizes::Split(shares) => {
                let drawn = random.below(100) as u32;
                shares.iter().find(|share| drawn < share.0).map_or(shares[0].1, |share| share.1)
            }
        }
    }
}

impl Walk {
    fn new(job: &Job, len: u64, seed: u64) -> Walk {
        if !job.pattern.random {
            return Walk::Sequential([0; 2]);
        }
        let (min, max) = job.block_range();
        if min == max && !job.norandommap {
            let block = min;
            let pass = 0;
            let permutation = permutation(len / block, seed, pass);
            return Walk::Covering { permutation, block, at: 0, pass, seed };
        }
        Walk::Drawn([0, 1].map(|direction| {
            let align = job.block_range_of(direction).0;
            (len.saturating_sub(align) / align + 1, align)
        }))
    }

    #[inline]
    fn next(&mut self, direction: usize, len: u64, range: u64, random: &mut Random) -> u64 {
        match self {
            Walk::Sequential(next) => {
                let offset = if next[direction] + len > range { 0 } else { next[direction] };
                next[direction] = offset + len;
                offset
            }
            Walk::Covering { permutation: order, block, at, pass, seed } => {
                let blocks = range / *block;
                if *at == blocks {
                    (*at, *pass) = (0, *pass + 1);
                    *order = permutation(blocks, *seed, *pass);
                }
                *at += 1;
                order.forward(*at - 1) * *block
            }
            Walk::Drawn(places) => {
                let (count, align) = places[direction];
                let offset = random.below(count) * align;
                if offset + len > range { (range - len) / align * align } else { offset }
            }
        }
    }
}

fn permutation(blocks: u64, seed: u64, pass: u64) -> Permutation {
    Permutation::new(blocks, Key::derive(seed, &[pass]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::file::Entry;
    use crate::options::table::apply;

    const SEED: u64 = 7;

    fn job(options: &[(&str, &str)]) -> Job {
        let mut job = Job::default();
        for (key, value) in options {
            let key = (*key).into();
            let value = Some((*value).into());
            let origin = String::new();
            apply(&mut job, &Entry { key, value, origin }).unwrap();
        }
        job
    }

    fn blocks(options: &[(&str, &str)], len: u64, count: usize) -> Vec<Block> {
        println!("seed {SEED}");
        let mut positions = Positions::new(&job(options), 1 << 20, len, SEED);
        let mut next = || {
            let direction = positions.direction();
            positions.next_of(direction)
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn sequential_blocks_follow_each_other_and_begin_again() {
        let found = blocks(&[("rw", "read"), ("bs", "4k")], 3 * 4096, 5);
        let offsets: Vec<u64> = found.iter().map(|b| (b.offset - (1 << 20)) / 4096).collect();
        assert_eq!(offsets, [0, 1, 2, 0, 1]);
        assert_eq!(blocks(&[("rw", "write"), ("bs", "4k")], 4096, 1)[0].direction, 1);
    }

    #[test]
    fn a_random_pass_covers_every_block_once_and_the_next_in_another_order() {
        let found = blocks(&[("rw", "randread"), ("bs", "4k")], 100 * 4096, 200);
        let pass = |range: std::ops::Range<usize>| {
            let mut offsets: Vec<u64> = found[range].iter().map(|b| b.offset).collect();
            let order = offsets.clone();
            offsets.sort_unstable();
            offsets.dedup();
            (offsets.len(), order)
        };
        let first = pass(0..100);
        let second = pass(100..200);
        assert_eq!((first.0, second.0), (100, 100));
        assert_ne!(first.1, second.1);
    }

    #[test]
    fn mixes_and_splits_have_their_shares_and_stay_inside() {
        let options = [("rw", "randrw"), ("rwmixread", "70"), ("bssplit", "4k/25:16k/75")];
        let found = blocks(&options, 1 << 20, 20_000);
        let reads = found.iter().filter(|b| b.direction == 0).count();
        let small = found.iter().filter(|b| b.len == 4096).count();
        assert!(
            (13_500..14_500).contains(&reads) && (4_700..5_300).contains(&small),
            "{reads} {small}"
        );
        assert!(found.iter().all(|b| b.offset >= 1 << 20 && b.offset + b.len <= 2 << 20));
        assert!(found.iter().all(|b| b.offset.is_multiple_of(4096)));
        let ranged = blocks(&[("rw", "randread"), ("bsrange", "1k-8k")], 1 << 20, 1000);
        assert!(
            ranged.iter().all(|b| b.len.is_multiple_of(1024) && (1024..=8192).contains(&b.len))
        );
    }
}
