//! The data to write, and the verification of data that were read.
//!
//! With `verify=crc32c` each interval of a block begins with a header, so that it can be verified
//! independently, whatever blocks overwrote each other:
//!
//! | bytes  | field    | meaning                                                        |
//! |--------|----------|----------------------------------------------------------------|
//! | 0..4   | `magic`  | `dBch`                                                         |
//! | 4..8   | `crc`    | CRC32C of all bytes after this field, up to the interval's end |
//! | 8..16  | `offset` | where the interval lies on the target, in bytes                |
//! | 16..24 | `seed`   | of the job that wrote it                                       |
//! | 24..32 | `len`    | bytes of the interval                                          |

use dlfs::checksum::crc32c;

use super::random::{Random, derive};
use crate::options::Job;
use crate::options::job::Verify;

/// Generates and verifies the bytes of blocks.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    verify: Verify,
    pattern: Vec<u8>,
    /// The length that one header covers: that of the smallest block.
    interval: u64,
    seed: u64,
    refill: bool,
    scramble: bool,
    fill: Fill,
    random: Random,
}

#[derive(Debug, Clone)]
enum Fill {
    Random,
    Zeroes,
    Pattern(Vec<u8>),
}

/// The error found in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Offset of the first wrong byte, or of the interval.
    pub(crate) offset: u64,
    pub(crate) what: String,
}

impl Content {
    /// `seed` must be the same for the job that writes and the one that verifies.
    pub(crate) fn new(job: &Job, seed: u64) -> Content {
        let (min, _) = job.block_range();
        let fill = if job.zero_buffers {
            Fill::Zeroes
        } else if !job.buffer_pattern.is_empty() {
            Fill::Pattern(job.buffer_pattern.clone())
        } else {
            Fill::Random
        };
        let scramble = job.scramble_buffers && matches!(fill, Fill::Random);
        Content {
            verify: job.verify,
            pattern: if job.verify_pattern.is_empty() {
                vec![0]
            } else {
                job.verify_pattern.clone()
            },
            interval: min.max(HEADER_BYTES as u64),
            seed,
            refill: job.refill_buffers,
            scramble,
            fill,
            random: Random::new(derive(seed, 3)),
        }
    }

    /// Fills a buffer that will be written repeatedly.
    pub(crate) fn prepare(&mut self, bytes: &mut [u8]) {
        match &self.fill {
            Fill::Zeroes => bytes.fill(0),
            Fill::Pattern(pattern) => repeat(pattern, 0, bytes),
            Fill::Random => self.random.fill(bytes),
        }
    }

    /// Generates the bytes of a block to be written at `offset`.
    pub(crate) fn stamp(&mut self, offset: u64, bytes: &mut [u8]) {
        match self.verify {
            Verify::Pattern => return repeat(&self.pattern, offset, bytes),
            Verify::Crc32c | Verify::None if self.refill => self.prepare(bytes),
            Verify::Crc32c | Verify::None => {
                if self.scramble {
                    for page in bytes.chunks_mut(SCRAMBLE_BYTES) {
                        let word = self.random.next().to_le_bytes();
                        let len = page.len().min(8);
                        page[..len].copy_from_slice(&word[..len]);
                    }
                }
            }
        }
        if self.verify == Verify::Crc32c {
            for (at, piece) in pieces(offset, self.interval, bytes) {
                seal(piece, at, self.seed);
            }
        }
    }

    /// Verifies a block that was read at `offset`.
    pub(crate) fn check(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Wrong> {
        match self.verify {
            Verify::None => Ok(()),
            Verify::Pattern => match first_difference(&self.pattern, offset, bytes) {
                None => Ok(()),
                Some(at) => {
                    let expected =
                        self.pattern[((offset + at as u64) % self.pattern.len() as u64) as usize];
                    let what = format!("byte is {:#04x}, expected {expected:#04x}", bytes[at]);
                    Err(Wrong { offset: offset + at as u64, what })
                }
            },
            Verify::Crc32c => {
                let mut all = pieces(offset, self.interval, bytes);
                all.try_for_each(|(at, piece)| {
                    opened(piece, at, self.seed).map_err(|what| Wrong { offset: at, what })
                })
            }
        }
    }

    /// Returns whether blocks are verified at all.
    pub(crate) fn verifies(&self) -> bool {
        self.verify != Verify::None
    }
}

/// The intervals of a block; one too short for a header belongs to the previous one.
fn pieces(offset: u64, interval: u64, bytes: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
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

fn seal(piece: &mut [u8], offset: u64, seed: u64) {
    let len = piece.len() as u64;
    piece[0..4].copy_from_slice(&MAGIC);
    piece[8..16].copy_from_slice(&offset.to_le_bytes());
    piece[16..24].copy_from_slice(&seed.to_le_bytes());
    piece[24..32].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c(&piece[8..]);
    piece[4..8].copy_from_slice(&crc.to_le_bytes());
}

fn opened(piece: &[u8], offset: u64, seed: u64) -> Result<(), String> {
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

/// Repeats `pattern` as if it began at offset 0 of the target.
fn repeat(pattern: &[u8], offset: u64, bytes: &mut [u8]) {
    let len = pattern.len() as u64;
    for (byte, at) in bytes.iter_mut().zip(offset..) {
        *byte = pattern[(at % len) as usize];
    }
}

fn first_difference(pattern: &[u8], offset: u64, bytes: &[u8]) -> Option<usize> {
    let len = pattern.len() as u64;
    bytes.iter().zip(offset..).position(|(byte, at)| *byte != pattern[(at % len) as usize])
}

const MAGIC: [u8; 4] = *b"dBch";
const HEADER_BYTES: usize = 32;
const SCRAMBLE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn content(verify: Verify, bs: u64) -> Content {
        let bs = [bs; 2];
        let verify_pattern = vec![1, 2, 3];
        Content::new(&Job { verify, bs, verify_pattern, ..Job::default() }, 9)
    }

    #[test]
    fn stamped_blocks_are_accepted_and_any_change_is_found() {
        for (verify, smallest) in
            [(Verify::Crc32c, 8192), (Verify::Crc32c, 1024), (Verify::Pattern, 8192)]
        {
            let mut content = content(verify, smallest);
            let mut block = vec![0; 8192];
            content.prepare(&mut block);
            content.stamp(1 << 20, &mut block);
            assert_eq!(content.check(1 << 20, &mut block), Ok(()));
            for at in [0, 3, 7, 30, 100, 5000, 8191] {
                block[at] ^= 0x10;
                let wrong = content.check(1 << 20, &mut block).unwrap_err();
                assert!(wrong.offset <= (1 << 20) + at as u64);
                block[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn a_block_of_another_place_or_another_job_is_found() {
        let mut ours = content(Verify::Crc32c, 8192);
        let mut block = vec![0; 8192];
        ours.stamp(8192, &mut block);
        assert!(ours.check(0, &mut block).unwrap_err().what.contains("offset 8192"));
        ours.seed = 10;
        assert!(ours.check(8192, &mut block).unwrap_err().what.contains("another job"));
    }

    #[test]
    fn buffers_are_as_random_as_asked_for() {
        let zeroes = |job: Job| {
            let mut block = vec![1; 8192];
            Content::new(&job, 1).prepare(&mut block);
            block.iter().filter(|&&b| b == 0).count()
        };
        assert!(zeroes(Job::default()) < 100);
        assert_eq!(zeroes(Job { zero_buffers: true, ..Job::default() }), 8192);
        assert_eq!(zeroes(Job { buffer_pattern: vec![0, 1], ..Job::default() }), 4096);
    }
}
