//! The plan of parts from sources: the location of each chunk, and its rows of the sources.
//!
//! The pieces of its file are the rows of each part and the names of all samples, in blocks of one or two
//! megabytes, and a single piece with the locations of all chunks. In that piece, numbers are
//! LEB128, and strings follow their length. So no process loads the rows of other parts, and a part loads few of its
//! own rows at a time.
//!
//! The rows of a piece are in the order of chunks and slots, which `select` of the index gives them. Names are
//! in the order of ids. Each name is stored without the prefix that it shares with the name before it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::import::chunks::{ChunkLayout, RowOrder, Rows};
use crate::import::journal::Journal;
use crate::import::many::plan_file::{FROM_SOURCES, Parts, Plan, damaged};
use crate::import::sources::{Index, Source, SourceKind};
use dlfs_base::buf::zeroed_vec;
use dlfs_base::replace_file::{NewMode, replace_file_with};
use dlfs_base::units::Slot;
use dlfs_base::{Error, ErrorKind, Result};

use dlfs_format::format::columns::ColumnTable;
use dlfs_format::format::cursor::{Cursor, put_number, put_string};
use dlfs_format::format::error::{at_most, enough, equal};
use dlfs_format::format::names::common;
use dlfs_format::format::{CellRange, ChunkSpec, FormatError, Part, Placement};

/// The description of the parts in the head of the plan.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SourceParts {
    pub(super) kind: SourceKind,
    /// For each field of the image, the field of the source.
    pub(super) source_fields: Vec<Option<u16>>,
    /// For each class of the source, its number in the image.
    pub(super) class_numbers: Vec<i64>,
    /// Total bytes of all samples.
    pub(super) sample_bytes: u64,
    /// The number of cells of each namespace at planning time.
    pub(super) planned_cells: Vec<u64>,
    /// The piece with an index without rows, and all chunks.
    pub(super) layout: Piece,
    /// The pieces with the rows of each part.
    pub(super) rows: Vec<Vec<Piece>>,
    /// The pieces with the names of all samples.
    pub(super) names: Vec<Piece>,
}

impl Parts for SourceParts {
    const MAGIC: [u8; 8] = FROM_SOURCES;
    const OTHERWISE: &str = "programs write its parts: commit them with --parts K";
}

impl Plan<SourceParts> {
    /// Writes the plan to the file at `path`: an index of the source without rows, `chunks`, and the rows of
    /// these chunks.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn write(
        &mut self,
        path: &Path,
        shared: &Index,
        chunks: &[ChunkLayout],
        rows: &Rows<'_>,
    ) -> Result<()> {
        replace_file_with(path, NewMode::Private, |file| {
            let front = Plan::<SourceParts>::front();
            file.write_all(&front)?;
            let mut out = PieceWriter { file, at: front.len() as u64 };
            let spec = self.spec();
            let placement = Placement::new(self.journal.part);
            for part in 0..self.journal.layout.num_namespaces {
                self.parts.rows.push(out.rows(rows, &of_part(chunks, part), &spec, &placement)?);
            }
            self.parts.names = out.names(rows.index)?;
            let mut layout = Vec::new();
            shared.save_shared(&mut layout);
            put_chunks(&mut layout, chunks);
            self.parts.layout = out.piece(&layout, chunks.len() as u64)?;
            out.file.write_all(&self.tail()?)
        })
    }

    /// The properties that all chunks share.
    pub(super) fn spec(&self) -> ChunkSpec {
        let Plan { journal, fields, field_types, columns, .. } = self;
        journal.spec(fields.clone(), field_types.clone(), columns.clone())
    }
}

/// A plan that was read from its file.
#[derive(Debug)]
pub(super) struct SourcePlan {
    pub(super) plan: Plan<SourceParts>,
    /// Containers, fields and classes of the source: an index without rows.
    shared: Index,
    /// All chunks of the plan or of a single part, in the order of their numbers.
    pub(super) chunks: Vec<ChunkLayout>,
    file: File,
}

impl SourcePlan {
    /// Reads the plan at `path`, with the chunks of one part, or with all chunks.
    ///
    /// # Errors
    /// `Corrupt`: the plan is damaged. `InvalidArgument`: it is not a plan of parts from sources. Errors of the
    /// file system.
    pub(super) fn read(path: &Path, part: Option<u16>) -> Result<SourcePlan> {
        let (plan, file) = Plan::<SourceParts>::read(path)?;
        let mut plan = SourcePlan { plan, shared: Index::default(), chunks: Vec::new(), file };
        let layout = plan.read_piece(&plan.plan.parts.layout).map_err(|error| error.path(path))?;
        plan.take_layout(&layout).map_err(|error| Error::from(error).path(path))?;
        if let Some(part) = part {
            plan.chunks = of_part(&plan.chunks, part);
        }
        Ok(plan)
    }

    fn take_layout(&mut self, layout: &[u8]) -> std::result::Result<(), FormatError> {
        let mut from = Cursor::new("chunks of a plan", layout);
        self.shared = Index::load_shared(&mut from)?;
        self.chunks = take_chunks(&mut from, &self.plan.journal)?;
        let count = |pieces: &[Piece]| {
            pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.count))
        };
        let Plan { journal, parts, .. } = &self.plan;
        let namespaces = journal.layout.num_namespaces;
        equal("parts of a plan", namespaces.into(), parts.rows.len() as u64)?;
        equal("namespaces of a plan", namespaces.into(), parts.planned_cells.len() as u64)?;
        let mut own = vec![0; usize::from(namespaces)];
        self.chunks.iter().for_each(|chunk| own[usize::from(chunk.cells.namespace)] += 1);
        for (own, rows) in own.into_iter().zip(&parts.rows) {
            equal("chunks of a part of a plan", own, count(rows))?;
        }
        equal("names of a plan", journal.part.count, count(&parts.names))
    }

    /// Reads the bytes of a piece.
    ///
    /// # Errors
    /// `Corrupt`: their hash differs from the planned one. Errors of the file system.
    pub(super) fn read_piece(&self, piece: &Piece) -> Result<Vec<u8>> {
        let len = self.file.metadata().map_err(Error::from)?.len();
        at_most("end of a piece of a plan", piece.offset.saturating_add(piece.len), len)?;
        let mut bytes = zeroed_vec(piece.len)?;
        self.file.read_exact_at(&mut bytes, piece.offset).map_err(Error::from)?;
        if xxh3_64(&bytes) == piece.hash { Ok(bytes) } else { Err(damaged()) }
    }

    /// Opens the source with the rows of a piece.
    ///
    /// # Errors
    /// `Corrupt`: the piece is damaged. A folder of the source cannot be opened.
    pub(super) fn source(&self, piece: &Piece, num_rows: u64) -> Result<Source> {
        let bytes = self.read_piece(piece)?;
        let index = self.shared.load_rows(&mut Cursor::new("rows of a plan", &bytes))?;
        equal("rows of a piece of a plan", num_rows, index.len())?;
        Source::of_plan(self.plan.parts.kind, index)
    }

    /// The rows of `chunks`. `index` holds them.
    pub(super) fn rows<'a>(&self, index: &'a Index, chunks: &[ChunkLayout]) -> Rows<'a> {
        let SourceParts { source_fields, class_numbers, .. } = &self.plan.parts;
        let source_fields = source_fields.clone();
        let class_numbers = class_numbers.clone();
        let order = RowOrder::of_chunks(chunks);
        Rows { index, source_fields, class_numbers, values: None, order }
    }
}

/// The chunks of a part, in the order of their numbers.
pub(super) fn of_part(chunks: &[ChunkLayout], part: u16) -> Vec<ChunkLayout> {
    chunks.iter().copied().filter(|chunk| chunk.cells.namespace == part).collect()
}

fn put_chunks(out: &mut Vec<u8>, chunks: &[ChunkLayout]) {
    put_number(out, chunks.len() as u64);
    for chunk in chunks {
        let CellRange { namespace, cell, cells } = chunk.cells;
        let numbers =
            [chunk.num_slots.into(), namespace.into(), cell, cells, chunk.oversize.into()];
        numbers.iter().for_each(|number| put_number(out, *number));
    }
}

fn take_chunks(
    from: &mut Cursor<'_>,
    journal: &Journal,
) -> std::result::Result<Vec<ChunkLayout>, FormatError> {
    let Part { first, count, .. } = journal.part;
    let mut slot = first;
    let mut chunks = Vec::new();
    for sequence in 0..from.count(5)? as u64 {
        let num_slots = at_most("samples of a chunk", from.number()?, count)? as u32;
        let last = u64::from(journal.layout.num_namespaces) - 1;
        let namespace = at_most("namespace of a chunk", from.number()?, last)? as u16;
        let cell = from.number()?;
        let cells = from.number()?;
        journal.layout.offset_of(cell.saturating_add(cells))?;
        let oversize = from.number()? == 1;
        let cells = CellRange { namespace, cell, cells };
        chunks.push(ChunkLayout { sequence, first_slot: Slot(slot), num_slots, cells, oversize });
        slot += u64::from(num_slots);
    }
    equal("samples in the chunks of a plan", first + count, slot)?;
    equal("bytes behind the chunks of a plan", 0, from.len() as u64)?;
    Ok(chunks)
}

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
            let numbers =
                || own.iter().flat_map(ChunkLayout::slots).map(|slot| rows.row_at(slot, placement));
            let mut selected = rows.index.select(numbers());
            if !spec.columns.is_empty() {
                let mut columns = ColumnTable::new(&spec.columns);
                for row in numbers() {
                    let values = rows.values(row);
                    columns.push(|column| values.get(column));
                }
                selected.columns = Some(columns);
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
        for slot in chunk.slots() {
            bytes += rows.index.name(rows.row_at(slot, placement)).len() + BYTES_A_ROW;
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

/// The names of a plan, in order from the first.
pub(super) struct PlannedNames<'a> {
    plan: &'a SourcePlan,
    /// The number of the next piece.
    next_piece: usize,
    bytes: Vec<u8>,
    /// Offset of the next name in `bytes`.
    at: usize,
    /// Number of names of the piece that are not read yet.
    left: u64,
    /// Number of rows up to and including the row of `name`.
    num_read: u64,
    name: Vec<u8>,
}

impl<'a> PlannedNames<'a> {
    pub(super) fn new(plan: &'a SourcePlan) -> PlannedNames<'a> {
        let bytes = Vec::new();
        let name = Vec::new();
        PlannedNames { plan, next_piece: 0, bytes, at: 0, left: 0, num_read: 0, name }
    }

    /// The name of a row. Rows must be asked for in ascending order.
    ///
    /// # Errors
    /// `Corrupt`: the plan is damaged. Errors of reading it.
    pub(super) fn name(&mut self, row: u64) -> Result<&[u8]> {
        while self.num_read <= row {
            if self.left == 0 {
                let piece = self.plan.plan.parts.names.get(self.next_piece).ok_or_else(|| {
                    Error::new(ErrorKind::Internal, format!("the plan has no name of row {row}"))
                })?;
                (self.bytes, self.at, self.left) = (self.plan.read_piece(piece)?, 0, piece.count);
                self.next_piece += 1;
                self.name.clear();
            }
            self.advance()?;
        }
        Ok(&self.name)
    }

    fn advance(&mut self) -> std::result::Result<(), FormatError> {
        let mut from = Cursor::new("names of a plan", &self.bytes[self.at..]);
        let shared = from.number()?;
        enough("names of a plan", shared, self.name.len())?;
        self.name.truncate(shared as usize);
        self.name.extend_from_slice(from.string()?);
        self.at = self.bytes.len() - from.len();
        (self.left, self.num_read) = (self.left - 1, self.num_read + 1);
        Ok(())
    }
}
