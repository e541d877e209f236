//! The columns by slot: the location of each sample.
//!
//! Offsets are not stored. They are computed from the lengths, by the packing rule of the image, starting at the
//! nearest checkpoint at or before the sample.
//!
//! The checksum column can be kept outside memory while a directory is built, since only the snapshot needs it during
//! an import. Pure: the caller provides the storage ([`KeepsAside`]).

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::directory::{Bytes, Directory};
use crate::format::error::{at_most, equal};
use crate::format::geometry::MAX_CHUNK_SAMPLES;
use crate::format::{CellRange, Extent, FormatError, ImageLayout, Pack};
use dlfs_base::checksum::crc32c_append;
use dlfs_base::units::{SampleId, Slot};

/// One chunk in the chunk table of a snapshot.
///
/// | bytes  | field        | meaning                                                           |
/// |--------|--------------|-------------------------------------------------------------------|
/// | 0..8   | `first_slot` | slot of the first sample; the chunk ends where the next begins    |
/// | 8..16  | `cell`       | first cell; all ones: the chunk is lost, its samples are deleted  |
/// | 16..24 | `generation` | the generation that wrote the chunk                               |
/// | 24..32 | `sequence`   | number of the chunk within that generation                        |
/// | 32..36 | `pages`      | length of the chunk in units of 4,096 bytes                       |
/// | 36..38 | `data_page`  | start of the data in the chunk, in units of 4,096 bytes           |
/// | 38..40 | `namespace`  | index of the namespace                                            |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RawChunk {
    pub(crate) first_slot: U64,
    pub(crate) cell: U64,
    pub(crate) generation: U64,
    pub(crate) sequence: U64,
    pub(crate) pages: U32,
    pub(crate) data_page: U16,
    pub(crate) namespace: U16,
}
const _: () = assert!(size_of::<RawChunk>() == 40);

/// The location of every 32nd slot.
///
/// | bytes | field   | meaning                                                        |
/// |-------|---------|----------------------------------------------------------------|
/// | 0..4  | `chunk` | index of the slot's chunk in the chunk table                   |
/// | 4..8  | `at`    | offset of the sample from the start of the chunk's data, bytes |
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Checkpoint {
    pub(crate) chunk: U32,
    pub(crate) at: U32,
}
const _: () = assert!(size_of::<Checkpoint>() == 8);

/// The location of a chunk, and its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Index of the namespace.
    pub namespace: u16,
    /// First byte of the header, or of the samples if there is no header; 0 if the chunk is lost.
    pub offset_bytes: u64,
    /// Bytes of header and samples, a multiple of 4,096. 0: the chunk is lost, and has no live sample; or it has no
    /// header, and only empty samples.
    pub len_bytes: u64,
    /// Bytes of the header, padding included: the samples begin after it. 0: there is no header.
    pub header_bytes: u64,
    /// Slot of the first sample.
    pub first_slot: Slot,
    /// Number of samples, deleted ones included.
    pub num_slots: u32,
}

/// Chunk table, checkpoints, lengths and checksums, as on media.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) chunks: Bytes,
    pub(crate) checkpoints: Bytes,
    pub(crate) lengths: Bytes,
    pub(crate) checksums: Bytes,
    /// Replaces `checksums` in a directory that is committed but not read.
    pub(super) aside: Option<Arc<ChecksumsAside>>,
}

impl Columns {
    pub(crate) fn num_slots(&self) -> u64 {
        (self.lengths.len() / 4) as u64
    }

    #[inline]
    pub(crate) fn table(&self) -> &[RawChunk] {
        self.chunks.items()
    }

    #[inline]
    pub(crate) fn len_bytes(&self, slot: Slot) -> u32 {
        self.lengths.items::<U32>()[slot.0 as usize].get()
    }

    #[inline]
    pub(crate) fn crc32c(&self, slot: Slot) -> u32 {
        self.checksums.items::<U32>()[slot.0 as usize].get()
    }

    #[inline]
    pub(crate) fn extent(&self, slot: Slot, layout: &ImageLayout) -> Extent {
        let lengths = self.lengths.items::<U32>();
        let (chunk, at) = self.find(slot, lengths, layout.pack);
        let chunk = &self.table()[chunk];
        Extent {
            offset_bytes: chunk.offset_bytes(layout) + chunk.data_start() + at,
            len_bytes: lengths[slot.0 as usize].get(),
            crc32c: self.crc32c(slot),
            namespace: chunk.namespace.get(),
        }
    }

    /// Appends the extents at `slots` to `out`; `None` for a slot past the end.
    ///
    /// The first pass loads the scattered memory of all slots: the loads are independent, so cache misses overlap.
    /// The second pass then hits the cache.
    pub(crate) fn extents(
        &self,
        slots: &[Slot],
        layout: &ImageLayout,
        out: &mut Vec<Option<Extent>>,
    ) {
        let lengths = self.lengths.items::<U32>();
        let checksums = self.checksums.items::<U32>();
        let checkpoints = self.checkpoints.items::<Checkpoint>();
        let table = self.table();
        let begin = out.len();
        out.extend(slots.iter().map(|slot| {
            let at = slot.0 as usize;
            let len = lengths.get(at)?.get();
            let crc32c = checksums[at].get();
            // A placeholder: the checkpoint's offset, from which the second pass computes the sample's.
            let offset_bytes = u64::from(checkpoints[at / STRIDE].at.get());
            Some(Extent { offset_bytes, len_bytes: len, crc32c, namespace: 0 })
        }));
        for (slot, extent) in slots.iter().zip(&mut out[begin..]) {
            let Some(extent) = extent else { continue };
            let (chunk, at) = self.find(*slot, lengths, layout.pack);
            let chunk = &table[chunk];
            extent.offset_bytes = chunk.offset_bytes(layout) + chunk.data_start() + at;
            extent.namespace = chunk.namespace.get();
        }
    }

    /// The index of the chunk that has `slot`.
    pub(crate) fn chunk_of(&self, slot: Slot) -> u32 {
        let table = self.table();
        let checkpoint = self.checkpoints.items::<Checkpoint>()[slot.0 as usize / STRIDE];
        let mut chunk = checkpoint.chunk.get() as usize;
        while slot.0 as usize >= first_slot(table, chunk + 1) {
            chunk += 1;
        }
        chunk as u32
    }

    /// The chunk of `slot`, and the sample's offset in the chunk's data: computed sample by sample from the checkpoint
    /// at or before the sample, or as a product if all samples from the checkpoint on are equal blocks.
    #[inline]
    fn find(&self, slot: Slot, lengths: &[U32], pack: Pack) -> (usize, u64) {
        let slot = slot.0 as usize;
        let checkpoint = self.checkpoints.items::<Checkpoint>()[slot / STRIDE];
        let table = self.table();
        let mut chunk = checkpoint.chunk.get() as usize;
        let mut at = u64::from(checkpoint.at.get());
        let from = slot / STRIDE * STRIDE;
        let mut end = first_slot(table, chunk + 1);
        if slot < end && are_equal_blocks(&lengths[from..=slot], at) {
            return (chunk, at + (slot - from) as u64 * u64::from(lengths[from].get()));
        }
        let mut before = lengths[from].get();
        for (index, len) in (from + 1..).zip(&lengths[from + 1..=slot.max(from)]) {
            if index == end {
                chunk += 1;
                end = first_slot(table, chunk + 1);
                at = 0;
            } else {
                at = pack.next_start(at + u64::from(before), len.get());
            }
            before = len.get();
        }
        (chunk, at)
    }

    /// The slots of chunk `c`.
    pub(crate) fn slots_of(&self, c: u32) -> Range<u64> {
        let table = self.table();
        let next = table.get(c as usize + 1);
        let end = next.map_or(self.num_slots(), |next| next.first_slot.get());
        table[c as usize].first_slot.get()..end
    }

    pub(crate) fn cell_ranges(&self, layout: &ImageLayout) -> impl Iterator<Item = CellRange> {
        let there = self.table().iter().filter(|chunk| !chunk.is_lost());
        there.map(|chunk| chunk.cell_range(layout))
    }

    /// Computes every sample's offset once. Checks that the columns have the lengths that belong together, that every
    /// chunk is on a namespace of the image, that every sample lies within its chunk, that the checkpoints match, and
    /// that empty samples have checksum 0.
    pub(crate) fn check(&self, layout: &ImageLayout) -> Result<(), FormatError> {
        let num_slots = self.num_slots();
        let checksums = self.checksums.len() as u64;
        let checksums = self.aside.as_ref().map_or(checksums, |aside| aside.len_bytes);
        equal("length of the checksums", self.lengths.len() as u64, checksums)?;
        let table = self.table();
        let lengths = self.lengths.items::<U32>();
        equal("bytes behind the chunk table", 0, (self.chunks.len() % 40) as u64)?;
        at_most("number of chunks", table.len() as u64, u64::from(u32::MAX) - 1)?;
        equal("first slot", 0, table.first().map_or(0, |chunk| chunk.first_slot.get()))?;
        if table.is_empty() {
            equal("samples without a chunk", 0, num_slots)?;
        }
        let checkpoints = num_slots.div_ceil(STRIDE as u64) * 8;
        equal("length of the checkpoints", checkpoints, self.checkpoints.len() as u64)?;
        let checkpoints = self.checkpoints.items::<Checkpoint>();
        for (index, chunk) in table.iter().enumerate() {
            let start = chunk.first_slot.get();
            let end = table.get(index + 1).map_or(num_slots, |next| next.first_slot.get());
            at_most("end of a chunk's slots", end, num_slots)?;
            at_most("start of a chunk's slots", start.saturating_add(1), end)?;
            let slots = start as usize..end as usize;
            let data_len = lay_out(index, slots, lengths, checkpoints, layout.pack)?;
            chunk.check(end - start, data_len, layout)?;
        }
        self.check_empty_samples()
    }

    /// Checks that empty samples have checksum 0: reads of empty samples do not verify it.
    fn check_empty_samples(&self) -> Result<(), FormatError> {
        if let Some(aside) = &self.aside {
            return aside.check_empty_samples();
        }
        let lengths = self.lengths.items::<U32>();
        let checksums = self.checksums.items::<U32>();
        let wrong = |(len, crc): (&U32, &U32)| (len.get() == 0) & (crc.get() != 0);
        // No branch per sample, so that the loop runs at memory bandwidth.
        let any = lengths.iter().zip(checksums).fold(false, |any, pair| any | wrong(pair));
        match lengths.iter().zip(checksums).find(|&pair| any && wrong(pair)) {
            Some((_, crc)) => equal("checksum of an empty sample", 0, u64::from(crc.get())),
            None => Ok(()),
        }
    }
}

/// Lays out the samples of chunk `index` and compares its checkpoints. Returns the length of the chunk's data.
fn lay_out(
    index: usize,
    slots: Range<usize>,
    lengths: &[U32],
    checkpoints: &[Checkpoint],
    pack: Pack,
) -> Result<u64, FormatError> {
    let mut walk = Walk::new(pack);
    let mut from = slots.start;
    while from < slots.end {
        if from.is_multiple_of(STRIDE) {
            let at = walk.peek(lengths[from].get());
            let found = checkpoints[from / STRIDE];
            equal("chunk of a checkpoint", index as u64, u64::from(found.chunk.get()))?;
            equal("offset of a checkpoint", at, u64::from(found.at.get()))?;
        }
        let next = (from + 1).next_multiple_of(STRIDE).min(slots.end);
        for len in &lengths[from..next] {
            walk.step(len.get());
        }
        from = next;
    }
    Ok(walk.end)
}

/// Computes the offsets of a chunk's samples one after the other, by the image's packing rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    pack: Pack,
    /// End of the last sample, from the start of the chunk's data.
    end: u64,
}

impl Walk {
    pub(crate) fn new(pack: Pack) -> Walk {
        Walk { pack, end: 0 }
    }

    /// The start of the next sample if it has `len` bytes.
    #[inline]
    pub(crate) fn peek(&self, len: u32) -> u64 {
        self.pack.next_start(self.end, len)
    }

    /// Returns the start of the next sample, which has `len` bytes, and advances past it.
    #[inline]
    pub(crate) fn step(&mut self, len: u32) -> u64 {
        let at = self.peek(len);
        self.end = at + u64::from(len);
        at
    }
}

impl RawChunk {
    #[inline]
    pub(crate) fn offset_bytes(&self, layout: &ImageLayout) -> u64 {
        if self.is_lost() { 0 } else { self.cell.get() * layout.cell_bytes() }
    }

    #[inline]
    pub(super) fn data_start(&self) -> u64 {
        u64::from(self.data_page.get()) * PAGE
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.cell.get() == LOST
    }

    pub(crate) fn cell_range(&self, layout: &ImageLayout) -> CellRange {
        let cells = layout.cells_of(u64::from(self.pages.get()) * PAGE);
        CellRange { namespace: self.namespace.get(), cell: self.cell.get(), cells }
    }

    /// Checks that `num_slots` samples with `data_len` bytes of data lie within the chunk, and that the chunk has a
    /// valid length and is on a namespace of the image, below the largest offset.
    fn check(
        &self,
        num_slots: u64,
        data_len: u64,
        layout: &ImageLayout,
    ) -> Result<(), FormatError> {
        let last = u64::from(layout.num_namespaces) - 1;
        at_most("namespace of a chunk", u64::from(self.namespace.get()), last)?;
        at_most("samples of a chunk", num_slots, u64::from(MAX_CHUNK_SAMPLES))?;
        let pages = u64::from(self.pages.get());
        if self.is_lost() {
            return equal("bytes of a lost chunk", 0, data_len + pages);
        }
        let end = self.data_start() + data_len;
        at_most("end of a chunk's samples", end, pages * PAGE)?;
        // Only a chunk of one sample may be longer than the chunk size.
        let limit = u64::from(layout.chunk_size_bytes);
        let limit = if num_slots > 1 { limit } else { limit.max(end.next_multiple_of(PAGE)) };
        at_most("length of a chunk", pages * PAGE, limit)?;
        let range = self.cell_range(layout);
        layout.offset_of(range.cell.saturating_add(range.cells))?;
        Ok(())
    }
}

/// Returns whether the samples have equal `lengths`, and this length and the offset `at` of the first one are multiples
/// of 4,096 bytes. Then there is no padding between the samples, and an offset is a product.
#[inline]
fn are_equal_blocks(lengths: &[U32], at: u64) -> bool {
    let Some(first) = lengths.first() else { return false };
    let differ = lengths.iter().fold(0, |differ, len| differ | (len.get() ^ first.get()));
    differ == 0 && (at | u64::from(first.get())).is_multiple_of(PAGE)
}

/// The first slot of `chunk`; past the last chunk, a slot above all others.
#[inline]
fn first_slot(table: &[RawChunk], chunk: usize) -> usize {
    table.get(chunk).map_or(usize::MAX, |chunk| chunk.first_slot.get() as usize)
}

/// The live samples of one chunk: see [`Directory::samples_in_chunk`].
#[derive(Debug)]
pub struct ChunkSamples<'a> {
    directory: &'a Directory,
    /// The slots that are not visited yet.
    slots: Range<u64>,
    walk: Walk,
    namespace: u16,
    /// Offset of the chunk's data on the namespace, in bytes.
    data_at: u64,
}

impl<'a> ChunkSamples<'a> {
    pub(super) fn new(directory: &'a Directory, c: u32) -> ChunkSamples<'a> {
        let info = directory.chunk(c);
        ChunkSamples {
            directory,
            slots: directory.columns.slots_of(c),
            walk: Walk::new(directory.layout.pack),
            namespace: info.namespace,
            data_at: info.offset_bytes + info.header_bytes,
        }
    }
}

impl Iterator for ChunkSamples<'_> {
    type Item = (SampleId, Extent);

    fn next(&mut self) -> Option<(SampleId, Extent)> {
        for slot in self.slots.by_ref() {
            let slot = Slot(slot);
            let len_bytes = self.directory.columns.len_bytes(slot);
            let at = self.walk.step(len_bytes);
            if self.directory.deleted_slots.contains(slot.0) {
                continue;
            }
            let id = self.directory.id_at(slot).expect("a slot of a chunk is of a part");
            let extent = Extent {
                offset_bytes: self.data_at + at,
                len_bytes,
                crc32c: self.directory.columns.crc32c(slot),
                namespace: self.namespace,
            };
            return Some((id, extent));
        }
        None
    }
}

/// Storage for the bytes of a column outside memory, for example a temporary file.
pub trait KeepsAside: Debug + Send + Sync {
    /// Appends bytes. A failure is not returned: the storage must then keep the bytes elsewhere.
    fn append(&mut self, bytes: &[u8]);

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), FormatError>;
}

/// The checksums of a directory under construction, in external storage.
#[derive(Debug)]
pub(super) struct ChecksumsAside {
    pub(super) kept: Box<dyn KeepsAside>,
    /// Checksums not yet appended to `kept`.
    buffer: Vec<u8>,
    /// Length of the bytes in `kept`.
    pub(super) len_bytes: u64,
    /// CRC32C of the bytes in `kept`.
    pub(super) crc32c: u32,
    /// The last nonzero checksum of an empty sample, which is an error; 0 if there is none.
    wrong: u32,
}

impl ChecksumsAside {
    pub(super) fn new(kept: Box<dyn KeepsAside>) -> ChecksumsAside {
        ChecksumsAside { kept, buffer: Vec::new(), len_bytes: 0, crc32c: 0, wrong: 0 }
    }

    /// Adds the checksum of a sample of `len` bytes.
    pub(super) fn push(&mut self, len: u32, crc32c: u32) {
        if len == 0 && crc32c != 0 {
            self.wrong = crc32c;
        }
        self.buffer.extend_from_slice(&crc32c.to_le_bytes());
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Appends the buffered checksums to `kept`. Call before `kept` is read.
    pub(super) fn flush(&mut self) {
        self.kept.append(&self.buffer);
        self.crc32c = crc32c_append(self.crc32c, &self.buffer);
        self.len_bytes += self.buffer.len() as u64;
        self.buffer = Vec::new();
    }

    /// Checks that empty samples have checksum 0: reads of empty samples do not verify it.
    pub(super) fn check_empty_samples(&self) -> Result<(), FormatError> {
        equal("checksum of an empty sample", 0, self.wrong.into())
    }
}

/// Slots between two checkpoints.
pub(crate) const STRIDE: usize = 32;
/// Unit of lengths in the chunk table, in bytes.
pub(crate) const PAGE: u64 = 4096;
/// The cell of a lost chunk: one that a rebuild did not find.
pub(crate) const LOST: u64 = u64::MAX;
/// Checksums are appended to external storage once this many bytes are buffered.
const BUFFER_BYTES: usize = 16 << 10;
