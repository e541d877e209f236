//! Selects the chunks on media that form a generation, to rebuild a directory without its snapshot.
//!
//! Any cell may hold the head of a chunk. The chunk may belong to the wanted generation, may have been replaced by a
//! later generation, or may come from an import that never committed. [`select_chunks`] needs only the heads to choose.
//! The caller then reads the headers of the selected chunks, in the order of the selection, and adds them to a
//! [`DirectoryBuilder`](crate::directory::DirectoryBuilder).
//!
//! ```text
//! heads   = ChunkHead::parse of the first 128 bytes of each cell, check_location, by namespace and cell
//! record  = GenerationRecord at newest_record(&heads, committed generation if a superblock tells it)
//! selection = select_chunks(base, &heads, record, most_slots)
//! for step in selection.steps: Base(c) → copy_chunk;  Head(i) → read, parse, add_chunk;  Lost → add_lost
//! builder.set_classes(record.classes), add_origins, delete(&record.deleted), set_freed(record.freed)
//! directory = builder.finish(record.generation, record.time_ns); set_record_range(its cells)
//! ```
//!
//! If the caller has an older directory as `base`, only heads of later generations are needed.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::directory::Directory;
use crate::format::chunk::ChunkKind;
use crate::format::error::at_most;
use crate::format::geometry::MAX_SAMPLES;
use crate::format::{ChunkHead, FormatError, GenerationRecord, Part};
use dlfs_base::units::Generation;

/// The chunks of a rebuild, in the order of slots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkSelection {
    /// The steps, in the order of slots.
    pub steps: Vec<Step>,
    /// Samples whose chunk was not found.
    pub lost_samples: u64,
    /// Heads of chunks of samples that no step reads: they were replaced, or never committed.
    pub unused_heads: u64,
}

/// One step of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Copy this chunk of the base.
    Base(u32),
    /// Read the header of this head: an index into the heads given.
    Head(usize),
    /// No chunk was found for these slots.
    Lost {
        /// The part that the slots belong to; its count is ignored.
        part: Part,
        /// Number of slots.
        count: u64,
    },
}

/// Selects the chunks of a generation: that of `record`, or the newest one if there is no record.
///
/// `most_slots` is the number of samples whose shortest entries would fill the image. It bounds the number of slots, so
/// that a malformed head with a huge slot cannot make the directory larger than the image.
///
/// # Errors
/// `OutOfRange`: the heads or the record name more than `most_slots` slots.
pub fn select_chunks(
    base: Option<&Directory>,
    heads: &[ChunkHead],
    record: Option<&GenerationRecord>,
    most_slots: u64,
) -> Result<ChunkSelection, FormatError> {
    let mut candidates = candidates(base, heads, record);
    // Newest first: a chunk from a purge replaces the older chunks with the same slots, and the chunks of a restarted
    // import replace those of the first attempt.
    candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.order));
    let mut chosen: BTreeMap<u64, ChunkCandidate> = BTreeMap::new();
    for candidate in candidates {
        let before = chosen.range(..candidate.slots.end).next_back();
        if before.is_none_or(|(_, other)| other.slots.end <= candidate.slots.start) {
            chosen.insert(candidate.slots.start, candidate);
        }
    }
    let parts = match record {
        Some(record) => record.parts.clone(),
        None => parts_of(&chosen),
    };
    let end = parts.last().map_or(0, |part| part.first + part.count);
    at_most("slots of all chunks", end, most_slots)?;
    let mut selection = ChunkSelection::default();
    for part in parts {
        selection.add_part(part, &chosen);
    }
    let used = selection.steps.iter().filter(|step| matches!(step, Step::Head(_))).count();
    let of_samples = heads.iter().filter(|head| head.kind == ChunkKind::Samples).count();
    selection.unused_heads = (of_samples - used) as u64;
    Ok(selection)
}

/// The head of the newest generation record, or of the record of generation `committed` if that is given. Without
/// `committed`, the record of an uncommitted generation counts too: all of that generation's chunks precede it.
pub fn newest_record(heads: &[ChunkHead], committed: Option<Generation>) -> Option<&ChunkHead> {
    let records = heads.iter().filter(|head| {
        head.kind == ChunkKind::Record && committed.is_none_or(|known| known == head.id.generation)
    });
    // There are two records of one generation if its import was discarded and restarted: take the newer one.
    records.max_by_key(|head| (head.id.generation, head.time_ns))
}

impl ChunkSelection {
    /// Adds the chunks of one part, and the gaps between them as lost slots.
    fn add_part(&mut self, part: Part, chosen: &BTreeMap<u64, ChunkCandidate>) {
        let mut next = part.first;
        let end = part.first + part.count;
        for candidate in chosen.range(part.first..end).map(|(_, candidate)| candidate) {
            if candidate.part != part.uncounted() || candidate.slots.end > end {
                continue;
            }
            self.add_lost(part, candidate.slots.start - next);
            self.steps.push(candidate.step);
            next = candidate.slots.end;
        }
        self.add_lost(part, end - next);
    }

    fn add_lost(&mut self, part: Part, count: u64) {
        if count > 0 {
            self.steps.push(Step::Lost { part, count });
            self.lost_samples += count;
        }
    }
}

/// A chunk that may belong to the generation.
#[derive(Debug, Clone)]
struct ChunkCandidate {
    /// Generation, time and sequence number: the order of writing.
    order: (u64, u64, u64),
    slots: Range<u64>,
    /// Part of the chunk, without the part's number of samples.
    part: Part,
    step: Step,
}

fn candidates(
    base: Option<&Directory>,
    heads: &[ChunkHead],
    record: Option<&GenerationRecord>,
) -> Vec<ChunkCandidate> {
    let wanted = |head: &ChunkHead| {
        head.kind == ChunkKind::Samples && record.is_none_or(|record| is_of(head, record))
    };
    let of_heads =
        heads.iter().enumerate().filter(|(_, head)| wanted(head)).map(|(i, head)| ChunkCandidate {
            order: (head.id.generation.0, head.time_ns, head.id.sequence),
            slots: head.first_slot.0..head.end_slot().0,
            part: head.part,
            step: Step::Head(i),
        });
    let base_chunks =
        base.into_iter().flat_map(|base| (0..base.num_chunks()).map(move |c| (base, c)));
    let of_base = base_chunks.filter(|(base, c)| base.chunk(*c).len_bytes > 0).map(|(base, c)| {
        let info = base.chunk(c);
        let id = base.chunk_id(c);
        let index = base.part_of(info.first_slot.0).expect("a chunk is of a part");
        let part = base.placements[index].part();
        ChunkCandidate {
            // The base stores no time per chunk. 0 gives a head on media of the same generation priority.
            order: (id.generation.0, 0, id.sequence),
            slots: info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots),
            part: part.uncounted(),
            step: Step::Base(c),
        }
    });
    of_heads.chain(of_base).collect()
}

/// Returns whether a chunk may belong to the record's generation: the record has its part, no later generation wrote
/// the chunk, and the chunk is not older than the part, as a chunk of a discarded import is.
fn is_of(head: &ChunkHead, record: &GenerationRecord) -> bool {
    let part = record.parts.binary_search_by_key(&head.part.first, |part| part.first);
    let started_ns = part.ok().map(|index| record.started_ns[index]);
    head.id.generation <= record.generation && started_ns.is_some_and(|time| head.time_ns >= time)
}

/// The parts that the chunks name, for a rebuild without a record. Each part ends where the next one begins. The last
/// part ends with its last chunk, but covers at least one whole shuffle window: the window's length determines the
/// slots of its ids.
fn parts_of(chosen: &BTreeMap<u64, ChunkCandidate>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for candidate in chosen.values() {
        let Part { first, window, .. } = candidate.part;
        let known = parts.last().is_some_and(|last| last.first >= first);
        if !known {
            if let Some(last) = parts.last_mut() {
                last.count = first - last.first;
            } else if first > 0 {
                // The slots before the first part are lost; assume source order for them.
                parts.push(Part { first: 0, count: first, seed: 0, window: 0 });
            }
            parts.push(candidate.part);
        }
        let last = parts.last_mut().expect("one was pushed");
        let window = window.min(MAX_SAMPLES - first);
        last.count = last.count.max(candidate.slots.end - last.first).max(window);
    }
    parts
}
