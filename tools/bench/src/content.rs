//! The bytes of a job's blocks: generated before a write, verified after a read.
//!
//! # Headers of blocks
//!
//! With `verify=crc32c` each interval of a block begins with a header. The interval is the greatest common divisor of
//! the job's block sizes, but at least 32 bytes. A divisor of 32 bytes or more divides every block into whole
//! intervals, each of which can be verified by itself, even if blocks have partly overwritten each other.
//!
//! | bytes  | field    | meaning                                                        |
//! |--------|----------|----------------------------------------------------------------|
//! | 0..4   | `magic`  | `dBch`                                                         |
//! | 4..8   | `crc`    | CRC32C of all bytes after this field, up to the interval's end |
//! | 8..16  | `offset` | where the interval lies on the target, in bytes                |
//! | 16..24 | `seed`   | of the job that wrote it                                       |
//! | 24..32 | `len`    | bytes of the interval                                          |

use std::ops::Range;

use dlfs::checksum::crc32c;

use crate::job::{Job, Verify};
use crate::random::{Random, derive};

/// Generates and verifies the bytes of blocks.
pub(crate) struct Content {
    verify: Verify,
    /// The bytes of `verify=pattern`, repeated from offset 0 of the target.
    pattern: Vec<u8>,
    /// The bytes that one header covers, with the header itself.
    interval: u64,
    seed: u64,
    /// Fills the buffer anew for each write; otherwise only the first bytes of each page change. Without meaning for
    /// `verify=pattern`.
    refill: bool,
    random: Random,
}

/// An error in a block: the offset on the target of the first wrong byte (`verify=pattern`) or of the wrong interval
/// (`verify=crc32c`), and a sentence.
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
            for interval in self.intervals(bytes.len()) {
                let at = offset + interval.start as u64;
                write_header(&mut bytes[interval], at, self.seed);
            }
        }
    }

    /// Verifies a block that was read at `offset`.
    pub(crate) fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), ContentError> {
        match self.verify {
            Verify::None => Ok(()),
            Verify::Pattern => {
                let mut expected = repeated(&self.pattern, offset).zip(bytes).zip(offset..);
                match expected.find(|((expected, byte), _)| expected != *byte) {
                    None => Ok(()),
                    Some(((expected, byte), offset)) => {
                        let what = format!("byte is {byte:#04x}, expected {expected:#04x}");
                        Err((offset, what))
                    }
                }
            }
            Verify::Crc32c => self.intervals(bytes.len()).try_for_each(|interval| {
                let at = offset + interval.start as u64;
                check_interval(&bytes[interval], at, self.seed).map_err(|what| (at, what))
            }),
        }
    }

    /// The intervals of a block of `len` bytes. The last one includes the rest of the block, which is shorter than an
    /// interval. There are none if the block is too short for a header.
    fn intervals(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        let interval = (self.interval as usize).min(len).max(1);
        let count = len / interval;
        let end = move |index: usize| if index + 1 == count { len } else { (index + 1) * interval };
        let intervals = (0..count).map(move |index| index * interval..end(index));
        intervals.filter(|interval| interval.len() >= HEADER_BYTES)
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

/// Writes the header of the interval `bytes`, which lies at `offset`.
fn write_header(bytes: &mut [u8], offset: u64, seed: u64) {
    let len = bytes.len() as u64;
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&offset.to_le_bytes());
    bytes[16..24].copy_from_slice(&seed.to_le_bytes());
    bytes[24..32].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Verifies the interval `bytes`, which was read at `offset`; the error is a sentence.
fn check_interval(bytes: &[u8], offset: u64, seed: u64) -> Result<(), String> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    if bytes[0..4] != MAGIC {
        return Err(format!("no header: magic is {:02x?}, expected {MAGIC:02x?}", &bytes[0..4]));
    }
    let told = u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i]));
    let found = crc32c(&bytes[8..]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::job_of_options;

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
            assert_eq!(content.check(1 << 20, &block), Ok(()));
            for at in [0, 3, 7, 30, 100, 5000, 8191] {
                block[at] ^= 0x10;
                let wrong = content.check(1 << 20, &block).unwrap_err();
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
            assert_eq!(content.check(at as u64, &target[at..at + len]), Ok(()), "{at}+{len}");
        }
    }

    #[test]
    fn a_block_of_another_place_or_another_job_is_found() {
        let mut ours = content("crc32c", "8k");
        let mut block = vec![0; 8192];
        ours.stamp(8192, &mut block);
        assert!(ours.check(0, &block).unwrap_err().1.contains("offset 8192"));
        ours.seed = 10;
        assert!(ours.check(8192, &block).unwrap_err().1.contains("another job"));
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
}
