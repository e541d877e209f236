//! Plans reads: sorts samples by offset, merges neighbours, splits at the transfer limit. Pure.
//!
//! A [`Fetch`] describes the content of one contiguous buffer: the transfers that fill it, and the samples in it. With
//! [`Merge::Neighbours`], samples that share a block share its read, unless the fetch would become too long; samples
//! that are read in the order of the batch share reads only as long as they ascend on media.
//! [`SamplePlans`] reuses the memory of earlier plans.

use std::slice::SliceIndex;

use crate::directory::{ChunkInfo, Directory};
use crate::format::Extent;
use crate::units::{SampleId, Slot, round_up};

/// One read command: blocks of a namespace, and their place in the fetch's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Index of the namespace in the image.
    pub(crate) namespace: u16,
    /// First byte on the namespace: a multiple of the namespace's block length.
    pub(crate) offset_bytes: u64,
    /// First byte in the buffer.
    pub(crate) buf_offset: usize,
    /// Length in bytes: whole blocks.
    pub(crate) len_bytes: usize,
}

/// One sample of a fetch: its place in the buffer, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FetchSample {
    pub(crate) id: SampleId,
    /// Position in the batch, or in the chunk.
    pub(crate) index: u32,
    /// First byte in the buffer.
    pub(crate) buf_offset: usize,
    pub(crate) len_bytes: u32,
    /// The checksum in the directory.
    pub(crate) crc32c: u32,
}

/// Transfers into one contiguous buffer, and the samples in it.
#[derive(Debug, Default)]
pub(crate) struct Fetch {
    pub(crate) transfers: Vec<Transfer>,
    /// By ascending `buf_offset`.
    pub(crate) samples: Vec<FetchSample>,
    /// Length of the buffer.
    pub(crate) len_bytes: usize,
}

impl Fetch {
    pub(crate) fn clear(&mut self) {
        self.transfers.clear();
        self.samples.clear();
        self.len_bytes = 0;
    }

    /// Indices of the transfers that hold bytes of the sample.
    pub(crate) fn transfers_of(&self, sample: &FetchSample) -> std::ops::Range<usize> {
        let end = sample.buf_offset + sample.len_bytes as usize;
        let first =
            self.transfers.partition_point(|p| p.buf_offset + p.len_bytes <= sample.buf_offset);
        let last = self.transfers.partition_point(|p| p.buf_offset < end);
        first..last.max(first)
    }

    /// Splits `transfer` into pieces, at the blocks where samples begin or end. An unreadable piece fails only the
    /// samples that have bytes in it.
    pub(super) fn split_at_samples(
        &self,
        transfer: &Transfer,
        block_len_bytes: usize,
    ) -> Vec<Transfer> {
        let mut cuts = vec![transfer.len_bytes];
        for sample in &self.samples {
            let end =
                (sample.buf_offset + sample.len_bytes as usize).saturating_sub(transfer.buf_offset);
            let from = sample.buf_offset.saturating_sub(transfer.buf_offset);
            let to = end.min(transfer.len_bytes);
            if sample.len_bytes > 0 && from < to {
                cuts.extend([from - from % block_len_bytes, to.next_multiple_of(block_len_bytes)]);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut start = 0;
        let piece = |cut: usize| {
            let from = std::mem::replace(&mut start, cut);
            Transfer {
                offset_bytes: transfer.offset_bytes + from as u64,
                buf_offset: transfer.buf_offset + from,
                len_bytes: cut - from,
                ..*transfer
            }
        };
        cuts.into_iter().filter(|&cut| cut > 0).map(piece).collect()
    }
}

/// The properties of a namespace that planning needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    /// Logical block length.
    pub(crate) block_len_bytes: u32,
    /// The transfer limit: the longest read command, in whole blocks.
    pub(crate) max_transfer_bytes: u32,
}

/// A sample to read: its position in the batch, and its extent on media.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleRequest {
    pub(crate) index: u32,
    pub(crate) id: SampleId,
    pub(crate) extent: Extent,
}

/// Merging of the reads of a batch's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merge {
    /// Each sample has its own commands, in the order of the batch.
    Never,
    /// Samples that are neighbours on media share commands.
    Neighbours,
}

/// Appends to `out` the fetches that read `requests`, each of at most `max_fetch_bytes` unless one sample is longer.
///
/// Takes used fetches from `free`, so that planning allocates nothing in steady state. With [`Merge::Never`], or if all
/// samples are whole blocks of one length, samples lie in the buffers in the order of the batch: a batch in one buffer
/// may then be a contiguous `[batch, length]` array. Otherwise they lie in the order on media.
pub(crate) fn plan_samples(
    requests: &mut [SampleRequest],
    geometry: &[Geometry],
    merge: Merge,
    max_fetch_bytes: usize,
    free: &mut Vec<Fetch>,
    out: &mut Vec<Fetch>,
) {
    if merge == Merge::Neighbours && !equal_whole_blocks(requests, geometry) {
        requests.sort_unstable_by_key(|w| (w.extent.namespace, w.extent.offset_bytes));
    }
    let mut fetch = free.pop().unwrap_or_default();
    let mut rest: &[SampleRequest] = requests;
    while let Some(first) = rest.first() {
        let geometry = geometry[usize::from(first.extent.namespace)];
        let range = BlockRange::starting_with(rest, geometry, merge, max_fetch_bytes);
        if fetch.len_bytes > 0 && fetch.len_bytes + range.len_bytes() > max_fetch_bytes {
            out.push(std::mem::replace(&mut fetch, free.pop().unwrap_or_default()));
        }
        let (taken, after) = rest.split_at(range.samples);
        range.append_to(&mut fetch, taken, geometry);
        rest = after;
    }
    if fetch.samples.is_empty() {
        free.push(fetch);
    } else {
        out.push(fetch);
    }
}

/// Plans the read of a chunk's samples as one range: that of the chunk `whole` with its header, if it is given;
/// otherwise from the first block of the samples to the last. `samples` are in the order on media; `fetch` is empty.
pub(crate) fn plan_chunk(
    samples: impl Iterator<Item = (SampleId, Extent)>,
    whole: Option<&ChunkInfo>,
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
        // The offset on media for now: the start of the range is known only after the loop.
        fetch.samples.push(FetchSample {
            id,
            index: index as u32,
            buf_offset: extent.offset_bytes as usize,
            len_bytes: extent.len_bytes,
            crc32c: extent.crc32c,
        });
    }
    if let Some(chunk) = whole {
        (namespace, start) = (chunk.namespace, chunk.offset_bytes);
        end = start + chunk.len_bytes;
    } else if start == u64::MAX {
        fetch.samples.iter_mut().for_each(|s| s.buf_offset = 0);
        return;
    }
    let geometry = geometry[usize::from(namespace)];
    let range = BlockRange {
        namespace,
        start: start - start % u64::from(geometry.block_len_bytes),
        end: block_end(end, geometry),
        samples: 0,
    };
    let mut last = 0;
    for sample in &mut fetch.samples {
        if sample.len_bytes > 0 {
            last = (sample.buf_offset as u64 - range.start) as usize;
        }
        sample.buf_offset = last;
    }
    range.append_to(fetch, &[], geometry);
}

/// Returns whether all samples have one length, and each is whole blocks.
fn equal_whole_blocks(requests: &[SampleRequest], geometry: &[Geometry]) -> bool {
    let Some(first) = requests.first() else { return false };
    let len = first.extent.len_bytes;
    len > 0
        && requests.iter().all(|w| {
            let block = geometry[usize::from(w.extent.namespace)].block_len_bytes;
            w.extent.len_bytes == len
                && len % block == 0
                && w.extent.offset_bytes.is_multiple_of(u64::from(block))
        })
}

/// A contiguous range of whole blocks of a namespace.
struct BlockRange {
    namespace: u16,
    /// First byte, and the byte after the last one.
    start: u64,
    end: u64,
    /// The range holds this many samples, from the front of the list that it was made from.
    samples: usize,
}

impl BlockRange {
    /// The range of the first sample of `list`, and of the following ones that may share its commands.
    fn starting_with(
        list: &[SampleRequest],
        geometry: Geometry,
        merge: Merge,
        max_fetch_bytes: usize,
    ) -> BlockRange {
        let first = list[0].extent;
        let block = u64::from(geometry.block_len_bytes);
        let start = first.offset_bytes - first.offset_bytes % block;
        let mut range = BlockRange { namespace: first.namespace, start, end: start, samples: 1 };
        if first.len_bytes > 0 {
            range.end = extent_end(&first, geometry);
        }
        if merge == Merge::Never || first.len_bytes == 0 {
            return range;
        }
        for (before, next) in list.iter().zip(&list[1..]) {
            let extent = next.extent;
            // In the order of the batch, a repeated sample may lie before the previous one. It then begins a new range:
            // the samples of a fetch ascend in the buffer.
            let neighbour = extent.namespace == range.namespace
                && extent.offset_bytes >= before.extent.offset_bytes
                && extent.offset_bytes - extent.offset_bytes % block <= range.end;
            if extent.len_bytes == 0 || !neighbour {
                break;
            }
            let end = range.end.max(extent_end(&extent, geometry));
            if end - range.start > max_fetch_bytes as u64 {
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

    /// The length of the transfer that begins `done` bytes into the range. A range longer than the transfer limit
    /// is split at multiples of the limit on media, so that transfers do not cross the device's stripes. It is not if
    /// this takes one more transfer, since a command costs more than crossing a stripe.
    fn transfer_len_from(&self, done: usize, geometry: Geometry) -> usize {
        let max = u64::from(geometry.max_transfer_bytes);
        let left = self.len_bytes() - done;
        let of_stripes = self.end.div_ceil(max) - self.start / max;
        let to_next = if of_stripes > (self.end - self.start).div_ceil(max) {
            max
        } else {
            max - (self.start + done as u64) % max
        };
        left.min(to_next as usize)
    }

    /// Appends the range to `fetch`, with the samples that it holds.
    fn append_to(&self, fetch: &mut Fetch, samples: &[SampleRequest], geometry: Geometry) {
        let base = fetch.len_bytes;
        for request in samples {
            let skip = if request.extent.len_bytes == 0 {
                0
            } else {
                (request.extent.offset_bytes - self.start) as usize
            };
            fetch.samples.push(FetchSample {
                id: request.id,
                index: request.index,
                buf_offset: base + skip,
                len_bytes: request.extent.len_bytes,
                crc32c: request.extent.crc32c,
            });
        }
        let mut done = 0;
        while done < self.len_bytes() {
            let len = self.transfer_len_from(done, geometry);
            fetch.transfers.push(Transfer {
                namespace: self.namespace,
                offset_bytes: self.start + done as u64,
                buf_offset: base + done,
                len_bytes: len,
            });
            done += len;
        }
        fetch.len_bytes = base + self.len_bytes();
    }
}

/// The end of the last block of a sample.
fn extent_end(extent: &Extent, geometry: Geometry) -> u64 {
    block_end(extent.offset_bytes + u64::from(extent.len_bytes), geometry)
}

/// The end of the block that ends at or after byte `end`.
fn block_end(end: u64, geometry: Geometry) -> u64 {
    round_up(end, u64::from(geometry.block_len_bytes))
        .expect("the directory holds only extents below 2^63")
}

/// The plans of one reader or driver, one after the other.
#[derive(Default)]
pub(crate) struct SamplePlans {
    /// The geometry of each namespace of the image.
    pub(crate) geometry: Vec<Geometry>,
    /// Memory for looking extents up.
    slots: Vec<Slot>,
    /// Extents of the last looked up samples; `None` for a sample that does not exist.
    pub(crate) extents: Vec<Option<Extent>>,
    /// The samples to plan.
    pub(crate) requests: Vec<SampleRequest>,
    /// The planned reads.
    pub(crate) fetches: Vec<Fetch>,
    /// Empty plans, to be used again.
    free: Vec<Fetch>,
}

impl SamplePlans {
    /// Plans for namespaces with this geometry.
    pub(crate) fn new(geometry: Vec<Geometry>) -> SamplePlans {
        SamplePlans { geometry, ..SamplePlans::default() }
    }

    /// Begins a plan: looks up the extents of `ids`.
    pub(crate) fn look_up(&mut self, directory: &Directory, ids: &[SampleId]) {
        self.requests.clear();
        self.extents.clear();
        directory.extents(ids, &mut self.slots, &mut self.extents);
    }

    /// Appends to `fetches` the reads of this range of `requests`, as [`plan_samples`].
    pub(crate) fn plan(
        &mut self,
        requests: impl SliceIndex<[SampleRequest], Output = [SampleRequest]>,
        merge: Merge,
        max_fetch_bytes: usize,
    ) {
        let SamplePlans { geometry, fetches, free, .. } = self;
        let requests = &mut self.requests[requests];
        plan_samples(requests, geometry, merge, max_fetch_bytes, free, fetches);
    }

    /// Takes back the plan of a read that has ended, to reuse its memory.
    pub(crate) fn recycle(&mut self, mut fetch: Fetch) {
        fetch.clear();
        self.free.push(fetch);
    }

    /// Returns an empty plan.
    pub(crate) fn empty(&mut self) -> Fetch {
        self.free.pop().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GEOMETRY: Geometry = Geometry { block_len_bytes: 4096, max_transfer_bytes: 131_072 };

    fn requests(list: &[(u16, u64, u32)]) -> Vec<SampleRequest> {
        list.iter()
            .enumerate()
            .map(|(index, &(namespace, offset_bytes, len_bytes))| SampleRequest {
                index: index as u32,
                id: SampleId(index as u64),
                extent: Extent { namespace, offset_bytes, len_bytes, crc32c: 0 },
            })
            .collect()
    }

    fn plan(list: &[(u16, u64, u32)], merge: Merge) -> Vec<Fetch> {
        let mut out = Vec::new();
        let geometry = [GEOMETRY; 3];
        plan_samples(&mut requests(list), &geometry, merge, 1 << 20, &mut Vec::new(), &mut out);
        out
    }

    #[test]
    fn samples_in_one_block_are_read_together() {
        let fetches = plan(&[(0, 5000, 100), (0, 4096, 200)], Merge::Neighbours);
        assert_eq!(fetches.len(), 1);
        assert_eq!(
            fetches[0].transfers,
            [Transfer { namespace: 0, offset_bytes: 4096, buf_offset: 0, len_bytes: 4096 }]
        );
        let offsets: Vec<_> = fetches[0].samples.iter().map(|s| (s.index, s.buf_offset)).collect();
        assert_eq!(offsets, [(1, 0), (0, 904)]);
    }

    #[test]
    fn a_sample_within_the_transfer_limit_is_one_command_at_any_offset() {
        let fetches = plan(&[(0, 8192, 131_072)], Merge::Neighbours);
        assert_eq!(fetches[0].transfers.len(), 1);
    }

    #[test]
    fn a_long_sample_is_split_at_the_transfer_limit() {
        let fetches = plan(&[(0, 8192, 300_000)], Merge::Neighbours);
        let lens: Vec<_> = fetches[0].transfers.iter().map(|p| p.len_bytes).collect();
        assert_eq!(lens, [122_880, 131_072, 49_152], "split at multiples of 128 KiB");
        assert_eq!(fetches[0].transfers_of(&fetches[0].samples[0]), 0..3);

        let fetches = plan(&[(0, 8192, 262_144)], Merge::Neighbours);
        let lens: Vec<_> = fetches[0].transfers.iter().map(|p| p.len_bytes).collect();
        assert_eq!(lens, [131_072; 2], "multiples of 128 KiB would take a third command");
    }

    #[test]
    fn whole_block_samples_of_one_length_keep_the_order_of_the_batch() {
        let fetches = plan(&[(0, 40_960, 4096), (0, 8192, 4096), (1, 0, 4096)], Merge::Neighbours);
        let offsets: Vec<_> = fetches[0].samples.iter().map(|s| s.buf_offset).collect();
        assert_eq!(offsets, [0, 4096, 8192]);
    }

    #[test]
    fn a_repeated_whole_block_sample_follows_the_samples_before_it() {
        let list = [(0, 8192, 4096), (0, 12_288, 4096), (0, 8192, 4096), (0, 8192, 4096)];
        let fetches = plan(&list, Merge::Neighbours);
        let offsets: Vec<_> = fetches[0].samples.iter().map(|s| s.buf_offset).collect();
        assert_eq!(offsets, [0, 4096, 8192, 8192]);
    }

    #[test]
    fn without_merging_each_sample_is_its_own_command() {
        let fetches = plan(&[(0, 4096, 100), (0, 4196, 100)], Merge::Never);
        assert_eq!(fetches[0].transfers.len(), 2);
    }

    #[test]
    fn an_empty_sample_needs_no_command() {
        let fetches = plan(&[(0, 4096, 0)], Merge::Neighbours);
        assert_eq!((fetches[0].transfers.len(), fetches[0].samples.len()), (0, 1));
    }

    #[test]
    fn a_chunk_is_one_range_without_its_header() {
        let extent =
            |offset_bytes, len_bytes| Extent { namespace: 1, offset_bytes, len_bytes, crc32c: 9 };
        let mut fetch = Fetch::default();
        let list = [(SampleId(5), extent(12_288, 10)), (SampleId(2), extent(12_298, 200_000))];
        plan_chunk(list.into_iter(), None, &[GEOMETRY; 3], &mut fetch);
        assert_eq!(fetch.len_bytes, 200_704);
        assert_eq!(fetch.transfers[0].offset_bytes, 12_288);
        assert_eq!(fetch.transfers.len(), 2);
        assert_eq!(fetch.samples[1].buf_offset, 10);
    }

    fn pieces(transfer: &Transfer, samples: &[(usize, u32)]) -> Vec<(u64, usize, usize)> {
        let placed = |&(buf_offset, len_bytes)| FetchSample {
            id: SampleId(0),
            index: 0,
            buf_offset,
            len_bytes,
            crc32c: 0,
        };
        let fetch = Fetch { samples: samples.iter().map(placed).collect(), ..Fetch::default() };
        let pieces = fetch.split_at_samples(transfer, 4096);
        pieces.iter().map(|p| (p.offset_bytes, p.buf_offset, p.len_bytes)).collect()
    }

    #[test]
    fn pieces_of_a_transfer_hold_blocks_of_the_same_samples() {
        let transfer =
            Transfer { namespace: 0, offset_bytes: 1 << 20, buf_offset: 8192, len_bytes: 65_536 };
        let at = |first: usize, blocks: usize| {
            ((1 << 20) + first as u64 * 4096, 8192 + first * 4096, blocks * 4096)
        };
        assert_eq!(pieces(&transfer, &[]), [at(0, 16)], "no sample lies in it");
        assert_eq!(pieces(&transfer, &[(0, 200_000)]), [at(0, 16)], "one sample fills it");
        // One sample begins before it, some share its block 1, one is whole blocks, one follows a gap.
        let samples = [
            (100, 12_388),
            (12_488, 0),
            (12_488, 10),
            (12_498, 20),
            (16_384, 8192),
            (40_960, 90_000),
        ];
        let expected = [at(0, 1), at(1, 1), at(2, 2), at(4, 4), at(8, 8)];
        assert_eq!(pieces(&transfer, &samples), expected);
    }

    proptest! {
        #[test]
        fn every_sample_lies_in_the_buffer_where_the_transfers_put_it(
            list in prop::collection::vec((0u16..3, 0u64..2_000_000, 0u32..200_000), 1..60),
            never in any::<bool>(),
        ) {
            let merge = if never { Merge::Never } else { Merge::Neighbours };
            let fetches = plan(&list, merge);
            let mut seen = vec![false; list.len()];
            for fetch in &fetches {
                let mut at = 0;
                for transfer in &fetch.transfers {
                    prop_assert_eq!(transfer.buf_offset, at);
                    prop_assert!(transfer.len_bytes <= 131_072 && transfer.len_bytes % 4096 == 0);
                    at += transfer.len_bytes;
                }
                prop_assert_eq!(at, fetch.len_bytes);
                prop_assert!(fetch.samples.is_sorted_by_key(|s| s.buf_offset));
                for sample in &fetch.samples {
                    let (namespace, offset, len) = list[sample.index as usize];
                    prop_assert!(!std::mem::replace(&mut seen[sample.index as usize], true));
                    prop_assert_eq!(sample.len_bytes, len);
                    for (i, byte) in [0, len.saturating_sub(1)].into_iter().enumerate() {
                        if len == 0 { continue }
                        let at = sample.buf_offset + byte as usize;
                        let transfer = fetch.transfers.iter()
                            .find(|p| p.buf_offset <= at && at < p.buf_offset + p.len_bytes);
                        let transfer = transfer.expect("a transfer covers the byte");
                        let media = transfer.offset_bytes + (at - transfer.buf_offset) as u64;
                        prop_assert_eq!((transfer.namespace, media), (namespace, offset + u64::from(byte)));
                        let range = fetch.transfers_of(sample);
                        let edge = fetch.transfers[if i == 0 { range.start } else { range.end - 1 }];
                        prop_assert_eq!(edge, *transfer);
                    }
                }
            }
            prop_assert!(seen.iter().all(|s| *s));
        }
    }
}
