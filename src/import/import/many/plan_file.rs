//! The plan of an import by many: a file of which every part and the commit read what they need.
//!
//! ```text
//! magic, version | rows of the parts | names | head | bytes of the head (u64) | XXH3-128 of the head
//! ```
//!
//! The rows of a part lie in pieces of a megabyte or two (`pieces.rs`), in the order in which its chunks have them, and
//! the names of all samples in the order of ids. The head says what the image is like, where its chunks lie, and has
//! the hash of each piece. Its own hash is the plan's id. Numbers are LEB128, texts have their length before them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::import::journal::{JOURNAL_BYTES, Journal};
use crate::import::many::pieces::{Piece, put_pieces, take_pieces, write_names, write_rows};
use crate::import::plan::{ChunkLayout, RowOrder, Rows};
use crate::import::sources::{Index, Source, SourceKind};
use dlfs_base::buf::zeroed_vec;
use dlfs_base::replace_file::{NewMode, replace_file_with};
use dlfs_base::units::Slot;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::builder::ChunkSpec;
use dlfs_format::format::columns::{ColumnSpec, ColumnType};
use dlfs_format::format::cursor::{Cursor, label_code, label_of, put_number, put_string};
use dlfs_format::format::error::{at_most, equal};
use dlfs_format::format::field_type::FieldType;
use dlfs_format::format::{CellRange, FieldTypes, FormatError, Part, Placement};
use dlfs_io::address::Address;

/// A plan.
#[derive(Debug)]
pub(super) struct PlanFile {
    /// The hash of its bytes; zero before it is written.
    pub(super) id: [u8; 16],
    /// The namespaces of the image, in its order.
    pub(super) image: Vec<Address>,
    /// The journal of namespace 0, with the number of samples.
    pub(super) journal: Journal,
    pub(super) kind: SourceKind,
    pub(super) fields: Vec<Vec<u8>>,
    pub(super) field_types: FieldTypes,
    pub(super) columns: Vec<ColumnSpec>,
    pub(super) classes: Vec<Vec<u8>>,
    /// For each field of the image, the field of the source.
    pub(super) source_fields: Vec<Option<u16>>,
    /// For each class of the source, its number in the image.
    pub(super) class_numbers: Vec<i64>,
    /// The bytes of all samples.
    pub(super) sample_bytes: u64,
    /// The cells of each namespace when the import was planned.
    pub(super) planned_cells: Vec<u64>,
    /// Containers, fields and classes of the source: an index without rows.
    pub(super) shared: Index,
    /// All chunks, in the order of their numbers; of a part, its own.
    pub(super) chunks: Vec<ChunkLayout>,
    /// The rows of each part.
    pub(super) rows: Vec<Vec<Piece>>,
    /// The names of all samples.
    pub(super) names: Vec<Piece>,
    /// The file that holds the pieces, once it is written or read.
    pub(super) file: Option<File>,
}

impl PlanFile {
    /// Writes it to the file at `path` with the rows of the source, piece by piece, and gives it its id.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn write(&mut self, path: &Path, rows: &Rows<'_>) -> Result<()> {
        replace_file_with(path, NewMode::Private, |file| {
            let mut at = (MAGIC.len() + 1) as u64;
            file.write_all(&[&MAGIC[..], &[VERSION]].concat())?;
            let spec = self.spec();
            let placement = self.placement();
            for part in 0..self.journal.layout.num_namespaces {
                let chunks = self.chunks_of(part);
                self.rows.push(write_rows(file, &mut at, rows, &chunks, &spec, &placement)?);
            }
            self.names = write_names(file, &mut at, rows.index)?;
            let head = self.head();
            self.id = xxh3_128(&head).to_le_bytes();
            file.write_all(&head)?;
            file.write_all(&(head.len() as u64).to_le_bytes())?;
            file.write_all(&self.id)
        })
    }

    /// Reads the plan at `path`, with the chunks of one part, or with all of them.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged. `InvalidArgument`: it is no plan. Those of the file system.
    pub(super) fn read(path: &Path, part: Option<u16>) -> Result<PlanFile> {
        let named = |error: std::io::Error| Error::from(error).path(path);
        let file = File::open(path).map_err(named)?;
        let len = file.metadata().map_err(named)?.len();
        let mut front = [0; MAGIC.len() + 1];
        let is_long_enough = len >= (front.len() + TAIL_BYTES) as u64;
        if is_long_enough {
            file.read_exact_at(&mut front, 0).map_err(named)?;
        }
        if !is_long_enough || front[..MAGIC.len()] != MAGIC {
            let text = "this is not the plan of an import";
            let error = Error::new(ErrorKind::InvalidArgument, text).path(path);
            return Err(if front.starts_with(&WRITTEN_MAGIC) {
                error.hint("programs write its parts: commit them with --parts K")
            } else {
                error
            });
        }
        if front[MAGIC.len()] != VERSION {
            let text = "another release of dlfs made this plan";
            return Err(Error::new(ErrorKind::InvalidArgument, text)
                .path(path)
                .hint("use that release, or plan again"));
        }
        let mut tail = [0; TAIL_BYTES];
        file.read_exact_at(&mut tail, len - TAIL_BYTES as u64).map_err(named)?;
        let (head_len, id) = tail.split_at(8);
        let head_len = u64::from_le_bytes(head_len.try_into().expect("8 bytes"));
        let room = len - (front.len() + TAIL_BYTES) as u64;
        let head_len = (head_len <= room).then_some(head_len).ok_or_else(|| damaged(path))?;
        let mut head = zeroed_vec(head_len).map_err(|error| error.path(path))?;
        file.read_exact_at(&mut head, len - TAIL_BYTES as u64 - head_len).map_err(named)?;
        if xxh3_128(&head).to_le_bytes() != id {
            return Err(damaged(path));
        }
        let id = id.try_into().expect("16 bytes");
        let plan = PlanFile::parse(&head, id, room - head_len, part);
        let plan = plan.map_err(|error| Error::from(error).path(path))?;
        Ok(PlanFile { file: Some(file), ..plan })
    }

    /// The bytes of a piece.
    ///
    /// # Errors
    /// `Corrupt`: they are not those that were planned. Those of the file system.
    pub(super) fn read_piece(&self, piece: &Piece) -> Result<Vec<u8>> {
        let file = self.file.as_ref();
        let file = file.ok_or_else(|| Error::new(ErrorKind::Internal, "the plan is not open"))?;
        let mut bytes = zeroed_vec(piece.len)?;
        file.read_exact_at(&mut bytes, piece.offset).map_err(Error::from)?;
        if xxh3_64(&bytes) == piece.hash { Ok(bytes) } else { Err(damaged(Path::new(""))) }
    }

    /// Encodes the part of the file that follows the pieces.
    fn head(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put_image(&mut out);
        self.shared.save_shared(&mut out);
        self.put_chunks(&mut out);
        self.rows.iter().for_each(|pieces| put_pieces(&mut out, pieces));
        put_pieces(&mut out, &self.names);
        out
    }

    fn put_image(&self, out: &mut Vec<u8>) {
        put_string(out, Address::list_to_string(&self.image).as_bytes());
        out.extend_from_slice(&self.journal.encode());
        put_number(out, self.journal.part.count);
        put_string(out, self.kind.to_string().as_bytes());
        put_list(out, &self.fields);
        put_types(out, self.fields.len(), &self.field_types);
        put_columns(out, self.columns.iter().map(|column| (&*column.name, Some(column.kind))));
        put_list(out, &self.classes);
        put_number(out, self.source_fields.len() as u64);
        for field in &self.source_fields {
            put_number(out, field.map_or(0, |field| u64::from(field) + 1));
        }
        put_number(out, self.class_numbers.len() as u64);
        self.class_numbers.iter().for_each(|number| put_number(out, label_code(Some(*number))));
        put_number(out, self.sample_bytes);
        self.planned_cells.iter().for_each(|cells| put_number(out, *cells));
    }

    fn put_chunks(&self, out: &mut Vec<u8>) {
        put_number(out, self.chunks.len() as u64);
        for chunk in &self.chunks {
            put_number(out, chunk.num_slots.into());
            put_number(out, chunk.cells.namespace.into());
            put_number(out, chunk.cells.cell);
            put_number(out, chunk.cells.cells);
            put_number(out, chunk.oversize.into());
        }
    }

    /// Reads the head, which `pieces_len` bytes of pieces lie before.
    fn parse(
        head: &[u8],
        id: [u8; 16],
        pieces_len: u64,
        part: Option<u16>,
    ) -> std::result::Result<PlanFile, FormatError> {
        let mut from = Cursor::new(WHAT, head);
        let image = text(&mut from)?;
        let image = Address::parse_list(&image).map_err(|_| wrong("addresses of a plan"))?;
        let mut journal = Journal::parse(from.bytes(JOURNAL_BYTES as u64)?)?;
        journal.part.count = from.number()?;
        journal.part.check()?;
        equal("addresses of a plan", journal.layout.num_namespaces.into(), image.len() as u64)?;
        let kind = text(&mut from)?.parse().map_err(|_| wrong("kind of a source"))?;
        let fields = take_list(&mut from)?;
        let field_types = take_types(&mut from)?;
        let columns = take_columns(&mut from)?.into_iter().map(|(name, kind)| {
            Ok(ColumnSpec { name, kind: kind.ok_or_else(|| wrong("type of a column"))? })
        });
        let columns = columns.collect::<std::result::Result<Vec<_>, FormatError>>()?;
        let classes = take_list(&mut from)?;
        let mut source_fields = Vec::new();
        for _ in 0..from.count(1)? {
            let number = at_most("field of a source", from.number()?, u16::MAX.into())?;
            source_fields.push(number.checked_sub(1).map(|number| number as u16));
        }
        let mut class_numbers = Vec::new();
        for _ in 0..from.count(1)? {
            class_numbers.push(label_of(from.number()?).ok_or_else(|| wrong("number of a class"))?);
        }
        let sample_bytes = from.number()?;
        let planned_cells = (0..image.len()).map(|_| from.number());
        let planned_cells = planned_cells.collect::<std::result::Result<_, _>>()?;
        let shared = Index::load_shared(&mut from)?;
        let mut chunks = take_chunks(&mut from, &journal)?;
        let mut at = (MAGIC.len() + 1) as u64;
        let mut rows = Vec::new();
        for namespace in 0..journal.layout.num_namespaces {
            let own = chunks.iter().filter(|chunk| chunk.cells.namespace == namespace).count();
            let pieces = take_pieces(&mut from, &mut at)?;
            let found = pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.count));
            equal("chunks of a part of a plan", own as u64, found)?;
            rows.push(pieces);
        }
        let names = take_pieces(&mut from, &mut at)?;
        let found = names.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.count));
        equal("names of a plan", journal.part.count, found)?;
        equal("bytes of the pieces of a plan", (MAGIC.len() + 1) as u64 + pieces_len, at)?;
        if let Some(part) = part {
            chunks.retain(|chunk| chunk.cells.namespace == part);
            chunks.shrink_to_fit();
        }
        equal("bytes behind the pieces of a plan", 0, from.len() as u64)?;
        Ok(PlanFile {
            id,
            image,
            journal,
            kind,
            fields,
            field_types,
            columns,
            classes,
            source_fields,
            class_numbers,
            sample_bytes,
            planned_cells,
            shared,
            chunks,
            rows,
            names,
            file: None,
        })
    }

    /// The properties that all its chunks share.
    pub(super) fn spec(&self) -> ChunkSpec {
        let journal = &self.journal;
        ChunkSpec {
            layout: journal.layout,
            generation: journal.generation,
            part: journal.part,
            fields: self.fields.clone(),
            field_types: self.field_types.clone(),
            columns: self.columns.clone(),
        }
    }

    /// The map from slots to rows.
    pub(super) fn placement(&self) -> Placement {
        Placement::new(self.journal.part)
    }

    /// The source, with the rows of a piece.
    ///
    /// # Errors
    /// `Corrupt`: the piece is damaged. A folder of the source does not open.
    pub(super) fn source(&self, piece: &Piece, num_rows: u64) -> Result<Source> {
        let bytes = self.read_piece(piece)?;
        let mut from = Cursor::new(WHAT, &bytes);
        let index = self.shared.load_rows(&mut from)?;
        equal("rows of a piece of a plan", num_rows, index.len())?;
        Source::of_plan(self.kind, index)
    }

    /// The rows of `chunks`, which `index` has.
    pub(super) fn rows<'a>(&self, index: &'a Index, chunks: &[ChunkLayout]) -> Rows<'a> {
        let source_fields = self.source_fields.clone();
        let class_numbers = self.class_numbers.clone();
        let order = RowOrder::of_chunks(chunks);
        Rows { index, source_fields, class_numbers, values: None, order }
    }

    /// The chunks of a namespace, in the order of their numbers.
    pub(super) fn chunks_of(&self, namespace: u16) -> Vec<ChunkLayout> {
        let chunks = self.chunks.iter().copied();
        chunks.filter(|chunk| chunk.cells.namespace == namespace).collect()
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
    Ok(chunks)
}

pub(super) fn put_types(out: &mut Vec<u8>, num_fields: usize, types: &FieldTypes) {
    let types = (0..num_fields).map(|at| match types.of(at) {
        Some(kind) => kind.to_string(),
        None => String::new(),
    });
    put_list(out, &types.collect::<Vec<_>>());
}

pub(super) fn take_types(from: &mut Cursor<'_>) -> std::result::Result<FieldTypes, FormatError> {
    let types = take_list(from)?;
    let types = types.iter().map(|kind| match &kind[..] {
        b"" => Ok(None),
        kind => std::str::from_utf8(kind)
            .ok()
            .and_then(|kind| kind.parse::<FieldType>().ok())
            .map(Some)
            .ok_or_else(|| wrong("type of a field")),
    });
    Ok(FieldTypes::new(types.collect::<std::result::Result<_, _>>()?))
}

pub(super) fn put_list(out: &mut Vec<u8>, list: &[impl AsRef<[u8]>]) {
    put_number(out, list.len() as u64);
    list.iter().for_each(|item| put_string(out, item.as_ref()));
}

pub(super) fn take_list(from: &mut Cursor<'_>) -> std::result::Result<Vec<Vec<u8>>, FormatError> {
    (0..from.count(1)?).map(|_| Ok(from.string()?.to_vec())).collect()
}

pub(super) fn put_columns<'a>(
    out: &mut Vec<u8>,
    columns: impl ExactSizeIterator<Item = (&'a str, Option<ColumnType>)>,
) {
    put_number(out, columns.len() as u64);
    for (name, kind) in columns {
        put_string(out, name.as_bytes());
        put_string(out, kind.map_or("", ColumnType::name).as_bytes());
    }
}

pub(super) fn take_columns(
    from: &mut Cursor<'_>,
) -> std::result::Result<Vec<(String, Option<ColumnType>)>, FormatError> {
    let mut columns = Vec::new();
    for _ in 0..from.count(2)? {
        let name = text(from)?;
        let kind = text(from)?;
        let kind = match &*kind {
            "" => None,
            kind => Some(kind.parse().map_err(|_| wrong("type of a column"))?),
        };
        columns.push((name, kind));
    }
    Ok(columns)
}

pub(super) fn text(from: &mut Cursor<'_>) -> std::result::Result<String, FormatError> {
    let bytes = from.string()?;
    String::from_utf8(bytes.to_vec()).map_err(|_| wrong("text of a plan"))
}

pub(super) fn wrong(what: &'static str) -> FormatError {
    FormatError::Mismatch { what, expected: 0, found: 1 }
}

fn damaged(path: &Path) -> Error {
    let text = "the plan is damaged: its bytes do not have the hash that it says";
    let error = Error::new(ErrorKind::Corrupt, text)
        .hint("copy it again from where it was made, or make another");
    if path.as_os_str().is_empty() { error } else { error.path(path) }
}

const WHAT: &str = "plan of an import";
const MAGIC: [u8; 8] = *b"DLFSPLAN";
/// The plan of parts that programs write begins with this.
pub(super) const WRITTEN_MAGIC: [u8; 8] = *b"DLFSWPLN";
const VERSION: u8 = 3;
/// The bytes of the head, and the id.
const TAIL_BYTES: usize = 8 + 16;
