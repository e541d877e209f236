//! The blocks of a job: offsets, lengths and directions (0: read, 1: write), all determined by the job and a seed.

use dlfs::permutation::{Key, Permutation};

use crate::job::Job;
use crate::random::{Random, derive};
use crate::values::Split;

/// The blocks of a job on its target, pass after pass.
pub(crate) struct Positions {
    /// The job's region of the target: its begin and its length, in bytes.
    begin: u64,
    len: u64,
    /// Percentage of reads.
    reads: u64,
    /// The lengths of blocks with their shares, for reads and for writes.
    sizes: [Split; 2],
    walk: Walk,
    random: Random,
}

/// The order of blocks.
#[allow(clippy::large_enum_variant)] // one per target, not per block
enum Walk {
    /// The next offset of each direction.
    Sequential([u64; 2]),
    /// Every block once per pass, in the order of a keyed permutation.
    Covering { permutation: Permutation, block: u64, at: u64, pass: u64, seed: u64 },
    /// Each block drawn at random. Per direction, the number of possible positions, and the bytes from one to the next.
    Drawn([(u64, u64); 2]),
}

impl Positions {
    /// The blocks of `job` on `len` bytes from `begin`; `len` is at least the largest block.
    pub(crate) fn new(job: &Job, begin: u64, len: u64, seed: u64) -> Positions {
        let reads = match (job.rw.reads(), job.rw.writes()) {
            (true, true) => job.rwmixread,
            (true, false) => 100,
            (false, _) => 0,
        };
        let sizes = [job.split(0), job.split(1)];
        let walk = Walk::new(job, &sizes, len, seed);
        Positions { begin, len, reads, sizes, walk, random: Random::new(derive(seed, 1)) }
    }

    /// The offset and the length of the next block of one direction; after the end of a pass, the next pass begins.
    #[inline]
    pub(crate) fn next_of(&mut self, direction: usize) -> (u64, u64) {
        let len = self.next_len(direction);
        let offset = self.walk.next(direction, len, self.len, &mut self.random);
        (self.begin + offset, len)
    }

    /// The length of the next block of one direction.
    #[inline]
    fn next_len(&mut self, direction: usize) -> u64 {
        let sizes = &self.sizes[direction];
        if let [(size, _)] = sizes[..] {
            return size;
        }
        let mut drawn = self.random.below(100) as u32;
        let found = sizes.iter().find(|(_, share)| {
            let is_it = drawn < *share;
            drawn = drawn.saturating_sub(*share);
            is_it
        });
        found.map_or(sizes[0].0, |(size, _)| *size)
    }

    /// The next direction; the block is requested separately, since a rate may delay it.
    #[inline]
    pub(crate) fn direction(&mut self) -> usize {
        match self.reads {
            100 => 0,
            0 => 1,
            percent => usize::from(self.random.below(100) >= percent),
        }
    }
}

impl Walk {
    fn new(job: &Job, sizes: &[Split; 2], len: u64, seed: u64) -> Walk {
        if !job.rw.is_random() {
            return Walk::Sequential([0; 2]);
        }
        let (block, max) = job.block_range();
        if block == max && !job.norandommap {
            let permutation = permutation(len / block, seed, 0);
            return Walk::Covering { permutation, block, at: 0, pass: 0, seed };
        }
        Walk::Drawn([0, 1].map(|direction: usize| {
            let align = sizes[direction].iter().map(|(size, _)| *size).min().unwrap_or(1);
            (len.saturating_sub(align) / align + 1, align)
        }))
    }

    /// The offset of the next block of `len` bytes, within `range` bytes.
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
    use crate::request::job_of_options;

    const SEED: u64 = 7;

    struct Block {
        direction: usize,
        offset: u64,
        len: u64,
    }

    fn blocks(options: &[(&str, &str)], len: u64, count: usize) -> Vec<Block> {
        println!("seed {SEED}");
        let mut positions = Positions::new(&job_of_options(options), 1 << 20, len, SEED);
        let mut next = || {
            let direction = positions.direction();
            let (offset, len) = positions.next_of(direction);
            Block { direction, offset, len }
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
    }
}
