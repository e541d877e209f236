//! Samples to reads: sort by place, merge neighbours, split at what one command may carry. Pure.
//!
//! A [`Fetch`] is a contiguous run of memory and the parts of the media that fill it. Samples of a
//! batch share the blocks that they share on media: a block is read once.

use crate::directory::ChunkInfo;
use crate::format::Extent;
use crate::units::{SampleId, round_up};

/// One read command: a range of a namespace, and where in the run its bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index of the namespace in the image.
    pub(crate) namespace: u16,
    /// First byte on the namespace: a multiple of its block length.
    pub(crate) offset_bytes: u64,
    /// First byte in the run.
    pub(crate) run_offset: usize,
    /// Whole blocks.
    pub(crate) len_bytes: usize,
}

/// Where one sample lies in a run, and what its bytes must hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) id: SampleId,
    /// Position in the batch, or rank in the chunk.
    pub(crate) index: u32,
    pub(crate) run_offset: usize,
    pub(crate) len_bytes: u32,
    pub(crate) crc32c: u32,
}

/// What fills one contiguous run of memory.
#[derive(Debug, Default)]
pub(crate) struct Fetch {
    pub(crate) parts: Vec<Part>,
    /// By rising `run_offset`.
    pub(crate) samples: Vec<Placed>,
    pub(crate) len_bytes: usize,
}

impl Fetch {
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.samples.clear();
        self.len_bytes = 0;
    }

    /// The parts that hold bytes of the sample: a range of indices into `parts`.
    pub(crate) fn parts_of(&self, sample: &Placed) -> std::ops::Range<usize> {
        let end = sample.run_offset + sample.len_bytes as usize;
        let first = self.parts.partition_point(|p| p.run_offset + p.len_bytes <= sample.run_offset);
        let last = self.parts.partition_point(|p| p.run_offset < end);
        first..last.max(first)
    }

    /// `part`, cut at the blocks where the bytes of a sample begin or end: a piece that cannot be read
    /// costs only the samples that have bytes in it.
    pub(super) fn pieces_of(&self, part: &Part, block_len_bytes: usize) -> Vec<Part> {
        let mut cuts = vec![part.len_bytes];
        for sample in &self.samples {
            let end =
                (sample.run_offset + sample.len_bytes as usize).saturating_sub(part.run_offset);
            let (from, to) =
                (sample.run_offset.saturating_sub(part.run_offset), end.min(part.len_bytes));
            if sample.len_bytes > 0 && from < to {
                cuts.extend([from - from % block_len_bytes, to.next_multiple_of(block_len_bytes)]);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut start = 0;
        let piece = |cut: usize| {
            let from = std::mem::replace(&mut start, cut);
            Part {
                offset_bytes: part.offset_bytes + from as u64,
                run_offset: part.run_offset + from,
                len_bytes: cut - from,
                ..*part
            }
        };
        cuts.into_iter().filter(|&cut| cut > 0).map(piece).collect()
    }
}

/// What planning must know of a namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    /// Logical block length.
    pub(crate) block_len_bytes: u32,
    /// The most that one command carries: min(MDTS, 1 MiB), whole blocks.
    pub(crate) max_transfer_bytes: u32,
}

/// A sample that is wanted: its place in the batch, and its place on media.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) index: u32,
    pub(crate) id: SampleId,
    pub(crate) extent: Extent,
}

/// How samples of a batch may be put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merge {
    /// One command a sample, in the batch's order.
    Never,
    /// Neighbours on media are read by one command.
    Neighbours,
}

/// Plans `wanted` into fetches of at most about `run_bytes` each, appended to `out`.
///
/// `spare` gives back used fetches, so that planning allocates nothing in steady state. Where all
/// samples are whole blocks of one length, memory keeps the order of the batch, so that the batch is
/// one contiguous `[batch, length]`; else memory follows the media.
pub(crate) fn plan_samples(
    wanted: &mut [Wanted],
    geometry: &[Geometry],
    merge: Merge,
    run_bytes: usize,
    spare: &mut Vec<Fetch>,
    out: &mut Vec<Fetch>,
) {
    if merge == Merge::Neighbours && !equal_whole_blocks(wanted, geometry) {
        wanted.sort_unstable_by_key(|w| (w.extent.namespace, w.extent.offset_bytes));
    }
    let mut fetch = spare.pop().unwrap_or_default();
    let mut rest: &[Wanted] = wanted;
    while let Some(first) = rest.first() {
        let geometry = geometry[usize::from(first.extent.namespace)];
        let range = Range::starting_with(rest, geometry, merge, run_bytes);
        if fetch.len_bytes > 0 && fetch.len_bytes + range.len_bytes() > run_bytes {
            out.push(std::mem::replace(&mut fetch, spare.pop().unwrap_or_default()));
        }
        let (taken, behind) = rest.split_at(range.samples);
        range.append_to(&mut fetch, taken, geometry);
        rest = behind;
    }
    if fetch.samples.is_empty() {
        spare.push(fetch);
    } else {
        out.push(fetch);
    }
}

/// Plans the part of a chunk that holds samples: one range, one run.
pub(crate) fn plan_chunk(
    samples: impl Iterator<Item = (SampleId, Extent)>,
    geometry: &[Geometry],
    fetch: &mut Fetch,
) {
    let mut start = u64::MAX;
    let mut end = 0;
    let mut namespace = 0;
    for (index, (id, extent)) in samples.enumerate() {
        namespace = extent.namespace;
        if extent.len_bytes > 0 {
            start = start.min(extent.offset_bytes);
            end = end.max(extent.offset_bytes + u64::from(extent.len_bytes));
        }
        // The offset on media for now: the start of the range is known when all have been seen.
        fetch.samples.push(Placed {
            id,
            index: index as u32,
            run_offset: extent.offset_bytes as usize,
            len_bytes: extent.len_bytes,
            crc32c: extent.crc32c,
        });
    }
    if start == u64::MAX {
        fetch.samples.iter_mut().for_each(|s| s.run_offset = 0);
        return;
    }
    let geometry = geometry[usize::from(namespace)];
    let range = Range {
        namespace,
        start: start - start % u64::from(geometry.block_len_bytes),
        end: block_end(end, geometry),
        samples: 0,
    };
    let mut last = 0;
    for sample in &mut fetch.samples {
        if sample.len_bytes > 0 {
            last = (sample.run_offset as u64 - range.start) as usize;
        }
        sample.run_offset = last;
    }
    range.append_to(fetch, &[], geometry);
}

/// Plans a whole chunk, header included: `len_bytes` from `offset_bytes`, with `samples` in it.
pub(crate) fn plan_whole_chunk(
    chunk: &ChunkInfo,
    samples: impl Iterator<Item = (SampleId, Extent)>,
    geometry: &[Geometry],
    fetch: &mut Fetch,
) {
    let mut last = 0;
    for (index, (id, extent)) in samples.enumerate() {
        if extent.len_bytes > 0 {
            last = (extent.offset_bytes - chunk.offset_bytes) as usize;
        }
        let (len_bytes, crc32c) = (extent.len_bytes, extent.crc32c);
        let index = index as u32;
        fetch.samples.push(Placed { id, index, run_offset: last, len_bytes, crc32c });
    }
    let geometry = geometry[usize::from(chunk.namespace)];
    let (start, end) = (chunk.offset_bytes, chunk.offset_bytes + chunk.len_bytes);
    let end = block_end(end, geometry);
    Range { namespace: chunk.namespace, start, end, samples: 0 }.append_to(fetch, &[], geometry);
}

fn equal_whole_blocks(wanted: &[Wanted], geometry: &[Geometry]) -> bool {
    let Some(first) = wanted.first() else { return false };
    let len = first.extent.len_bytes;
    len > 0
        && wanted.iter().all(|w| {
            let block = geometry[usize::from(w.extent.namespace)].block_len_bytes;
            w.extent.len_bytes == len
                && len % block == 0
                && w.extent.offset_bytes.is_multiple_of(u64::from(block))
        })
}

/// A contiguous range of a namespace that holds the first `samples` of a list.
struct Range {
    namespace: u16,
    start: u64,
    end: u64,
    samples: usize,
}

impl Range {
    fn starting_with(list: &[Wanted], geometry: Geometry, merge: Merge, run_bytes: usize) -> Range {
        let first = list[0].extent;
        let block = u64::from(geometry.block_len_bytes);
        let start = first.offset_bytes - first.offset_bytes % block;
        let mut range = Range { namespace: first.namespace, start, end: start, samples: 1 };
        if first.len_bytes > 0 {
            range.end = extent_end(&first, geometry);
        }
        if merge == Merge::Never || first.len_bytes == 0 {
            return range;
        }
        for next in &list[1..] {
            let extent = next.extent;
            let neighbour = extent.namespace == range.namespace
                && extent.offset_bytes >= range.start
                && extent.offset_bytes - extent.offset_bytes % block <= range.end;
            if extent.len_bytes == 0 || !neighbour {
                break;
            }
            let end = range.end.max(extent_end(&extent, geometry));
            if end - range.start > run_bytes as u64 {
                break;
            }
            range.end = end;
            range.samples += 1;
        }
        range
    }

    fn len_bytes(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// How long the part is that begins `done` bytes into the range. What is too long for one command
    /// is cut where multiples of its length lie on media, so that no part crosses a stripe of the
    /// device that all could stay within.
    fn part_len_from(&self, done: usize, geometry: Geometry) -> usize {
        let (max, left) = (geometry.max_transfer_bytes as usize, self.len_bytes() - done);
        match self.len_bytes() > max {
            true => left.min(max - ((self.start + done as u64) % max as u64) as usize),
            false => left,
        }
    }

    fn append_to(&self, fetch: &mut Fetch, samples: &[Wanted], geometry: Geometry) {
        let base = fetch.len_bytes;
        for wanted in samples {
            let skip = if wanted.extent.len_bytes == 0 {
                0
            } else {
                (wanted.extent.offset_bytes - self.start) as usize
            };
            fetch.samples.push(Placed {
                id: wanted.id,
                index: wanted.index,
                run_offset: base + skip,
                len_bytes: wanted.extent.len_bytes,
                crc32c: wanted.extent.crc32c,
            });
        }
        let mut done = 0;
        while done < self.len_bytes() {
            let len = self.part_len_from(done, geometry);
            fetch.parts.push(Part {
                namespace: self.namespace,
                offset_bytes: self.start + done as u64,
                run_offset: base + done,
                len_bytes: len,
            });
            done += len;
        }
        fetch.len_bytes = base + self.len_bytes();
    }
}

fn extent_end(extent: &Extent, geometry: Geometry) -> u64 {
    block_end(extent.offset_bytes + u64::from(extent.len_bytes), geometry)
}

fn block_end(end: u64, geometry: Geometry) -> u64 {
    round_up(end, u64::from(geometry.block_len_bytes))
        .expect("the directory holds extents below 2^63 only")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GEOMETRY: Geometry = Geometry { block_len_bytes: 4096, max_transfer_bytes: 131_072 };

    fn wanted(list: &[(u16, u64, u32)]) -> Vec<Wanted> {
        list.iter()
            .enumerate()
            .map(|(index, &(namespace, offset_bytes, len_bytes))| Wanted {
                index: index as u32,
                id: SampleId(index as u64),
                extent: Extent { namespace, offset_bytes, len_bytes, crc32c: 0 },
            })
            .collect()
    }

    fn plan(list: &[(u16, u64, u32)], merge: Merge) -> Vec<Fetch> {
        let mut out = Vec::new();
        let geometry = [GEOMETRY; 3];
        plan_samples(&mut wanted(list), &geometry, merge, 1 << 20, &mut Vec::new(), &mut out);
        out
    }

    #[test]
    fn neighbours_in_one_block_are_read_once() {
        let fetches = plan(&[(0, 5000, 100), (0, 4096, 200)], Merge::Neighbours);
        assert_eq!(fetches.len(), 1);
        assert_eq!(
            fetches[0].parts,
            [Part { namespace: 0, offset_bytes: 4096, run_offset: 0, len_bytes: 4096 }]
        );
        let places: Vec<_> = fetches[0].samples.iter().map(|s| (s.index, s.run_offset)).collect();
        assert_eq!(places, [(1, 0), (0, 904)]);
    }

    #[test]
    fn a_sample_that_one_command_carries_is_not_cut_wherever_it_lies() {
        let fetches = plan(&[(0, 8192, 131_072)], Merge::Neighbours);
        assert_eq!(fetches[0].parts.len(), 1);
    }

    #[test]
    fn a_long_sample_is_split_at_the_transfer_limit() {
        let fetches = plan(&[(0, 8192, 300_000)], Merge::Neighbours);
        let lens: Vec<_> = fetches[0].parts.iter().map(|p| p.len_bytes).collect();
        assert_eq!(lens, [122_880, 131_072, 49_152], "cut at multiples of 128 KiB");
        assert_eq!(fetches[0].parts_of(&fetches[0].samples[0]), 0..3);
    }

    #[test]
    fn whole_block_samples_of_one_length_keep_the_order_of_the_batch() {
        let fetches = plan(&[(0, 40_960, 4096), (0, 8192, 4096), (1, 0, 4096)], Merge::Neighbours);
        let places: Vec<_> = fetches[0].samples.iter().map(|s| s.run_offset).collect();
        assert_eq!(places, [0, 4096, 8192]);
    }

    #[test]
    fn without_merging_each_sample_is_its_own_command() {
        let fetches = plan(&[(0, 4096, 100), (0, 4196, 100)], Merge::Never);
        assert_eq!(fetches[0].parts.len(), 2);
    }

    #[test]
    fn an_empty_sample_needs_no_command() {
        let fetches = plan(&[(0, 4096, 0)], Merge::Neighbours);
        assert_eq!((fetches[0].parts.len(), fetches[0].samples.len()), (0, 1));
    }

    #[test]
    fn a_chunk_is_one_range_without_its_header() {
        let extent =
            |offset_bytes, len_bytes| Extent { namespace: 1, offset_bytes, len_bytes, crc32c: 9 };
        let mut fetch = Fetch::default();
        let list = [(SampleId(5), extent(12_288, 10)), (SampleId(2), extent(12_298, 200_000))];
        plan_chunk(list.into_iter(), &[GEOMETRY; 3], &mut fetch);
        assert_eq!(fetch.len_bytes, 200_704);
        assert_eq!(fetch.parts[0].offset_bytes, 12_288);
        assert_eq!(fetch.parts.len(), 2);
        assert_eq!(fetch.samples[1].run_offset, 10);
    }

    fn pieces(part: &Part, samples: &[(usize, u32)]) -> Vec<(u64, usize, usize)> {
        let placed = |&(run_offset, len_bytes)| Placed {
            id: SampleId(0),
            index: 0,
            run_offset,
            len_bytes,
            crc32c: 0,
        };
        let fetch = Fetch { samples: samples.iter().map(placed).collect(), ..Fetch::default() };
        let pieces = fetch.pieces_of(part, 4096);
        pieces.iter().map(|p| (p.offset_bytes, p.run_offset, p.len_bytes)).collect()
    }

    #[test]
    fn pieces_of_a_part_hold_blocks_of_the_same_samples() {
        let part =
            Part { namespace: 0, offset_bytes: 1 << 20, run_offset: 8192, len_bytes: 65_536 };
        let at = |first: usize, blocks: usize| {
            ((1 << 20) + first as u64 * 4096, 8192 + first * 4096, blocks * 4096)
        };
        assert_eq!(pieces(&part, &[]), [at(0, 16)], "nobody wants a part of it alone");
        assert_eq!(pieces(&part, &[(0, 200_000)]), [at(0, 16)], "one sample has all of it");
        // One that begins before it, some that share its block 1, one of whole blocks, one behind a gap.
        let samples = [
            (100, 12_388),
            (12_488, 0),
            (12_488, 10),
            (12_498, 20),
            (16_384, 8192),
            (40_960, 90_000),
        ];
        let expected = [at(0, 1), at(1, 1), at(2, 2), at(4, 4), at(8, 8)];
        assert_eq!(pieces(&part, &samples), expected);
    }

    proptest! {
        #[test]
        fn every_sample_lies_in_the_run_where_the_parts_bring_it(
            list in prop::collection::vec((0u16..3, 0u64..2_000_000, 0u32..200_000), 1..60),
            never in any::<bool>(),
        ) {
            let merge = if never { Merge::Never } else { Merge::Neighbours };
            let fetches = plan(&list, merge);
            let mut seen = vec![false; list.len()];
            for fetch in &fetches {
                let mut at = 0;
                for part in &fetch.parts {
                    prop_assert_eq!(part.run_offset, at);
                    prop_assert!(part.len_bytes <= 131_072 && part.len_bytes % 4096 == 0);
                    at += part.len_bytes;
                }
                prop_assert_eq!(at, fetch.len_bytes);
                for sample in &fetch.samples {
                    let (namespace, offset, len) = list[sample.index as usize];
                    prop_assert!(!std::mem::replace(&mut seen[sample.index as usize], true));
                    prop_assert_eq!(sample.len_bytes, len);
                    for (i, byte) in [0, len.saturating_sub(1)].into_iter().enumerate() {
                        if len == 0 { continue }
                        let at = sample.run_offset + byte as usize;
                        let part = fetch.parts.iter()
                            .find(|p| p.run_offset <= at && at < p.run_offset + p.len_bytes);
                        let part = part.expect("a part covers the byte");
                        let media = part.offset_bytes + (at - part.run_offset) as u64;
                        prop_assert_eq!((part.namespace, media), (namespace, offset + u64::from(byte)));
                        let range = fetch.parts_of(sample);
                        let edge = fetch.parts[if i == 0 { range.start } else { range.end - 1 }];
                        prop_assert_eq!(edge, *part);
                    }
                }
            }
            prop_assert!(seen.iter().all(|s| *s));
        }
    }
}
