//! The plan of an import from sources: the source, all chunks, and for each part the rows of its chunks.
//!
//! The pieces of the plan's file are the rows of each part, usually one or two megabytes a piece, and the names of all
//! samples, in smaller pieces. In pieces, numbers are LEB128, and strings follow their length. No part loads the rows
//! of others, and each loads few rows at a time.
//!
//! The rows of a piece are in the order of chunks and slots; behind them are their values of typed columns. Names are
//! in the order of ids. Each name is stored without the prefix that it shares with the name before it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::mem::take;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::import::block::Block;
use crate::import::chunks::{ChunkLayout, RowOrder, Rows};
use crate::import::journal::Journal;
use crate::import::many::plan_file::{FROM_SOURCES, MAGIC_BYTES, Parts, Plan, damaged};
use crate::import::sources::{Container, Index, Source, SourceKind};
use dlfs_base::buf::zeroed_vec;
use dlfs_base::replace_file::{NewMode, replace_file_with};
use dlfs_base::units::{Slot, total};
use dlfs_base::{Error, Result};
use dlfs_format::format::columns::ColumnTable;
use dlfs_format::format::cursor::{Cursor, put_number, put_string};
use dlfs_format::format::error::{at_most, enough, equal};
use dlfs_format::format::names::common;
use dlfs_format::format::{CellRange, ChunkSpec, FormatError, Part, Placement};

/// The description of the parts in the head of the plan.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SourceParts {
    pub(super) kind: SourceKind,
    /// Path, stamp and length of each container of the source.
    pub(super) containers: Vec<(OsString, u64, u64)>,
    /// Names of the fields of the source.
    pub(super) fields: Vec<Vec<u8>>,
    /// Names of the classes of the source.
    pub(super) classes: Vec<Vec<u8>>,
    /// For each field of the image, the index of the source's field; `None`: the source lacks the field.
    pub(super) source_fields: Vec<Option<u16>>,
    /// For each class of the source, its number in the image.
    pub(super) class_numbers: Vec<i64>,
    /// Total bytes of all samples.
    pub(super) sample_bytes: u64,
    /// The number of cells of each namespace at planning time.
    pub(super) planned_cells: Vec<u64>,
    /// Number of samples of each chunk, its cells, and whether it is oversize.
    pub(super) chunks: Vec<(u32, CellRange, bool)>,
    /// The pieces with the rows of each part.
    pub(super) rows: Vec<Vec<Piece>>,
    /// The pieces with the names of all samples.
    pub(super) names: Vec<Piece>,
}

impl Parts for SourceParts {
    const HEAD: Block = FROM_SOURCES;
    const OTHERWISE: &str = "programs write its parts: commit them with --parts K";
}

impl Plan<SourceParts> {
    /// Writes the plan to the file at `path`: `shared`, an index of the source without rows, `chunks`, and the rows of
    /// these chunks.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn write(
        &mut self,
        path: &Path,
        shared: Index,
        chunks: &[ChunkLayout],
        rows: &Rows<'_>,
    ) -> Result<()> {
        let parts = &mut self.parts;
        let container = |Container { path, stamp, len_bytes }| (path.into(), stamp, len_bytes);
        parts.containers = shared.containers.into_iter().map(container).collect();
        (parts.fields, parts.classes) = (shared.fields, shared.classes);
        let chunk = |chunk: &ChunkLayout| (chunk.num_slots, chunk.cells, chunk.oversize);
        parts.chunks = chunks.iter().map(chunk).collect();
        replace_file_with(path, NewMode::Private, |file| {
            file.write_all(&FROM_SOURCES.magic)?;
            let mut out = PieceWriter { file, at: MAGIC_BYTES as u64 };
            let spec = self.spec();
            let placement = Placement::new(self.journal.part);
            for part in 0..self.journal.layout.num_namespaces {
                self.parts.rows.push(out.rows(rows, &of_part(chunks, part), &spec, &placement)?);
            }
            self.parts.names = out.names(rows.index)?;
            out.file.write_all(&self.tail())
        })
    }

    /// All chunks, in the order of their numbers.
    ///
    /// # Errors
    /// They are not chunks of the image, or do not fit the other parts of the plan.
    fn chunks(&self) -> std::result::Result<Vec<ChunkLayout>, FormatError> {
        let Plan { journal, parts, .. } = self;
        let Journal { layout, part: Part { first, count, .. }, .. } = *journal;
        let namespaces = u64::from(layout.num_namespaces);
        equal("parts of a plan", namespaces, parts.rows.len() as u64)?;
        equal("namespaces of a plan", namespaces, parts.planned_cells.len() as u64)?;
        let mut slot = first;
        let mut chunks = Vec::new();
        let mut counts = vec![0; parts.rows.len()];
        for (sequence, &(num_slots, cells, oversize)) in (0..).zip(&parts.chunks) {
            at_most("namespace of a chunk", cells.namespace.into(), namespaces - 1)?;
            layout.offset_of(cells.cell.saturating_add(cells.cells))?;
            counts[usize::from(cells.namespace)] += 1;
            let first_slot = Slot(slot);
            chunks.push(ChunkLayout { sequence, first_slot, num_slots, cells, oversize });
            slot = slot.saturating_add(num_slots.into());
        }
        equal("samples in the chunks of a plan", first + count, slot)?;
        for (count, rows) in counts.into_iter().zip(&parts.rows) {
            equal(
                "chunks of a part of a plan",
                count,
                total(rows.iter().map(|piece| piece.count)),
            )?;
        }
        equal("names of a plan", count, total(parts.names.iter().map(|piece| piece.count)))?;
        Ok(chunks)
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
    /// The file, from which pieces are read.
    file: File,
}

impl SourcePlan {
    /// Reads the plan at `path`, with the chunks of one part, or with all chunks.
    ///
    /// # Errors
    /// `Corrupt`: the plan is damaged. `InvalidArgument`: it is not a plan of parts from sources. Errors of the
    /// file system.
    pub(super) fn read(path: &Path, part: Option<u16>) -> Result<SourcePlan> {
        let (mut plan, file) = Plan::<SourceParts>::read(path)?;
        let mut chunks = plan.chunks().map_err(|error| Error::from(error).path(path))?;
        if let Some(part) = part {
            chunks = of_part(&chunks, part);
        }
        let mut shared = Index::default();
        let container = |(path, stamp, len_bytes): (OsString, _, _)| Container {
            path: path.into(),
            stamp,
            len_bytes,
        };
        let SourceParts { containers, fields, classes, .. } = &mut plan.parts;
        shared.containers = take(containers).into_iter().map(container).collect();
        (shared.fields, shared.classes) = (take(fields), take(classes));
        Ok(SourcePlan { plan, shared, chunks, file })
    }

    /// Reads the bytes of a piece.
    ///
    /// # Errors
    /// `Corrupt`: their hash differs from the planned one. Errors of the file system.
    fn read_piece(&self, piece: &Piece) -> Result<Vec<u8>> {
        let len = self.file.metadata().map_err(Error::from)?.len();
        at_most("end of a piece of a plan", piece.offset.saturating_add(piece.len), len)?;
        let mut bytes = zeroed_vec(piece.len)?;
        self.file.read_exact_at(&mut bytes, piece.offset).map_err(Error::from)?;
        if xxh3_64(&bytes) == piece.hash { Ok(bytes) } else { Err(damaged()) }
    }

    /// Opens the source with the rows of a piece, of which there are `num_rows`.
    ///
    /// # Errors
    /// `Corrupt`: the piece is damaged. A folder of the source cannot be opened.
    pub(super) fn source(&self, piece: &Piece, num_rows: u64) -> Result<Source> {
        let bytes = self.read_piece(piece)?;
        let mut from = Cursor::new("rows of a plan", &bytes);
        let mut index = self.shared.load_rows(num_rows, &mut from)?;
        let values = from.bytes(from.len() as u64)?;
        if !values.is_empty() {
            index.columns = Some(ColumnTable::decode(values, num_rows as usize)?);
        }
        Source::of_plan(self.plan.parts.kind, index)
    }

    /// The names of a piece.
    ///
    /// # Errors
    /// As [`read_piece`](Self::read_piece).
    pub(super) fn names(&self, piece: &Piece) -> Result<Vec<Vec<u8>>> {
        let bytes = self.read_piece(piece)?;
        let mut from = Cursor::new("names of a plan", &bytes);
        let mut names = Vec::<Vec<u8>>::new();
        for _ in 0..piece.count {
            let last = names.last().map_or(&[][..], Vec::as_slice);
            let shared = from.number()?;
            enough("names of a plan", shared, last.len())?;
            let name = [&last[..shared as usize], from.string()?].concat();
            names.push(name);
        }
        Ok(names)
    }

    /// The rows of `chunks`. `index` holds them.
    pub(super) fn rows<'a>(&self, index: &'a Index, chunks: &[ChunkLayout]) -> Rows<'a> {
        let SourceParts { source_fields, class_numbers, .. } = &self.plan.parts;
        let source_fields = source_fields.clone();
        let class_numbers = class_numbers.clone();
        let mut row = 0;
        let first = |chunk: &ChunkLayout| {
            let first = row;
            row += u64::from(chunk.num_slots);
            (chunk.first_slot, first)
        };
        let order = RowOrder::Slots(chunks.iter().map(first).collect());
        Rows { index, source_fields, class_numbers, values: None, order }
    }
}

/// The chunks of a part, in the order of their numbers.
fn of_part(chunks: &[ChunkLayout], part: u16) -> Vec<ChunkLayout> {
    chunks.iter().copied().filter(|chunk| chunk.cells.namespace == part).collect()
}

/// The location of a piece in the file of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Piece {
    /// Offset in the file.
    offset: u64,
    /// Length in bytes.
    len: u64,
    /// XXH3-64 of the bytes.
    hash: u64,
    /// Number of chunks or names in the piece.
    pub(super) count: u64,
}

/// Writes pieces, one after another.
struct PieceWriter<'f> {
    file: &'f mut File,
    /// Offset of the next piece.
    at: u64,
}

impl PieceWriter<'_> {
    /// Writes the rows of `chunks`, all chunks of a part.
    fn rows(
        &mut self,
        rows: &Rows<'_>,
        mut chunks: &[ChunkLayout],
        spec: &ChunkSpec,
        placement: &Placement,
    ) -> std::io::Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        while !chunks.is_empty() {
            let (first, rest) = chunks.split_at(chunks_at_once(rows, chunks, placement));
            let numbers = || {
                first.iter().flat_map(ChunkLayout::slots).map(|slot| rows.row_at(slot, placement))
            };
            let mut bytes = Vec::new();
            rows.index.save_rows(numbers(), &mut bytes);
            if !spec.columns.is_empty() {
                let mut columns = ColumnTable::new(&spec.columns);
                for row in numbers() {
                    let values = rows.values(row);
                    columns.push(|column| values.get(column));
                }
                columns.encode(&mut bytes);
            }
            pieces.push(self.piece(&bytes, first.len() as u64)?);
            chunks = rest;
        }
        Ok(pieces)
    }

    /// Writes the names of all rows.
    fn names(&mut self, index: &Index) -> std::io::Result<Vec<Piece>> {
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
    fn piece(&mut self, bytes: &[u8], count: u64) -> std::io::Result<Piece> {
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
    let fits = |chunk: &&ChunkLayout| {
        let names = chunk.slots().map(|slot| rows.index.name(rows.row_at(slot, placement)).len());
        bytes += names.map(|len| len + BYTES_A_ROW).sum::<usize>();
        bytes <= PIECE_BYTES
    };
    chunks.iter().take_while(fits).count().max(1)
}

/// Approximate maximum size of the rows of a piece. A part needs two or three times as much memory.
const PIECE_BYTES: usize = 2 << 20;
/// Approximate size of a row without its name.
const BYTES_A_ROW: usize = 32;
/// Size at which a piece of names is complete.
const NAMES_BYTES: usize = 128 << 10;
