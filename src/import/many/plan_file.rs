//! The plan of an import by many: a file that every part and the commit read.
//!
//! ```text
//! magic, version | what the image is like | the index of the source | chunks | XXH3-128 of all before
//! ```
//!
//! The last 16 bytes are the plan's id. Numbers are LEB128, texts have their length before them.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::format::builder::ChunkSpec;
use crate::format::columns::{ColumnSpec, ColumnType};
use crate::format::cursor::{Cursor, label_code, label_of, put_number, put_string};
use crate::format::error::{at_most, equal};
use crate::format::field_type::FieldType;
use crate::format::{CellRange, FieldTypes, FormatError, Part, Placement};
use crate::import::columns::{ColumnFile, RowColumns};
use crate::import::journal::{JOURNAL_BYTES, Journal};
use crate::import::options::ColumnsFrom;
use crate::import::plan::{ChunkLayout, Rows};
use crate::import::sources::{Index, Source, SourceKind};
use crate::nvme::Address;
use crate::replace_file::replace_file;
use crate::units::Slot;
use crate::{Error, ErrorKind, Result};

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
    /// The table of values, and its fingerprint.
    pub(super) values: Option<(ColumnsFrom, u64)>,
    pub(super) index: Index,
    /// All chunks, in the order of their numbers.
    pub(super) chunks: Vec<ChunkLayout>,
}

impl PlanFile {
    /// Writes it to the file at `path`, and gives it its id.
    ///
    /// # Errors
    /// Those of the file system. `InvalidArgument`: a path that is not UTF-8.
    pub(super) fn write(&mut self, path: &Path) -> Result<()> {
        let mut out = MAGIC.to_vec();
        put_number(&mut out, VERSION);
        self.put_image(&mut out)?;
        self.index.save(&mut out);
        self.put_chunks(&mut out);
        self.id = xxh3_128(&out).to_le_bytes();
        out.extend_from_slice(&self.id);
        replace_file(path, &out)
    }

    /// Reads the plan at `path`.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged. `InvalidArgument`: it is no plan. Those of the file system.
    pub(super) fn read(path: &Path) -> Result<PlanFile> {
        let bytes = std::fs::read(path).map_err(|error| Error::from(error).path(path))?;
        let Some(rest) = bytes.strip_prefix(&MAGIC).filter(|rest| rest.len() >= ID_BYTES) else {
            let text = "this is not the plan of an import";
            let error = Error::new(ErrorKind::InvalidArgument, text).path(path);
            return Err(match bytes.starts_with(&WRITTEN_MAGIC) {
                true => error.hint("programs write its parts: commit them with --parts K"),
                false => error,
            });
        };
        let (body, id) = rest.split_at(rest.len() - ID_BYTES);
        if xxh3_128(&bytes[..bytes.len() - ID_BYTES]).to_le_bytes() != id {
            let text = "the plan is damaged: its bytes do not have the hash at its end";
            return Err(Error::new(ErrorKind::Corrupt, text)
                .path(path)
                .hint("copy it again from where it was made, or make another"));
        }
        let id = id.try_into().expect("split there");
        PlanFile::parse(body, id).map_err(|error| Error::from(error).path(path))
    }

    fn put_image(&self, out: &mut Vec<u8>) -> Result<()> {
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
        put_number(out, self.values.is_some().into());
        if let Some((from, fingerprint)) = &self.values {
            let Some(path) = from.path.to_str() else {
                let text = "a plan names its table of values by a path in UTF-8";
                return Err(Error::new(ErrorKind::InvalidArgument, text).path(&from.path));
            };
            put_string(out, path.as_bytes());
            put_string(out, from.key.as_deref().unwrap_or_default().as_bytes());
            put_columns(out, from.only.iter().map(|(name, kind)| (&**name, *kind)));
            put_number(out, *fingerprint);
        }
        Ok(())
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

    fn parse(body: &[u8], id: [u8; 16]) -> std::result::Result<PlanFile, FormatError> {
        let mut from = Cursor::new(WHAT, body);
        equal("version of a plan", VERSION, from.number()?)?;
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
        let values = match from.number()? {
            0 => None,
            _ => {
                let (path, key) = (text(&mut from)?.into(), text(&mut from)?);
                let (key, only) = ((!key.is_empty()).then_some(key), take_columns(&mut from)?);
                Some((ColumnsFrom { path, key, only }, from.number()?))
            }
        };
        let index = Index::load(&mut from)?;
        equal("samples of a plan", journal.part.count, index.len())?;
        let chunks = take_chunks(&mut from, &journal)?;
        equal("bytes behind the chunks of a plan", 0, from.len() as u64)?;
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
            values,
            index,
            chunks,
        })
    }

    /// What all its chunks share.
    pub(super) fn spec(&self) -> ChunkSpec {
        let (journal, part) = (&self.journal, self.journal.part);
        ChunkSpec {
            layout: journal.layout,
            generation: journal.generation,
            part_first: part.first,
            part_seed: part.seed,
            part_window: part.window,
            part_count: part.count,
            fields: self.fields.clone(),
            field_types: self.field_types.clone(),
            columns: self.columns.clone(),
        }
    }

    /// The map from slots to rows.
    pub(super) fn placement(&self) -> Placement {
        Placement::new(self.journal.part)
    }

    /// The table of values, read again.
    ///
    /// # Errors
    /// `BadSource`: it is not the one that was planned with.
    pub(super) fn column_file(&self) -> Result<Option<ColumnFile>> {
        let Some((from, fingerprint)) = &self.values else { return Ok(None) };
        let file = ColumnFile::read(from)?;
        if file.fingerprint() != *fingerprint {
            let text = "the table of values has changed since the import was planned";
            return Err(Error::new(ErrorKind::BadSource, text).path(&from.path));
        }
        Ok(Some(file))
    }

    /// The source, with the index of the plan, which has none afterwards.
    ///
    /// # Errors
    /// A folder of the source does not open.
    pub(super) fn source(&mut self) -> Result<Source> {
        Source::of_plan(self.kind, std::mem::take(&mut self.index))
    }

    /// The rows of `source`.
    pub(super) fn rows<'a>(
        &self,
        index: &'a Index,
        values: Option<&'a ColumnFile>,
    ) -> Result<Rows<'a>> {
        let values: Option<RowColumns<'a>> = values.map(|file| file.of_rows(index)).transpose()?;
        let (source_fields, class_numbers) =
            (self.source_fields.clone(), self.class_numbers.clone());
        Ok(Rows { index, source_fields, class_numbers, values })
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
    let (mut slot, mut chunks) = (first, Vec::new());
    for sequence in 0..from.count(5)? as u64 {
        let num_slots = at_most("samples of a chunk", from.number()?, count)? as u32;
        let last = u64::from(journal.layout.num_namespaces) - 1;
        let namespace = at_most("namespace of a chunk", from.number()?, last)? as u16;
        let (cell, cells) = (from.number()?, from.number()?);
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
        let (name, kind) = (text(from)?, text(from)?);
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

const WHAT: &str = "plan of an import";
const MAGIC: [u8; 8] = *b"DLFSPLAN";
/// The plan of parts that programs write begins with this.
pub(super) const WRITTEN_MAGIC: [u8; 8] = *b"DLFSWPLN";
const VERSION: u64 = 2;
const ID_BYTES: usize = 16;
