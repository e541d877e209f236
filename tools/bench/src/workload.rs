//! The workload of a job: [`Positions`] gives the blocks, [`Content`] their bytes, and [`Rates`] the time from which
//! each block may be issued. Pure: seeds and times are arguments.
//!
//! # Headers of blocks
//!
//! With `verify=crc32c` each interval of a block begins with a header. All lengths of blocks are multiples of an
//! interval, so that each interval can be verified by itself, even if blocks have partly overwritten each other:
//!
//! | bytes  | field    | meaning                                                        |
//! |--------|----------|----------------------------------------------------------------|
//! | 0..4   | `magic`  | `dBch`                                                         |
//! | 4..8   | `crc`    | CRC32C of all bytes after this field, up to the interval's end |
//! | 8..16  | `offset` | where the interval lies on the target, in bytes                |
//! | 16..24 | `seed`   | of the job that wrote it                                       |
//! | 24..32 | `len`    | bytes of the interval                                          |

use dlfs::checksum::crc32c;
use dlfs::permutation::{Key, Permutation};

use crate::job::{Job, Verify};
use crate::values::Split;

/// The blocks of a job on its target, pass after pass.
pub(crate) struct Positions {
    /// The job's part of the target, in bytes.
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
    /// Each block drawn at random: the number of positions for each direction, and the bytes between
    /// positions.
    Drawn([(u64, u64); 2]),
}

impl Positions {
    /// The blocks of `job` on `len` bytes from `begin`; `len` is at least one block.
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

/// Generates and verifies the bytes of blocks.
pub(crate) struct Content {
    verify: Verify,
    /// The bytes of `verify=pattern`, repeated from offset 0 of the target.
    pattern: Vec<u8>,
    /// The length that one header covers: the greatest that divides all blocks, but at least the header itself.
    interval: u64,
    seed: u64,
    /// Fills the buffer anew for each write; otherwise only the first bytes of each page change.
    refill: bool,
    random: Random,
}

/// An error in a block: the offset of the first wrong byte or of the interval, and a sentence.
pub(crate) type ContentError = (u64, String);

impl Content {
    /// `seed` must be the same in the job that writes and in the job that verifies.
    pub(crate) fn new(job: &Job, seed: u64) -> Content {
        Content {
            verify: job.verify,
            pattern: job.verify_pattern.clone(),
            interval: job.block_sizes().into_iter().fold(0, divisor).max(HEADER_BYTES as u64),
            seed,
            refill: job.refill_buffers,
            random: Random::new(derive(seed, 3)),
        }
    }

    /// Fills a buffer that will be written repeatedly.
    pub(crate) fn prepare(&mut self, bytes: &mut [u8]) {
        self.random.fill(bytes);
    }

    /// Generates the bytes of a block to be written at `offset`.
    pub(crate) fn stamp(&mut self, offset: u64, bytes: &mut [u8]) {
        if self.verify == Verify::Pattern {
            let pattern = repeated(&self.pattern, offset);
            return bytes.iter_mut().zip(pattern).for_each(|(byte, value)| *byte = value);
        }
        if self.refill {
            self.prepare(bytes);
        }
        // Makes each block different, which defeats deduplication.
        for page in bytes.chunks_mut(SCRAMBLE_BYTES) {
            let len = page.len().min(8);
            self.random.fill(&mut page[..len]);
        }
        if self.verify == Verify::Crc32c {
            for (at, piece) in intervals(offset, self.interval, bytes) {
                write_header(piece, at, self.seed);
            }
        }
    }

    /// Verifies a block that was read at `offset`.
    pub(crate) fn check(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ContentError> {
        match self.verify {
            Verify::None => Ok(()),
            Verify::Pattern => {
                let mut expected = repeated(&self.pattern, offset).zip(bytes.iter()).zip(offset..);
                match expected.find(|((expected, byte), _)| expected != *byte) {
                    None => Ok(()),
                    Some(((expected, byte), offset)) => {
                        let what = format!("byte is {byte:#04x}, expected {expected:#04x}");
                        Err((offset, what))
                    }
                }
            }
            Verify::Crc32c => {
                let mut all = intervals(offset, self.interval, bytes);
                all.try_for_each(|(at, piece)| {
                    check_interval(piece, at, self.seed).map_err(|what| (at, what))
                })
            }
        }
    }

    /// Returns whether blocks are verified at all.
    pub(crate) fn verifies(&self) -> bool {
        self.verify != Verify::None
    }
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// The intervals of a block. A rest shorter than an interval belongs to the interval before it. There are none if
/// the block is too short for a header.
fn intervals(
    offset: u64,
    interval: u64,
    bytes: &mut [u8],
) -> impl Iterator<Item = (u64, &mut [u8])> {
    let len = bytes.len();
    let interval = (interval as usize).min(len).max(1);
    let whole = (len / interval).max(1);
    let mut rest = bytes;
    (0..whole).map_while(move |index| {
        let all = std::mem::take(&mut rest);
        let take = if index + 1 == whole { all.len() } else { interval };
        let (piece, after) = all.split_at_mut(take);
        rest = after;
        (piece.len() >= HEADER_BYTES).then_some((offset + (index * interval) as u64, piece))
    })
}

/// Writes the header of an interval at `offset`.
fn write_header(piece: &mut [u8], offset: u64, seed: u64) {
    let len = piece.len() as u64;
    piece[0..4].copy_from_slice(&MAGIC);
    piece[8..16].copy_from_slice(&offset.to_le_bytes());
    piece[16..24].copy_from_slice(&seed.to_le_bytes());
    piece[24..32].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c(&piece[8..]);
    piece[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Verifies an interval that was read at `offset`; the error is a sentence.
fn check_interval(piece: &[u8], offset: u64, seed: u64) -> Result<(), String> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| piece[at + i]));
    if piece[0..4] != MAGIC {
        return Err(format!("no header: magic is {:02x?}, expected {MAGIC:02x?}", &piece[0..4]));
    }
    let told = u32::from_le_bytes(std::array::from_fn(|i| piece[4 + i]));
    let found = crc32c(&piece[8..]);
    if told != found {
        return Err(format!("CRC32C is {found:08x}, the header says {told:08x}"));
    }
    if word(8) != offset {
        return Err(format!("it was written for offset {}", word(8)));
    }
    if word(16) != seed {
        return Err(format!("another job wrote it (seed {:#x}, expected {seed:#x})", word(16)));
    }
    Ok(())
}

/// The bytes of `pattern` from `offset` on, as if it began at offset 0 of the target.
fn repeated(pattern: &[u8], offset: u64) -> impl Iterator<Item = u8> {
    let first = (offset % pattern.len() as u64) as usize;
    pattern.iter().cycle().skip(first).copied()
}

/// The first bytes of a header.
const MAGIC: [u8; 4] = *b"dBch";
/// The length of a header.
const HEADER_BYTES: usize = 32;
/// The first 8 bytes of each page of this length differ from write to write.
const SCRAMBLE_BYTES: usize = 4096;

/// The limits of both directions: reads, and writes.
pub(crate) struct Rates {
    /// Nanoseconds per I/O and per byte; 0 without a limit.
    ns_per_io: [f64; 2],
    ns_per_byte: [f64; 2],
    /// The time when the next I/O may be issued.
    due_ns: [f64; 2],
    /// True if the job both reads and writes, so that one direction may proceed while the other is
    /// delayed.
    is_mixed: bool,
}

impl Rates {
    pub(crate) fn new(job: &Job) -> Rates {
        let per = |limit: Option<u64>| limit.filter(|&l| l > 0).map_or(0.0, |l| 1e9 / l as f64);
        Rates {
            ns_per_io: job.rate_iops.map(per),
            ns_per_byte: job.rate.map(per),
            due_ns: [0.0; 2],
            is_mixed: job.rw.reads() && job.rw.writes() && (1..100).contains(&job.rwmixread),
        }
    }

    /// Starts the job at `now_ns`: earlier time is not made up for.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.due_ns = [now_ns as f64; 2];
    }

    /// The direction to issue, and the time from which it may be issued. As in fio, a drawn direction that its
    /// rate delays gives way to the other, so that each keeps its own rate whatever the mix.
    #[inline]
    pub(crate) fn choose(&self, drawn: usize, now_ns: u64) -> (usize, u64) {
        let [mine, others] = [drawn, 1 - drawn].map(|direction| self.due_ns[direction] as u64);
        if mine > now_ns && self.is_mixed && others < mine {
            (1 - drawn, others)
        } else {
            (drawn, mine)
        }
    }

    /// Counts an I/O of `len` bytes that was issued at `now_ns`.
    #[inline]
    pub(crate) fn count_issued(&mut self, direction: usize, now_ns: u64, len: u64) {
        let cost = (self.ns_per_byte[direction] * len as f64).max(self.ns_per_io[direction]);
        if cost > 0.0 {
            // Lost time is made up for, unless it is more than a second ago.
            let due_ns = &mut self.due_ns[direction];
            *due_ns = due_ns.max(now_ns as f64 - MAX_CATCH_UP_NS) + cost;
        }
    }
}

/// The most lost time that a job makes up for.
const MAX_CATCH_UP_NS: f64 = 1e9;

/// Random numbers determined by a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits (SplitMix64).
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    #[inline]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Fills a buffer with random bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }
}

/// The seed of a part of a job, from the seed of the job and the number of the part.
pub(crate) fn derive(seed: u64, part: u64) -> u64 {
    Random(seed ^ part.wrapping_mul(0xd134_2543_de82_ef95)).next()
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

    fn content(verify: &str, bs: &str) -> Content {
        let options = [("verify", verify), ("bs", bs), ("verify_pattern", "0x010203")];
        Content::new(&job_of_options(&options), 9)
    }

    #[test]
    fn stamped_blocks_are_accepted_and_any_change_is_found() {
        for (verify, smallest) in [("crc32c", "8k"), ("crc32c", "1k"), ("pattern", "8k")] {
            let mut content = content(verify, smallest);
            let mut block = vec![0; 8192];
            content.prepare(&mut block);
            content.stamp(1 << 20, &mut block);
            assert_eq!(content.check(1 << 20, &mut block), Ok(()));
            for at in [0, 3, 7, 30, 100, 5000, 8191] {
                block[at] ^= 0x10;
                let wrong = content.check(1 << 20, &mut block).unwrap_err();
                assert!(wrong.0 <= (1 << 20) + at as u64);
                block[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn blocks_that_overwrite_each_other_in_part_are_accepted_whatever_their_lengths() {
        let split = [("rw", "randrw"), ("verify", "crc32c"), ("bssplit", "4k/50:6k/50")];
        let mut content = Content::new(&job_of_options(&split), 9);
        let mut target = vec![0; 16384];
        content.prepare(&mut target);
        for (at, len) in [(8192, 4096), (0, 6144), (4096, 6144), (4096, 4096), (10240, 6144)] {
            content.stamp(at as u64, &mut target[at..at + len]);
        }
        for (at, len) in [(0, 4096), (0, 6144), (4096, 6144), (8192, 6144), (12288, 4096)] {
            assert_eq!(content.check(at as u64, &mut target[at..at + len]), Ok(()), "{at}+{len}");
        }
    }

    #[test]
    fn a_block_of_another_place_or_another_job_is_found() {
        let mut ours = content("crc32c", "8k");
        let mut block = vec![0; 8192];
        ours.stamp(8192, &mut block);
        assert!(ours.check(0, &mut block).unwrap_err().1.contains("offset 8192"));
        ours.seed = 10;
        assert!(ours.check(8192, &mut block).unwrap_err().1.contains("another job"));
    }

    #[test]
    fn buffers_are_random_and_no_two_writes_are_alike() {
        let mut ours = content("0", "8k");
        let mut block = vec![1; 8192];
        ours.prepare(&mut block);
        assert!(block.iter().filter(|&&b| b == 1).count() < 100);
        let before = block.clone();
        ours.stamp(0, &mut block);
        assert!(before[..4096] != block[..4096] && before[4096..] != block[4096..]);
    }

    fn went_until(rates: &mut Rates, end_ns: u64, len: u64) -> u64 {
        for count in 0.. {
            let (_, due_ns) = rates.choose(0, 0);
            if due_ns >= end_ns {
                return count;
            }
            rates.count_issued(0, due_ns, len);
        }
        unreachable!("an I/O takes time");
    }

    #[test]
    fn a_job_that_begins_late_is_no_faster_for_it() {
        let job = job_of_options(&[("rate_iops", "1000,")]);
        let mut rates = Rates::new(&job);
        rates.start(5_000_000_000);
        assert_eq!(went_until(&mut rates, 6_000_000_000, 4096), 1000);
    }

    #[test]
    fn the_limit_of_ios_is_kept() {
        let job = job_of_options(&[("rate_iops", "1000,")]);
        let mut rates = Rates::new(&job);
        assert_eq!(went_until(&mut rates, 1_000_000_000, 4096), 1000);
        rates.count_issued(1, 0, 4096);
        assert_eq!(rates.choose(1, 0), (1, 0), "writes have no limit");
        let job = job_of_options(&[("rate", "1m,")]);
        assert_eq!(went_until(&mut Rates::new(&job), 1_000_000_000, 4096), 256);
    }

    #[test]
    fn a_direction_that_is_held_back_lets_the_other_go_on() {
        let job = |rates, rwmixread| {
            let options = [("rw", "rw"), ("rate_iops", rates), ("rwmixread", rwmixread)];
            job_of_options(&options)
        };
        let rates = Rates::new(&job("10,", "50"));
        assert_eq!(rates.choose(0, 0), (0, 0), "nothing is held back at the begin");
        let mut rates = Rates::new(&job("1000,100", "50"));
        rates.start(0);
        let mut now = 0;
        let mut counts = [0_u64; 2];
        for number in 0.. {
            let (direction, due) = rates.choose(number % 2, now);
            now = now.max(due);
            if now > 1_000_000_000 {
                break;
            }
            rates.count_issued(direction, now, 4096);
            counts[direction] += 1;
        }
        assert!((999..=1001).contains(&counts[0]) && (99..=101).contains(&counts[1]), "{counts:?}");
        let mut only = Rates::new(&job("10,", "100"));
        only.count_issued(0, 0, 4096);
        assert_eq!(only.choose(0, 0).0, 0, "a mix without writes never writes");
    }
}
