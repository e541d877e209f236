//! Commit of a generation: the writes of an import, append, delete, purge or rebuild after its chunks.
//!
//! ```text
//! let commit = Commit::prepare(directory, &mut space)?;     // record and snapshot get their cells
//! write commit.record at commit.record_range
//! write commit.snapshot, some bytes at a time, at commit.snapshot_range
//! for step in commit.steps() { do it, and wait for it }         // flushes, superblocks, namespace 0 last
//! ```
//!
//! `space` has reserved the cells that the previous generation reads or freed ([`reserve_current`]), so they are not
//! overwritten. The commit is atomic: a reader opens the previous generation before the last write of a superblock, and
//! the new one after it.

use crate::directory::snapshot::{grow, used_lengths};
use crate::directory::{Directory, SnapshotWriter};
use crate::format::superblock::{FIELD_TYPES, ORIGINS, SnapshotLocation, TYPED_COLUMNS};
use crate::format::superblock_set::{CommitStep, commit_steps};
use crate::format::{CellRange, FormatError, GenerationRecord, Space, Superblock};

/// A generation ready to write.
#[derive(Debug)]
pub struct Commit {
    /// The directory to use after the commit; it has the location of its generation record.
    pub directory: Directory,
    /// Bytes of the generation record.
    pub record: Vec<u8>,
    /// Cells of the generation record.
    pub record_range: CellRange,
    /// The snapshot.
    pub snapshot: SnapshotWriter,
    /// Cells of the snapshot.
    pub snapshot_range: CellRange,
    /// The superblock of each namespace, in the image's order.
    pub superblocks: Vec<Superblock>,
}

impl Commit {
    /// Allocates cells for record and snapshot, and builds the superblocks. A record whose cells are known
    /// ([`Directory::set_record_range`]) keeps them.
    ///
    /// # Errors
    /// `NoSpace`: record and snapshot do not fit; nothing is lost. `NotLoaded`: names, lookup tree or origins are still
    /// on media. Other errors: the directory is inconsistent and could not be opened after the commit.
    pub fn prepare(mut directory: Directory, space: &mut Space) -> Result<Commit, FormatError> {
        directory.check()?;
        let layout = directory.layout;
        let record = directory.record();
        if directory.record_range.cells == 0 {
            let len = record.encode(0, 0).len() as u64;
            directory.record_range = allocate(space, layout.cells_of(len))?;
        }
        let record_range = directory.record_range;
        let record = record.encode(record_range.namespace, record_range.cell);
        GenerationRecord::parse(&record)?;
        let snapshot = directory.snapshot()?;
        let snapshot_range = allocate(space, layout.cells_of(snapshot.len_bytes()))?;
        let location = SnapshotLocation {
            namespace: snapshot_range.namespace,
            offset_bytes: layout.offset_of(snapshot_range.cell)?,
            len_bytes: snapshot.len_bytes(),
            head_crc32c: snapshot.head_crc32c(),
        };
        let mut ends = used_lengths(&directory, &location)?;
        let record_end = layout.offset_of(record_range.cell)? + record.len() as u64;
        grow(&mut ends, record_range.namespace, record_end);
        let bit = |is_used, feature| if is_used { feature } else { 0 };
        let features_to_write = bit(!directory.columns().is_empty(), TYPED_COLUMNS)
            | bit(!directory.field_types().is_empty(), FIELD_TYPES)
            | bit(directory.has_origins(), ORIGINS);
        let superblock = |(namespace, used_len_bytes)| Superblock {
            layout,
            namespace,
            generation: directory.generation,
            time_ns: directory.time_ns,
            optional_features: 0,
            placement_seed: directory.parts().last().map_or(0, |part| part.seed),
            used_len_bytes,
            snapshot: location,
            num_samples: directory.num_samples(),
            num_live: directory.num_live(),
            features_to_write,
        };
        let superblocks = (0..).zip(ends).map(superblock).collect();
        Ok(Commit { directory, record, record_range, snapshot, snapshot_range, superblocks })
    }

    /// The steps that follow the writes of record and snapshot, in order: see [`commit_steps`].
    pub fn steps(&self) -> Vec<CommitStep> {
        commit_steps(&self.superblocks)
    }
}

/// Reserves the cells that must not be overwritten while the next generation is written: all cells that the current
/// generation reads, and those that it freed, which a reader of the generation before may still read.
///
/// `directory` and `superblock` are those of the current generation. `cells` has the number of cells of each namespace,
/// if known; freed cells past that end are ignored.
pub fn reserve_current(
    space: &mut Space,
    directory: &Directory,
    superblock: &Superblock,
    cells: &[u64],
) {
    directory
        .cell_ranges()
        .chain([superblock.snapshot_range()])
        .for_each(|range| space.reserve(range));
    for &range in directory.freed() {
        let end = cells.get(usize::from(range.namespace)).copied().unwrap_or(u64::MAX);
        space
            .reserve(CellRange { cells: range.cells.min(end.saturating_sub(range.cell)), ..range });
    }
}

/// The cells that the next generation frees if it keeps the chunks in `kept`. The result is for
/// [`crate::directory::DirectoryBuilder::set_freed`] and [`Directory::set_freed`].
pub fn freed_by_next(
    directory: &Directory,
    superblock: &Superblock,
    kept: impl IntoIterator<Item = CellRange>,
) -> Vec<CellRange> {
    crate::format::space::freed(directory.cell_ranges().chain([superblock.snapshot_range()]), kept)
}

impl Directory {
    /// Sets the cells that this generation frees. After [`with_deleted`](Self::with_deleted) these are the
    /// record and snapshot of the previous generation.
    pub fn set_freed(&mut self, freed: Vec<CellRange>) {
        std::sync::Arc::make_mut(&mut self.metadata).freed = freed;
    }

    /// Sets the location of the generation record that a rebuild found.
    pub fn set_record_range(&mut self, range: CellRange) {
        self.record_range = range;
    }
}

/// Allocates cells for a record or snapshot, preferably on namespace 0, which a reader reads first anyway.
fn allocate(space: &mut Space, cells: u64) -> Result<CellRange, FormatError> {
    space.allocate(0, cells).ok_or_else(|| space.no_room(cells))
}
