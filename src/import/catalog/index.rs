//! The index of a data set's chunks, for programs that inspect a data set without opening it.
//!
//! Its entries are DIESEL's: data set -> time, chunks, size; chunk -> time, size, samples,
//! deletions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use dlfs_base::units::total;
use dlfs_format::directory::Directory;
use dlfs_format::format::chunk::ChunkId;

/// The chunks of a data set, without lost ones, and their totals.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Index {
    /// The UUID of the image.
    pub image: String,
    /// The generation that the index describes.
    pub generation: u64,
    /// The commit time of that generation, in ns since 1970.
    pub updated_ns: u64,
    /// Bytes of all chunks, headers included.
    pub bytes: u64,
    /// Samples of all chunks, deleted ones included.
    pub samples: u64,
    /// Deleted samples among `samples`.
    pub deleted: u64,
    /// The chunks by id. Ids sort by the time of writing.
    pub chunks: BTreeMap<String, ChunkEntry>,
}

/// The id of a chunk as a string: generation and number, ten digits each. These strings sort as the
/// ids do.
fn key(id: ChunkId) -> String {
    format!("{:010}-{:010}", id.generation.0, id.sequence)
}

/// A chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkEntry {
    /// The time of writing, in ns since 1970.
    pub time_ns: u64,
    /// Bytes of header and samples on the media.
    pub bytes: u64,
    /// Samples of the chunk, deleted ones included.
    pub samples: u32,
    /// Deleted samples among `samples`.
    pub deleted: u32,
}

impl Index {
    /// The index of the chunks of `directory`. `time_ns` maps a chunk's number to its time of
    /// writing; it is not called for lost chunks.
    ///
    /// # Errors
    /// Errors of `time_ns`.
    pub fn of<E>(
        directory: &Directory,
        mut time_ns: impl FnMut(u32) -> Result<u64, E>,
    ) -> Result<Index, E> {
        let mut index = Index {
            image: directory.uuid().to_string(),
            generation: directory.generation().0,
            updated_ns: directory.time_ns(),
            ..Index::default()
        };
        for c in 0..directory.num_chunks() {
            let chunk = directory.chunk(c);
            if chunk.len_bytes == 0 {
                continue; // lost
            }
            let entry = ChunkEntry {
                time_ns: time_ns(c)?,
                bytes: chunk.len_bytes,
                samples: chunk.num_slots,
                deleted: chunk.num_slots - directory.live_in_chunk(c),
            };
            index.chunks.insert(key(directory.chunk_id(c)), entry);
        }
        Ok(index.with_totals())
    }

    /// The entry of a chunk.
    pub fn chunk(&self, id: ChunkId) -> Option<&ChunkEntry> {
        self.chunks.get(&key(id))
    }

    /// Returns this index with `older`'s entries for chunks that were written before `since_ns` and
    /// still exist.
    pub fn with_older_of(mut self, older: Option<&Index>, since_ns: u64) -> Index {
        for (id, entry) in &mut self.chunks {
            if let Some(known) = older.and_then(|older| older.chunks.get(id))
                && known.time_ns < since_ns
            {
                *entry = *known;
            }
        }
        self.with_totals()
    }

    fn with_totals(mut self) -> Index {
        self.deleted = self.chunks.values().map(|entry| u64::from(entry.deleted)).sum();
        self.samples = self.chunks.values().map(|entry| u64::from(entry.samples)).sum();
        self.bytes = total(self.chunks.values().map(|entry| entry.bytes));
        self
    }

    /// The differences between two indexes, one line each, for a person to read. After `most` lines the other chunks
    /// that differ are only counted, in one more line. Chunks that were written before `since_ns` are not compared.
    pub fn differences(&self, other: &Index, since_ns: u64, most: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if self.image != other.image {
            lines.push(format!("image {} and {}", self.image, other.image));
        }
        if self.generation != other.generation {
            lines.push(format!("generation {} and {}", self.generation, other.generation));
        }
        let ids: std::collections::BTreeSet<&String> =
            self.chunks.keys().chain(other.chunks.keys()).collect();
        let mut more = 0;
        for id in ids {
            let one = self.chunks.get(id);
            let two = other.chunks.get(id);
            let is_recent = [one, two].iter().flatten().any(|entry| entry.time_ns >= since_ns);
            if one == two || !is_recent {
                continue;
            }
            if lines.len() >= most {
                more += 1;
                continue;
            }
            lines.push(match (one, two) {
                (Some(one), Some(two)) => format!("chunk {id}: {one:?} and {two:?}"),
                (Some(_), None) => format!("chunk {id} is in the first only"),
                _ => format!("chunk {id} is in the second only"),
            });
        }
        if more > 0 {
            lines.push(format!("and {more} more chunks"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_differences_are_shown_as_are_asked_for_and_the_others_are_counted() {
        let entry = ChunkEntry { time_ns: 1, bytes: 1, samples: 1, deleted: 0 };
        let chunks = (0..5).map(|chunk| (format!("{chunk}"), entry)).collect();
        let index = Index { chunks, ..Index::default() };
        let lines = index.differences(&Index::default(), 0, 3);
        assert_eq!((lines.len(), &*lines[3]), (4, "and 2 more chunks"), "{lines:?}");
        assert_eq!(index.differences(&Index::default(), 0, 5).len(), 5);
    }
}
