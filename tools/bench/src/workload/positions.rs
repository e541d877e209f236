//! Which block comes next: direction, offset and length.

use dlfs::permutation::{Key, Permutation};

use super::draw::Draw;
use super::random::{Random, derive};
use crate::options::Job;
use crate::options::job::Distribution;

/// One block to read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// 0 read, 1 write.
    pub(crate) direction: usize,
    /// From the start of the target, in bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The blocks of a job on one target, pass after pass. A clone goes on in the same way.
#[derive(Debug, Clone)]
pub(crate) struct Positions {
    begin: u64,
    len: u64,
    mix: Mix,
    sizes: [Sizes; 2],
    walk: Walk,
    random: Random,
}

/// Which direction comes next.
#[derive(Debug, Clone, Copy)]
enum Mix {
    Only(usize),
    /// Percent of reads.
    Reads(u64),
}

/// How long a block is.
#[derive(Debug, Clone)]
enum Sizes {
    Fixed(u64),
    Range {
        low: u64,
        high: u64,
        step: u64,
    },
    /// Upper end of the share in percent, and the size.
    Split(Vec<(u32, u64)>),
}

#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // there is one for each target, not one for each block
enum Walk {
    /// The next offset of each direction, and what is left out after a block.
    Sequential {
        next: [u64; 2],
        gap: u64,
    },
    /// Every block once a pass, in the order of a keyed permutation.
    Covering {
        permutation: Permutation,
        block: u64,
        at: u64,
        pass: u64,
        seed: u64,
    },
    Drawn(Box<Drawn>),
}

#[derive(Debug, Clone)]
struct Drawn {
    draws: [Draw; 2],
    align: [u64; 2],
    /// Percent of blocks that are drawn; the others follow their predecessor.
    drawn_percent: [u64; 2],
    /// With `rw=randread:N`: blocks until the next draw.
    run: u64,
    run_len: u64,
    identical: bool,
    last: [(u64, u64); 2],
}

impl Positions {
    /// The blocks of `job` on `len` bytes that begin at `begin`; `len` is at least one block.
    pub(crate) fn new(job: &Job, begin: u64, len: u64, seed: u64) -> Positions {
        let sizes = [Sizes::new(job, 0), Sizes::new(job, 1)];
        let mix = match (job.pattern.reads, job.pattern.writes) {
            (true, true) => Mix::Reads(job.rwmixread),
            (_, writes) => Mix::Only(usize::from(writes)),
        };
        let walk = Walk::new(job, len, seed);
        Positions { begin, len, mix, sizes, walk, random: Random::new(derive(seed, 1)) }
    }

    /// The next block of one direction, also past the end of a pass.
    #[inline]
    pub(crate) fn next_of(&mut self, direction: usize) -> Block {
        let len = self.sizes[direction].next(&mut self.random);
        let offset = self.walk.next(direction, len, self.len, &mut self.random);
        Block { direction, offset: self.begin + offset, len }
    }

    /// Which direction comes next; the block is asked for apart, since a rate may hold it back.
    #[inline]
    pub(crate) fn direction(&mut self) -> usize {
        match self.mix {
            Mix::Only(direction) => direction,
            Mix::Reads(percent) => usize::from(self.random.below(100) >= percent),
        }
    }

    /// Bytes of the range.
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
            Some((low, high)) if low < high => {
                Sizes::Range { low, high, step: if job.bs_unaligned { 1 } else { low } }
            }
            Some((low, _)) => Sizes::Fixed(low),
            None => Sizes::Fixed(job.bs[direction]),
        }
    }

    #[inline]
    fn next(&self, random: &mut Random) -> u64 {
        match self {
            Sizes::Fixed(len) => *len,
            Sizes::Range { low, high, step } => low + random.below((high - low) / step + 1) * step,
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
            return Walk::Sequential { next: [0; 2], gap: job.rw_step };
        }
        let (min, max) = job.block_range();
        let align = [0, 1].map(|d| job.blockalign[d].unwrap_or(job.block_range_of(d).0).max(1));
        let used: Vec<usize> = [(0, job.pattern.reads), (1, job.pattern.writes)]
            .iter()
            .filter(|u| u.1)
            .map(|u| u.0)
            .collect();
        let plain = used.iter().all(|&d| {
            job.distribution[d] == Distribution::Uniform
                && job.percentage_random[d] == 100
                && align[d] == min
        });
        if plain && min == max && !job.norandommap && job.rw_step <= 1 {
            let (block, pass) = (min, 0);
            return Walk::Covering {
                permutation: permutation(len / block, seed, pass),
                block,
                at: 0,
                pass,
                seed,
            };
        }
        let draws = [0, 1].map(|d| {
            let places = (len.saturating_sub(job.block_range_of(d).0)) / align[d] + 1;
            Draw::new(&job.distribution[d], places, align[d], derive(seed, 2))
        });
        Walk::Drawn(Box::new(Drawn {
            draws,
            align,
            drawn_percent: job.percentage_random,
            run: 0,
            run_len: job.rw_step.max(1),
            identical: job.rw_identical,
            last: [(0, 0); 2],
        }))
    }

    #[inline]
    fn next(&mut self, direction: usize, len: u64, range: u64, random: &mut Random) -> u64 {
        match self {
            Walk::Sequential { next, gap } => {
                let mut offset = next[direction];
                if offset + len > range {
                    offset = 0;
                }
                next[direction] = offset + len + *gap;
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
            Walk::Drawn(drawn) => drawn.next(direction, len, range, random),
        }
    }
}

impl Drawn {
    fn next(&mut self, direction: usize, len: u64, range: u64, random: &mut Random) -> u64 {
        let percent = self.drawn_percent[direction];
        let draw = self.run == 0 && (percent == 100 || random.below(100) < percent);
        self.run = if self.run == 0 { self.run_len - 1 } else { self.run - 1 };
        let (last_offset, last_len) = self.last[direction];
        let mut offset = match (draw, self.identical) {
            (true, _) => self.draws[direction].next(random) * self.align[direction],
            (false, true) => last_offset,
            (false, false) => last_offset + last_len,
        };
        if offset + len > range {
            offset = if draw {
                (range - len) / self.align[direction] * self.align[direction]
            } else {
                0
            };
        }
        self.last[direction] = (offset, len);
        offset
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
            let (key, value, origin) = ((*key).into(), Some((*value).into()), String::new());
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
        let gaps = blocks(&[("rw", "write:4k"), ("bs", "4k")], 5 * 4096, 3);
        assert_eq!(gaps[1].offset - gaps[0].offset, 8192);
        assert_eq!(gaps[0].direction, 1);
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
        let (first, second) = (pass(0..100), pass(100..200));
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

    #[test]
    fn runs_between_draws_follow_their_predecessor() {
        let found = blocks(&[("rw", "randread:4"), ("bs", "4k")], 1 << 30, 8);
        for pair in [(0, 1), (1, 2), (2, 3), (4, 5)] {
            assert_eq!(found[pair.1].offset, found[pair.0].offset + 4096);
        }
        assert_ne!(found[4].offset, found[3].offset + 4096);
        let identical = [("rw", "randread:3"), ("rw_sequencer", "identical"), ("bs", "4k")];
        let found = blocks(&identical, 1 << 30, 6);
        assert_eq!(found[0].offset, found[2].offset);
        assert_ne!(found[2].offset, found[3].offset);
    }
}
