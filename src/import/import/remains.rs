//! The remains of an image whose directory is lost: finds the heads of chunks, and assembles a directory from them.
//!
//! [`scan`](crate::import::scan) finds the heads. [`dlfs_format::directory::rebuild`] selects the chunks of a
//! generation. Then their headers are read completely.
//!
//! A scan skips the cells of the chunks that it finds. But a purge abandons chunks with deleted samples, and
//! newer heads may have been written into their cells since. So the scan continues inside all chunks except
//! the [`sound_chunks`], which no purge can have abandoned. It continues inside every chunk if the superblocks
//! do not show the current generation, nothing can be assembled, neither record nor snapshot shows the deletions, or
//! samples are missing. Samples are read only if two chunks have slots in common.

use std::collections::HashSet;
use std::ops::Range;

use crate::import::committed::read_directory;
use crate::import::media::{Channel, Media};
use crate::import::options::{Progress, Stage};
use crate::import::scan::{BLOCK_BYTES, Scan, cells_until};
use dlfs_base::buf::IoBuf;
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::rebuild::{ChunkSelection, Step, newest_record, select_chunks};
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::chunk::ChunkKind;
use dlfs_format::format::names::crc32c;
use dlfs_format::format::space::without;
use dlfs_format::format::superblock_set::{SuperblockCopies, select_generation};
use dlfs_format::format::table::MIN_ENTRY_BYTES;
use dlfs_format::format::{
    CellRange, ChunkHead, ChunkHeader, GenerationRecord, ImageLayout, Space, Superblock,
};

/// The remains of an image, from which its directory is assembled.
pub(super) struct Remains {
    /// The namespaces, in the image's order.
    pub(super) media: Media,
    layout: ImageLayout,
    /// The superblock copies of each namespace.
    pub(super) copies: Vec<SuperblockCopies>,
    /// The directory that [`base_of`](Self::base_of) found, which supplies the older chunks. `None`: all headers are
    /// read.
    pub(super) base: Option<Directory>,
}

impl Remains {
    /// Reads the superblocks of the image on `media`.
    pub(super) fn read(media: Media, layout: ImageLayout) -> Result<Remains> {
        let copies = media.superblocks()?;
        Ok(Remains { media, layout, copies, base: None })
    }

    /// All valid copies of superblocks.
    pub(super) fn superblocks(&self) -> impl Iterator<Item = &Superblock> {
        self.copies.iter().flat_map(|copies| copies.copies.iter().flatten())
    }

    /// The space that is neither in chunks of `directory`'s generation or the previous one, nor unreadable. The
    /// snapshots of the superblocks for which `counts` returns true are not free either.
    pub(super) fn free_space(
        &self,
        scan: &Scan,
        directory: &Directory,
        counts: impl Fn(&Superblock) -> bool,
    ) -> Space {
        let mut space = Space::new(&self.layout, &self.media.capacities());
        let snapshots = self.superblocks().filter(|copy| counts(copy));
        let chunks = directory.cell_ranges().chain(directory.freed().iter().copied());
        let others = scan.unreadable.iter().copied();
        let others = others.chain(snapshots.map(Superblock::snapshot_range));
        chunks.chain(others).for_each(|range| space.reserve(range));
        space
    }

    /// Reads heads and assembles the generation, until only cells inside sound chunks are unread.
    pub(super) fn search(&self, progress: &mut dyn Progress) -> Result<(Scan, Assembled)> {
        let cells = self.cells_to_search();
        progress.stage(Stage::Indexing, cells.iter().map(|range| range.cells).sum(), 0);
        let mut scan = Scan::of(&self.media, &self.layout, &cells, progress)?;
        loop {
            let found = self.assemble_newest(&scan.heads);
            let sound = match &found {
                Ok(found) if select_generation(&self.copies).is_ok() => sound_chunks(found),
                _ => HashSet::new(),
            };
            if !scan.look_inside(&sound)? {
                return Ok((scan, found?));
            }
        }
    }

    /// The cells that may hold heads: up to the end of the committed image, or all cells if it is not certain which
    /// generation is committed. Skips the chunks of the base. If a generation can be opened, also skips the
    /// snapshots that superblocks name: the next generation does not write to these; the one after it may.
    fn cells_to_search(&self) -> Vec<CellRange> {
        let opened = select_generation(&self.copies).ok();
        let is_certain = opened.as_ref().is_some_and(|opened| opened.lost_generation().is_none());
        let used_cells = |copies: &SuperblockCopies| {
            let ends = copies.copies.iter().flatten().map(|superblock| superblock.used_len_bytes);
            ends.max().unwrap_or(u64::MAX).div_ceil(self.layout.cell_bytes())
        };
        let ends = self.media.num_cells(&self.layout).into_iter().zip(&self.copies);
        let ends =
            ends.map(|(end, copies)| if is_certain { end.min(used_cells(copies)) } else { end });
        let snapshots = self.superblocks().filter(|_| opened.is_some());
        let read = self.base.iter().flat_map(Directory::cell_ranges);
        without(
            cells_until(&self.layout, ends),
            snapshots.map(Superblock::snapshot_range).chain(read),
        )
    }

    /// The committed superblock, and the generation that may have been committed after it. If no generation can be
    /// selected, the newest superblock of namespace 0 counts as committed; without a valid one, both are `None`.
    fn committed(&self) -> (Option<Superblock>, Option<Generation>) {
        match select_generation(&self.copies) {
            Ok(opened) => (Some(*opened.superblock()), opened.lost_generation()),
            Err(_) => {
                let newest = self.copies[0].newest().copied();
                let next = newest.map(|superblock| superblock.generation.next());
                (newest, next.filter(|&next| self.copies[0].is_bad_at(next)))
            }
        }
    }

    /// The newest readable directory of generation `since` or earlier, found by a superblock copy that names its
    /// snapshot.
    pub(super) fn base_of(&self, since: Generation) -> Result<Option<Directory>> {
        let (superblock, lost) = self.committed();
        let newest = lost.or(superblock.map(|superblock| superblock.generation));
        if let Some(newest) = newest.filter(|newest| *newest < since) {
            let message = format!("there is no generation {since} yet: the newest one is {newest}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let copies = self.copies[0].copies.iter().flatten();
        let mut older: Vec<&Superblock> = copies.filter(|copy| copy.generation <= since).collect();
        older.sort_by_key(|copy| std::cmp::Reverse(copy.generation));
        let read = |superblock| read_directory(&self.media, superblock).ok();
        Ok(older.into_iter().find_map(read))
    }

    /// Assembles the generation that a bad superblock copy may have committed, if its record exists and it has not
    /// lost more samples than the generation before. Otherwise assembles the generation before.
    fn assemble_newest(&self, heads: &[ChunkHead]) -> Result<Assembled> {
        let (superblock, lost) = self.committed();
        let committed = superblock.map(|superblock| superblock.generation);
        let known = self.assemble(heads, committed, superblock.as_ref());
        let Some(lost) = lost else { return known };
        let newer = self.assemble(heads, Some(lost), None);
        match (known, newer) {
            (Ok(known), Ok(newer)) => {
                let is_there = newer.directory.generation() == lost && newer.record.is_some();
                let is_whole = newer.selection.lost_samples <= known.selection.lost_samples;
                if is_there && !is_whole {
                    tracing::warn!(
                        "generation {lost} was begun, and {} samples of it are missing: generation {} \
                         is rebuilt",
                        newer.selection.lost_samples,
                        known.directory.generation()
                    );
                }
                Ok(if is_there && is_whole { newer } else { known })
            }
            (Err(_), Ok(newer)) if newer.record.is_some() => Ok(newer),
            (known, _) => known,
        }
    }

    /// Assembles the committed generation, if it is known; otherwise the newest one with an intact record;
    /// otherwise the newest one. `superblock` is the one that commits it.
    fn assemble(
        &self,
        heads: &[ChunkHead],
        committed: Option<Generation>,
        superblock: Option<&Superblock>,
    ) -> Result<Assembled> {
        if heads.is_empty() && self.base.is_none() {
            return Err(Error::new(ErrorKind::NotFound, "no chunk of the image was found"));
        }
        let since = self.base.as_ref().map_or(Generation(0), Directory::generation);
        // Chunks of an uncommitted generation are ignored.
        let until = committed.unwrap_or(Generation(u64::MAX));
        let wanted = |head: &&ChunkHead| since < head.id.generation && head.id.generation <= until;
        let later: Vec<ChunkHead> = heads.iter().filter(wanted).copied().collect();
        let channel = &mut self.media.channel();
        let mut records = later.clone();
        loop {
            let head = newest_record(&records, committed).copied();
            let record = head.map(|head| self.read_record(channel, &head)).transpose()?.flatten();
            if let (Some(head), None) = (&head, &record) {
                // The record is damaged: try the next one.
                records.retain(|other| other != head);
                continue;
            }
            let record = record
                .or_else(|| self.record_of_snapshot(superblock?))
                .or_else(|| self.base.as_ref().map(Directory::record));
            // An older record, such as the base's own, would only restore the older generation.
            if let (Some(record), Some(committed)) = (&record, committed)
                && record.generation < committed
            {
                let message = format!("the record of generation {committed} no longer exists");
                return Err(Error::new(ErrorKind::Corrupt, message).hint("rebuild without --since"));
            }
            let (usable, selection, mut builder) =
                self.add_usable(channel, &later, record.as_ref())?;
            let (generation, time_ns) = match (&record, superblock) {
                (Some(record), _) => (record.generation, record.time_ns),
                // Not lower than the committed generation: otherwise readers would still open the newer superblock.
                (None, Some(superblock)) => (superblock.generation, superblock.time_ns),
                (None, None) => {
                    usable.iter().map(|h| (h.id.generation, h.time_ns)).max().unwrap_or_default()
                }
            };
            let deletions_known = record.is_some();
            if let Some(record) = record {
                builder.set_classes(record.classes);
                builder.add_origins(&record.origins);
                builder.delete(&record.deleted);
                builder.set_freed(record.freed);
            }
            let mut directory = builder.finish(generation, time_ns)?;
            let record = head.map(|head| head.cell_range());
            if let Some(range) = record {
                directory.set_record_range(range);
            }
            let is_head = |step: &&Step| matches!(step, Step::Head(_));
            let headers_read = selection.steps.iter().filter(is_head).count() as u64;
            return Ok(Assembled { directory, selection, headers_read, record, deletions_known });
        }
    }

    /// Reads a generation's record. `None`: it is damaged, or belongs to another image.
    fn read_record(
        &self,
        channel: &mut Channel,
        head: &ChunkHead,
    ) -> Result<Option<GenerationRecord>> {
        let bytes = read_front(channel, head)?;
        let record = bytes.and_then(|bytes| GenerationRecord::parse(&bytes).ok());
        Ok(record.map(|(_, record)| record).filter(|record| record.layout == self.layout))
    }

    /// The contents of the committed generation's record, taken from its snapshot.
    fn record_of_snapshot(&self, superblock: &Superblock) -> Option<GenerationRecord> {
        let is_of_image = superblock.layout == self.layout;
        let directory = is_of_image.then(|| read_directory(&self.media, superblock).ok());
        directory.flatten().map(|directory| directory.record())
    }

    /// Selects chunks, and adds them to a builder. Returns the heads of all chunks that can be used, the selection, and
    /// the builder. A chunk with a damaged header is treated as missing. So is a chunk with damaged samples if another
    /// chunk has the same slots: an interrupted edit may have left it half written before another edit of the same
    /// generation.
    fn add_usable(
        &self,
        channel: &mut Channel,
        heads: &[ChunkHead],
        record: Option<&GenerationRecord>,
    ) -> Result<(Vec<ChunkHead>, ChunkSelection, DirectoryBuilder)> {
        // Each slot that was ever assigned has an entry in the header of some chunk.
        let lens = self.media.devices.iter().map(|device| device.namespace().len_bytes());
        let most_slots = lens.fold(0, u64::saturating_add) / MIN_ENTRY_BYTES;
        let mut usable = heads.to_vec();
        loop {
            let selection = select_chunks(self.base.as_ref(), &usable, record, most_slots)?;
            let has_rival = overlapping(&usable.iter().map(slots_of).collect::<Vec<_>>());
            let mut builder = DirectoryBuilder::new(self.layout);
            let mut added = Ok(());
            let mut damaged = Vec::new();
            for step in &selection.steps {
                let done = match *step {
                    Step::Lost { part, count } => builder.add_lost(part, count),
                    Step::Base(chunk) => {
                        let base = self.base.as_ref().expect("only a base has base chunks");
                        builder.copy_chunk(base, chunk)
                    }
                    Step::Head(at) => match read_usable(channel, &usable[at], has_rival[at])? {
                        Some(header) => builder.add_chunk(&header),
                        None => {
                            damaged.push(usable[at]);
                            Ok(())
                        }
                    },
                };
                added = added.and(done);
            }
            if damaged.is_empty() {
                added?;
                return Ok((usable, selection, builder));
            }
            usable.retain(|head| !damaged.contains(head));
        }
    }
}

/// A generation that was assembled from heads and records.
pub(super) struct Assembled {
    pub(super) directory: Directory,
    /// The chunks of the directory.
    pub(super) selection: ChunkSelection,
    /// Number of chunk headers that were read.
    pub(super) headers_read: u64,
    /// The cells of the generation's record, if deletions and classes were taken from it.
    pub(super) record: Option<CellRange>,
    /// Set if a record or snapshot was found, which holds the deletions and the class names.
    pub(super) deletions_known: bool,
}

/// The namespace and cell of the record, and of each chunk that no purge can have abandoned. The import of its part
/// wrote such a chunk, and all of its samples are live.
fn sound_chunks(found: &Assembled) -> HashSet<(u16, u64)> {
    let directory = &found.directory;
    if !found.deletions_known || found.selection.lost_samples > 0 {
        return HashSet::new();
    }
    let record = found.record.map(|range| (range.namespace, range.cell));
    let mut sound: HashSet<(u16, u64)> = record.into_iter().collect();
    let mut chunks = (0..directory.num_chunks()).peekable();
    for part in directory.parts() {
        let is_of_part = |c: &u32| directory.chunk(*c).first_slot.0 < part.first + part.count;
        let of_part: Vec<u32> = std::iter::from_fn(|| chunks.next_if(is_of_part)).collect();
        let generation = |c: &u32| directory.chunk_id(*c).generation;
        let of_import = of_part.iter().map(generation).min();
        for c in of_part {
            let info = directory.chunk(c);
            if Some(generation(&c)) == of_import && directory.live_in_chunk(c) == info.num_slots {
                let cell = info.offset_bytes / directory.layout().cell_bytes();
                sound.insert((info.namespace, cell));
            }
        }
    }
    sound
}

/// Reads the header of a chunk. `None`: the header is damaged, or a sample is and another chunk has the same slots.
fn read_usable(
    channel: &mut Channel,
    head: &ChunkHead,
    has_rival: bool,
) -> Result<Option<ChunkHeader>> {
    let bytes = read_front(channel, head)?;
    Ok(match bytes.and_then(|bytes| ChunkHeader::parse(&bytes).ok()) {
        Some(header) if has_rival && !is_whole(channel, &header)? => None,
        header => header,
    })
}

/// The slots of a chunk; none of a record.
fn slots_of(head: &ChunkHead) -> Range<u64> {
    if head.kind == ChunkKind::Samples { head.first_slot.0..head.end_slot().0 } else { 0..0 }
}

/// For each range, whether it has numbers in common with another one. The ranges are sorted rather than compared in
/// pairs: an image may have millions of chunks.
fn overlapping(ranges: &[Range<u64>]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..ranges.len()).filter(|&at| !ranges[at].is_empty()).collect();
    order.sort_unstable_by_key(|&at| ranges[at].start);
    let mut overlaps = vec![false; ranges.len()];
    // The range that ends last of those before.
    let mut last: Option<usize> = None;
    for at in order {
        if let Some(before) = last.filter(|&before| ranges[at].start < ranges[before].end) {
            overlaps[at] = true;
            overlaps[before] = true;
        }
        last = last.filter(|&before| ranges[before].end >= ranges[at].end).or(Some(at));
    }
    overlaps
}

/// Returns whether every sample of a chunk matches its checksum.
fn is_whole(channel: &mut Channel, header: &ChunkHeader) -> Result<bool> {
    let head = header.head();
    let start = head.layout.offset_of(head.cell)?;
    for sample in header.samples().filter(|sample| !sample.purged && sample.len_bytes > 0) {
        let at = start + sample.offset_bytes;
        let len = sample.len_bytes as usize;
        if at.saturating_add(len as u64) > channel.media.len_bytes(head.namespace) {
            return Ok(false);
        }
        let found = channel.read_twice(head.namespace, at, len)?;
        if found.is_err() || found.is_ok_and(|bytes| crc32c(&bytes) != sample.crc32c) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads head and table of a chunk or record. `None`: they cannot be read, or exceed the namespace.
fn read_front(channel: &mut Channel, head: &ChunkHead) -> Result<Option<IoBuf>> {
    let at = head.layout.offset_of(head.cell)?;
    let len = u64::from(head.header_len).next_multiple_of(BLOCK_BYTES as u64);
    if at + len > channel.media.len_bytes(head.namespace) {
        return Ok(None);
    }
    Ok(channel.read_twice(head.namespace, at, len as usize)?.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_as_all_pairs_of_them_say() {
        let mut state = 7_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        for round in 0..2000 {
            let mut range = |_| {
                let start = below(30);
                start..start + below(6)
            };
            let ranges: Vec<Range<u64>> = (0..round % 9).map(&mut range).collect();
            let meets = |a: usize, b: usize| {
                let common = ranges[a].start.max(ranges[b].start)..ranges[a].end.min(ranges[b].end);
                a != b && !common.is_empty()
            };
            let all = 0..ranges.len();
            let expected: Vec<bool> =
                all.clone().map(|a| all.clone().any(|b| meets(a, b))).collect();
            assert_eq!(overlapping(&ranges), expected, "{ranges:?}");
        }
    }
}
