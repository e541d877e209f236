//! The directory without its snapshot: which of the chunks that lie on media make up a generation.
//!
//! Every cell may hold the head of a chunk: one of the generation wanted, one that a later generation
//! replaced, one of an import that never committed. [`plan`] chooses, from heads alone; the caller
//! then reads the chosen headers in the plan's order and gives them to a
//! [`DirectoryBuilder`](crate::directory::DirectoryBuilder).
//!
//! ```text
//! heads   = ChunkHead::parse of the first 128 bytes of each cell, check_location, by namespace and cell
//! record  = GenerationRecord at newest_record(&heads, committed generation if a superblock tells it)
//! plan    = plan(base, &heads, record, most_slots)
//! for step in selection.steps: Base(c) → copy_chunk;  Head(i) → read, parse, add_chunk;  Lost → add_lost
//! builder.set_classes(record.classes), delete(&record.deleted), set_freed(record.freed)
//! directory = builder.finish(record.generation, record.time_ns); set_record_range(record's range)
//! ```
//!
//! With a `base`, an older directory, only heads of later generations (or times) need to be read.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::directory::Directory;
use crate::format::chunk::ChunkKind;
use crate::format::error::at_most;
use crate::format::geometry::MAX_SAMPLES;
use crate::format::{ChunkHead, FormatError, GenerationRecord, Part};
use crate::units::Generation;

/// What a rebuild does, in the order of slots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkSelection {
    /// The steps.
    pub steps: Vec<Step>,
    /// Samples whose chunk was not found.
    pub lost_samples: u64,
    /// Heads that are not part of the generation: replaced, or never committed.
    pub unused_heads: u64,
}

/// One step of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Copy this chunk of the base.
    Base(u32),
    /// Read the header of this head: an index into the heads given.
    Head(usize),
    /// Nothing was found for these slots.
    Lost {
        /// The part they belong to; its count does not matter.
        part: Part,
        /// How many.
        count: u64,
    },
}

/// Chooses the chunks of a generation: the record's, or the newest there is without a record.
///
/// `most_slots` bounds the slots that there can be, so that a head with a slot far away does not make
/// a directory larger than the image: cells of the image times the samples of a chunk.
///
/// # Errors
/// `OutOfRange`: the heads name more slots than that.
pub fn select_chunks(
    base: Option<&Directory>,
    heads: &[ChunkHead],
    record: Option<&GenerationRecord>,
    most_slots: u64,
) -> Result<ChunkSelection, FormatError> {
    let mut candidates = candidates(base, heads, record);
    // Newest first: a chunk that a purge wrote replaces those whose slots it has; and where an
    // import was begun again, its chunks replace what the first attempt left.
    candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.order));
    let mut chosen: BTreeMap<u64, Candidate> = BTreeMap::new();
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
    selection.unused_heads = (heads.len() - used) as u64;
    Ok(selection)
}

/// The newest generation record among `heads`, of `committed` if that is known. Without it, a record
/// that was written and not committed counts: all chunks of its generation had been written before.
pub fn newest_record(heads: &[ChunkHead], committed: Option<Generation>) -> Option<&ChunkHead> {
    let records = heads.iter().filter(|head| {
        head.kind == ChunkKind::Record && committed.is_none_or(|known| known == head.id.generation)
    });
    // Two records of one generation: the import was given up once and begun again.
    records.max_by_key(|head| (head.id.generation, head.time_ns))
}

impl ChunkSelection {
    /// The chunks of one part, and gaps between them.
    fn add_part(&mut self, part: Part, chosen: &BTreeMap<u64, Candidate>) {
        let (mut next, end) = (part.first, part.first + part.count);
        for candidate in chosen.range(part.first..end).map(|(_, candidate)| candidate) {
            let same = candidate.part == (part.first, part.seed, part.window);
            if !same || candidate.slots.end > end {
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

/// A chunk that may be part of the generation.
#[derive(Debug, Clone)]
struct Candidate {
    /// Generation, time and number: the order of writing.
    order: (u64, u64, u64),
    slots: Range<u64>,
    /// First id, seed and window of its part.
    part: (u64, u64, u64),
    step: Step,
}

fn candidates(
    base: Option<&Directory>,
    heads: &[ChunkHead],
    record: Option<&GenerationRecord>,
) -> Vec<Candidate> {
    let wanted = |head: &ChunkHead| {
        head.kind == ChunkKind::Samples && record.is_none_or(|record| is_of(head, record))
    };
    let of_heads =
        heads.iter().enumerate().filter(|(_, head)| wanted(head)).map(|(i, head)| Candidate {
            order: (head.id.generation.0, head.time_ns, head.id.sequence),
            slots: head.first_slot.0..head.end_slot().0,
            part: (head.part_first, head.part_seed, head.part_window),
            step: Step::Head(i),
        });
    let base_chunks =
        base.into_iter().flat_map(|base| (0..base.num_chunks()).map(move |c| (base, c)));
    let of_base = base_chunks.filter(|(base, c)| base.chunk(*c).len_bytes > 0).map(|(base, c)| {
        let (info, id) = (base.chunk(c), base.chunk_id(c));
        let index = base.part_of(info.first_slot.0).expect("a chunk is of a part");
        let part = base.placements[index].part();
        Candidate {
            // No time is kept for it: of one generation, a head on media comes first.
            order: (id.generation.0, 0, id.sequence),
            slots: info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots),
            part: (part.first, part.seed, part.window),
            step: Step::Base(c),
        }
    });
    of_heads.chain(of_base).collect()
}

/// Whether a chunk may be of the record's generation: no later generation wrote it, and it is not
/// what an import that was given up left behind before the part was written as it is now.
fn is_of(head: &ChunkHead, record: &GenerationRecord) -> bool {
    let part = record.parts.binary_search_by_key(&head.part_first, |part| part.first);
    let started_ns = part.ok().map(|index| record.started_ns[index]);
    head.id.generation <= record.generation && started_ns.is_some_and(|time| head.time_ns >= time)
}

/// Without a record: parts as the chunks name them, each up to the first id of the next one, and the
/// last one up to its last chunk, or to the end of its window if it has one only: ids of a window are
/// where they are because of its length.
fn parts_of(chosen: &BTreeMap<u64, Candidate>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for candidate in chosen.values() {
        let (first, seed, window) = candidate.part;
        let known = parts.last().is_some_and(|last| last.first >= first);
        if !known {
            if let Some(last) = parts.last_mut() {
                last.count = first - last.first;
            } else if first > 0 {
                // Whatever lay before the first part that was found is lost, in source order.
                parts.push(Part { first: 0, count: first, seed: 0, window: 0 });
            }
            parts.push(Part { first, count: 0, seed, window });
        }
        let last = parts.last_mut().expect("one was pushed");
        let window = window.min(MAX_SAMPLES - first);
        last.count = last.count.max(candidate.slots.end - last.first).max(window);
    }
    parts
}
