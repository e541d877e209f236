//! The pieces of a plan: the rows of each part, and the names of all samples, in blocks of one or two
//! megabytes. So no process loads the rows of other parts, and a part loads few of its own rows at a time.
//!
//! The rows of a piece are in the order of chunks and slots, which `select` of the index gives them. Names are
//! in the order of ids. Each name is stored without the prefix that it shares with the name before it.

use std::fs::File;
use std::io::Write;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::import::plan::{ChunkLayout, Rows};
use crate::import::sources::Index;
use dlfs_base::units::Slot;
use dlfs_format::format::columns::ColumnTable;
use dlfs_format::format::cursor::{put_number, put_string};
use dlfs_format::format::names::common;
use dlfs_format::format::{ChunkSpec, Placement};

/// A piece of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Piece {
    /// Its offset in the file.
    pub(super) offset: u64,
    /// Its length in bytes.
    pub(super) len: u64,
    /// XXH3-64 of its bytes.
    pub(super) hash: u64,
    /// The number of its chunks or names.
    pub(super) count: u64,
}

/// Writes pieces, one after another.
pub(super) struct PieceWriter<'f> {
    pub(super) file: &'f mut File,
    /// Offset of the next piece.
    pub(super) at: u64,
}

impl PieceWriter<'_> {
    /// Writes the rows of `chunks`, all chunks of a part.
    pub(super) fn rows(
        &mut self,
        rows: &Rows<'_>,
        mut chunks: &[ChunkLayout],
        spec: &ChunkSpec,
        placement: &Placement,
    ) -> std::io::Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        while !chunks.is_empty() {
            let (own, rest) = chunks.split_at(chunks_at_once(rows, chunks, placement));
            let numbers = || {
                own.iter().flat_map(|chunk| {
                    let first = chunk.first_slot.0;
                    let slots = first..first + u64::from(chunk.num_slots);
                    slots.map(|slot| rows.row_at(Slot(slot), placement))
                })
            };
            let mut selected = rows.index.select(numbers());
            if !spec.columns.is_empty() {
                let mut columns = ColumnTable::new(&spec.columns);
                for row in numbers() {
                    let values = rows.values(row);
                    columns.push(|column| values.get(column));
                }
                selected.set_columns(columns);
            }
            let mut bytes = Vec::new();
            selected.save_rows(&mut bytes);
            pieces.push(self.piece(&bytes, own.len() as u64)?);
            chunks = rest;
        }
        Ok(pieces)
    }

    /// Writes the names of all rows.
    pub(super) fn names(&mut self, index: &Index) -> std::io::Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut bytes = Vec::new();
        let mut first = 0;
        for row in 0..index.len() {
            let name = index.name(row);
            let shared = if row == first { 0 } else { common(index.name(row - 1), name) };
            put_number(&mut bytes, shared as u64);
            put_string(&mut bytes, &name[shared..]);
            if bytes.len() >= NAMES_BYTES || row + 1 == index.len() {
                pieces.push(self.piece(&bytes, row + 1 - first)?);
                bytes.clear();
                first = row + 1;
            }
        }
        Ok(pieces)
    }

    /// Writes a piece of `count` chunks or names.
    pub(super) fn piece(&mut self, bytes: &[u8], count: u64) -> std::io::Result<Piece> {
        self.file.write_all(bytes)?;
        let offset = self.at;
        let len = bytes.len() as u64;
        self.at += len;
        Ok(Piece { offset, len, hash: xxh3_64(bytes), count })
    }
}

/// The number of chunks, at least 1, at the beginning of `chunks` whose rows fit into a piece.
fn chunks_at_once(rows: &Rows<'_>, chunks: &[ChunkLayout], placement: &Placement) -> usize {
    let mut bytes = 0;
    for (at, chunk) in chunks.iter().enumerate() {
        for slot in chunk.first_slot.0..chunk.first_slot.0 + u64::from(chunk.num_slots) {
            let row = rows.row_at(Slot(slot), placement);
            bytes += rows.index.name(row).len() + BYTES_A_ROW;
        }
        if bytes > PIECE_BYTES {
            return at.max(1);
        }
    }
    chunks.len()
}

/// Approximate maximum size of the rows of a piece. A part needs two or three times as much memory.
const PIECE_BYTES: usize = 2 << 20;
/// Approximate size of a row without its name.
const BYTES_A_ROW: usize = 32;
/// Size at which a piece of names is complete.
const NAMES_BYTES: usize = 1 << 20;
